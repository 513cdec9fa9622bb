"""Scores and error rates against what wespeaker's own scripts made of the same vectors.

Tolerances are those of the README of the golden data: 1.1e-5 for scores (five decimals), 2e-5 for normalised ones,
which are compared from upstream's own scores on, and 1e-9 for error rates.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from parity.golden_cases import Case, largest
from tritone.speakers.archive import read_vectors
from tritone.speakers.metrics import Cost, ErrorCurve
from tritone.speakers.score_file import Scores, read_scores, write_scores
from tritone.speakers.scoring import read_mean, score_trials, speaker_means
from tritone.speakers.trials import read_groups, read_trials

MEAN_CALIBRATED = re.compile(r"(?P<trials>.+)\.(?P<cal>nocal|meancal)(\.(?P<norm>asnorm|snorm)(?P<top_n>\d*))?\.score")


def score_files(case: Case) -> list[tuple[Path, "re.Match[str]"]]:
    named = [(path, MEAN_CALIBRATED.fullmatch(path.name)) for path in sorted(case.path.glob("*.score"))]
    found = [(path, name) for path, name in named if name is not None]
    assert found
    return found


def test_vectors_and_means_are_those_that_kaldiio_wrote(scoring_case: Case) -> None:
    with np.load(scoring_case.path / "embeddings.npz") as arrays:
        for name, scp in (("", "xvector.scp"), ("cohort_", "cohort/xvector.scp")):
            vectors = read_vectors(scoring_case.path / scp)
            assert vectors.keys == tuple(arrays[f"{name}keys"].tolist())
            assert np.array_equal(vectors.matrix, arrays["cohort" if name else "embeddings"])
    cohort = read_vectors(scoring_case.path / "cohort" / "xvector.ark")
    means = speaker_means(cohort, read_groups(scoring_case.path / "cohort" / "spk2utt"))
    expected = read_vectors(scoring_case.path / "cohort" / "spk_xvector.scp")
    assert means.keys == expected.keys
    assert largest(means.matrix, expected.matrix) < 1e-6
    mean = np.load(scoring_case.path / "mean_vec.npy")
    assert largest(read_mean(scoring_case.path / "cohort"), mean) < 2e-6  # upstream sums in float32
    assert np.array_equal(read_mean(scoring_case.path / "mean_vec.npy"), mean)


def test_scores_and_their_files_are_upstreams(scoring_case: Case, tmp_path: Path) -> None:
    folder = scoring_case.path
    vectors, cohort = read_vectors(folder / "xvector.scp"), read_vectors(folder / "cohort" / "spk_xvector.scp")
    mean = read_mean(folder / "mean_vec.npy")
    for path, name in score_files(scoring_case):
        trials, expected = read_trials(folder / name["trials"]), read_scores(path)
        is_normalised = name["norm"] is not None
        given = None
        if is_normalised:  # upstream begins with the rounded scores in its file
            given = read_scores(folder / f"{name['trials']}.{name['cal']}.score").values
        found = score_trials(
            trials,
            vectors,
            mean=mean if name["cal"] == "meancal" else None,
            given=given,
            cohort=cohort if is_normalised else None,
            norm="snorm" if name["norm"] == "snorm" else "asnorm",
            top_n=int(name["top_n"] or 100),
        )
        off = largest(found.values, expected.values)
        assert off <= (2e-5 if is_normalised else 1.1e-5), path.name
        write_scores(tmp_path / "found.score", trials, found.values, found.side)
        ours, theirs = ((each.read_text(encoding="utf-8").splitlines()) for each in (tmp_path / "found.score", path))
        for line, other in zip(ours, theirs, strict=True):
            assert len(line.split()) == len(other.split())
            for field, reference in zip(line.split(), other.split(), strict=True):
                if "." in reference and re.fullmatch(r"-?\d+\.\d+", reference):
                    assert len(field.split(".")[1]) == len(reference.split(".")[1])
                    # side columns have four decimals, and their last one may be rounded either way
                    assert float(field) == pytest.approx(float(reference), abs=1.1e-4)
                else:
                    assert field == reference


def test_error_rates_of_upstreams_scores_are_upstreams(scoring_case: Case) -> None:
    metrics = json.loads((scoring_case.path / "metrics.json").read_text(encoding="utf-8"))
    for name, expected in metrics.items():
        scores: Scores = read_scores(scoring_case.path / name)
        assert scores.trials.targets is not None
        curve = ErrorCurve.of(scores.trials.targets, scores.values)
        assert (curve.num_targets, curve.num_nontargets) == (expected["target"], expected["nontarget"])
        # Of a target and a non-target with one score, upstream's sort decides which is first: errors of a trial each.
        ties = expected.get("ties_with_mixed_label", 0)
        rates = ties / curve.num_targets, ties / curve.num_nontargets
        assert curve.eer().value == pytest.approx(expected["eer"], abs=max(1e-9, *rates))
        if not ties:
            assert curve.eer().threshold == pytest.approx(expected["eer_threshold"], abs=1e-9)
        for key, value in expected.items():
            if matched := re.fullmatch(r"min_dcf_p(\d+)p(\d+)(?:_cmiss(\d+))?", key):
                cost = Cost(float(f"{matched[1]}.{matched[2]}"), float(matched[3] or 1))
                moved = (cost.c_miss * cost.p_target * rates[0] + (1 - cost.p_target) * rates[1]) / cost.default
                assert curve.min_dcf(cost).value == pytest.approx(value, abs=max(1e-9, moved)), (name, key)
        if ties:
            continue
        _, eer_line, dcf_line = expected["printed"]
        assert f"EER = {100 * curve.eer().value:.3f}" == eer_line
        assert dcf_line.endswith(f"= {curve.min_dcf(Cost()).value:.3f}")
