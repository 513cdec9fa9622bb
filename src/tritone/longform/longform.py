"""Many recordings of any length through a model that takes short ones.

    recordings  --cut-->  short ones as they are, and pieces of long ones  --the model-->  results  --join-->  results

Pieces of several recordings, and short recordings among them, are all the same to the model, so its batches are full.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tritone.audio.files import AudioBlocks, read_or_blocks
from tritone.audio.inputs import AudioInput, is_file, load_samples, narrow
from tritone.audio.read_ahead import Recording
from tritone.audio.waveform import Samples
from tritone.errors import TritoneError
from tritone.later import later
from tritone.longform import LEAST_PIECE_S
from tritone.result import TranscriptResult
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.longform import ahead, cutting, join
    from tritone.longform import recording as pieces
    from tritone.longform.cutting import Piece
    from tritone.longform.recording import OpenActivity, Pieces
else:
    ahead, cutting, join, pieces = later("ahead"), later("cutting"), later("join"), later("recording")

AHEAD_S = 300.0  # of a recording, cut before it is wanted, in seconds: 19 MB; models get so much together


@dataclass(frozen=True, kw_only=True)
class PieceRecording(Recording):
    """A piece in place of a recording. Its index is below 0, no two have the same; `of` is the recording's own."""

    piece: "Piece"
    of: int


@dataclass
class _Job:
    """A long recording under way."""

    index: int
    source: str
    joiner: "join.Joiner"
    started: float = field(default_factory=time.perf_counter)
    pending: int = 0  # pieces that the model has
    is_cut: bool = False  # no more pieces come
    audio_s: float = 0.0
    compute_s: float = 0.0
    error: TritoneError | None = None

    @property
    def is_done(self) -> bool:
        return self.is_cut and not self.pending

    def result(self) -> TranscriptResult:
        took_s = time.perf_counter() - self.started
        return TranscriptResult(
            index=self.index,
            source=self.source,
            value=self.joiner.finish(self.audio_s) if self.error is None else None,
            error=self.error,
            audio_s=self.audio_s,
            latency_s=took_s,
            compute_s=self.compute_s,
        )


class LongForm:
    """Recordings of one call to a model. `cut` and `join` may run in one another, as generators do."""

    def __init__(
        self,
        sample_rate: int,
        longest_s: Callable[[], float],
        *,
        details: bool,
        activity: "Callable[[], OpenActivity | None]" = lambda: None,
        context: bool = True,
    ) -> None:
        """Take what is known of the model.

        Args:
            sample_rate: in Hz.
            longest_s: audio that it takes at once, in seconds; asked once there is a recording.
            details: whether joined transcripts have tokens and words.
            activity: what opens streams of voice activity, or None to cut without; asked for once there is a long
                recording.
            context: whether the model returns times of words, so that pieces may share context.
        """
        self.sample_rate = sample_rate
        self._longest_of = longest_s
        self._activity_of = activity
        self._details = details
        self._context = context
        self._found: tuple[OpenActivity | None] | None = None
        self._jobs: dict[int, tuple[_Job, Piece]] = {}
        self._done: deque[_Job] = deque()
        self._next = -1

    def cut(self, recordings: Iterable[Recording]) -> Generator[Recording, None, None]:
        """Recordings that are short as they are, and the pieces of the long ones; values as of `read`.

        What is wrong with a long recording becomes the error of its result.
        """
        for recording in recordings:
            if self._is_short(recording):
                yield recording
            else:
                yield from self._pieces(recording)
            del recording  # while the next one is waited for, the model alone holds it

    def join(
        self, results: Generator[TranscriptResult, None, None], *sources: Generator[Any, None, None]
    ) -> Generator[TranscriptResult, None, None]:
        """The results of what was cut, those of pieces joined; in the order in which they are done.

        `results` and the generators that they come from are closed at the end, also when the caller leaves the loop.
        """
        with ExitStack() as stack:
            for each in (*reversed(sources), results):
                stack.enter_context(closing(each))
            for result in results:
                if result.index >= 0:
                    yield result
                else:
                    self._take(result)
                while self._done:
                    yield self._done.popleft().result()
        while self._done:
            yield self._done.popleft().result()

    def _is_short(self, recording: Recording) -> bool:
        value: Any = recording.value
        if isinstance(value, AudioBlocks):
            return False
        if not isinstance(value, np.ndarray):  # an error, inputs by name, an array on a GPU
            return True
        longest = self._longest_of()
        # Half a second of speech is no use to anybody: the model refuses what is longer, as it always did.
        return longest < LEAST_PIECE_S or len(value) <= longest * self.sample_rate

    def _pieces(self, recording: Recording) -> Generator[Recording, None, None]:
        job = _Job(recording.index, recording.source, join.Joiner(details=self._details))
        try:
            cut = self._cut(recording.value)
            with closing(ahead.ahead(cut, AHEAD_S, lambda piece: piece.duration_s, cut.close)) as found:
                for piece in found:
                    if job.error is not None:
                        break
                    self._jobs[self._next] = (job, piece)
                    job.pending += 1
                    index, self._next = self._next, self._next - 1
                    yield PieceRecording(
                        index=index,
                        source=recording.source,
                        value=piece.samples,
                        audio_s=piece.duration_s,
                        piece=piece,
                        of=recording.index,
                    )
                    del piece
            job.audio_s = cut.audio_s
        except TritoneError as error:
            job.error = job.error or error
        job.is_cut = True
        if job.is_done:
            self._done.append(job)

    def _cut(self, value: Any) -> "Pieces":
        if self._found is None:
            self._found = (self._activity_of(),)
        (activity,) = self._found
        try:
            how = cutting.Cutting() if self._context else cutting.Cutting(context_s=0.0)
            how = how.within(self._longest_of())
            return pieces.pieces(value, self.sample_rate, cutting=how, activity=activity)
        except BaseException:
            if isinstance(value, AudioBlocks):
                value.close()
            raise

    def _take(self, result: TranscriptResult) -> None:
        job, piece = self._jobs.pop(result.index)
        job.pending -= 1
        job.compute_s += result.compute_s
        if result.error is not None:
            job.error = job.error or _placed(result.error, piece, job.source)
        elif job.error is None:
            assert isinstance(result.value, Transcript)
            job.joiner.add(piece, result.value)
        if job.is_done:
            self._done.append(job)


def read(
    item: AudioInput, sample_rate: int | None, wanted: int, longest_s: float | None, *, pcm: bool | None
) -> Samples | AudioBlocks:
    """Read an input as it is sent, see `audio.inputs.load_samples`; a file of more than `longest_s` seconds is opened.

    Raises: as `audio.inputs.load`.
    """
    if longest_s is None or longest_s < LEAST_PIECE_S or not is_file(item):
        return load_samples(item, sample_rate, wanted, pcm=pcm)
    found = read_or_blocks(item, wanted, longest_s, pcm=pcm is not False)
    return found if isinstance(found, AudioBlocks) else narrow(found, wanted, pcm=pcm)


def _placed(error: TritoneError, piece: "Piece", source: str) -> TritoneError:
    """An error of a piece, as one of the recording."""
    where = f"{source}, from {piece.keep_from_s:.1f} to {piece.keep_to_s:.1f} s"
    placed = error.saying(f"{where}: {str(error).removeprefix(f'{source}: ')}")
    placed.__cause__ = error
    return placed
