"""Several systems on one set of utterances, one after the other.

utterances, systems  ->  Series: a report, in which the first is the baseline of the others, and a comparison
"""

import hashlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tritone.corpus.dataset import Utterance
from tritone.errors import InputError, TritoneError
from tritone.evaluate.compare import Comparison, compare, gate
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.result import LEVEL, Evaluation, Report
from tritone.evaluate.run import Progress, evaluate
from tritone.report.stamp import Stamp
from tritone.result import TranscriptResult
from tritone.systems import System


class Observer(Protocol):
    """Receives the progress and notices of evaluations while they run."""

    def progress(self, name: str) -> AbstractContextManager[Progress]:
        """Begin a system's turn; returns the context of its progress callback."""

    def notify(self, sentence: str) -> None:
        """Show a notice to the user."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """What evaluating systems in turn gave.

    `comparison`: of all that can be compared, None of one alone. `failure`: the error of a later system that could not
    be used at all, which ended the series, since what the systems before it gave is still worth a report.
    """

    report: Report
    comparison: Comparison | None
    failure: TritoneError | None = None

    def save(self, path: Path) -> None:
        """Write everything as JSON; raises `OperatorError` if the file cannot be written."""
        self.report.save(path, [] if self.comparison is None else self.comparison.to_dict())

    def problems(self, max_wer_increase: float | None = None) -> list[str]:
        """Why the series is no success, a sentence each: failures, and what `gate` finds for that limit."""
        found = [] if self.failure is None else [str(self.failure)]
        found += [
            f"{each.name}: {len(each.failures)} of {len(each.rows)} utterances failed"
            for each in self.report.evaluations
            if each.failures
        ]
        if self.comparison is not None and max_wer_increase is not None:
            found += gate(self.comparison, max_wer_increase)
        return found


def evaluate_each(
    utterances: Sequence[Utterance],
    systems: Sequence[System[TranscriptResult]],
    normalization: Normalization,
    observer: Observer | None = None,
    *,
    baseline: Evaluation | None = None,
    journal: Path | None = None,
    resume: bool = False,
    level: float = LEVEL,
    stamp: Stamp | None = None,
) -> Series:
    """Evaluate systems in turn, and close each when it is done: the next one may need its memory.

    Args:
        observer: receives the progress and notices; None: nobody does.
        baseline: what systems are compared with in place of the first of them, see `read_baseline`.
        journal: of a single system; several have one each, see `journal_of`.
        resume, level: as of `evaluate`.
        stamp: the conditions; None takes those of now.

    Returns:
        The series, with fewer evaluations than there are systems after an interrupt or a failure.

    Raises:
        InputError: names come twice. Before anything is sent.
        TritoneError: as of `evaluate`, for the first system.
    """
    stamp = stamp or Stamp.here()
    evaluations, failure = _evaluated(utterances, systems, normalization, observer, journal, resume, level)
    servers = dict.fromkeys(each.system["address"] for each in evaluations if "address" in each.system)
    many = "1 utterance" if len(utterances) == 1 else f"{len(utterances)} utterances"
    report = Report(
        stamp=stamp.of_server(", ".join(servers)),
        evaluations=evaluations,
        baseline=baseline,
        title=f"{' · '.join(each.name for each in evaluations)} on {many}",
    )
    comparison = compare(report.compared) if len(report.compared) > 1 else None
    return Series(report=report, comparison=comparison, failure=failure)


def _evaluated(
    utterances: Sequence[Utterance],
    systems: Sequence[System[TranscriptResult]],
    normalization: Normalization,
    observer: Observer | None,
    journal: Path | None,
    resume: bool,
    level: float,
) -> tuple[list[Evaluation], TritoneError | None]:
    names = [system.name for system in systems]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"systems need different names, {', '.join(sorted(twice))} comes twice; write NAME=...")
    evaluations: list[Evaluation] = []
    for system in systems:
        path = journal if len(systems) == 1 else journal_of(journal, system.name)
        turn = nullcontext() if observer is None else observer.progress(system.name)
        with closing(system), turn as progress:
            try:
                found = evaluate(
                    utterances,
                    system,
                    Normalizer(normalization),
                    journal=path,
                    resume=resume,
                    level=level,
                    progress=progress,
                    notify=None if observer is None else observer.notify,
                )
            except TritoneError as error:
                if not evaluations:
                    raise
                return evaluations, error
        # What a served model is called may be known only now; two of one name could not be distinguished, or compared.
        if any(found.name == each.name for each in evaluations):
            found = replace(found, name=f"{found.name} #{len(evaluations) + 1}")
        evaluations.append(found)
        if not found.complete:
            break
    return evaluations, None


def journal_of(journal: Path | None, name: str) -> Path | None:
    """The journal of one of several systems: `result.journal.jsonl` becomes `result.NAME.journal.jsonl`."""
    if journal is None:
        return None
    safe = re.sub(r"[^\w.-]+", "-", name)[:80]
    if safe != name:
        safe += "-" + hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    stem, dot, suffixes = journal.name.partition(".")
    return journal.with_name(f"{stem}.{safe}{dot}{suffixes}")


def read_baseline(path: Path, normalization: Normalization, utterances: Sequence[Utterance]) -> Evaluation:
    """The first system of an earlier report, scored by this normalisation, on these utterances.

    Raises:
        InputError: it is no report, its run was interrupted, it lacks some of the utterances, or has other references.
    """
    report = Report.read(path, normalization)
    if not report.evaluations or not report.evaluations[0].complete:
        raise InputError(f"{path} is of a run that was interrupted; finish it with --resume before it is a baseline")
    first = report.evaluations[0]
    held = {row.id: row.score.reference for row in first.rows}
    if missing := [each.id for each in utterances if each.id not in held]:
        raise InputError(
            f"{path} lacks {len(missing)} of the {len(utterances)} utterances, {missing[0]!r} for example; a baseline "
            "must have been evaluated on the same set"
        )
    words = Normalizer(normalization).words
    for each in utterances:
        if each.text is not None and words(each.text) != words(held[each.id]):
            raise InputError(
                f"{each.id}: the reference is {held[each.id]!r} in {path} and {each.text!r} now; a baseline must have "
                "been evaluated with the same references (its journal, with --resume, scores it again in seconds)"
            )
    return replace(first.only(each.id for each in utterances), name=f"{first.name} ({path.name})")
