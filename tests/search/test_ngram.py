"""n-gram models against KenLM's own scores, and files that are damaged."""

import gzip
import json
import math
import os
import time
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from effort import examples
from ngram_scores import log10_of
from tritone.errors import LanguageModelError
from tritone.search.ngram.model import NgramModel

DATA = Path(__file__).resolve().parents[1] / "data" / "ngram"
EXPECTED = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))
BINARIES = sorted(path.name for path in DATA.iterdir() if path.suffix not in (".arpa", ".json", ".md"))

TINY = r"""
\data\
ngram 1=5
ngram 2=4

\1-grams:
-1.0	<unk>
-99	<s>	-0.5
-0.9	</s>
-0.6	go	-0.3
-0.7	on	-0.2

\2-grams:
-0.2	<s> go
-0.1	go on
-0.4	on </s>
-0.8	on on

\end\
"""


def write(folder: Path, text: str, name: str = "lm.arpa") -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8"))
    return path


@pytest.mark.parametrize("name", EXPECTED["log10"])
def test_sentences_score_as_in_kenlm(name: str) -> None:
    model = NgramModel.read(DATA / name)
    scores = [log10_of(model, sentence) for sentence in EXPECTED["sentences"]]
    np.testing.assert_allclose(scores, EXPECTED["log10"][name], atol=1e-4)
    assert (model.order, len(model)) == (4, 43)


def test_a_score_worked_out_by_hand(tmp_path: Path) -> None:
    model = NgramModel.read(write(tmp_path, TINY))
    assert log10_of(model, "go on") == pytest.approx(-0.2 - 0.1 - 0.4)
    # "on" does not follow <s>, "go" not "on", "</s>" not "go": each backs off to the unigram
    assert log10_of(model, "on go") == pytest.approx((-0.5 - 0.7) + (-0.2 - 0.6) + (-0.3 - 0.9))
    # an unknown word, after which there is no context
    assert log10_of(model, "go wild on") == pytest.approx(-0.2 + (-0.3 - 1.0) - 0.7 - 0.4)


def test_words_have_ids_and_unknown_ones_have_none() -> None:
    model = NgramModel.read(DATA / "four.arpa")
    words = dict(model.spellings())
    assert words[model.word_id("anna")] == "anna"
    assert "北" in words.values()
    assert not {"<unk>", "<s>", "</s>"} & set(words.values())
    assert model.word_id("Anna") == model.word_id("") == model.word_id("<unk>") == 0


def test_a_gzipped_file_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(gzip.compress((DATA / "four.probing").read_bytes()))
    assert log10_of(NgramModel.read(path), "anna takes a taxi") == pytest.approx(
        log10_of(NgramModel.read(DATA / "four.arpa"), "anna takes a taxi"), abs=1e-5
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\t", " "),
        ("\n", "\r\n"),
        ("<unk>", "<UNK>"),
        ("<s>", "<S>"),
        ("-99", "-inf"),
        ("-0.1\tgo on", "-1e-1\tgo on"),
        ("-0.1\tgo on", " -.1  go   on\t0"),
        ("ngram 1=5", "ngram 1 = 5"),
        ("\n\\data\\", "made by somebody\n\n\\data\\"),
        ("-0.8\ton on", "\n-0.8\ton on"),
    ],
)
def test_what_other_tools_write_reads_the_same(tmp_path: Path, old: str, new: str) -> None:
    path = write(tmp_path, TINY.replace(old, new).replace("</S>", "</s>"))
    for sentence in ("go on", "on go", "go wild on"):
        plain = NgramModel.read(write(tmp_path, TINY, "plain.arpa"))
        assert log10_of(NgramModel.read(path), sentence) == pytest.approx(log10_of(plain, sentence))


def test_a_probability_that_rounding_made_larger_than_one_is_one(tmp_path: Path) -> None:
    model = NgramModel.read(write(tmp_path, TINY.replace("-0.1\tgo on", "0.0001\tgo on")))
    assert log10_of(model, "go on") == pytest.approx(-0.2 - 0.0 - 0.4)


def test_a_model_without_unknown_words_gives_them_what_kenlm_does(tmp_path: Path) -> None:
    text = TINY.replace("-1.0\t<unk>\n", "").replace("ngram 1=5", "ngram 1=4")
    model = NgramModel.read(write(tmp_path, text))
    assert log10_of(model, "wild") == pytest.approx(-0.5 - 100.0 - 0.9)


def test_a_model_without_sentence_marks_scores_words_alone(tmp_path: Path) -> None:
    text = "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3 a\n-0.4 b\n\n\\end\\\n"
    model = NgramModel.read(write(tmp_path, text))
    assert (model.order, model.end) == (1, 0)
    assert log10_of(model, "a b a") == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "data", r"neither an ARPA file .* nor a KenLM binary"),
        ("\\data\\", "iARPA", r"neither"),
        ("ngram 2=4", "ngram 2=5", r"line 13: .*2-grams .* has 4 lines, .* says 5"),
        ("ngram 2=4", "ngram 2=999999999999", r"line 13: .*4 lines"),
        ("ngram 2=4", "ngram 3=4", r"line 4: expected the number of 2-grams"),
        ("\\2-grams:", "\\3-grams:", r"line 13: expected \\2-grams:"),
        ("-0.6\tgo", "minus\tgo", r"line 10: .*log10"),
        ("-0.6\tgo", "nan\tgo", r"line 10: .*log10"),
        ("-0.6\tgo", "0.6\tgo", r"line 10: .*above 0"),
        ("-0.3\n", "-0.3x\n", r"line 10: .*back-off"),
        ("-0.3\n", "-0.3 -0.3\n", r"line 10: .*back-off"),
        ("-0.1\tgo on", "-0.1\tgo off", r"line 15: 'off' is not among the 1-grams"),
        ("-0.1\tgo on", "-0.1\tgo", r"line 15: .*fewer than 2 words"),
        ("-0.1\tgo on", "-0.1\tgo on\t-0.5", r"line 15: .*highest order"),
        ("-0.8\ton on", "-0.8\tgo on", r"line 17: .*twice"),
        ("-0.7\ton", "-0.7\tgo", r"line 11: 'go' is among the 1-grams twice"),
        ("\n\\end\\\n", "", r"\\end\\"),
        ("\\end\\", "\\e", r"\\end\\"),
    ],
)
def test_a_malformed_file_is_refused_with_the_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = TINY.replace(old, new, 1)
    assert text != TINY
    with pytest.raises(LanguageModelError, match=message):
        NgramModel.read(write(tmp_path, text))


def test_an_ngram_whose_context_is_missing_is_refused(tmp_path: Path) -> None:
    text = TINY.replace("ngram 2=4", "ngram 2=4\nngram 3=2").replace(
        "\\end\\", "\\3-grams:\n-0.1 go on on\n-0.2 go go on\n\n\\end\\"
    )
    with pytest.raises(LanguageModelError, match=r"line 22: its first 2 words are not among the 2-grams"):
        NgramModel.read(write(tmp_path, text))


def test_limits_hold_for_files_and_for_what_they_unpack_to(tmp_path: Path) -> None:
    with pytest.raises(LanguageModelError, match="more than the limit"):
        NgramModel.read(DATA / "four.arpa", max_bytes=10_000)
    bomb = tmp_path / "lm.gz"
    bomb.write_bytes(gzip.compress(bytes(10_000_000)))
    with pytest.raises(LanguageModelError, match="unpacks to more"):
        NgramModel.read(bomb, max_bytes=1_000_000)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = "".join(f"-1 {a}\n" for a in letters)
    pairs = "".join(f"-1 {a} {b}\n" for a in letters for b in letters)
    path = write(tmp_path, f"\\data\\\nngram 1=26\nngram 2=676\n\n\\1-grams:\n{words}\n\\2-grams:\n{pairs}\n\\end\\\n")
    with pytest.raises(LanguageModelError, match="in memory"):
        NgramModel.read(path, max_bytes=8_000)


def test_a_gzipped_file_that_unpacks_to_far_more_than_text_does_is_refused_soon(tmp_path: Path) -> None:
    bomb = tmp_path / "lm.gz"
    with gzip.open(bomb, "wb") as file:
        for _ in range(200):
            file.write(bytes(2**20))
    with pytest.raises(LanguageModelError, match=r"unpacks to more than 32 times its size \(18 MB so far\)"):
        NgramModel.read(bomb)


def test_empty_lines_are_passed_over_without_work_for_each(tmp_path: Path) -> None:
    start = time.process_time()
    lines = TINY.replace("\\1-grams:", "\n" * 5_000_000 + " \t\r\n" * 100 + "\\1-grams:")
    assert len(NgramModel.read(write(tmp_path, lines))) == len(NgramModel.read(write(tmp_path, TINY)))
    with pytest.raises(LanguageModelError, match=r"line 5000\d\d\d: expected the number|line 5000\d\d\d: expected"):
        NgramModel.read(write(tmp_path, lines.replace("\\1-grams:", "\\one-grams:")))
    assert time.process_time() - start < 10, "a minute where each line is one of Python's"


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.arpa")  # nobody writes to it
    with pytest.raises(LanguageModelError, match=r"cannot read .*it is not a file"):
        NgramModel.read(tmp_path / "pipe.arpa")
    with pytest.raises(LanguageModelError, match="cannot read"):
        NgramModel.read(tmp_path / "missing.arpa")
    with pytest.raises(LanguageModelError, match="empty"):
        NgramModel.read(write(tmp_path, ""))
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress((DATA / "four.arpa").read_bytes())[:500])
    with pytest.raises(LanguageModelError, match="damaged gzip"):
        NgramModel.read(cut)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (49, b"4", "format version 5"),
        (88, b"\x07", "order 7"),
        (88, b"\x01", "order 1"),
        (92, b"\x00\x00\x00\x7f", "multiplier"),
        (96, b"\x06", "kind 6"),
        (100, b"\x00", "holds no words"),
        (104, b"\x05", "version 5"),
        (108, b"\xff\xff\xff\xff\xff", "n-grams"),
        (116, b"\xff\xff\xff\x00", "cut off"),
    ],
)
def test_a_binary_header_is_checked(tmp_path: Path, at: int, value: bytes, message: str) -> None:
    content = bytearray((DATA / "four.probing").read_bytes())
    content[at : at + len(value)] = value
    path = tmp_path / "lm.bin"
    path.write_bytes(content)
    with pytest.raises(LanguageModelError, match=message):
        NgramModel.read(path)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (2, "a trie;"),
        (3, "quantised values"),
        (4, "compressed pointers"),
        (5, "quantised values and compressed pointers"),
    ],
)
def test_a_layout_other_than_probing_is_refused_with_the_command_that_makes_one(
    tmp_path: Path, kind: int, layout: str
) -> None:
    content = bytearray((DATA / "four.probing").read_bytes())
    content[96], content[104] = kind, 1  # as tries have them
    path = tmp_path / "lm.bin"
    path.write_bytes(content)
    with pytest.raises(LanguageModelError, match=rf"lm.bin is .*{layout}.* build_binary probing in.arpa out.bin"):
        NgramModel.read(path)


@pytest.mark.parametrize("name", BINARIES)
@hypothesis.settings(max_examples=examples(40), suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(data=st.data())
def test_damaged_binaries_are_refused_or_give_some_score(tmp_path: Path, name: str, data: st.DataObject) -> None:
    content = bytearray((DATA / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        # mostly where headers and pointers are
        at = data.draw(st.one_of(st.integers(0, 200), st.integers(0, len(content) - 1)))
        content[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path = tmp_path / "lm.bin"
    path.write_bytes(content[:cut])
    try:
        model = NgramModel.read(path)
    except LanguageModelError:
        return
    for sentence in EXPECTED["sentences"]:
        assert not math.isnan(log10_of(model, sentence))
    path.unlink()  # mapped still; a new file next time


@hypothesis.settings(max_examples=examples(200), suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(data=st.data())
def test_damaged_arpa_files_are_refused_or_give_some_score(tmp_path: Path, data: st.DataObject) -> None:
    text = bytearray(TINY.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"\n", b"\t", b"-", b"9", b"\\", b"e", b".", b"\0", b"\xff", b"<unk>", b"go on", b"\r"])
        )
    path = tmp_path / "lm.arpa"
    path.write_bytes(bytes(text[: data.draw(st.integers(len(text) // 2, len(text)))]))
    try:
        model = NgramModel.read(path)
    except LanguageModelError:
        return
    assert not math.isnan(log10_of(model, "go on wild"))
