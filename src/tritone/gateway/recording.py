"""A recording of any length and format, on its way through a model: short ones at once, long ones in pieces.

    recording = Recording(speech, data, ask, caller)
    async for part in recording.parts(): ...      finished parts, in order, times of the whole
    recording.whole                               the transcript of all of it, at the end

Where models send what they write, parts that are not final have the text so far of the next one.

A long recording is decoded as it is cut, at pauses where Triton has a model for voice activity, and a few pieces are
with the model at once: it takes little memory.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
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

    def __init__(
        self,
        speech: "Speech",
        audio: bytes | Path | Selection,
        ask: Ask,
        caller: Caller,
        *,
        growing: bool = False,
    ) -> None:
        self.whole = Transcript(text="")
        self._speech = speech
        self._audio = audio
        self._ask = ask
        self._caller = caller
        self._counted_s = 0.0
        self._growing = growing
        self._texts: dict[int, str] = {}  # so far, by pieces
        self._news = asyncio.Event()  # whether there are new ones

    async def parts(self) -> AsyncGenerator[Transcript, None]:
        """The finished parts; one for a short recording. Texts are as models write them."""
        info = await self._speech.model(self._ask.model, "offline")
        self._growing = self._growing and self._speech.sends_events(info)
        longest_s = min(self._speech.limits.max_audio_s, info.max_audio_s or float("inf"))
        audio = await _whole(read_or_blocks, self._audio, info.sample_rate, longest_s)
        if not isinstance(audio, AudioBlocks):
            self._count(audio.size / info.sample_rate, info)
            task = asyncio.ensure_future(self._once(audio, info, details=self._ask.details))
            try:
                async with aclosing(self._so_far((task,), 0)) as found:
                    async for part in found:
                        yield part
                self.whole = await task
            finally:
                await _cancelled((task,))
            yield self.whole
            return
        # Pieces with context are joined by times of words, which do not come with events.
        self._growing = self._growing and not info.has_details
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
                    work = self._once(piece.samples, info, details=info.has_details, index=piece.index)
                    task = asyncio.ensure_future(work)
                    asked[task] = piece
                while asked and (piece is None or len(asked) >= AT_ONCE):
                    async with aclosing(self._so_far(asked, min(each.index for each in asked.values()))) as texts:
                        async for text in texts:
                            yield text
                    for each in [each for each in asked if each.done()]:
                        for part in joiner.add(asked.pop(each), each.result()):
                            yield part
                if piece is None:
                    break
            self.whole = joiner.finish(cut.audio_s)
        finally:
            await _cancelled(asked)
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(cut.close)

    async def _once(self, samples: Samples, info: ModelInfo, *, details: bool, index: int = 0) -> Transcript:
        def grown(text: str) -> None:
            self._texts[index] = text
            self._news.set()

        on_text = grown if self._growing else None
        return await self._speech.once(
            samples, info.sample_rate, info.name, self._ask, self._caller, details=details, on_text=on_text
        )

    async def _so_far(
        self, asked: Collection[asyncio.Task[Transcript]], index: int
    ) -> AsyncGenerator[Transcript, None]:
        """The text so far of a piece, whenever there is more of it, until something that was asked for is done."""
        if not self._growing:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            return
        while not any(each.done() for each in asked):
            self._news.clear()
            if text := self._texts.pop(index, ""):
                yield Transcript(text=text, is_final=False)
            news = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait((*asked, news), return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()

    def _count(self, audio_s: float, info: ModelInfo) -> None:
        """Count audio that was read, up to so many seconds from the start."""
        self._check_length(audio_s)
        self._speech.count_audio(audio_s - self._counted_s, info.name, self._caller)
        self._counted_s = audio_s

    def _check_length(self, audio_s: float) -> None:
        longest_s = self._speech.limits.max_audio_s
        if audio_s > longest_s:
            raise AudioError(f"the recording has more than {longest_s:g} s of audio, the longest one; send it in parts")


async def _cancelled(asked: Collection[asyncio.Task[Transcript]]) -> None:
    """Give up what is not done, and wait for its end."""
    for each in asked:
        each.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.gather(*asked, return_exceptions=True)


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
