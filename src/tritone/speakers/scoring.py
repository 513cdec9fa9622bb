"""Scores of trials: cosine, with the mean of many speakers subtracted or not, normalised by a cohort or not.

    Trials, Vectors of both sides  ->  cosine_scores  ->  (n,) float64  ->  normalise with a cohort  ->  Normalised

Every distinct vector is prepared once, and trials are looked up in products of matrices, or in parts where few of all
pairs are asked for. Vectors are float32, and so are the products: cosines are right to about 1e-6, a tenth of what a
file of scores keeps.

Source of the formulas: WeSpeaker, wespeaker/bin/score.py, score_norm.py and tools/vector_mean.py. AS-norm: P. Matejka
et al., "Analysis of Score Normalization in Multilingual Speaker Recognition", Interspeech 2017.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from tritone.bundle.npy import read_vector
from tritone.errors import InputError
from tritone.speakers.archive import Floats, Vectors, has_lists, read_vectors, some
from tritone.speakers.score_file import Doubles, SideColumns, rounded
from tritone.speakers.trials import Ints, Trials

Norm = Literal["asnorm", "snorm"]

DEFAULT_TOP_N = 100  # cohort speakers that AS-norm looks at; upstream's default
BLOCK_CELLS = 1 << 22  # of a product of matrices, 16 MB
GATHERED = 1 << 14  # trials whose vectors are put side by side at a time
DENSE = 16  # products that cost as much as one trial whose two vectors are looked up
MEAN = "mean_vec.npy"  # WeSpeaker's name of the file
LEAST_DEVIATION = 1e-6  # of cohort scores; what is less may be rounding


@dataclass(frozen=True)
class Sides:
    """What trials compare: vectors (n, dim) less the mean, and the rows of the enrolled and of the tested names.

    `names`: whose each row is. A recording that is enrolled and tested has one row.
    """

    names: tuple[str, ...]
    matrix: Floats
    enrol: Ints
    test: Ints


@dataclass(frozen=True)
class Normalised:
    """Scores (n,) float64 and what upstream writes beside those that a cohort has normalised."""

    values: Doubles
    side: SideColumns | None


def score_trials(
    trials: Trials,
    vectors: Vectors,
    *,
    models: Vectors | None = None,
    mean: Floats | None = None,
    given: Doubles | None = None,
    cohort: Vectors | None = None,
    norm: Norm = "asnorm",
    top_n: int = DEFAULT_TOP_N,
) -> Normalised:
    """Score trials as upstream's scripts do one after the other; errors and arguments as of the functions below.

    Args:
        given: scores to normalise in place of the cosines.
        cohort: one vector for each speaker; None does not normalise.

    Returns:
        Scores as a file of them has them: rounded to five decimals. Upstream's normalisation begins with those, too; it
        divides by deviations of about 0.05, so that rounding moves its scores by up to 1e-4.
    """
    sides = sides_of(trials, vectors, models=models, mean=mean)
    values = rounded(cosine_scores(trials, sides) if given is None else given)
    if cohort is None:
        return Normalised(values, None)
    others = _centred(cohort.matrix, mean, cohort.keys)
    normalised = normalise(trials, values, sides, others, norm=norm, top_n=top_n)
    return Normalised(rounded(normalised.values), normalised.side)


def sides_of(trials: Trials, vectors: Vectors, *, models: Vectors | None = None, mean: Floats | None = None) -> Sides:
    """The vectors that trials need.

    Args:
        vectors: of the recordings.
        models: of what is enrolled, where that is not a recording; see `speaker_means`.
        mean: (dim,), subtracted from all.

    Raises:
        InputError: some names have no vector, dimensions do not agree, or a vector is zero and has no direction.
    """
    enrolled = vectors if models is None else models
    if enrolled.dim != vectors.dim:
        raise InputError(f"enrolled vectors have {enrolled.dim} values, those of the tests {vectors.dim}")
    absent = list(dict.fromkeys(enrolled.missing(trials.enrol_names) + vectors.missing(trials.test_names)))
    if absent:
        raise InputError(
            f"{len(absent)} of the names in the trials have no vector: {some(absent)}. There are {len(vectors.keys)} "
            f"vectors, the first is of {some(vectors.keys[:1])}. Embed the missing recordings, or take their trials out"
        )
    if models is None:
        names = tuple(dict.fromkeys((*trials.enrol_names, *trials.test_names)))
        matrix = vectors.take(names)
        rows = {name: row for row, name in enumerate(names)}
        enrol = np.array([rows[name] for name in trials.enrol_names], dtype=np.int32)
        test = np.array([rows[name] for name in trials.test_names], dtype=np.int32)
    else:
        names = (*trials.enrol_names, *trials.test_names)
        matrix = np.concatenate([models.take(trials.enrol_names), vectors.take(trials.test_names)])
        enrol = np.arange(len(trials.enrol_names), dtype=np.int32)
        test = np.arange(len(enrol), len(names), dtype=np.int32)
    return Sides(names, _centred(matrix, mean, names), enrol, test)


def cosine_scores(trials: Trials, sides: Sides) -> Doubles:
    """The cosine of each trial's two vectors, (n,) in [-1, 1]."""
    vectors = unit_length(sides.matrix)
    values = np.empty(len(trials), dtype=np.float64)
    if len(sides.enrol) * len(sides.test) > DENSE * len(trials):
        left, right = sides.enrol[trials.enrol], sides.test[trials.test]
        for start in range(0, len(trials), GATHERED):
            part = slice(start, start + GATHERED)
            values[part] = np.einsum("nd,nd->n", vectors[left[part]], vectors[right[part]])
        return np.clip(values, -1, 1)
    enrol, test = vectors[sides.enrol], vectors[sides.test]
    order = np.argsort(trials.enrol, kind="stable")
    rows = max(1, BLOCK_CELLS // len(test))
    edges = np.searchsorted(trials.enrol[order], np.arange(0, len(enrol) + rows, rows))
    for block, (first, last) in enumerate(pairwise(edges.tolist())):
        chosen = order[first:last]
        start = block * rows
        products = enrol[start : start + rows] @ test.T
        values[chosen] = products[trials.enrol[chosen] - start, trials.test[chosen]]
    return np.clip(values, -1, 1)


def normalise(
    trials: Trials, values: Doubles, sides: Sides, cohort: Floats, *, norm: Norm = "asnorm", top_n: int = DEFAULT_TOP_N
) -> Normalised:
    """Normalise scores by how vectors of both sides score against a cohort: 0.5 ((x - m_e) / s_e + (x - m_t) / s_t).

    Args:
        values: the scores, x.
        sides: the vectors that the scores were made of.
        cohort: (speakers, dim), one vector for each speaker, the same mean subtracted as from the sides.
        norm: `asnorm` takes the `top_n` highest cohort scores of a vector, `snorm` all; of these m is the mean and s
            the standard deviation (of the population: divided by their number).

    Raises:
        InputError: the cohort has other dimensions or fewer than two speakers, or says the same of a vector.
        ValueError: `top_n` is below 2.
    """
    if norm == "asnorm" and top_n < 2:
        raise ValueError(f"top_n must be at least 2, one score has no deviation; got {top_n}")
    if cohort.shape[1] != sides.matrix.shape[1]:
        dims = cohort.shape[1], sides.matrix.shape[1]
        raise InputError(f"vectors of the cohort have {dims[0]} values, those of the trials {dims[1]}")
    if len(cohort) < 2:
        raise InputError(f"a cohort needs at least 2 speakers, this one has {len(cohort)}")
    used = len(cohort) if norm == "snorm" else min(top_n, len(cohort))
    mean, deviation = _cohort_statistics(unit_length(sides.matrix), unit_length(cohort), used)
    if (flat := np.flatnonzero(deviation < LEAST_DEVIATION)).size:
        names = some(sides.names[index] for index in flat[:4])
        raise InputError(f"all {used} cohort scores of {names} are alike. Is the cohort one speaker many times?")
    lengths = _lengths(sides.matrix)
    left, right = sides.enrol[trials.enrol], sides.test[trials.test]
    m_e, m_t = mean[left], mean[right]
    return Normalised(
        values=0.5 * ((values - m_e) / deviation[left] + (values - m_t) / deviation[right]),
        side=SideColumns(enrol_length=lengths[left], test_length=lengths[right], enrol_mean=m_e, test_mean=m_t),
    )


def speaker_means(vectors: Vectors, groups: Mapping[str, Sequence[str]]) -> Vectors:
    """One vector for each speaker: the plain mean of the vectors of its utterances.

    Raises:
        InputError: utterances without a vector; the message counts them and shows the first.
    """
    if absent := vectors.missing(name for members in groups.values() for name in members):
        raise InputError(
            f"{len(absent)} utterances of the speakers have no vector: {some(absent)}. Embed them too, or take "
            "them out of the list of speakers"
        )
    matrix = np.empty((len(groups), vectors.dim), dtype=np.float32)
    for row, members in enumerate(groups.values()):
        matrix[row] = vectors.take(members).mean(axis=0, dtype=np.float64)
    return Vectors(tuple(groups), matrix)


def mean_is_subtracted(path: str | Path) -> bool:
    """Whether `tritone embed` noted beside these vectors that their model subtracts the mean; False if unknown."""
    path = Path(path)
    note = (path if path.is_dir() else path.parent) / "embed.json"
    try:
        if note.stat().st_size > 1 << 20:
            return False
        made_by = json.loads(note.read_bytes())["made_by"]
        return bool(made_by.get("mean_subtracted") == "true")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def read_mean(path: str | Path) -> Floats:
    """The mean to subtract, (dim,): a `.npy` that holds it, or that of all vectors which `read_vectors` finds there.

    Of a folder without lists of vectors it is `mean_vec.npy`, as WeSpeaker writes it.

    Raises:
        InputError: nothing there, or neither.
    """
    path = Path(path)
    if (path / MEAN).is_file() and not has_lists(path):
        path /= MEAN
    if path.suffix == ".npy":
        return _read_npy(path)
    return read_vectors(path).matrix.mean(axis=0, dtype=np.float64).astype(np.float32)


def unit_length(matrix: Floats) -> Floats:
    """Vectors of length 1, one a row; none may be zero."""
    return matrix / _lengths(matrix)[:, None].astype(np.float32)


def _centred(matrix: Floats, mean: Floats | None, names: Sequence[str]) -> Floats:
    if mean is not None:
        if mean.shape != matrix.shape[1:]:
            raise InputError(f"the mean has {mean.size} values, vectors have {matrix.shape[1]}; are they of one model?")
        matrix = matrix - mean
    if (zero := np.flatnonzero(~matrix.any(axis=1))).size:
        what = "zero" if mean is None else "exactly the mean"
        raise InputError(
            f"{zero.size} of {len(matrix)} vectors are {what} and point nowhere: {some(names[row] for row in zero[:4])}"
            ". Take them out, or see what is wrong with these recordings"
        )
    return matrix


def _cohort_statistics(matrix: Floats, others: Floats, used: int) -> tuple[Doubles, Doubles]:
    """Mean and deviation of the highest `used` cohort scores of each row."""
    mean, deviation = np.empty(len(matrix)), np.empty(len(matrix))
    rows = max(1, BLOCK_CELLS // len(others))
    for start in range(0, len(matrix), rows):
        part = slice(start, start + rows)
        scores = matrix[part] @ others.T
        if used < len(others):
            scores = np.partition(scores, len(others) - used, axis=1)[:, -used:]
        mean[part] = scores.mean(axis=1, dtype=np.float64)
        deviation[part] = scores.std(axis=1, dtype=np.float64)
    return mean, deviation


def _lengths(matrix: Floats) -> Doubles:
    # in float64: the square of a large value must not overflow
    lengths: Doubles = np.sqrt(np.einsum("nd,nd->n", matrix, matrix, dtype=np.float64))
    return lengths


def _read_npy(path: Path) -> Floats:
    try:
        return read_vector(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path} is no mean vector: {error}") from error
