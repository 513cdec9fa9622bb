"""Lists of trials and files of scores: all forms, and clear words about wrong lines."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.errors import InputError, OperatorError
from tritone.speakers import trials as trials_module
from tritone.speakers.score_file import Scores, SideColumns, read_scores, rounded, write_scores
from tritone.speakers.trials import Block, Trials, read_groups, read_trials

PAIRS = [("a", "b", True), ("a", "c", False), ("d", "b", False)]


def pairs(trials: Trials) -> list[tuple[str, str, bool]]:
    labels = [False] * len(trials) if trials.targets is None else trials.targets.tolist()
    return [
        (trials.enrol_names[left], trials.test_names[right], label)
        for left, right, label in zip(trials.enrol, trials.test, labels, strict=True)
    ]


def lines(form: str) -> str:
    if form == "kaldi":
        return "".join(f"{a} {b}\t{'target' if same else 'nontarget'}\n" for a, b, same in PAIRS)
    return "".join(f"{int(same)}  {a} {b}\r\n" for a, b, same in PAIRS)


@pytest.mark.parametrize("form", ["kaldi", "voxceleb"])
@pytest.mark.parametrize("block", [1, 1 << 22])
def test_both_forms_are_told_by_their_first_line_and_blank_lines_do_not_matter(
    form: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials_module, "BLOCK_BYTES", block)  # 1: every line is a block of its own
    first, *rest = lines(form).splitlines(keepends=True)
    (tmp_path / "trials").write_bytes(b"\xef\xbb\xbf\n" + (first + "\n \n" + "".join(rest) + "\n").encode())
    found = read_trials(tmp_path / "trials")
    assert (found.form, pairs(found)) == (form, PAIRS)
    assert (found.enrol_names, found.test_names) == (("a", "d"), ("b", "c"))
    assert (found.num_targets, found.num_nontargets, len(found)) == (1, 2, 3)


def test_two_columns_are_trials_without_labels(tmp_path: Path) -> None:
    (tmp_path / "trials").write_text("a b\nc d", encoding="utf-8")
    found = read_trials(tmp_path / "trials")
    assert (found.form, found.targets) == ("unlabelled", None)
    assert pairs(found) == [("a", "b", False), ("c", "d", False)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has no trials"),
        ("\n \n", "has no trials"),
        ("a b target\na b\n", ":2: 'a b' is not 'enrol test target' or 'enrol test nontarget'"),
        ("a b target\n\nc d Target\n", ":3: 'c d Target' is not 'enrol test target'"),
        ("1 a b\n2 a b\n", ":2: '2 a b' is not '1 enrol test' or '0 enrol test'"),
        ("a b\na b target\n", ":2: 'a b target' is not 'enrol test' without a label"),
        ("a\n", ":1: 'a' is not a trial"),
        ("a b same\n", ":1: 'a b same' is not a trial"),
        ("a b 0.5 target\n", "is not a trial. Write 'enrol test target' or '... nontarget' (Kaldi)"),
        ("a b 0.5 target\n", "It looks like a file of scores: give it as --scores"),
        ("x" * 70_000 + "\n", "…' is not a trial"),
        ("a \udcff target\n", "is not UTF-8"),
    ],
)
def test_a_wrong_line_is_named(content: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "trials").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError) as caught:
        read_trials(tmp_path / "trials")
    assert complaint in str(caught.value)


@settings(max_examples=examples(100), deadline=None)
@given(st.text(alphabet="ab \t\r\n\v\f", max_size=40), st.integers(1, 3))
def test_columns_are_those_of_lines_that_are_split_one_by_one(text: str, number: int) -> None:
    rows = [row for line in text.encode().split(b"\n") if (row := line.split())]
    expected = [list(column) for column in zip(*rows, strict=False)] if {len(row) for row in rows} == {number} else None
    if rows:
        assert Block(Path("x"), 1, text.encode()).columns(number) == expected


def test_a_file_that_is_no_text_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_module, "BLOCK_BYTES", 10)
    (tmp_path / "x").write_bytes(b"a b\n" + b"x" * 200_000)
    with pytest.raises(InputError, match=r"x:2: a line of more than 65,536 bytes; is it a text file\?"):
        read_trials(tmp_path / "x")


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    for path, complaint in ((tmp_path, "is not a file"), (tmp_path / "none", "is not there")):
        for read in (read_trials, read_scores):
            with pytest.raises(InputError, match=complaint):
                read(path)


def test_speakers_and_their_utterances_are_read(tmp_path: Path) -> None:
    path = tmp_path / "spk2utt"
    path.write_text("s1 a b\n\ns2 c\n", encoding="utf-8")
    assert read_groups(path) == {"s1": ("a", "b"), "s2": ("c",)}
    for content, complaint in (("s1\n", ":1: s1 has no utterances"), ("s a\ns b\n", ":2: s has a line"), ("", "empty")):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=complaint):
            read_groups(path)


def listed(values: list[float], labels: bool = True) -> Scores:
    names = ("a", "b")
    where = np.arange(len(values), dtype=np.int32) % 2
    targets = where == 0 if labels else None
    return Scores(Trials(names, names, where, where[::-1].copy(), targets), np.array(values))


def test_a_file_of_scores_is_laid_out_as_upstream_does(tmp_path: Path) -> None:
    plain = listed([0.123456, -1.0])
    write_scores(tmp_path / "s", plain.trials, plain.values)
    assert (tmp_path / "s").read_bytes() == b"a b 0.12346 target\nb a -1.00000 nontarget\n"
    side = SideColumns(*(np.array([value, value + 1]) for value in (12.34567, 2, -0.00001, 4)))
    write_scores(tmp_path / "s", plain.trials, plain.values, side)
    assert (tmp_path / "s").read_text(encoding="utf-8").splitlines()[
        0
    ] == "a b 0.12346 target 12.3457 2.0000 -0.0000 4.0000"
    assert pairs(read_scores(tmp_path / "s").trials) == pairs(plain.trials)
    bare = listed([0.5], labels=False)
    write_scores(tmp_path / "s", bare.trials, bare.values)
    assert (tmp_path / "s").read_text(encoding="utf-8") == "a a 0.50000\n"
    assert read_scores(tmp_path / "s").trials.targets is None
    assert [path.name for path in tmp_path.iterdir()] == ["s"]  # nothing half-written is left


def test_scores_that_are_read_are_those_that_were_rounded(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=500).tolist()
    scores = listed(values)
    write_scores(tmp_path / "s", scores.trials, scores.values)
    assert np.array_equal(read_scores(tmp_path / "s").values, rounded(scores.values))


def test_scores_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    scores = listed([1.0])
    with pytest.raises(OperatorError, match="cannot write"):
        write_scores(tmp_path / "no" / "s", scores.trials, scores.values)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has no scores"),
        ("a b target\n", ":1: 'a b target' is not a score"),
        ("a b\n", "A list of trials is given as --trials"),
        ("a b 0.5 target\na b nan target\n", ":2: 'a b nan target' is not a score"),
        ("a b 0.5 target\na b 1e999 target\n", ":2: 'a b 1e999 target'"),
        ("a b 0.5 target\na b 0.5\n", ":2: 'a b 0.5' is not a score"),
        ("a b 0.5 yes\n", ":1: 'a b 0.5 yes' is not a score"),
        ("a b 0.5 target 1 2\n", ":1: "),
    ],
)
def test_a_wrong_score_is_named(content: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "s").write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_scores(tmp_path / "s")
    assert complaint in str(caught.value)
