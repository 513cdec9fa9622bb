"""Paraformers from FunASR's folder: upstream's tokens, probabilities and peaks, in any company; texts and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tritone
from effort import TORCH, runtimes
from families import funasr_models
from families.funasr import upstream
from tritone.bundle import Bundle
from tritone.bundle.manifest import Vocabulary as Settings
from tritone.bundle.vocabulary import Speller, Vocabulary
from tritone.errors import ExportError, InputError
from tritone.families.funasr.checkpoint import read_state, read_statistics
from tritone.families.funasr.config import parse_config
from tritone.families.funasr.drift import token_drift
from tritone.families.funasr.export import export_funasr
from tritone.families.funasr.front_end import StackedFbank
from tritone.families.funasr.graphs import DecoderGraph, EncoderGraph
from tritone.families.funasr.paraformer import Paraformer
from tritone.families.known import recognise
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.searching import paraformer as searching
from tritone.runtime import open_graph
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript

GOLDEN = np.load(upstream.PATH)
SIGNALS = upstream.signals()
TOKENS = funasr_models.PARAFORMER_TOKENS
SILENT = (0, 1, 2)


def log_probs_of(index: int) -> Any:
    name = f"paraformer_{index}"
    return GOLDEN[name] if name in GOLDEN else np.zeros((0, upstream.VOCAB), np.float32)


def assert_alike(found: Transcript, expected: Transcript) -> None:
    """The same text and times; confidences have the rounding of products of another shape."""
    assert found.text == expected.text
    assert [(token.text, token.start_s, token.end_s) for token in found.tokens] == [
        (token.text, token.start_s, token.end_s) for token in expected.tokens
    ]
    np.testing.assert_allclose(
        [token.confidence for token in found.tokens], [token.confidence for token in expected.tokens], atol=1e-5
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return funasr_models.write_paraformer(tmp_path_factory.mktemp("funasr") / "paraformer")


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export_funasr(
        folder=folder,
        output=tmp_path_factory.mktemp("bundles") / "small",
        runtimes=runtimes(),
    ).bundle


@pytest.mark.parametrize("runtime", ["onnxruntime", TORCH])
def test_tokens_probabilities_and_peaks_are_upstreams_in_any_company(bundle: Bundle, runtime: str) -> None:
    pipeline = OfflinePipeline(bundle, placement=Placement(runtime=runtime, precision="fp32"))
    order = [6, 2, 0, 5, 1, 4, 3]
    together = pipeline.recognize([SIGNALS[index] for index in order])
    count = 0
    for index, found in zip(order, together, strict=True):
        expected = log_probs_of(index)
        ids = expected.argmax(axis=1)
        kept = [at for at, id in enumerate(ids.tolist()) if id not in SILENT]
        assert [token.text for token in found.tokens] == [TOKENS[ids[at]] for at in kept]
        peaks = GOLDEN[f"peaks_{index}"][kept]
        assert [round(token.start_s / 0.06) for token in found.tokens] == [max(0, peak - 1) for peak in peaks.tolist()]
        np.testing.assert_allclose(
            [token.confidence for token in found.tokens], np.exp(expected.max(axis=1))[kept], atol=1e-4
        )
        assert found.text == Vocabulary(TOKENS, bundle.manifest.tokens).text(ids[kept].tolist())
        assert_alike(found, pipeline.recognize([SIGNALS[index]])[0])
        count += len(kept)
    assert count > 20


def test_long_batches_are_decoded_in_several_calls(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    [expected] = OfflinePipeline(bundle).recognize(SIGNALS[:1])
    monkeypatch.setattr(searching, "MAX_LOGITS", 2 * len(log_probs_of(0)) * upstream.VOCAB)
    calls: list[int] = []
    pipeline = OfflinePipeline(bundle)
    best = pipeline.searching._best  # type: ignore[attr-defined]

    def counted(feed: Any, options: Any) -> Any:
        calls.append(len(feed["num_frames"]))
        return best(feed, options)

    monkeypatch.setattr(pipeline.searching, "_best", counted)
    for found in pipeline.recognize(SIGNALS[:1] * 3):
        assert_alike(found, expected)
    assert calls == [2, 1]


def test_what_another_precision_moves_is_counted_by_tokens(folder: Path, bundle: Bundle) -> None:
    config = parse_config(funasr_models.paraformer_content())
    state = read_state(folder / "model.pt")
    front_end = StackedFbank(config.front_end, *read_statistics(folder / "am.mvn", 560))

    def graphs(network: Paraformer) -> tuple[EncoderGraph, DecoderGraph]:
        return EncoderGraph(network, front_end).eval(), DecoderGraph(network.decoder, 32).eval()

    same = graphs(Paraformer.of(config, state, upstream.VOCAB, "here"))
    state["decoder.output_layer.bias"] = torch.arange(upstream.VOCAB) * 0.1
    state["predictor.cif_output.bias"] = state["predictor.cif_output.bias"] + 0.3
    other = graphs(Paraformer.of(config, state, upstream.VOCAB, "here"))
    for name in ("encoder.onnx", "decoder.onnx"):
        opened = open_graph(bundle.path / name)
        assert token_drift(*same, opened, SIGNALS).moved < 1e-4
        assert token_drift(*other, opened, SIGNALS).moved > 0.01


def test_silence_and_audio_too_short_have_no_text(bundle: Bundle) -> None:
    found = OfflinePipeline(bundle).recognize([np.zeros(0, np.float32), np.zeros(399, np.float32), SIGNALS[2]])
    assert [each.text for each in found] == ["", "", ""]
    assert [each.tokens for each in found] == [(), (), ()]


def test_beams_are_refused_and_the_folder_is_recognised(bundle: Bundle, folder: Path) -> None:
    with pytest.raises(InputError, match="kind paraformer, which searches with greedy"):
        OfflinePipeline(bundle).recognize(SIGNALS[:1], [SearchOptions(mode="prefix-beam")])
    assert recognise(folder).family == "funasr"
    assert {each.name for each in recognise(folder).files} >= {"tokens.json", "am.mvn"}
    assert tritone.load(bundle.path).transcribe(SIGNALS[:1])[0].text


def test_a_model_with_a_further_predictor_writes_the_same_text(bundle: Bundle, tmp_path: Path) -> None:
    content = funasr_models.paraformer_content("BiCifParaformer", predictor_conf=upstream.FINE_TIMES)
    more = {name: torch.zeros(shape) for name, shape in upstream.FINE_SHAPES.items()}
    folder = funasr_models.write_paraformer(tmp_path / "more", content, **more)
    report = export_funasr(folder=folder, output=tmp_path / "b", check=False)
    assert any("times of tokens" in note for note in report.notes)
    expected = OfflinePipeline(bundle).recognize(SIGNALS)
    assert [each.text for each in OfflinePipeline(report.bundle).recognize(SIGNALS)] == [each.text for each in expected]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["我", "的", "th@@", "is", "is", "我"], "我的 this is 我"),
        (["hel@@", "lo", "a", "<unk>", "a"], "hello a <unk> a"),
        (["th@@"], "th"),
        (["th@@", "我", "</s>"], "th 我"),
    ],
)
def test_pieces_with_signs_of_continuation_join_into_words(tokens: list[str], text: str) -> None:
    settings = Settings(
        size=len(TOKENS), units="continued", blank_id=0, sos_id=1, eos_id=2, unk_id=TOKENS.index("<unk>")
    )
    vocabulary = Vocabulary(TOKENS, settings)
    ids = [TOKENS.index(token) for token in tokens]
    assert vocabulary.text(ids) == text
    speller = Speller(vocabulary)
    for id in ids:
        speller.add(id)
    assert speller.text == text
    assert [word.text for word in speller.words] == text.replace("我的", "我 的").split()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"predictor_conf": {"threshold": 0.9}}, "threshold: 1.0"),
        ({"predictor_conf": {"idim": 16}}, "the encoder's output_size, 32"),
        ({"predictor_conf": {"smooth_factor": 1.5}}, "should be 0 to 1"),
        ({"predictor_conf": {"upsample_times": 3}}, "predictor_conf: unknown upsample_times"),
        ({"decoder_conf": {"attention_heads": 5}}, "decoder_conf: output_size 32 has no whole number"),
        ({"decoder_conf": {"concat_after": True}}, "decoder_conf: supported are normalize_before"),
        ({"decoder": "TransformerDecoder"}, "config.decoder is 'TransformerDecoder'"),
        ({"encoder_conf": {"tp_blocks": 2}}, "tp_blocks is of SenseVoice alone"),
    ],
)
def test_settings_that_cannot_be_had_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(funasr_models.paraformer_content(**changes))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('["a", "a"]', "cannot be told apart"),
        ('{"a": 1}', "should be a list of texts"),
        ("[", "not JSON"),
        ('["a"]', "does not fit its config and 1 tokens"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tmp_path: Path, content: str, said: str) -> None:
    folder = funasr_models.write_paraformer(tmp_path / "model")
    (folder / "tokens.json").write_text(content, encoding="utf-8")
    with pytest.raises(ExportError, match=said):
        export_funasr(folder=folder, output=tmp_path / "b")
