"""Events of a server that sends whatever it likes: what they cost, and where they end."""

import json
import time
from typing import Any

import pytest

from tritone.errors import ServerAnswerError
from tritone.gateway.upstreams.answers import MAX_CHARS, MAX_LISTED, read_transcript
from tritone.gateway.upstreams.events import MAX_EVENTS, TextEvents

SIZE = 7 << 20  # as much as an answer may have, nearly


def line(event: Any) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


def delta(text: str) -> bytes:
    return line({"type": "transcript.text.delta", "delta": text})


DONE = line({"type": "transcript.text.done", "text": "the end"})


def fed(sent: bytes, step: int) -> tuple[TextEvents, list[str]]:
    texts: list[str] = []
    events = TextEvents(texts.append)
    for start in range(0, len(sent), step):
        events.feed(sent[start : start + step])
    return events, texts


@pytest.mark.parametrize("step", [1024, 65536])
@pytest.mark.parametrize(
    "sent",
    [
        b" " * SIZE,
        b"\n" * SIZE,
        b"\r\n" * (SIZE // 2),
        b": a comment\n" * (SIZE // 12),
        b"data:\n" * (SIZE // 6),
        b"data: " + b"d" * SIZE,
        b"d" * SIZE,
        b"{" + b" " * SIZE,
        delta("ab ") * 120_000,
        delta("") * 120_000,
        delta("ab" * 40) * (SIZE // 140),
    ],
    ids=["spaces", "lines", "CRLF", "comments", "data", "long line", "no field", "JSON", "deltas", "empty", "text"],
)
def test_whatever_comes_takes_time_in_proportion_and_is_refused(sent: bytes, step: int) -> None:
    began = time.process_time()
    events, _ = fed(sent, step)
    with pytest.raises(ServerAnswerError):
        events.transcript(1.0)
    assert time.process_time() - began < 3  # of a slow and busy machine, where the spaces took 60 s


def test_four_hours_of_speech_are_within_the_limits() -> None:
    events, texts = fed(delta("word ") * (MAX_EVENTS - 1) + DONE, 4096)
    assert events.transcript(1.0).text == "the end"
    assert texts[0].startswith("word word")
    assert len(texts[-1]) > 4.9 * MAX_EVENTS * 0.99
    assert sum(map(len, texts)) < 2000 * len(texts[-1])  # and not once for each word


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (delta("a") * (MAX_EVENTS + 1), f"more than {MAX_EVENTS} events"),
        (b": comment\n" * 300_000, "lines"),
        (delta("a" * 1000) * 1100, f"more than {MAX_CHARS} characters"),
        (line({"type": "transcript.text.done", "text": "a" * (MAX_CHARS + 1)}), f"more than {MAX_CHARS} characters"),
    ],
)
def test_limits_are_named(sent: bytes, message: str) -> None:
    events, _ = fed(sent + DONE, 65536)
    with pytest.raises(ServerAnswerError, match=message):
        events.transcript(1.0)


def test_each_part_passes_on_the_text_so_far_once() -> None:
    texts: list[str] = []
    events = TextEvents(texts.append)
    for part in (delta("Good") + delta(" morning"), delta(".")[:9], delta(".")[9:], DONE):
        events.feed(part)
    assert texts == ["Good morning", "Good morning."]
    assert events.transcript(2.0).text == "the end"


def test_answers_with_more_words_than_anybody_says_are_refused() -> None:
    words = [{"word": "a", "start": 0, "end": 0.1}] * (MAX_LISTED + 1)
    with pytest.raises(ServerAnswerError, match=f"more than {MAX_LISTED} words"):
        read_transcript(json.dumps({"text": "a", "words": words}).encode(), "words", 1.0)
    with pytest.raises(ServerAnswerError, match=f"more than {MAX_CHARS} characters"):
        read_transcript(json.dumps({"text": "a" * (MAX_CHARS + 1)}).encode(), "none", 1.0)
