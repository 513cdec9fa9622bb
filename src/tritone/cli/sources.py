"""Who transcribes for `tritone transcribe`: a server through the client, or a bundle in this process.

files  ->  outcomes: a path with its transcript, or with the error that took its place
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tritone.audio.files import read_audio
from tritone.client.playback import play
from tritone.errors import TritoneError
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.client import Client
    from tritone.pipelines.recognizer import Recognizer

PILE_FILES = 32  # files that a bundle is given at once, so that it can batch them
PILE_S = 300.0  # and their audio, in seconds; short piles let results appear while others are being worked on


@dataclass(frozen=True)
class Outcome:
    """What became of one file: `index` is its place on the command line."""

    index: int
    path: str
    transcript: Transcript | None = None
    error: TritoneError | None = None


class Source(Protocol):
    """Something that transcribes files. Outcomes of `offline` may come in any order."""

    def offline(self, paths: Sequence[str]) -> Iterator[Outcome]: ...

    def streaming(self, path: str, chunk_ms: float, realtime: bool) -> Iterator[Transcript]: ...


class ServerSource:
    """A Triton server; `model` None takes the only fitting one."""

    def __init__(self, client: "Client", model: str | None, details: bool, concurrency: int) -> None:
        self._client = client
        self._model = model
        self._details = details
        self._concurrency = concurrency

    def offline(self, paths: Sequence[str]) -> Iterator[Outcome]:
        results = self._client.transcribe_iter(paths, self._model, details=self._details, concurrency=self._concurrency)
        for result in results:
            yield Outcome(result.index, result.source, result.transcript, result.error)

    def streaming(self, path: str, chunk_ms: float, realtime: bool) -> Iterator[Transcript]:
        model = self._client.model(self._model, kind="streaming")
        waveform = read_audio(path, model.sample_rate)
        with self._client.stream(model.name, details=self._details, chunk_ms=chunk_ms) as stream:
            yield from play(stream, waveform, sample_rate=model.sample_rate, chunk_ms=chunk_ms, realtime=realtime)


class BundleSource:
    """A bundle that runs in this process."""

    def __init__(self, recognizer: "Recognizer") -> None:
        self._recognizer = recognizer

    def offline(self, paths: Sequence[str]) -> Iterator[Outcome]:
        rate = self._recognizer.sample_rate
        pile: list[tuple[int, str]] = []
        waveforms = []
        for index, path in enumerate(paths):
            try:
                waveforms.append(read_audio(path, rate, max_audio_s=self._recognizer.max_audio_s))
                pile.append((index, path))
            except TritoneError as error:
                yield Outcome(index, path, error=error)
            if len(pile) == PILE_FILES or sum(map(len, waveforms)) > PILE_S * rate or index == len(paths) - 1:
                for (place, name), transcript in zip(pile, self._recognizer.transcribe(waveforms), strict=True):
                    yield Outcome(place, name, transcript)
                pile, waveforms = [], []

    def streaming(self, path: str, chunk_ms: float, realtime: bool) -> Iterator[Transcript]:
        rate = self._recognizer.sample_rate
        waveform = read_audio(path, rate)
        with closing(self._recognizer.stream()) as stream:
            yield from play(stream, waveform, sample_rate=rate, chunk_ms=chunk_ms, realtime=realtime)
