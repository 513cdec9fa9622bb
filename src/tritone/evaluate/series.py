"""Several systems on one set of utterances, one after the other.

utterances, systems  ->  evaluations, the first of which is the baseline of the others
"""

import hashlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tritone.corpus.dataset import Utterance
from tritone.errors import InputError, TritoneError
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.result import LEVEL, Evaluation, Report
from tritone.evaluate.run import Progress, evaluate
from tritone.result import TranscriptResult
from tritone.systems import System


class Observer(Protocol):
    """Receives the progress and notices of evaluations while they run."""

    def progress(self, name: str) -> AbstractContextManager[Progress]:
        """Begin a system's turn; returns the context of its progress callback."""

    def say(self, sentence: str) -> None:
        """Show a notice to the user."""


def evaluate_each(
    utterances: Sequence[Utterance],
    systems: Sequence[System[TranscriptResult]],
    normalization: Normalization,
    observer: Observer,
    *,
    journal: Path | None = None,
    resume: bool = False,
    level: float = LEVEL,
) -> tuple[list[Evaluation], TritoneError | None]:
    """Evaluate systems in turn, and close each when it is done: the next one may need its memory.

    Args:
        journal: of a single system; several have one each, see `journal_of`.
        resume, level: as of `evaluate`.

    Returns:
        The evaluations, fewer than there are systems after an interrupt; and the error of a later system that could not
        be used at all, which ends the series, since what the systems before it gave is still worth a report.

    Raises:
        InputError: names come twice. Before anything is sent.
        TritoneError: as of `evaluate`, for the first system.
    """
    names = [system.name for system in systems]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"systems need different names, {', '.join(sorted(twice))} comes twice; write NAME=...")
    evaluations: list[Evaluation] = []
    for system in systems:
        path = journal if len(systems) == 1 else journal_of(journal, system.name)
        with closing(system), observer.progress(system.name) as progress:
            try:
                found = evaluate(
                    utterances,
                    system,
                    Normalizer(normalization),
                    journal=path,
                    resume=resume,
                    level=level,
                    progress=progress,
                    say=observer.say,
                )
            except TritoneError as error:
                if not evaluations:
                    raise
                return evaluations, error
        # What a served model is called may be known only now; two of one name could not be told apart, or compared.
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
