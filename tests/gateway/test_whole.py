"""A model for whole recordings in a stream: what it is asked, and what becomes of times."""

import asyncio
from typing import Any

import numpy as np

from tritone.client.models import ModelInfo
from tritone.gateway.whole import WholeStream
from tritone.transcript import Span, Transcript

RATE = 100  # Hz


def opened(max_audio_s: float | None = None) -> tuple[WholeStream, list[Any]]:
    """A stream of a model that writes how many samples it heard, and what it heard."""
    heard: list[Any] = []

    async def transcribe(samples: Any) -> Transcript:
        heard.append(samples)
        return Transcript(text=str(samples.size), words=(Span(str(samples.size), 0.0, 0.5, 1.0),))

    return WholeStream(ModelInfo(name="m", kind="offline", max_audio_s=max_audio_s), RATE, transcribe), heard


def test_the_model_is_asked_once_at_the_end() -> None:
    async def work() -> None:
        stream, heard = opened()
        for size in (30, 20):
            found = await stream.accept(np.full(size, size, np.int16))
            assert (found.text, found.is_final, heard) == ("", False, [])
        last = await stream.finish()
        assert (last.text, last.audio_s, last.is_final) == ("50", 0.5, True)
        assert heard[0].tolist() == [30] * 30 + [20] * 20
        assert heard[0].dtype == np.int16

    asyncio.run(work())


def test_integers_and_floats_of_one_utterance_are_joined_at_one_scale() -> None:
    async def work() -> None:
        stream, heard = opened()
        await stream.accept(np.array([16384], np.int16))
        await stream.accept(np.array([0.25], np.float32))
        await stream.finish()
        assert heard[0].tolist() == [0.5, 0.25]

    asyncio.run(work())


def test_what_is_too_long_is_written_in_parts_with_times_of_the_whole() -> None:
    async def work() -> None:
        stream, heard = opened(max_audio_s=2.0)
        found = await stream.accept(np.zeros(450, np.float32))
        assert [(each.text, each.audio_s, each.words[0].start_s) for each in found.ended] == [
            ("200", 2.0, 0.0),
            ("200", 4.0, 2.0),
        ]
        last = await stream.finish()
        assert (last.text, last.audio_s, last.words[0].start_s) == ("50", 4.5, 4.0)
        assert [each.size for each in heard] == [200, 200, 50]

    asyncio.run(work())


def test_no_audio_has_no_text_and_asks_nobody() -> None:
    async def work() -> None:
        stream, heard = opened()
        assert (await stream.finish()).text == ""
        await stream.accept(np.zeros(5, np.int16))
        await stream.close()
        assert (await stream.finish()).text == ""
        assert heard == []

    asyncio.run(work())
