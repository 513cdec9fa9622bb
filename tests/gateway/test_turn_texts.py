"""Parts of a turn, which the recogniser's own rules ended, as one text; texts that a recogniser takes back."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tritone.gateway.ask import Ask
from tritone.gateway.callers import Caller
from tritone.gateway.live import Live
from tritone.transcript import Span, Transcript, continued


def part(text: str, confidence: float, **more: object) -> Transcript:
    words = tuple(Span(word, 0.1 * index, 0.1 * index + 0.1, confidence) for index, word in enumerate(text.split()))
    return Transcript(text=text, words=words, confidence=confidence, **more)  # type: ignore[arg-type]


def test_two_parts_are_one_text_with_the_words_of_both_and_the_rest_of_the_second() -> None:
    found = continued(part("one two", 0.5, language="en"), part("three", 0.8, segment=1, is_final=False, settled=2))
    assert (found.text, found.segment, found.is_final, found.language) == ("one two three", 1, False, "en")
    assert [word.text for word in found.words] == ["one", "two", "three"]
    assert found.confidence == pytest.approx((0.5 + 0.5 + 0.8) / 3)
    assert found.settled == len("one two ") + 2


def test_nothing_before_or_after_changes_no_text() -> None:
    one = part("one", 0.5)
    assert continued(Transcript(""), one) is one
    assert continued(one, Transcript("", audio_s=3.0)).text == "one"


RATE = 100


class Says:
    """A stream of a recogniser that answers with these texts in turn, the last one at its end."""

    model = SimpleNamespace(name="says")

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)

    async def accept(self, samples: Any) -> Transcript:
        return Transcript(text=self._texts.pop(0), is_final=False)

    async def finish(self) -> Transcript:
        return Transcript(text=self._texts.pop(0))

    async def close(self) -> None:
        pass


def happened(*texts: str) -> list[str]:
    """The kinds of the events of a stream whose recogniser writes these texts, the final one with its text."""

    async def recognising(*_: Any) -> Says:
        return Says(*texts)

    async def written(found: Transcript, _: Any) -> Transcript:
        return found

    def nothing(*_: Any) -> None:
        pass

    speech: Any = SimpleNamespace(
        limits=SimpleNamespace(max_stream_s=60.0),
        recognising=recognising,
        written=written,
        so_far=lambda found, _: found,
        count_audio=nothing,
        observe=nothing,
    )

    async def work() -> list[str]:
        events = []
        async with Live(speech, Ask(), RATE, Caller(protocol="test")) as live:
            await live.start()
            for _ in texts[:-1]:
                events += await live.accept(np.zeros(RATE, np.float32))
            events += await live.finish()
        return [f"final {each.transcript.text}" if each.kind == "final" else each.kind for each in events]

    return asyncio.run(work())


def test_speech_starts_once_though_its_text_is_taken_back_and_written_again() -> None:
    partials = ["partial", "partial", "partial"]
    assert happened("and", "", "ask", "ask not") == ["speech_started", *partials, "speech_stopped", "final ask not"]


def test_speech_that_was_none_stops_all_the_same() -> None:
    assert happened("and", "", "") == ["speech_started", "partial", "partial", "speech_stopped", "final "]
