"""What every system has in common: audio files in, one outcome for each of them.

    system.transcribe(paths)  ->  Outcome, Outcome, ...   in any order, each as soon as it is there

A system either takes whole files (offline), or plays them into streams (`Playback`) and notes every answer on the way.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from tritone.errors import TritoneError
from tritone.transcript import Transcript

Mode = Literal["offline", "streaming"]
DEFAULT_CHUNK_MS = 160.0


@dataclass(frozen=True, kw_only=True)
class Playback:
    """How files are played into streams: `chunk_ms` of audio at a time, as fast as answers come or as it was spoken."""

    chunk_ms: float = DEFAULT_CHUNK_MS
    realtime: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_ms < math.inf:
            raise ValueError(f"chunk_ms must be at least 1, got {self.chunk_ms:g}")


@dataclass(frozen=True, kw_only=True)
class Partial:
    """One answer of a stream. Times are seconds since its first sample was spoken.

    `spoken_s`: when the last sample that the answer could know of was spoken. `answered_s`: when it was there. Played
    as fast as answers come, nothing is really spoken: `answered_s` is then when it would have come had each chunk been
    sent as soon as it was spoken and the one before was answered, and had every answer taken the time it took.
    """

    text: str
    spoken_s: float
    answered_s: float
    is_final: bool = False

    @property
    def latency_s(self) -> float:
        """From the last sample's being spoken to the answer; a server that falls behind pays for the whole delay."""
        return self.answered_s - self.spoken_s


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one file: `index` is its place among the paths. Either `transcript` or `error` is there.

    `latency_s`: from handing the audio over to having the text; of a stream, from the end of its audio to the final
    text. `compute_s`: time spent on this file alone: waiting for answers, or its share (by length) of a batch in this
    process. `partials`: of a stream, all answers, the final one last; they stop where an error came.
    """

    index: int
    path: str
    transcript: Transcript | None = None
    error: TritoneError | None = None
    audio_s: float = 0.0
    latency_s: float = 0.0
    compute_s: float = 0.0
    partials: tuple[Partial, ...] = ()


Outcomes = Generator[Outcome, None, None]

PartialListener = Callable[[int, Transcript], None]
"""Hears of every answer of a stream: the index of its file, the text so far. May be called from several threads."""


class System(Protocol):
    """Something that transcribes files."""

    name: str
    mode: Mode
    concurrency: int
    """Requests or streams at once; in process and offline, files that are given to the model together."""

    def describe(self) -> Mapping[str, str]:
        """What decides the texts: kind, model, mode, options. Equal descriptions may continue each other's work."""
        ...

    def prepare(self, *, warm_up: bool = False) -> None:
        """Find or open the model, so that what is wrong with it is said before any file is read.

        Args:
            warm_up: also run a little silence, so that the first file is not slower than the others.

        Raises:
            TritoneError: there is no such model, or it cannot be used.
        """
        ...

    def transcribe(self, paths: Iterable[str], on_partial: PartialListener | None = None) -> Outcomes:
        """Transcribe files. A file that fails has its error in its outcome and does not disturb the others.

        Files are read when there is room for them, so `paths` may be of any length. Leaving the loop early gives up
        what is in flight.
        """
        ...

    def close(self) -> None:
        """Free what the system holds; closing twice is fine."""
        ...
