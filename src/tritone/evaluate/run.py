"""Evaluating one system: every utterance through it once, scored as it comes back.

    utterances, system, normalizer  ->  Evaluation

Audio is read by the system when it is wanted and dropped with its answer; what stays of an utterance is its text, its
score and some times.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.corpus.dataset import Utterance
from tritone.errors import InputError, RetryError
from tritone.evaluate.normalize import Normalizer
from tritone.evaluate.partials import Answer, measure_partials, pack_answers, unpack_answers
from tritone.evaluate.result import LEVEL, Evaluation, Row
from tritone.evaluate.score import Counts, score_utterance
from tritone.result import TranscriptResult
from tritone.systems import System
from tritone.systems.journal import ADVICE, Journal, fingerprint


@dataclass(frozen=True, kw_only=True)
class Status:
    """How far an evaluation is: utterances done (failed ones too) of all, and the errors so far."""

    done: int
    total: int
    failed: int
    words: Counts


Progress = Callable[[Status], None]


def evaluate(
    utterances: Sequence[Utterance],
    system: System[TranscriptResult],
    normalizer: Normalizer,
    *,
    journal: Path | None = None,
    resume: bool = False,
    level: float = LEVEL,
    progress: Progress | None = None,
    notify: Callable[[str], None] | None = None,
) -> Evaluation:
    """Transcribe utterances with a system and score them.

    An utterance that fails has its error in its row, and the others go on. An interrupt (Ctrl-C) ends the run and
    returns what is there, with `complete` False.

    Args:
        utterances: with references and ids that differ.
        system: is prepared and warmed up here, unless nothing is left to do; the caller closes it.
        normalizer: makes the units that errors are counted in.
        journal: a file to note results in as they come.
        resume: go on with the journal, if it is there: what it has is not sent again, but what had failed is.
        level: of the confidence intervals.
        progress: called with the status, after every utterance and once before the first.
        notify: called with each notice for the user, one sentence.

    Raises:
        InputError: an utterance has no reference, the journal belongs to another run, or the system's options make no
            sense.
        OperatorError: the journal cannot be written.
        TritoneError: the system cannot be used at all.
        ValueError: ids come twice, or `resume` has no journal.
    """
    _check(utterances, journal, resume)
    run = _Collector(utterances, normalizer, progress)
    if journal is None:
        complete = _transcribe(run, system, None)
        return run.evaluation(system, level, complete)
    description = system.describe()
    with Journal(
        journal, inputs=fingerprint(utterances), utterances=len(utterances), system=description, resume=resume
    ) as book:
        for session, record in book.records():
            run.reuse(session, record, book.path)
        if notify is not None:
            if book.kept is not None:
                notify(f"an unfinished journal was there; it is kept as {book.kept} (--resume goes on with one)")
            if run.reused:
                notify(f"{run.reused} of {len(utterances)} utterances are in {book.path} already")
        run.concurrencies = book.concurrencies()
        complete = _transcribe(run, system, book)
    return run.evaluation(system, level, complete)


def _check(utterances: Sequence[Utterance], journal: Path | None, resume: bool) -> None:
    if resume and journal is None:
        raise ValueError("resuming needs a journal to go on with")
    seen: set[str] = set()
    for utterance in utterances:
        if utterance.id in seen:
            raise ValueError(f"the id {utterance.id!r} comes twice")
        seen.add(utterance.id)
        if utterance.text is None:
            raise InputError(f"{utterance.id}: there is no reference text to score against")


def _transcribe(run: "_Collector", system: System[TranscriptResult], journal: Journal | None) -> bool:
    """Transcribe what is pending; returns whether all of it was done."""
    pending = run.pending()
    if run.progress is not None:
        run.progress(run.status())
    if not pending:
        return True
    unanswered = dict.fromkeys(range(len(pending)))
    elapsed_s = 0.0
    try:
        _prepare(system)
        session = 0 if journal is None else journal.begin(system.concurrency)
        run.concurrencies.append(system.concurrency)
        started = time.perf_counter()
        # A generator that is left by an interrupt in this loop must still give up what is in flight.
        with closing(system.run(each.source for each in pending)) as results:
            for result in results:
                elapsed_s = time.perf_counter() - started
                unanswered.pop(result.index, None)
                run.note(session, _record(pending[result.index], result, elapsed_s), journal)
        for index in unanswered:
            lost = TranscriptResult(
                index=index, source="", error=RetryError("the system gave no answer for this utterance")
            )
            run.note(session, _record(pending[index], lost, elapsed_s), journal)
    except KeyboardInterrupt:
        return False
    return True


def _prepare(system: System[TranscriptResult]) -> None:
    try:
        system.prepare(warm_up=True)
    except ValueError as error:  # an option that nobody could check before the model was opened, such as the device
        raise InputError(f"{system.name}: {error}") from error


def _record(utterance: Utterance, result: TranscriptResult, elapsed_s: float) -> dict[str, Any]:
    """The journal record of a result."""
    record: dict[str, Any] = {"id": utterance.id}
    if result.transcript is not None:
        record["text"] = result.transcript.text
    else:
        record["error"] = str(result.error or "there is neither a text nor an error")
    record |= {
        "audio_s": result.audio_s,
        "latency_s": result.latency_s,
        "compute_s": result.compute_s,
        "elapsed_s": elapsed_s,
    }
    if result.partials:
        record["answers"] = pack_answers(Answer(each.spoken_s, each.answered_s, each.text) for each in result.partials)
    return record


class _Collector:
    """Collects the rows of an evaluation as results arrive."""

    def __init__(self, utterances: Sequence[Utterance], normalizer: Normalizer, progress: Progress | None) -> None:
        self.progress = progress
        self.concurrencies: list[int] = []
        self.walls_s: dict[int, float] = {}  # of each session, until its last answer
        self.reused = 0
        self._utterances = utterances
        self._indices = {utterance.id: index for index, utterance in enumerate(utterances)}
        self._normalizer = normalizer
        self._rows: dict[int, Row] = {}
        self._failed = 0
        self._words = Counts()

    def note(self, session: int, record: Mapping[str, Any], journal: Journal | None) -> None:
        """Take a record of this session, write it to the journal and report the status."""
        if journal is not None:
            journal.add(record)
        self.take(session, record)
        if self.progress is not None:
            self.progress(self.status())

    def take(self, session: int, record: Mapping[str, Any]) -> None:
        index = self._indices[record["id"]]
        self._drop(index)
        row = self._rows[index] = _row(self._utterances[index], record, self._normalizer)
        self._failed += row.score.error is not None
        self._words += row.score.words
        self.walls_s[session] = record["elapsed_s"]

    def reuse(self, session: int, record: Mapping[str, Any], path: Path) -> None:
        """Take a record of an earlier session. Its time counts even if the utterance must be tried again."""
        try:
            self.take(session, record)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} has a record that cannot be read ({error!r}). {ADVICE}") from error
        self.reused = len(self._rows) - self._failed

    def pending(self) -> list[Utterance]:
        """Utterances left to do. Drops failures of earlier sessions, so that they are tried again."""
        for index in [index for index, row in self._rows.items() if row.score.error is not None]:
            self._drop(index)
        return [utterance for index, utterance in enumerate(self._utterances) if index not in self._rows]

    def status(self) -> Status:
        return Status(done=len(self._rows), total=len(self._utterances), failed=self._failed, words=self._words)

    def evaluation(self, system: System[TranscriptResult], level: float, complete: bool) -> Evaluation:
        return Evaluation(
            name=system.name,
            system=system.describe(),
            normalization=self._normalizer.normalization,
            rows=[self._rows[index] for index in sorted(self._rows)],
            total=len(self._utterances),
            wall_s=sum(self.walls_s.values()),
            concurrencies=self.concurrencies,
            reused=self.reused,
            complete=complete,
            level=level,
        )

    def _drop(self, index: int) -> None:
        row = self._rows.pop(index, None)
        if row is not None:
            self._failed -= row.score.error is not None
            words = row.score.words
            self._words += Counts(-words.hits, -words.substitutions, -words.deletions, -words.insertions)


def _row(utterance: Utterance, record: Mapping[str, Any], normalizer: Normalizer) -> Row:
    error = record.get("error")
    answers = unpack_answers(record.get("answers", ()))
    return Row(
        score=score_utterance(utterance.id, utterance.text or "", record.get("text"), normalizer, error=error),
        audio=os.fspath(utterance.audio),
        audio_s=record["audio_s"],
        latency_s=record["latency_s"],
        compute_s=record["compute_s"],
        stability=measure_partials(answers, normalizer.words) if answers and error is None else None,
    )
