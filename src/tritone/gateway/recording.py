"""A recording of any length and format, on its way through a model: short ones at once, long ones in pieces.

    recording = Recording(speech, data, ask, caller)
    async for part in recording.parts(): ...      finished parts, in order, times of the whole
    recording.whole                               the transcript of all of it, at the end

A long one is decoded as it is cut, at pauses where Triton has a model for voice activity, and a few pieces are with the
model at once: it takes little memory.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio

from tritone.audio.files import AudioBlocks, Selection, read_or_blocks
from tritone.audio.waveform import Samples
from tritone.client.models import ModelInfo
from tritone.errors import AudioError
from tritone.gateway.ask import Ask
from tritone.gateway.callers import Caller
from tritone.longform import Cutting, Joiner, Piece, pieces
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.gateway.speech import Speech

AT_ONCE = 4  # pieces of one recording that the model has
Answer = TypeVar("Answer")


class Recording:
    """One recording; its parts are asked for once."""

    def __init__(self, speech: "Speech", audio: bytes | Path | Selection, ask: Ask, caller: Caller) -> None:
        self.whole = Transcript(text="")
        self._speech = speech
        self._audio = audio
        self._ask = ask
        self._caller = caller
        self._counted_s = 0.0

    async def parts(self) -> AsyncGenerator[Transcript, None]:
        """The finished parts; one for a short recording. Texts are as models write them."""
        info = await self._speech.model(self._ask.model, "offline")
        longest_s = min(self._speech.limits.max_audio_s, info.max_audio_s or float("inf"))
        audio = await _whole(read_or_blocks, self._audio, info.sample_rate, longest_s)
        if not isinstance(audio, AudioBlocks):
            self._count(audio.size / info.sample_rate, info)
            self.whole = await self._once(audio, info, details=self._ask.details)
            yield self.whole
            return
        try:
            self._check_length(audio.duration_s)  # what its header claims, before any work
            async with aclosing(self._long(audio, info, longest_s)) as found:
                async for part in found:
                    yield part
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(audio.close)

    async def _long(self, audio: AudioBlocks, info: ModelInfo, longest_s: float) -> AsyncGenerator[Transcript, None]:
        cutting = (Cutting() if info.has_details else Cutting(context_s=0.0)).within(longest_s)
        activity = await self._speech.activity(info.sample_rate)
        cut = await _whole(lambda: pieces(audio, info.sample_rate, cutting=cutting, activity=activity))
        joiner = Joiner(details=self._ask.details)
        asked: dict[asyncio.Task[Transcript], Piece] = {}
        try:
            while True:
                piece = await _whole(next, cut, None)
                self._count(cut.audio_s, info)
                if piece is not None:
                    task = asyncio.ensure_future(self._once(piece.samples, info, details=info.has_details))
                    asked[task] = piece
                while asked and (piece is None or len(asked) >= AT_ONCE):
                    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                    for each in done:
                        for part in joiner.add(asked.pop(each), each.result()):
                            yield part
                if piece is None:
                    break
            self.whole = joiner.finish(cut.audio_s)
        finally:
            for each in asked:
                each.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*asked, return_exceptions=True)
                await asyncio.to_thread(cut.close)

    async def _once(self, samples: Samples, info: ModelInfo, *, details: bool) -> Transcript:
        return await self._speech.once(samples, info.sample_rate, info.name, self._ask, self._caller, details=details)

    def _count(self, audio_s: float, info: ModelInfo) -> None:
        """Count audio that was read, up to so many seconds from the start."""
        self._check_length(audio_s)
        self._speech.count_audio(audio_s - self._counted_s, info.name, self._caller)
        self._counted_s = audio_s

    def _check_length(self, audio_s: float) -> None:
        longest_s = self._speech.limits.max_audio_s
        if audio_s > longest_s:
            raise AudioError(f"the recording has more than {longest_s:g} s of audio, the longest one; send it in parts")


async def _whole(work: Callable[..., Answer], *args: object) -> Answer:
    """What a thread makes of it. Who is cancelled waits for the thread, whose step is short, and may close after it."""
    step = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await asyncio.wait((step,))
        if not step.cancelled() and step.exception() is None and isinstance(found := step.result(), AudioBlocks):
            found.close()
        raise
