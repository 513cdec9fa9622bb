"""A stand-in for `Speech` whose texts can be told by hand: every tenth of a second is a word, the level of its samples.

A tenth of zeros ends a segment. So 0.1 s of 7 and 0.1 s of 9, both of 32768, are "7 9", at 0.0 and 0.1 s.
"""

import asyncio
import io
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tritone.client.models import Kind, ModelInfo
from tritone.gateway.ask import Ask, Event
from tritone.gateway.callers import Caller
from tritone.search.hotwords import foreign
from tritone.transcript import Alternative, Span, Transcript


def speech(*levels: int, sample_rate: int = 16000) -> npt.NDArray[np.int16]:
    """(samples,) int16: a tenth of a second of each level."""
    return np.repeat(np.array(levels, np.int16), sample_rate // 10)


def floats(samples: npt.NDArray[np.int16]) -> bytes:
    """The same audio as float32 bytes."""
    return (samples / np.float32(32768)).astype("<f4").tobytes()


def heard(client: ClientConnection) -> tuple[list[Any], int]:
    """All messages until the connection ends, read as JSON, and the code it ends with."""
    found = []
    with suppress(ConnectionClosed):
        while True:
            found.append(json.loads(client.recv(60)))
    assert client.close_code is not None
    return found, client.close_code


def transcript(words: Sequence[tuple[str, float]], segment: int = 0, *, is_final: bool = True) -> Transcript:
    spans = tuple(Span(text, start_s, start_s + 0.1, 0.5) for text, start_s in words)
    text = " ".join(span.text for span in spans)
    readings = (Alternative(text, -1.0, spans, spans, 0.5), Alternative("else", -2.0))
    return Transcript(
        text=text, tokens=spans, words=spans, confidence=0.5, segment=segment, is_final=is_final, alternatives=readings
    )


class FakeLive:
    model = "fake"

    def __init__(self, speech: "FakeSpeech", sample_rate: int, ask: Ask) -> None:
        self._speech = speech
        self._ask = ask
        self._rate = sample_rate
        self._samples = np.zeros(0)
        self._heard = 0
        self._position_s = 0.0
        self._words: list[tuple[str, float]] = []
        self._segment = 0

    @property
    def received_s(self) -> float:
        return self._heard / self._rate

    async def accept(self, samples: npt.NDArray[Any]) -> list[Event]:
        if self._speech.error is not None:
            raise self._speech.error
        for phrase in self._ask.search.get("hotwords", {}):
            if self._speech.foreign and self._speech.foreign in phrase.casefold():
                raise foreign(phrase, self._speech.foreign)
        await asyncio.sleep(self._speech.delay_s)
        self._heard += samples.size
        levels = samples * 32768 if samples.dtype.kind == "f" else samples
        self._samples = np.append(self._samples, levels)
        events, said, block = [], len(self._words), self._rate // 10
        while self._samples.size >= block:
            level = round(float(self._samples[0]))
            self._samples = self._samples[block:]
            if level:
                self._words.append((f"{level}{self._speech.suffix}", self._position_s))
            self._position_s = round(self._position_s + 0.1, 3)
            if not level and self._words:
                events.append(self._end())
                said = 0
        if len(self._words) > said:
            found = transcript(self._words, self._segment, is_final=False)
            events.append(Event(kind="partial", segment=self._segment, time_s=self._position_s, transcript=found))
        return events

    def _end(self) -> Event:
        found = transcript(self._words, self._segment)
        event = Event(kind="final", segment=self._segment, time_s=self._position_s, transcript=found)
        self._words = []
        self._segment += 1
        return event

    async def commit(self) -> list[Event]:
        return [self._end()]

    async def finish(self) -> list[Event]:
        return [self._end()] if self._words or not self._segment else []

    async def close(self) -> None:
        self._speech.open_ones.discard(self)

    async def __aenter__(self) -> "FakeLive":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class FakeSpeech:
    """`asked`: what was asked for, in order. `error`: what audio fails with. `delay_s`: how long audio takes.

    `has_beam`: the model. `suffix`: of every word. `foreign`: a letter that no token writes, in hotwords."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.open_ones: set[FakeLive] = set()
        self.error: BaseException | None = None
        self.delay_s = 0.0
        self.has_beam = True
        self.suffix = ""
        self.foreign = ""
        self.turns = None

    @property
    def open_streams(self) -> int:
        return len(self.open_ones)

    async def open(self, ask: Ask, sample_rate: int, caller: Caller) -> FakeLive:
        self.asked.append(ask)
        live = FakeLive(self, sample_rate, ask)
        self.open_ones.add(live)
        return live

    async def model(self, name: str, kind: Kind) -> ModelInfo:
        return ModelInfo(name=name, kind=kind, has_beam=self.has_beam)

    async def live_model(self, name: str) -> ModelInfo:
        return await self.model(name, "streaming")

    async def transcribe(self, audio: bytes | Path, ask: Ask, caller: Caller) -> Transcript:
        self.asked.append(ask)
        assert isinstance(audio, bytes)
        samples, rate = soundfile.read(io.BytesIO(audio))
        levels = np.round(samples[:: rate // 10] * 32768).astype(int).tolist()
        return transcript([(str(level), index / 10) for index, level in enumerate(levels) if level])
