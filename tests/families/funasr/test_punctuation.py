"""CT-Transformer from FunASR's and sherpa-onnx's folders: upstream's texts, transcripts with times, refusals."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import tritone
from families import funasr_models
from families.funasr import upstream
from tritone.bundle import Bundle
from tritone.cli.main import app
from tritone.corpus.clips import read_clips
from tritone.errors import BundleError, ExportError
from tritone.families.funasr.export import export_funasr
from tritone.families.known import recognise
from tritone.families.sherpa_onnx.export import export_sherpa_onnx
from tritone.kinds.punctuation.model import Punctuator
from tritone.texts.marks import Marker
from tritone.transcript import Alternative, Span, Transcript

GOLDEN = np.load(upstream.PATH)
TEXTS = upstream.texts()


def marked(number: int) -> list[str]:
    """Upstream's texts, without the space that it writes before one of ASCII."""
    return [str(each).lstrip() for each in GOLDEN[f"marked_{number}"]]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    folder = tmp_path_factory.mktemp("punctuation")
    return [
        export_funasr(
            folder=funasr_models.write_punctuation(folder / f"model-{number}", number),
            output=folder / f"bundle-{number}",
            check=number == 0,
        ).bundle
        for number in (0, 1)
    ]


@pytest.mark.parametrize("number", [0, 1])
def test_texts_have_upstreams_marks_however_long_they_are(bundles: list[Bundle], number: int) -> None:
    punctuator = Punctuator(bundles[number])
    assert [punctuator.punctuate(text) for text in TEXTS] == marked(number)
    assert list(punctuator.run_iter(TEXTS[:2])) == marked(number)[:2]


def test_words_of_jieba_have_upstreams_marks(tmp_path: Path) -> None:
    pytest.importorskip("jieba")
    model = funasr_models.write_punctuation(tmp_path / "model", 2)
    punctuator = tritone.load(export_funasr(folder=model, output=tmp_path / "b", check=False).bundle.path)
    assert [punctuator.punctuate(text) for text in TEXTS] == marked(2)


def sherpa_folder(bundle: Bundle, folder: Path, **changes: str) -> Path:
    """What sherpa-onnx's exporter makes of the same network."""
    model = onnx.load(bundle.path / "model.onnx")
    kept = {
        "model_type": "ct_transformer",
        "vocab_size": str(len(upstream.WORDS)),
        "tokens": "|".join(upstream.WORDS),
        "punctuations": "|".join(upstream.MARKS),
        "unk_symbol": "<unk>",
    }
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, kept | changes)
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    (folder / "tokens.json").write_text(json.dumps(upstream.WORDS), encoding="utf-8")
    return folder


def test_a_folder_of_sherpa_onnx_writes_the_same(bundles: list[Bundle], tmp_path: Path) -> None:
    folder = sherpa_folder(bundles[0], tmp_path / "model")
    assert recognise(folder).what == "a punctuation model of sherpa-onnx"
    imported = export_sherpa_onnx(folder=folder, output=tmp_path / "b").bundle
    assert [Punctuator(imported).punctuate(text) for text in TEXTS] == marked(0)
    for name, changes in (("words", {"vocab_size": "7"}), ("marks", {"punctuations": "a|b"}), ("none", {"tokens": ""})):
        with pytest.raises(ExportError, match="the metadata have"):
            export_sherpa_onnx(folder=sherpa_folder(bundles[0], tmp_path / name, **changes), output=tmp_path / "c")


def test_a_transcript_gets_marks_in_text_words_and_parts() -> None:
    marks = ("", "，", "。", "？")
    labels = {"你": 0, "好": 1, "ok": 2, "the": 0, "cat": 3}
    marker = Marker(marks, 2, lambda words: [labels.get(word, 0) for word in words])
    words = tuple(Span(text, at, at + 1.0, 0.5) for at, text in enumerate(["你", "好", "ok", "the", "cat", "sat"]))
    reading = Alternative("the cat", -1.0)
    found = marker.transcript(Transcript("你好 ok the cat sat", words=words, alternatives=(reading,), history="你好"))
    assert found.text == "你好，ok. The cat? Sat."
    assert [word.text for word in found.words] == ["你", "好，", "ok.", "The", "cat?", "Sat."]
    assert [word.start_s for word in found.words] == [word.start_s for word in words]
    assert found.alternatives[0].text == "The cat?"
    assert found.history == "你好。"
    for text in ("", "  ", "It is done.", "好了吗？"):
        assert marker.text(text) == text
    assert marker.transcript(Transcript("cat sat", words=words)).words == words  # they are of another text


def test_no_passage_is_longer_than_a_text_without_marks_may_make_it() -> None:
    lengths: list[int] = []

    def none(words: Sequence[str]) -> list[int]:
        lengths.append(len(words))
        return [0] * len(words)

    marker = Marker(("", "。"), 1, none)
    assert marker.text("word " * 5000) == "Word" + " word" * 4999 + "."
    assert 1000 < max(lengths) <= 1020
    assert len(lengths) == 250


def test_partial_texts_stay_open(bundles: list[Bundle]) -> None:
    partial = Transcript("the cat", is_final=False)
    assert Punctuator(bundles[0]).transcript(partial) == partial


def test_the_command_writes_texts_with_its_marks(bundles: list[Bundle]) -> None:
    clip = str(read_clips()[0].path)
    asked = ["transcribe", clip, "--model", "demo-asr"]
    plain = CliRunner().invoke(app, asked).output.strip()
    found = CliRunner().invoke(app, [*asked, "--punctuation-model", str(bundles[0].path)])
    assert found.exit_code == 0, found.output
    assert found.output.strip() == Punctuator(bundles[0]).punctuate(plain) != plain
    refused = CliRunner().invoke(app, [*asked, "--punctuation-model", "demo-asr"])
    assert refused.exit_code == 1
    assert "writes no marks" in refused.output


def test_a_bundle_with_marks_that_are_none_is_refused(bundles: list[Bundle], tmp_path: Path) -> None:
    manifest = json.loads((bundles[0].path / "manifest.json").read_bytes())
    for changes, said in (
        ({"full_stop": 1}, "none of the marks"),
        ({"marks": ["", "。"]}, "gives scores of its marks"),
    ):
        copy = tmp_path / said.replace(" ", "-")
        copy.mkdir()
        for name in bundles[0].files:
            (copy / name).write_bytes((bundles[0].path / name).read_bytes())
        changed = manifest | {"punctuation": manifest["punctuation"] | {"full_stop": 1} | changes}
        (copy / "manifest.json").write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(BundleError, match=said):
            Punctuator(Bundle.open(copy))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_conf": {"punc_list": "，"}}, "the marks are"),
        ({"model_conf": {"sentence_end_id": 1}}, "1 ends sentences"),
        ({"model_conf": {"embed_unit": 30}}, "should be model_conf.embed_unit, 30"),
        ({"model_conf": {"att_unit": 30}}, "should be the encoder's output_size, 24"),
        ({"encoder_conf": {"num_blocks": 2}}, "does not fit its config"),
        ({"tokenizer_conf": {"unk_symbol": "<other>"}}, "stands for unknown words"),
        ({"tokenizer_conf": {"seg_dict": "x"}}, "unknown seg_dict"),
        ({"encoder": "SANMVadEncoder"}, "config.encoder is 'SANMVadEncoder'"),
    ],
)
def test_settings_that_cannot_be_had_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = funasr_models.write_punctuation(tmp_path / "model", content=funasr_models.punctuation_content(**changes))
    with pytest.raises(ExportError, match=said):
        export_funasr(folder=folder, output=tmp_path / "b")


def test_the_folder_is_recognised_and_scores_of_rows_are_independent(bundles: list[Bundle], tmp_path: Path) -> None:
    found = recognise(funasr_models.write_punctuation(tmp_path / "model"))
    assert (found.what, found.family, found.int8) == ("a punctuation model of FunASR", "funasr", False)
    network = tritone.load(bundles[0].path)
    assert isinstance(network, Punctuator)
    ids = np.array([[1, 2, 3, 4], [5, 6, 0, 0]], np.int32)
    whole = network._pipeline.run([{"inputs": ids, "text_lengths": np.array([[4], [2]], np.int32)}])[0]["logits"]
    alone = network._pipeline.run([{"inputs": ids[1:, :2], "text_lengths": np.array([[2]], np.int32)}])[0]["logits"]
    np.testing.assert_allclose(whole[1, :2], alone[0], atol=1e-5)
