"""The graph of the attention decoder: what it scores, what it must not depend on, and how a bundle tells of it."""

import copy
import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from families.conftest import CONFIG, UNITS
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError
from tritone.families.wenet.config import parse_config
from tritone.families.wenet.export import ExportReport
from tritone.families.wenet.model import AsrModel
from tritone.families.wenet.rescoring import RescoringGraph
from tritone.kinds.ctc.part import DecoderPart
from tritone.pipelines.graphs.contract import check_graph
from tritone.runtime import open_graph

WIDTH, SOS, EOS = 16, 3, 5


@cache
def model(kind: str) -> AsrModel:
    torch.manual_seed(3)
    made = AsrModel(
        parse_config(CONFIG | {"decoder": kind, "decoder_conf": CONFIG["decoder_conf"] | {"r_num_blocks": 2}})
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2.0) if parameter.dim() > 1 else parameter.normal_(0, 0.2)
    return made.eval()


def one_by_one(kind: str, memory: torch.Tensor, tokens: list[int]) -> list[float]:
    """Left and right score of one hypothesis for frames without padding, token by token."""
    scores = []
    for direction, reverse in enumerate((False, True)):
        read = tokens[::-1] if reverse else tokens
        inputs = torch.tensor([[SOS, *read]])
        logits = model(kind).decode(memory[None], torch.tensor([len(memory)]), inputs, inputs)[direction]
        if logits is not None:
            log_probs = torch.log_softmax(logits[0].double(), dim=-1)
            scores.append(sum(float(log_probs[place, token]) for place, token in enumerate([*read, EOS])))
    return scores


@settings(max_examples=examples(40), deadline=None)
@given(kind=st.sampled_from(["transformer", "bitransformer"]), data=st.data())
@torch.no_grad()
def test_a_batch_scores_each_hypothesis_as_if_it_were_alone(kind: str, data: st.DataObject) -> None:
    batch, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    hypothesis = st.lists(st.integers(0, len(UNITS) - 1), max_size=9)
    hypotheses = [[data.draw(hypothesis) for _ in range(n)] for _ in range(batch)]
    num_frames = torch.tensor([data.draw(st.integers(1, 12)) for _ in range(batch)])
    memory = torch.randn(batch, 12, WIDTH, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    longest = max(1, max(len(tokens) for row in hypotheses for tokens in row)) + data.draw(st.integers(0, 2))
    padded = torch.full((batch, n, longest), data.draw(st.integers(0, len(UNITS) - 1)))
    for row, column in np.ndindex(batch, n):
        padded[row, column, : len(hypotheses[row][column])] = torch.tensor(hypotheses[row][column], dtype=torch.int64)
    lengths = torch.tensor([[len(tokens) for tokens in row] for row in hypotheses])
    decoder = model(kind).decoder
    assert decoder is not None
    graph = RescoringGraph(decoder, SOS, EOS, WIDTH)
    found = graph(memory, num_frames, padded, lengths)
    assert len(found) == len(graph.outputs) == (2 if kind == "bitransformer" else 1)
    for row, column in np.ndindex(batch, n):
        wanted = one_by_one(kind, memory[row, : num_frames[row]], hypotheses[row][column])
        assert [float(scores[row, column]) for scores in found] == pytest.approx(wanted, abs=2e-4)


@torch.no_grad()
def test_encoder_keys_and_values_are_computed_once_per_utterance() -> None:
    decoder = copy.deepcopy(model("bitransformer").decoder)
    assert decoder is not None
    seen: list[tuple[int, ...]] = []
    for name, module in decoder.named_modules():
        if name.endswith("src_attn.linear_k"):
            module.register_forward_hook(lambda module, inputs, output: seen.append(tuple(inputs[0].shape)))
    tokens, lengths = torch.ones(2, 10, 5, dtype=torch.int64), torch.full((2, 10), 5)
    RescoringGraph(decoder, SOS, EOS, WIDTH)(torch.randn(2, 7, WIDTH), torch.tensor([7, 4]), tokens, lengths)
    assert seen == [(2, 7, WIDTH)] * 3, "one left layer and two right ones, however many hypotheses"


@pytest.fixture
def bundle(complete_report: ExportReport) -> Bundle:
    return complete_report.bundle


def test_the_manifest_tells_of_the_decoder(bundle: Bundle) -> None:
    decoder = bundle.manifest.find(DecoderPart)
    assert decoder is not None
    assert (decoder.bidirectional, decoder.ctc_weight, decoder.reverse_weight) == (True, 0.25, 0.0)
    assert bundle.artifacts("decoder")[0].files == ("decoder.onnx", "weights.bin")


def test_right_scores_are_there_where_the_models_reverse_weight_is_0(bundle: Bundle) -> None:
    rng = np.random.default_rng(0)
    memory = rng.normal(0, 1, (2, 9, 32)).astype(np.float32)
    num_frames, num_tokens = np.array([9, 4]), np.array([[5, 0, 2], [1, 5, 5]])
    hypotheses = rng.integers(0, len(UNITS), (2, 3, 5))
    inputs = {
        "encoder_out": memory,
        "num_frames": num_frames,
        "hypotheses": hypotheses,
        "num_tokens": num_tokens,
    }
    graph = open_graph(bundle.artifact("decoder"), threads=1)
    left, right = graph(inputs, ["left_scores", "right_scores"])
    assert not np.allclose(left, right)
    [alone] = graph(inputs, ["left_scores"])
    np.testing.assert_array_equal(alone, left)
    assert np.isfinite(right).all()
    assert (right < 0).all()


def test_the_decoders_weights_lie_with_the_others(bundle: Bundle) -> None:
    held = onnx.load(bundle.artifact("decoder"), load_external_data=False).graph.initializer
    outside = [tensor for tensor in held if tensor.data_location == onnx.TensorProto.EXTERNAL]
    assert outside
    assert {entry.value for tensor in outside for entry in tensor.external_data if entry.key == "location"} == {
        "weights.bin"
    }


def test_a_decoder_of_another_kind_than_the_manifest_says_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    shutil.copytree(bundle.path, tmp_path / "b")
    path = bundle.artifact("decoder")
    check_graph(open_graph(path), bundle, "decoder", path)
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text(encoding="utf-8"))
    manifest["encoder"]["output_dim"] = 20
    (tmp_path / "b" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    other = Bundle.open(tmp_path / "b")
    with pytest.raises(BundleError, match=r"encoder_out is float32 \(any, any, 32\), it should be .* 20\)"):
        check_graph(open_graph(path), other, "decoder", path)
    offline = bundle.artifact("encoder")
    with pytest.raises(BundleError, match=r"input hypotheses is missing.*output right_scores is missing"):
        check_graph(open_graph(offline), bundle, "decoder", offline)


def test_a_decoder_can_be_left_out(causal_bundle: Path) -> None:
    manifest = Bundle.open(causal_bundle).manifest
    assert manifest.find(DecoderPart) is None
    assert {artifact.role for artifact in manifest.artifacts} == {"encoder", "streaming_encoder"}
