"""Two passes: order, failures and limits with a second model of our own, then through a real Triton."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from gateway_streams import NEO, ONE, events_of, whole_frames
from toy import SAMPLE_RATE
from tritone.errors import ServerBusyError
from tritone.gateway.ask import Ask, Event
from tritone.gateway.second_pass import MAX_WAITING, SecondPass
from tritone.transcript import Span, Transcript

SAMPLES = np.zeros(10, np.int16)
PAUSE = np.zeros(SAMPLE_RATE, np.float32)
TALK = np.concatenate([part for word in (ONE, NEO) for part in (whole_frames(word), PAUSE)])


def final(segment: int, text: str = "first") -> Event:
    words = (Span(text, 4.0, 4.5, 1.0, "A"),)
    return Event(kind="final", segment=segment, time_s=1.0, transcript=Transcript(text=text, words=words, audio_s=9.0))


def partial(segment: int, text: str) -> Event:
    return Event(kind="partial", segment=segment, time_s=2.0, transcript=Transcript(text=text, is_final=False))


def told(events: list[Event]) -> list[tuple[str, int, str, str]]:
    return [
        (each.kind, each.segment, each.transcript.text if each.transcript else "", each.second_pass) for each in events
    ]


class Writer:
    """A second model that answers when it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.heard: list[int] = []
        self.error: Exception | None = None

    async def write(self, samples: Any) -> Transcript:
        self.heard.append(len(samples))
        await self.may.wait()
        if self.error is not None:
            raise self.error
        return Transcript(text="second", words=(Span("second", 0.0, 0.5, 1.0),))


def with_writer(test: Callable[[Writer, SecondPass, list[Event]], Coroutine[Any, Any, None]], timeout_s: float) -> None:
    async def work() -> None:
        writer, counted = Writer(), []  # type: ignore[var-annotated]
        second = SecondPass(writer.write, timeout_s, counted.append)
        try:
            await test(writer, second, counted)
        finally:
            await second.close()

    asyncio.run(work())


def test_later_events_wait_for_the_final_text_and_the_stream_does_not() -> None:
    async def test(writer: Writer, second: SecondPass, counted: list[Event]) -> None:
        assert not await second.late()
        second.add(partial(0, "fi"))
        second.begin(final(0), SAMPLES, 4.0, whole=True)
        second.add(partial(1, "a"))
        second.add(partial(1, "ab"))
        assert told(await second.ready()) == [("partial", 0, "fi", "")]
        assert await second.ready() == counted == []
        writer.may.set()
        assert await second.late()
        events = await second.ready()
        assert told(events) == [("final", 0, "second", "done"), ("partial", 1, "ab", "")]
        found = events[0].transcript
        assert found is not None
        assert (found.words[0].start_s, found.audio_s, writer.heard) == (4.0, 9.0, [10])
        assert found.words[0].speaker == "A", "the one that the first pass found there"
        assert [each.second_pass for each in counted] == ["done"]

    with_writer(test, 60)


def test_what_the_second_pass_cannot_write_keeps_its_text_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def failed(writer: Writer, second: SecondPass, counted: list[Event]) -> None:
        writer.error = ServerBusyError("no room")
        writer.may.set()
        second.begin(final(0), SAMPLES, 0.0, whole=True)
        second.begin(final(1), SAMPLES, 0.0, whole=False)
        second.begin(final(2, ""), SAMPLES, 0.0, whole=True)
        assert told(await second.settled()) == [
            ("final", 0, "first", "failed"),
            ("final", 1, "first", "too_long"),
            ("final", 2, "", ""),
        ]
        assert sorted(each.second_pass for each in counted) == ["", "failed", "too_long"]

    async def slow(writer: Writer, second: SecondPass, counted: list[Event]) -> None:
        second.begin(final(0), SAMPLES, 0.0, whole=True)
        assert told(await second.settled()) == [("final", 0, "first", "timeout")]

    with_writer(failed, 60)
    assert "segment 0 of a stream keeps the text of the first pass (failed): no room" in caplog.text
    with_writer(slow, 0.01)
    assert "it took more than 0.01 s" in caplog.text


def test_a_stream_waits_when_too_many_texts_are_being_written() -> None:
    async def test(writer: Writer, second: SecondPass, counted: list[Event]) -> None:
        for segment in range(MAX_WAITING + 1):
            second.begin(final(segment), SAMPLES, 0.0, whole=True)
        waits = asyncio.ensure_future(second.ready())
        await asyncio.sleep(0)
        assert not waits.done()
        writer.may.set()
        await waits
        assert len(counted) == MAX_WAITING + 1

    with_writer(test, 60)


def finals(run: Any, speech: Any, ask: Ask) -> list[Event]:
    return [event for event in run(events_of(speech, ask, TALK)) if event.kind == "final"]


def test_the_second_model_has_search_parameters_of_its_own(gateway: Any, run: Any) -> None:
    found = finals(run, gateway.gateway.speech, Ask(final_model="toy", final_search={"timestamps": False}))
    assert told(found) == [("final", 0, "one", "done"), ("final", 1, "neo", "done")]
    assert [event.transcript.words for event in found] == [(), ()]
    found = finals(run, gateway.gateway.speech, Ask(final_model="toy", search={"timestamps": False}))
    assert [event.transcript.words[0].start_s > 1 for event in found] == [False, True]


def test_a_second_model_that_refuses_leaves_the_first_text(gateway: Any, run: Any) -> None:
    found = finals(run, gateway.gateway.speech, Ask(final_model="toy", final_search={"colour": 1}))
    assert told(found) == [("final", 0, "one", "failed"), ("final", 1, "neo", "failed")]
    text = gateway.gateway.metrics.text().decode()
    assert 'second_passes_total{model="live",outcome="failed",protocol="test"}' in text
