"""Files of scores, as WeSpeaker's score.py and score_norm.py write them and its compute_metrics.py reads them.

    enrol test 0.53998 target                                  a score; the label only if the trials have labels
    enrol test 5.36188 target 12.2740 14.6864 0.0537 0.0702    normalised: lengths of the vectors, their cohort means

Scores have five decimals, the four other columns four. Whoever reads them has rounded scores.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from tritone.errors import InputError, OperatorError
from tritone.speakers.trials import NONTARGET, TARGET, Block, Bools, Ints, Names, Trials, blocks_of

DECIMALS = 5  # of a score
BLOCK = 1 << 16  # trials formatted at a time
COLUMNS = (3, 4, 7, 8)  # without and with a label; normalised, without and with

Doubles = npt.NDArray[np.float64]


class SideColumns(NamedTuple):
    """What stands beside normalised scores, for each trial (n,): the lengths of both vectors, after the mean was
    subtracted, and the means of their scores against the cohort."""

    enrol_length: Doubles
    test_length: Doubles
    enrol_mean: Doubles
    test_mean: Doubles


@dataclass(frozen=True)
class Scores:
    """Trials and their scores (n,) float64, higher for the same speaker."""

    trials: Trials
    values: Doubles


def write_scores(path: str | Path, trials: Trials, values: Doubles, side: SideColumns | None = None) -> None:
    """Write a file of scores, whole or not at all.

    Raises:
        OperatorError: it cannot be written.
    """
    path = Path(path)
    if path.exists() and not path.is_file():  # /dev/stdout
        with path.open("w", encoding="utf-8") as file:
            file.writelines(_lines(trials, values, side))
        return
    partial = path.with_name(f".{path.name[:80]}.{os.getpid()}.partial")
    try:
        try:
            with partial.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(_lines(trials, values, side))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error.strerror}") from error


def read_scores(path: str | Path) -> Scores:
    """Read a file of scores; columns beyond the label are left out.

    Raises:
        InputError: it cannot be read, has no scores, or a line is not one; the message names file and line.
    """
    path = Path(path)
    enrol, test = Names(), Names()
    pairs: list[tuple[Ints, Ints]] = []
    values: list[Doubles] = []
    targets: list[Bools] = []
    width = 0
    for block in blocks_of(path):
        width = width or len(block.first_row)
        columns = block.columns(width) if width in COLUMNS else None
        numbers = None if columns is None else _numbers(columns[2])
        labels = columns[3] if columns is not None and _has_label(width) else ()
        if columns is None or numbers is None or not set(labels) <= {TARGET, NONTARGET}:
            _complain(block, width)
        if _has_label(width):
            targets.append(np.fromiter((each == TARGET for each in labels), np.bool_, count=len(labels)))
        pairs.append((enrol.numbers(columns[0]), test.numbers(columns[1])))
        values.append(numbers)
    if not values:
        raise InputError(f"{path} has no scores; it needs lines like 'enrol test 0.53998 target'")
    trials = Trials(
        enrol_names=enrol.texts(path),
        test_names=test.texts(path),
        enrol=np.concatenate([left for left, _ in pairs]),
        test=np.concatenate([right for _, right in pairs]),
        targets=np.concatenate(targets) if targets else None,
        form="kaldi" if targets else "unlabelled",
    )
    return Scores(trials, np.concatenate(values))


def rounded(values: Doubles) -> Doubles:
    """Scores as they are read from the file that they are written to."""
    return np.round(values, DECIMALS)


def _numbers(fields: Sequence[bytes]) -> Doubles | None:
    """The fields as finite numbers, or None."""
    try:
        numbers = np.fromiter(map(float, fields), dtype=np.float64, count=len(fields))
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _has_label(width: int) -> bool:
    return width in (4, 8)


def _lines(trials: Trials, values: Doubles, side: SideColumns | None) -> Iterator[str]:
    labels = None if trials.targets is None else np.where(trials.targets, " target", " nontarget")
    for start in range(0, len(trials), BLOCK):
        part = slice(start, start + BLOCK)
        left = [trials.enrol_names[index] for index in trials.enrol[part]]
        right = [trials.test_names[index] for index in trials.test[part]]
        label = [""] * len(left) if labels is None else labels[part].tolist()
        head = zip(left, right, values[part].tolist(), label, strict=True)
        if side is None:
            yield "".join([f"{a} {b} {x:.5f}{c}\n" for a, b, x, c in head])
        else:
            rest = zip(*(column[part].tolist() for column in side), strict=True)
            yield "".join(
                [
                    f"{a} {b} {x:.5f}{c} {e:.4f} {t:.4f} {m_e:.4f} {m_t:.4f}\n"
                    for (a, b, x, c), (e, t, m_e, m_t) in zip(head, rest, strict=True)
                ]
            )


def _complain(block: Block, width: int) -> NoReturn:
    def is_right(row: list[bytes]) -> bool:
        if len(row) != width or width not in COLUMNS:
            return False
        return _numbers(row[2:3]) is not None and (not _has_label(width) or row[3] in (TARGET, NONTARGET))

    where, text = block.first_wrong(is_right)
    advice = ""
    if width in (2, 3):
        advice = ". A list of trials is given as --trials, with --embeddings"
    elif width in COLUMNS:
        advice = f"; the first line has {width} columns, and all must have as many"
    raise InputError(f"{where}: {text} is not a score, 'enrol test 0.53998 target' with a finite number{advice}")
