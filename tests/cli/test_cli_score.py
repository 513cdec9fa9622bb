"""`tritone score` on small lists whose figures can be counted by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tritone.cli.main import app


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["score", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, " ".join(result.stderr.replace("│", " ").split())


def write_vectors(folder: Path, name: str, vectors: dict[str, list[float]]) -> Path:
    """A text archive and its list, by hand."""
    place, listed = 0, []
    with (folder / f"{name}.ark").open("w", encoding="utf-8") as ark:
        for key, values in vectors.items():
            listed.append(f"{key} {name}.ark:{place + len(key) + 1}\n")
            place += ark.write(f"{key}  [ {' '.join(map(str, values))} ]\n")
    (folder / f"{name}.scp").write_text("".join(listed), encoding="utf-8")
    return folder / f"{name}.scp"


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    write_vectors(tmp_path, "x", {"a": [1, 0], "b": [3, 4], "c": [0, 2], "d": [4, 3]})
    write_vectors(tmp_path, "cohort", {"s": [1, 1], "t": [1, -1], "u": [-1, 2]})
    (tmp_path / "trials").write_text("a b target\na c nontarget\nb d target\nc d nontarget\n", encoding="utf-8")
    return tmp_path


def test_cosines_are_written_as_upstream_writes_them_and_counted(lists: Path) -> None:
    found = lists / "out.score"
    code, out, err = run("--trials", lists / "trials", "--embeddings", lists / "x.scp", "--output", found)
    assert (code, err) == (0, f"wrote {found}")
    assert (
        found.read_text(encoding="utf-8")
        == "a b 0.60000 target\na c 0.00000 nontarget\nb d 0.96000 target\nc d 0.60000 nontarget\n"
    )
    # one target and one non-target share 0.6: refused together both kinds lose one of two, accepted together none
    assert "EER (%)                                 25.000" in out
    assert "2 target and 2 nontarget trials" in out
    assert "minDCF (p_target:0.01 c_miss:1 c_fa:1)   0.500" in out
    again = run("--scores", found)
    assert again == (0, out, "")


def test_json_has_all_figures_and_a_cost_for_each_p_target(lists: Path) -> None:
    given = ("--trials", lists / "trials", "--embeddings", lists / "x.scp", "--json", "--no-intervals")
    code, out, _ = run(*given, "--p-target", "0.5", "--p-target", "0.01", "--c-miss", "10")
    found = json.loads(out)
    assert (code, found["targets"], found["nontargets"], found["resampled"]) == (0, 2, 2, None)
    assert found["eer"] == {"value": 0.25, "threshold": 0.6, "interval": None}
    assert [(each["p_target"], each["c_miss"]) for each in found["min_dcf"]] == [(0.5, 10), (0.01, 10)]
    # accept all above 0: half of the non-targets at c_fa 1, over min(10 p, 1 - p)
    assert found["min_dcf"][0]["value"] == pytest.approx(0.5)


def test_a_mean_is_subtracted_and_a_second_one_is_warned_of(lists: Path) -> None:
    np.save(lists / "mean.npy", np.array([1.0, 1.0]))
    (lists / "trials").write_text("a b\nb d\n", encoding="utf-8")
    given = ("--trials", lists / "trials", "--embeddings", lists / "x.scp", "--output", lists / "out")
    code, out, err = run(*given, "--cal-mean", lists / "mean.npy")
    assert (code, out, "warning" in err) == (0, "", False)
    # (0, -1) with (2, 3), and (2, 3) with (3, 2)
    assert (lists / "out").read_text(encoding="utf-8") == f"a b {-3 / 13**0.5:.5f}\nb d {12 / 13:.5f}\n"
    (lists / "embed.json").write_text(
        json.dumps({"embeddings": 1, "made_by": {"mean_subtracted": "true"}}), encoding="utf-8"
    )
    assert "has subtracted a mean already" in run(*given, "--cal-mean", lists / "cohort.scp")[2]
    assert "warning" not in run(*given)[2]


def test_a_cohort_normalises_and_models_are_means_of_utterances(lists: Path) -> None:
    (lists / "spk2utt").write_text("m a c\n", encoding="utf-8")
    (lists / "trials").write_text("m b target\nm d nontarget\n", encoding="utf-8")
    code, _, err = run(
        *("--trials", lists / "trials", "--embeddings", lists / "x.scp", "--enroll", lists / "spk2utt"),
        *("--cohort", lists / "cohort.scp", "--output", lists / "out", "--no-intervals"),
    )
    assert code == 0
    assert "the cohort has 3 speakers, fewer than --top-n" in err
    model, test = np.array([0.5, 1.0]), np.array([3.0, 4.0])
    cohort = np.array([[1, 1], [1, -1], [-1, 2]]) / np.sqrt([[2], [2], [5]])
    against = [cohort @ (each / np.linalg.norm(each)) for each in (model, test)]
    score = round(float(model @ test / np.linalg.norm(model) / 5), 5)
    expected = 0.5 * sum((score - each.mean()) / each.std() for each in against)
    name, other, value, label, *side = (lists / "out").read_text(encoding="utf-8").splitlines()[0].split()
    assert (name, other, label) == ("m", "b", "target")
    assert float(value) == pytest.approx(expected, abs=2e-5)
    lengths = [np.linalg.norm(model), 5.0]
    assert [float(each) for each in side] == pytest.approx([*lengths, *(each.mean() for each in against)], abs=1e-4)


def test_scores_made_before_are_normalised_and_utterances_of_a_cohort_averaged(lists: Path) -> None:
    given = ("--embeddings", lists / "x.scp", "--cohort", lists / "cohort.scp", "--norm", "snorm")
    assert run("--trials", lists / "trials", *given, "--output", lists / "1")[0] == 0
    assert run("--trials", lists / "trials", *given[:2], "--output", lists / "plain")[0] == 0
    assert run("--scores", lists / "plain", *given, "--output", lists / "2")[0] == 0
    assert (lists / "1").read_text(encoding="utf-8") == (lists / "2").read_text(encoding="utf-8")
    (lists / "spk2utt").write_text("one s\ntwo t u\n", encoding="utf-8")
    grouped = (*given, "--cohort-spk2utt", lists / "spk2utt")
    assert run("--trials", lists / "trials", *grouped, "--output", lists / "3")[0] == 0
    assert (lists / "3").read_text(encoding="utf-8") != (lists / "1").read_text(encoding="utf-8")


def test_a_det_curve_is_drawn_and_speakers_make_the_intervals(lists: Path) -> None:
    (lists / "who").write_text("s1 a b\ns2 c\ns3 d\n", encoding="utf-8")
    given = ("--trials", lists / "trials", "--embeddings", lists / "x.scp", "--spk2utt", lists / "who")
    code, out, err = run(*given, "--det", lists / "det.png")
    assert code == 0
    assert "Intervals by drawing speakers; there are too few for intervals." in " ".join(out.split())
    assert err == f"wrote {lists / 'det.png'}"
    assert (lists / "det.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "give --trials with --embeddings, or --scores"),
        (["--trials", "{0}/trials", "--scores", "x"], "two ways to the same table"),
        (["--trials", "{0}/trials"], "--trials needs --embeddings"),
        (["--scores", "x", "--embeddings", "y"], "only to normalise with a --cohort"),
        (["--scores", "x", "--cohort", "y"], "--cohort needs --embeddings"),
        (["--scores", "x", "--cal-mean", "y"], "go with --embeddings"),
        (["--scores", "x", "--top-n", "5"], "go with --cohort"),
        (["--scores", "x", "--output", "y"], "would be a copy"),
        (["--scores", "x", "--det", "{0}/det.gif"], "neither .png nor .svg"),
        (["--scores", "x", "--p-target", "1"], "p_target is a probability between 0 and 1"),
        (["--scores", "x", "--c-fa", "0"], "c_fa must be above 0"),
        (["--trials", "{0}/bare", "--embeddings", "{0}/x.scp"], "has no labels"),
        (["--trials", "{0}/trials", "--embeddings", "x", "--output", "{0}/trials"], "would be written over"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(options: list[str], complaint: str, lists: Path) -> None:
    (lists / "bare").write_text("a b\n", encoding="utf-8")
    code, out, err = run(*(each.format(lists) for each in options))
    assert (code, out) == (2, "")
    assert complaint in err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--scores", "{0}/none"], "error: {0}/none is not there; name a text file"),
        (["--scores", "{0}/trials"], "A list of trials is given as --trials"),
        (["--trials", "{0}/absent", "--embeddings", "{0}/x.scp"], "2 of the names in the trials have no vector: z, y"),
        (["--trials", "{0}/trials", "--embeddings", "{0}"], "neither xvector.scp nor xvector_000.scp"),
        (["--trials", "{0}/one", "--embeddings", "{0}/x.scp"], "1 target and 0 non-target trials"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(options: list[str], complaint: str, lists: Path) -> None:
    (lists / "absent").write_text("a y target\nz b nontarget\n", encoding="utf-8")
    (lists / "one").write_text("a b target\n", encoding="utf-8")
    code, out, err = run(*(each.format(lists) for each in options))
    assert (code, out) == (1, "")
    assert complaint.format(lists) in err


def test_several_lists_of_trials_have_a_row_each_and_none_is_dropped(lists: Path) -> None:
    (lists / "hard").write_text("a b target\na d nontarget\n", encoding="utf-8")
    both = ("--trials", lists / "trials", "--trials", lists / "hard", "--embeddings", lists / "x.scp")
    code, out, err = run(*both, "--no-intervals", "--output", lists / "scores")
    assert (code, err) == (0, f"wrote {lists}/scores/trials.score wrote {lists}/scores/hard.score")
    rows = {words[0]: words[1:] for words in map(str.split, out.splitlines()) if words}
    assert rows["trials.score"][:3] == ["2", "2", "25.000"]
    assert rows["hard.score"][:3] == ["1", "1", "100.000"]  # the only target is below the only other
    assert (lists / "scores" / "hard.score").read_text(
        encoding="utf-8"
    ) == "a b 0.60000 target\na d 0.80000 nontarget\n"
    code, out, _ = run(*both, "--no-intervals", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(Path(each["trials"]).name, each["eer"]["value"]) for each in found] == [("trials", 0.25), ("hard", 1.0)]
    again = run(*(word for name in ("trials", "hard") for word in ("--scores", lists / "scores" / f"{name}.score")))
    assert again[0] == 0
    assert ["trials.score" in again[1], "hard.score" in again[1]] == [True, True]


def test_what_several_lists_cannot_have_is_said(lists: Path) -> None:
    (lists / "other").mkdir()
    (lists / "other" / "trials").write_text("a b target\na d nontarget\n", encoding="utf-8")
    given = ("--embeddings", lists / "x.scp", "--trials", lists / "trials")
    for options, complaint in (
        (("--trials", lists / "trials"), "a list is given twice"),
        (("--trials", lists / "other" / "trials", "--det", lists / "d.png"), "--det draws one list"),
        (("--trials", lists / "other" / "trials", "--output", lists / "s"), "two lists have the same name"),
    ):
        code, out, err = run(*given, *options)
        assert (code, out) == (2, "")
        assert complaint in err
