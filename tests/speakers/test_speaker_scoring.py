"""Scores of trials against plain loops in float64."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.errors import InputError
from tritone.speakers import scoring
from tritone.speakers.archive import Vectors
from tritone.speakers.scoring import (
    cosine_scores,
    mean_is_subtracted,
    normalise,
    read_mean,
    score_trials,
    sides_of,
    speaker_means,
)
from tritone.speakers.trials import Trials


def made(number: int, dim: int, seed: int, prefix: str = "u") -> Vectors:
    matrix = np.random.default_rng(seed).normal(size=(number, dim)).astype(np.float32) + np.float32(0.3)
    return Vectors(tuple(f"{prefix}{index}" for index in range(number)), matrix)


def listed(pairs: list[tuple[str, str]]) -> Trials:
    left, right = list(dict.fromkeys(a for a, _ in pairs)), list(dict.fromkeys(b for _, b in pairs))
    return Trials(
        tuple(left),
        tuple(right),
        np.array([left.index(a) for a, _ in pairs], np.int32),
        np.array([right.index(b) for _, b in pairs], np.int32),
    )


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """In Python floats, one product after another."""
    x, y = a.astype(np.float64).tolist(), b.astype(np.float64).tolist()
    dot = math.fsum(p * q for p, q in zip(x, y, strict=True))
    return dot / math.sqrt(math.fsum(p * p for p in x) * math.fsum(q * q for q in y))


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), min_size=1, max_size=60),
    st.booleans(),
    st.sampled_from([0, 16, 1000]),
)
def test_scores_are_the_cosines_of_plain_loops_in_blocks_and_in_parts(
    dim: int, numbers: list[tuple[int, int]], centre: bool, dense: int
) -> None:
    vectors = made(12, dim, seed=dim)
    mean = np.full(dim, 0.25, np.float32) if centre else None
    pairs = [(f"u{a}", f"u{b}") for a, b in numbers]
    expected = [cosine(vectors.matrix[a] - (0.25 * centre), vectors.matrix[b] - (0.25 * centre)) for a, b in numbers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "DENSE", dense)  # 0: every trial looks its vectors up; 1000: products of all pairs
        patch.setattr(scoring, "BLOCK_CELLS", 20)
        patch.setattr(scoring, "GATHERED", 7)
        found = cosine_scores(listed(pairs), sides_of(listed(pairs), vectors, mean=mean))
    assert found == pytest.approx(expected, abs=1e-6)
    assert np.abs(found).max() <= 1


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 1000), st.integers(2, 30), st.sampled_from(["asnorm", "snorm"]))
def test_normalised_scores_are_those_of_the_formula(seed: int, top_n: int, norm: str) -> None:
    vectors, cohort = made(6, 5, seed), made(20, 5, seed + 1, "c")
    pairs = [("u0", "u1"), ("u2", "u0"), ("u3", "u3"), ("u5", "u4")]
    trials = listed(pairs)
    sides = sides_of(trials, vectors)
    values = np.array([0.5, -0.25, 1.0, 0.125])
    found = normalise(trials, values, sides, cohort.matrix, norm=norm, top_n=top_n)  # type: ignore[arg-type]
    for index, (pair, score) in enumerate(zip(pairs, values, strict=True)):
        statistics = []
        for name in pair:
            against = sorted(
                (cosine(vectors.matrix[vectors.rows[name]], other) for other in cohort.matrix), reverse=True
            )
            kept = against if norm == "snorm" else against[:top_n]
            mean = math.fsum(kept) / len(kept)
            deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in kept) / len(kept))
            statistics.append((mean, deviation))
        (m_e, s_e), (m_t, s_t) = statistics
        expected = 0.5 * ((score - m_e) / s_e + (score - m_t) / s_t)
        # cosines are right to 1e-6, and are divided by deviations of two close values at the worst
        assert found.values[index] == pytest.approx(expected, abs=1e-5 / min(s_e, s_t) ** 2)
        assert found.side is not None
        assert found.side.enrol_mean[index] == pytest.approx(m_e, abs=2e-6)
        assert found.side.test_length[index] == pytest.approx(np.linalg.norm(vectors.matrix[vectors.rows[pair[1]]]))


def test_a_speaker_is_the_mean_of_its_recordings_and_is_scored_as_one_vector() -> None:
    vectors = Vectors(("a", "b", "c"), np.array([[2, 0], [0, 4], [1, 2]], np.float32))
    models = speaker_means(vectors, {"s": ("a", "b"), "c": ("b",)})
    assert models.matrix.tolist() == [[1, 2], [0, 4]]
    found = score_trials(listed([("s", "c"), ("s", "b"), ("c", "b")]), vectors, models=models)
    assert found.values.tolist() == [1, 0.89443, 1]  # rounded to five decimals; 2 / sqrt(5)


def test_names_without_a_vector_are_counted_before_anything_is_scored() -> None:
    vectors = made(2, 3, 0)
    pairs = [(f"x{index}", "u0") for index in range(5)] + [("x0", "y")]
    with pytest.raises(
        InputError, match=r"6 of the names in the trials have no vector: x0, x1, x2 and more\. There are 2"
    ):
        sides_of(listed(pairs), vectors)
    with pytest.raises(InputError, match="1 utterances of the speakers have no vector: z"):
        speaker_means(vectors, {"s": ("u0", "z")})


def test_what_cannot_be_compared_is_told() -> None:
    vectors, pair = made(3, 4, 0), listed([("u0", "u1")])
    flat = Vectors(("u0", "u1"), np.array([[0, 0], [1, 2]], np.float32))
    with pytest.raises(InputError, match="1 of 2 vectors are zero and point nowhere: u0"):
        sides_of(pair, flat)
    with pytest.raises(InputError, match="1 of 2 vectors are exactly the mean and point nowhere: u1"):
        sides_of(pair, flat, mean=np.array([1, 2], np.float32))
    with pytest.raises(InputError, match="the mean has 3 values, vectors have 4"):
        sides_of(pair, vectors, mean=np.ones(3, np.float32))
    with pytest.raises(InputError, match="enrolled vectors have 2 values, those of the tests 4"):
        sides_of(pair, vectors, models=flat)
    sides, values = sides_of(pair, vectors), np.zeros(1)
    with pytest.raises(InputError, match="cohort have 5 values, those of the trials 4"):
        normalise(pair, values, sides, made(9, 5, 0).matrix)
    with pytest.raises(InputError, match="at least 2 speakers, this one has 1"):
        normalise(pair, values, sides, made(1, 4, 0).matrix)
    with pytest.raises(InputError, match="cohort scores of u0, u1 are alike"):
        normalise(pair, values, sides, np.ones((9, 4), np.float32))
    with pytest.raises(ValueError, match="top_n must be at least 2"):
        normalise(pair, values, sides, made(9, 4, 0).matrix, top_n=1)


def test_a_folder_with_the_mean_alone_is_that_mean_and_one_with_vectors_is_theirs(tmp_path: Path) -> None:
    np.save(tmp_path / "mean_vec.npy", np.array([1.0, 2.0]))
    assert read_mean(tmp_path).tolist() == [1, 2]
    (tmp_path / "vectors.ark").write_text("a [ 3 4 ]\nb [ 5 6 ]\n", encoding="utf-8")
    (tmp_path / "xvector.scp").write_text("a vectors.ark:2\nb vectors.ark:12\n", encoding="utf-8")
    assert read_mean(tmp_path).tolist() == [4, 5]


def test_a_mean_is_read_from_numpy_and_nothing_else_is(tmp_path: Path) -> None:
    path = tmp_path / "mean.npy"
    np.save(path, np.array([[1.0, 2.0]]))
    assert read_mean(path).tolist() == [1, 2]
    for wrong in (np.ones((2, 2)), np.array([1.0, np.nan]), np.array([1j])):
        np.save(path, wrong)
        with pytest.raises(InputError, match="is no mean vector: it holds"):
            read_mean(path)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="it holds object, not numbers"):
        read_mean(path)
    with pytest.raises(InputError, match="cannot read"):
        read_mean(tmp_path / "none.npy")


def test_a_note_beside_the_vectors_tells_whether_a_mean_is_subtracted(tmp_path: Path) -> None:
    note = tmp_path / "embed.json"
    assert not mean_is_subtracted(tmp_path)
    for content, expected in (({"made_by": {"mean_subtracted": "true"}}, True), ({"made_by": {}}, False), ([], False)):
        note.write_text(json.dumps(content), encoding="utf-8")
        assert mean_is_subtracted(tmp_path) is mean_is_subtracted(tmp_path / "xvector.scp") is expected
