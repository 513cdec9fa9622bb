"""A model for whole recordings as the recogniser of a live stream: it collects an utterance, then writes its text.

    accept(samples), accept(samples), ..., finish()  ->  the text of all samples

It has no partial texts, and ends no segments by rules of its own: voice activity does, the client, or the end of what
is kept.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tritone.audio.waveform import Samples, widened
from tritone.client.models import ModelInfo
from tritone.transcript import Transcript, shifted

LONGEST_S = 60.0  # of an utterance, in seconds; what is longer is written in parts

Transcribe = Callable[[Samples], Awaitable[Transcript]]


class WholeStream:
    """One leg of a live stream; its methods are those of `AsyncClientStream`, awaited one after the other.

    Args:
        model: as the server describes it.
        sample_rate: of the audio that will come, in Hz.
        transcribe: asks the model for the transcript of samples (samples,); raises what a request raises.
    """

    def __init__(self, model: ModelInfo, sample_rate: int, transcribe: Transcribe) -> None:
        self.model = model
        self._rate = sample_rate
        self._most = round(min(LONGEST_S, model.max_audio_s or LONGEST_S) * sample_rate)
        self._transcribe = transcribe
        self._parts: list[Samples] = []
        self._kept = 0  # samples of `_parts`
        self._written = 0  # samples before them, whose text was returned

    async def accept(self, samples: Samples) -> Transcript:
        """Keep audio; the texts of parts that became too long to keep are in `ended` of the answer."""
        rest, ended = samples, []
        while self._kept + rest.size > self._most:
            room = self._most - self._kept
            self._keep(rest[:room])
            rest = rest[room:]
            ended.append(await self._text())
        self._keep(rest)
        return Transcript(text="", audio_s=self._written / self._rate, is_final=False, ended=(*ended,))

    async def finish(self) -> Transcript:
        """The text of what is kept."""
        return await self._text()

    async def close(self) -> None:
        """Forget the audio."""
        self._parts.clear()
        self._kept = 0

    def _keep(self, samples: Samples) -> None:
        if samples.size:
            self._parts.append(samples)
            self._kept += samples.size

    async def _text(self) -> Transcript:
        parts: list[Any] = self._parts
        begins_s = self._written / self._rate
        self._written += self._kept
        self._parts, self._kept = [], 0
        if not parts:
            return Transcript(text="", audio_s=begins_s)
        if any(each.dtype != parts[0].dtype for each in parts):
            parts = [widened(each) for each in parts]
        found = shifted(await self._transcribe(np.concatenate(parts)), begins_s)
        return replace(found, audio_s=self._written / self._rate)
