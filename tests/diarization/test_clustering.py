"""Clustering of voices: agglomerative and spectral, against scikit-learn and groups that are known."""

import numpy as np
import numpy.typing as npt
import pytest

from tritone.diarization import voices
from tritone.diarization.clustering import (
    agglomerate,
    condense,
    cut,
    grouped,
    groups_at,
    in_order,
    mean_cosines,
    merge_means,
)
from tritone.diarization.options import SpeakerOptions
from tritone.diarization.spectral import spectral
from tritone.diarization.voices import label_windows
from tritone.errors import InputError


def windows_of(*counts: int, noise: float = 0.15, dim: int = 24, seed: int = 0) -> npt.NDArray[np.float64]:
    """Unit vectors around one axis for each speaker, in turn."""
    generator = np.random.default_rng(seed)
    who = np.repeat(np.arange(len(counts)), counts)
    vectors = np.eye(dim)[who] + noise * generator.standard_normal((len(who), dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def label(vectors: npt.NDArray[np.float64], **options: object) -> list[int]:
    lengths = np.full(len(vectors), 1.5)
    return label_windows(vectors.astype(np.float32), lengths, SpeakerOptions(**options)).tolist()


@pytest.mark.slow  # imports scikit-learn
def test_merges_are_those_of_average_linkage() -> None:
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    cluster = pytest.importorskip("sklearn.cluster")
    vectors = windows_of(9, 14, 3, 11, noise=0.4, seed=3)
    merges = agglomerate(vectors, np.ones(len(vectors)))
    linkage = hierarchy.linkage(vectors, method="average", metric="cosine")
    assert np.allclose([1 - each.similarity for each in merges], linkage[:, 2])
    for groups in (1, 2, 5, 12, len(vectors)):
        theirs = cluster.AgglomerativeClustering(n_clusters=groups, metric="cosine", linkage="average")
        assert cut(merges, groups).tolist() == in_order(theirs.fit_predict(vectors)).tolist()
    theirs = cluster.AgglomerativeClustering(None, metric="cosine", linkage="average", distance_threshold=0.6)
    assert groups_at(merges, 0.4) == theirs.fit(vectors).n_clusters_


def test_points_that_stand_for_several_windows_are_merged_as_these_windows() -> None:
    vectors = windows_of(6, 6, 6)
    pairs = in_order(np.repeat(np.arange(9), 2))
    whole = agglomerate(vectors, np.ones(18))
    joined = agglomerate(grouped(vectors, pairs), np.full(9, 2.0))
    assert [each.similarity for each in joined[-2:]] == pytest.approx([each.similarity for each in whole[-2:]])
    sums, counts = condense(vectors, np.ones(18))
    assert (len(sums), counts.sum()) == (9, 18)
    assert np.allclose(sums.sum(axis=0), vectors.sum(axis=0))


def test_groups_are_merged_by_their_means_down_to_a_cosine() -> None:
    sums = np.array([[2.0, 0, 0], [0, 3, 0], [0.6, 0.8, 0], [0, 0, 1]])
    counts = np.array([2.0, 3, 1, 1])
    found, many = merge_means(sums, counts, cosine=0.7, least=1, most=4)
    assert (found.tolist(), many.tolist()) == ([[2, 0, 0], [0.6, 3.8, 0], [0, 0, 1]], [2, 4, 1])
    assert len(merge_means(sums, counts, cosine=0.7, least=4, most=4)[0]) == 4
    assert len(merge_means(sums, counts, cosine=0.7, least=1, most=2)[0]) == 2


@pytest.mark.slow  # imports scikit-learn
def test_spectral_clustering_finds_the_groups_of_scikit_learn_and_their_number() -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    vectors = windows_of(20, 30, 25, seed=1)
    cosines = vectors @ vectors.T
    theirs = cluster.SpectralClustering(n_clusters=3, affinity="precomputed", random_state=0)
    expected = in_order(theirs.fit_predict(np.maximum(cosines, 0))).tolist()
    assert spectral(cosines, least=1, most=10).tolist() == expected == [0] * 20 + [1] * 30 + [2] * 25
    assert spectral(cosines, least=3, most=3).tolist() == expected
    assert len(set(spectral(cosines, least=1, most=2).tolist())) <= 2


@pytest.mark.parametrize("points", [1, 2, 3])
def test_spectral_clustering_of_few_points_keeps_to_the_bounds(points: int) -> None:
    cosines = np.eye(points)
    assert spectral(cosines, least=1, most=1).tolist() == [0] * points
    assert spectral(cosines, least=5, most=5).tolist() == list(range(points))


def test_one_speaker_is_one_cluster() -> None:
    assert set(label(windows_of(30))) == {0}
    assert set(label(windows_of(30), method="spectral", max_speakers=1)) == {0}


@pytest.mark.parametrize("method", ["agglomerative", "spectral"])
def test_the_number_of_speakers_is_found_given_or_bounded(method: str) -> None:
    vectors = windows_of(12, 10, 14)
    right = [0] * 12 + [1] * 10 + [2] * 14
    assert label(vectors, method=method) == right
    assert label(vectors, method=method, num_speakers=3) == right
    assert len(set(label(vectors, method=method, num_speakers=2))) == 2
    assert len(set(label(vectors, method=method, max_speakers=2))) == 2
    assert len(set(label(vectors, method=method, min_speakers=5))) >= 5


@pytest.mark.parametrize("method", ["agglomerative", "spectral"])
def test_more_windows_than_a_matrix_holds_are_merged_first(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(sums: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> object:
        sizes.append(len(sums))
        return agglomerate(sums, counts)

    monkeypatch.setattr(voices, "MAX_POINTS", {"agglomerative": 40, "spectral": 40})
    monkeypatch.setattr("tritone.diarization.clustering.agglomerate", counted)
    monkeypatch.setattr(voices, "agglomerate", counted)
    vectors = windows_of(70, 90, 60)
    assert label(vectors, method=method) == [0] * 70 + [1] * 90 + [2] * 60
    assert max(sizes) == 40


def test_a_single_odd_window_is_no_speaker() -> None:
    vectors = windows_of(10, 10, 1)
    assert set(label(vectors)) == {0, 1}
    assert len(set(label(vectors, num_speakers=3))) == 3


def test_short_windows_and_those_without_an_embedding_make_no_speaker() -> None:
    vectors = windows_of(6, 6, 2).astype(np.float32)
    vectors[3] = 0
    lengths = np.array([1.5] * 12 + [0.5] * 2)
    labels = label_windows(vectors, lengths, SpeakerOptions()).tolist()
    assert labels[:12] == [0] * 6 + [1] * 6
    assert set(labels) == {0, 1}
    assert label_windows(np.zeros((2, 4), np.float32), lengths[:2], SpeakerOptions()).tolist() == [0, 0]


def test_cosines_of_points_are_means_over_their_windows() -> None:
    vectors = windows_of(2, 2)
    sums, counts = grouped(vectors, np.array([0, 0, 1, 1])), np.array([2.0, 2.0])
    assert mean_cosines(sums, counts)[0, 1] == pytest.approx((vectors[:2] @ vectors[2:].T).mean())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_speakers": 0}, "num_speakers must be 1 to 100, got 0"),
        ({"min_speakers": 4, "max_speakers": 3}, "min_speakers (4) is more than max_speakers (3)"),
        ({"window_s": 1.0, "shift_s": 1.5}, "shift_s (1.5) is more than window_s (1)"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        SpeakerOptions(**options)
    assert complaint in str(caught.value)
