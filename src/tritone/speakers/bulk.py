"""Embedding a corpus into Kaldi archives: interrupted at any moment, and gone on with.

    recordings (id, path), a system, a folder  ->  archives, a list of failures, counts

What is in the archives is not embedded again, what failed is. A batch that was cut off is computed as a whole, so that
the vectors are those of an undisturbed run to the last bit. See `archive_writer.py` for the folder.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tritone.errors import InputError, OperatorError, RetryError, ServerUnreachableError, TritoneError
from tritone.report.table import visible
from tritone.result import EmbeddingResult
from tritone.speakers.archive_writer import DEFAULT_SHARD_SIZE, ArchiveWriter, check_key
from tritone.systems import System
from tritone.systems.resume import left_to_do

FAILURES = "failures.jsonl"
MAX_RETRIES = 100  # errors that another time may not bring, one after the other, until nothing more is tried


@dataclass(frozen=True, kw_only=True)
class Recording:
    """An audio file and the id that its vector gets."""

    id: str
    path: str


@dataclass(frozen=True, kw_only=True)
class BulkStatus:
    """How far it is: recordings done of all, failed ones too. `reused`: those that were there before.

    `audio_s`, `elapsed_s`: audio embedded by this run and the time it took, in seconds.
    """

    done: int
    total: int
    failed: int
    reused: int
    audio_s: float
    elapsed_s: float

    @property
    def embedded(self) -> int:
        """Vectors that this run added."""
        return self.done - self.failed - self.reused


Progress = Callable[[BulkStatus], None]


@dataclass(frozen=True, kw_only=True)
class BulkResult:
    """The result of embedding a corpus.

    `scp`: the list of all vectors; `others`: those of ids that were not asked for. `failures`: the list of what failed,
    which is there if something did; `first_failure`: its first, for people. `mended`: see `ArchiveWriter`.
    `interrupted`: by Ctrl-C; `stopped`: the error that made going on senseless, such as a server that is gone.
    """

    status: BulkStatus
    scp: Path
    failures: Path
    first_failure: str = ""
    others: int = 0
    mended: tuple[str, ...] = ()
    interrupted: bool = False
    stopped: TritoneError | None = None

    @property
    def complete(self) -> bool:
        """Whether all recordings have their vectors."""
        return self.status.done == self.status.total and not self.status.failed


def embed_corpus(
    recordings: Sequence[Recording],
    system: System[EmbeddingResult],
    folder: Path,
    *,
    shard_size: int = DEFAULT_SHARD_SIZE,
    force: bool = False,
    progress: Progress | None = None,
) -> BulkResult:
    """Embed recordings into the archives of a folder, those that it does not have yet.

    A recording that fails is listed in `failures.jsonl` with its error, and the others go on. An interrupt (Ctrl-C) or
    a server that goes away ends the run; what was embedded until then is kept, and the same call goes on with the rest.

    Args:
        recordings: with ids that differ.
        system: is prepared here, unless nothing is left to do; the caller closes it.
        folder, shard_size, force: see `ArchiveWriter`.
        progress: called with the status, once before the first recording and after every one.

    Raises:
        InputError: an id comes twice or cannot be in an archive, or the folder is not ours to go on with, or the
            system's options make no sense.
        OperatorError: the folder cannot be written.
        TritoneError: the system cannot be used at all.
    """
    _check(recordings)
    made_by = system.describe()
    with ArchiveWriter(folder, made_by=made_by, shard_size=shard_size, force=force) as archive:
        run = _CorpusEmbedding(recordings, archive, _failed_before(folder / FAILURES), system.batch, progress)
        try:
            if any(run.pending):
                _prepare(system)
            with _FailureList(folder / FAILURES) as failures:
                interrupted, stopped = run.go(system, failures)
        finally:
            # However it ended, the lists name what is there.
            path = archive.write_list(each.id for each in recordings)
        return BulkResult(
            status=run.status(),
            scp=path,
            failures=failures.path,
            first_failure=failures.first,
            others=run.others,
            mended=tuple(archive.mended),
            interrupted=interrupted,
            stopped=stopped,
        )


def _check(recordings: Sequence[Recording]) -> None:
    seen: set[str] = set()
    for each in recordings:
        if check_key(each.id) in seen:
            raise InputError(f"the id {visible(each.id)} comes twice")
        seen.add(each.id)


class _CorpusEmbedding:
    """The state of one run: recordings done and recordings pending."""

    def __init__(
        self,
        recordings: Sequence[Recording],
        archive: ArchiveWriter,
        failed: Collection[str],
        batch: int,
        progress: Progress | None,
    ) -> None:
        self._archive = archive
        self._progress = progress
        self._total = len(recordings)
        states = [True if each.id in archive else False if each.id in failed else None for each in recordings]
        cut, failed_before = left_to_do(states, batch)
        # In this order the list of failures is that of a run that nothing has cut off.
        self.pending = [[recordings[place] for place in places] for places in (failed_before, cut)]
        self._started: float | None = None
        self._elapsed_s = 0.0
        self._audio_s = 0.0
        self._failed = 0
        self._retries = 0
        self.reused = sum(state is True for state in states)
        self.others = len(archive) - self.reused
        self.embedded = 0

    def go(self, system: System[EmbeddingResult], failures: "_FailureList") -> tuple[bool, TritoneError | None]:
        """Embed what is pending; returns whether it was interrupted, and the error that stopped it."""
        self._report()
        try:
            self._started = time.perf_counter()
            for pending in filter(None, self.pending):
                # A generator that is left by an interrupt in this loop must still give up what is in flight.
                with closing(system.run(each.path for each in pending)) as results:
                    for result in results:
                        stopped = self._take(pending[result.index], result, failures)
                        if stopped is not None:
                            return False, stopped
        except KeyboardInterrupt:
            return True, None
        return False, None

    def status(self) -> BulkStatus:
        return BulkStatus(
            done=self.reused + self.embedded + self._failed,
            total=self._total,
            failed=self._failed,
            reused=self.reused,
            audio_s=self._audio_s,
            elapsed_s=self._elapsed_s,
        )

    def _take(self, recording: Recording, result: EmbeddingResult, failures: "_FailureList") -> TritoneError | None:
        """Keep a result; returns the error if it is one that all the others would have too."""
        error = result.error
        if recording.id in self._archive:  # computed again for the sake of its batch
            return None
        if isinstance(error, ServerUnreachableError):
            return error
        vector = result.embedding
        if error is None and (vector is None or not np.isfinite(vector).all()):
            # Kaldi and scoring would carry it on without a word.
            error = OperatorError("the model gave numbers that are not finite" if vector is not None else "no vector")
        if error is None:
            assert vector is not None
            self._archive.add(recording.id, vector)
            self.embedded += 1
            self._audio_s += result.audio_s
        else:
            failures.add(recording, error)
            self._failed += 1
        assert self._started is not None
        self._elapsed_s = time.perf_counter() - self._started
        self._report()
        self._retries = self._retries + 1 if isinstance(error, RetryError) else 0
        return error if self._retries >= MAX_RETRIES else None

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self.status())


def _failed_before(path: Path) -> set[str]:
    """The ids of the recordings that a list of failures has, as far as it can be read."""
    found: set[str] = set()
    with suppress(OSError), path.open(encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError):
                found.add(str(json.loads(line)["id"]))
    return found


def _prepare(system: System[EmbeddingResult]) -> None:
    try:
        system.prepare()
    except ValueError as error:  # an option that nobody could check before the model was opened, such as the device
        raise InputError(f"{system.name}: {error}") from error


class _FailureList:
    """The recordings that failed, one JSON object a line: id, path, error. There is no file where there are none."""

    def __init__(self, path: Path) -> None:
        """Begin with none: what failed before is tried again."""
        self.path = path
        self.first = ""
        try:
            # A path may be of bytes that are no text; they are written back as they were.
            self._file = path.open("w", encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise OperatorError(f"cannot write {path}: {error.strerror}") from error

    def add(self, recording: Recording, error: TritoneError) -> None:
        line: Mapping[str, str] = {"id": recording.id, "path": recording.path, "error": str(error)}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as problem:
            raise OperatorError(f"cannot write {self.path}: {problem.strerror}") from problem
        self.first = self.first or f"{recording.id}: {error}"

    def __enter__(self) -> "_FailureList":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self.first:
            self.path.unlink(missing_ok=True)
