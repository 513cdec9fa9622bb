"""Clustering of voices: agglomerative and spectral, against scikit-learn and groups that are known."""

import numpy as np
import numpy.typing as npt
import pytest

from tritone.diarization import voices
from tritone.diarization.clustering import Points, agglomerate, cut, groups_at, in_order, merge_means
from tritone.diarization.options import SpeakerOptions
from tritone.diarization.spectral import spectral
from tritone.diarization.voices import centres_of, label_windows
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
    merges = agglomerate(Points.of(vectors))
    linkage = hierarchy.linkage(vectors, method="average", metric="cosine")
    assert np.allclose([1 - each.similarity for each in merges], linkage[:, 2])
    for groups in (1, 2, 5, 12, len(vectors)):
        theirs = cluster.AgglomerativeClustering(n_clusters=groups, metric="cosine", linkage="average")
        assert cut(merges, len(vectors), groups).tolist() == in_order(theirs.fit_predict(vectors)).tolist()
    theirs = cluster.AgglomerativeClustering(None, metric="cosine", linkage="average", distance_threshold=0.6)
    assert groups_at(merges, len(vectors), 0.4) == theirs.fit(vectors).n_clusters_


def test_points_that_stand_for_several_windows_are_merged_as_these_windows() -> None:
    vectors = windows_of(6, 6, 6)
    pairs = in_order(np.repeat(np.arange(9), 2))
    whole, joined = agglomerate(Points.of(vectors)), agglomerate(Points.of(vectors).merged(pairs))
    assert [each.similarity for each in joined[-2:]] == pytest.approx([each.similarity for each in whole[-2:]])


def test_groups_are_merged_by_their_means_down_to_a_cosine() -> None:
    points = Points(np.array([[2.0, 0, 0], [0, 3, 0], [0.6, 0.8, 0], [0, 0, 1]]), np.array([2.0, 3, 1, 1]))
    found = merge_means(points, cosine=0.7, least=1, most=4)
    assert (found.sums.tolist(), found.counts.tolist()) == ([[2, 0, 0], [0.6, 3.8, 0], [0, 0, 1]], [2, 4, 1])
    assert len(merge_means(points, cosine=0.7, least=4, most=4)) == 4
    assert len(merge_means(points, cosine=0.7, least=1, most=2)) == 2
    apart = Points(points.sums, points.counts, np.array([[2, 1]]))
    found = merge_means(apart, cosine=0.5, least=1, most=4)
    assert found.sums.tolist() == [[2.6, 0.8, 0], [0, 3, 0], [0, 0, 1]]  # the next best
    assert found.apart.tolist() == [[0, 1]]
    assert len(merge_means(apart, cosine=0.5, least=1, most=1)) == 1  # so many are wanted in any case


@pytest.mark.slow  # imports scipy
@pytest.mark.parametrize("seed", range(4))
def test_points_that_must_stay_apart_do_and_the_rest_is_average_linkage(seed: int) -> None:
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    distance = pytest.importorskip("scipy.spatial.distance")
    vectors = windows_of(5, 6, 4, noise=0.6, seed=seed)
    pairs = np.random.default_rng(seed).integers(0, len(vectors), (8, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    merges = agglomerate(Points.of(vectors, pairs))
    for groups in range(1, len(vectors)):
        labels = cut(merges, len(vectors), groups)
        assert (labels[pairs[:, 0]] != labels[pairs[:, 1]]).all()
    # Distances of 1000 between them say the same as long as others are merged.
    away = distance.squareform(distance.pdist(vectors, "cosine"))
    away[pairs[:, 0], pairs[:, 1]] = away[pairs[:, 1], pairs[:, 0]] = 1000.0
    linkage = hierarchy.linkage(distance.squareform(away), "average")
    apart = linkage[linkage[:, 2] < 10, 2]
    assert [1 - each.similarity for each in merges] == pytest.approx(apart.tolist())


def test_nobody_is_merged_where_all_must_stay_apart() -> None:
    pairs = np.array([[0, 1], [1, 2], [0, 2]])
    assert agglomerate(Points.of(windows_of(3), pairs)) == []


@pytest.mark.parametrize("method", ["agglomerative", "spectral"])
def test_voices_that_are_alike_are_two_speakers_where_they_talk_at_once(method: str) -> None:
    vectors = windows_of(24, noise=0.05)
    pairs = np.array([[one, other] for one in range(0, 24, 2) for other in range(1, 24, 2) if one // 2 == other // 2])
    options = SpeakerOptions(method=method, num_speakers=2 if method == "spectral" else None)
    assert len(centres_of(vectors, options)) == (2 if method == "spectral" else 1)
    assert len(centres_of(vectors, options, pairs)) >= 2
    assert len(centres_of(vectors, SpeakerOptions(method=method, max_speakers=1), pairs)) == 1


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

    def counted(points: Points) -> object:
        sizes.append(len(points))
        return agglomerate(points)

    monkeypatch.setattr(voices, "MAX_POINTS", {"agglomerative": 40, "spectral": 40})
    monkeypatch.setattr(voices, "agglomerate", counted)
    vectors = windows_of(70, 90, 60)
    assert label(vectors, method=method) == [0] * 70 + [1] * 90 + [2] * 60
    assert max(sizes) == 40


def test_who_must_stay_apart_is_known_of_windows_that_were_merged_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voices, "MAX_POINTS", {"agglomerative": 40, "spectral": 40})
    vectors = windows_of(200, noise=0.05)
    pairs = np.stack([np.arange(0, 200, 2), np.arange(1, 200, 2)], axis=1)
    assert len(centres_of(vectors, SpeakerOptions())) == 1
    assert len(centres_of(vectors, SpeakerOptions(), pairs)) >= 2


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
    points = Points.of(vectors).merged(np.array([0, 0, 1, 1]))
    assert points.cosines()[0, 1] == pytest.approx((vectors[:2] @ vectors[2:].T).mean())


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
