"""icefall's conformer, its predictor and joiner against arrays made by upstream's own code.

Tolerances are those of the golden data's README: float noise of upstream itself, times about ten.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from parity.golden_cases import Case, largest
from tritone.families.icefall.checkpoint import load_model
from tritone.families.icefall.conformer import Conformer, ConformerStep
from tritone.families.icefall.model import IcefallModel

ENCODER_ATOL = 2e-5
LOGIT_ATOL = 1e-4
PADDING = float(np.log(1e-10))  # of features

_models: dict[str, IcefallModel] = {}


def load_case(case: Case) -> IcefallModel:
    if case.name not in _models:
        _models[case.name] = load_model([case.path / "pretrained.pt"], causal=sizes(case).get("causal_convolution"))
    return _models[case.name]


def sizes(case: Case) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((case.path / "hparams.json").read_text(encoding="utf-8"))
    return content


def conformer(case: Case) -> Conformer:
    encoder = load_case(case).encoder
    assert isinstance(encoder, Conformer)
    return encoder


def golden_input(case: Case) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(case.inputs["features"]), torch.from_numpy(case.inputs["lengths"])


def upstream_batch(case: Case) -> tuple[Tensor, Tensor]:
    """Features with lengths that let in what upstream's batch lets in.

    Where a length leaves 3 when divided by 4, the last encoder frame of a padded utterance reads one frame of padding,
    so that it is one frame longer as far as anything here is concerned. Its number of encoder frames stays the same.
    """
    feats, lengths = golden_input(case)
    leaks = (lengths % 4 == 3) & (lengths < feats.shape[1])
    return feats, lengths + leaks


def compare_rows(found: Tensor, expected: np.ndarray, lengths: Any, atol: float = ENCODER_ATOL) -> None:
    for row, length in enumerate(lengths):
        difference = largest(found[row, :length], expected[row, :length])
        assert difference <= atol, f"utterance {row}: largest difference {difference:.2e}, allowed {atol:.0e}"


def test_sizes_are_read_off_the_tensors(icefall_case: Case) -> None:
    model, told = load_case(icefall_case), sizes(icefall_case)
    predictor = model.config.predictor
    assert predictor is not None
    assert (predictor.vocab_size, predictor.width, predictor.joiner_dim, predictor.context_size) == tuple(
        told[name] for name in ("vocab_size", "decoder_dim", "joiner_dim", "context_size")
    )
    if isinstance(model.encoder, Conformer):
        config = model.encoder.config
        assert (config.encoder_dim, config.heads, config.feed_forward_dim, config.layers, config.kernel) == tuple(
            told[name]
            for name in ("encoder_dim", "nhead", "dim_feedforward", "num_encoder_layers", "cnn_module_kernel")
        )
        assert config.feature_dim == told["feature_dim"]


@torch.no_grad()
def test_a_padded_batch_equals_upstreams(conformer_case: Case) -> None:
    expected = conformer_case.expected
    name = "full_context_encoder_out" if sizes(conformer_case)["streaming"] else "encoder_out"
    encoded, num_frames = conformer(conformer_case)(*upstream_batch(conformer_case))
    assert num_frames.tolist() == expected[f"{name}_lens"].tolist()
    compare_rows(encoded, expected[name], num_frames)


@torch.no_grad()
def test_a_batch_seen_in_chunks_equals_upstreams(conformer_streaming_case: Case) -> None:
    told, expected = sizes(conformer_streaming_case), conformer_streaming_case.expected
    encoded, num_frames = conformer(conformer_streaming_case)(
        *upstream_batch(conformer_streaming_case),
        chunk_size=told["decode_chunk_size"],
        left_context=told["left_context"],
    )
    compare_rows(encoded, expected["simulated_encoder_out"], num_frames)


@torch.no_grad()
def test_every_row_of_a_batch_is_what_it_is_alone(conformer_case: Case) -> None:
    feats, lengths = golden_input(conformer_case)
    encoder = conformer(conformer_case)
    encoded, num_frames = encoder(feats, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, count = encoder(feats[row : row + 1, :length], lengths[row : row + 1])
        assert int(count) == num_frames[row]
        compare_rows(encoded[row : row + 1], alone.numpy(), [int(count)])


@torch.no_grad()
def test_predictor_and_joiner_equal_upstreams_also_for_contexts_without_tokens(icefall_case: Case) -> None:
    expected, model = icefall_case.expected, load_case(icefall_case)
    arrays = {name: torch.from_numpy(expected[f"joiner_{name}"]) for name in ("encoder_in", "decoder_in")}
    contexts = torch.from_numpy(expected["contexts"])
    assert (contexts < 0).any()
    predicted = model.predictor(contexts)
    assert largest(predicted, expected["decoder_out"][:, 0]) <= ENCODER_ATOL
    left = model.joiner.project_encoder(arrays["encoder_in"])
    right = model.joiner.project_predictor(arrays["decoder_in"])
    assert largest(left, expected["joiner_encoder_proj"]) <= LOGIT_ATOL
    assert largest(right, expected["joiner_decoder_proj"]) <= LOGIT_ATOL
    assert largest(model.joiner(left, right), expected["joiner_logits"]) <= LOGIT_ATOL


@dataclass
class Streams:
    """Streams of a case that are decoded by our step, their states kept as the golden data's would be."""

    step: ConformerStep
    feats: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        self.states = [
            torch.zeros(len(self.lengths), *shape, dtype=torch.int64 if name == "processed" else torch.float32)
            for name, shape in self.step.state_shapes.items()
        ]

    def advance(self, streams: list[int], k: int) -> tuple[Tensor, list[int]]:
        """Step `k` of some streams."""
        start, window = k * self.step.shift_frames, self.step.window_frames
        block = F.pad(self.feats[streams], (0, 0, 0, start + window), value=PADDING)[:, start : start + window]
        num_valid = (self.lengths[streams] - start).clamp(0, window)
        for row, valid in zip(block, num_valid, strict=True):
            row[valid:] = PADDING
        encoded, num_frames, *states = self.step(block, num_valid, *(state[streams] for state in self.states))
        for state, value in zip(self.states, states, strict=True):
            state[streams] = value
        return encoded, num_frames.tolist()

    def compare_states(self, stream: int, attn_cache: np.ndarray, conv_cache: np.ndarray) -> None:
        """Hold one stream's states against upstream's, (layers, frames, width) each.

        Upstream keeps activations of which it makes keys and values again; ours are made of its before they are
        compared. Slots that no frame has reached yet hold zeros there and the biases of zeros here.
        """
        processed, ours, gated = (state[stream] for state in self.states)
        seen = min(int(processed), self.step.left_context)
        for index, layer in enumerate(self.step.conformer.encoder.layers):
            projection, width = layer.self_attn.in_proj, attn_cache.shape[2]
            theirs = F.linear(torch.from_numpy(attn_cache[index]), projection.weight[width:], projection.bias[width:])
            heads = theirs.unflatten(1, (2, layer.self_attn.heads, -1)).permute(2, 0, 1, 3).flatten(2)
            assert largest(ours[index, :, -seen:], heads[:, -seen:].numpy()) <= ENCODER_ATOL
        assert largest(gated, conv_cache) <= ENCODER_ATOL


@pytest.fixture
def streams(conformer_streaming_case: Case) -> Streams:
    told = sizes(conformer_streaming_case)
    step = conformer(conformer_streaming_case).streaming(
        *(told[name] for name in ("decode_chunk_size", "left_context", "right_context"))
    )
    assert (step.window_frames, step.pad_frames) == (told["decode_window"], told["pad_length"])
    return Streams(step, *golden_input(conformer_streaming_case))


@torch.no_grad()
def test_every_stream_equals_upstream_decoding_it_alone_whoever_else_is_in_the_batch(
    conformer_streaming_case: Case, streams: Streams
) -> None:
    expected, count = conformer_streaming_case.expected, len(streams.lengths)
    found: list[list[Tensor]] = [[] for _ in range(count)]
    k = 0
    while active := [
        i for i in range(count) if k * streams.step.shift_frames < streams.lengths[i] + streams.step.pad_frames
    ]:
        encoded, num_frames = streams.advance(active, k)
        for row, stream in enumerate(active):
            found[stream].append(encoded[row, : num_frames[row]])
        k += 1
    for stream in range(count):
        assert [len(chunk) for chunk in found[stream]] == expected[f"stream{stream}_chunk_out_lens"].tolist()
        assert largest(torch.cat(found[stream]), expected[f"stream{stream}_encoder_out"]) <= ENCODER_ATOL
        streams.compare_states(
            stream,
            expected[f"stream{stream}_final_attn_cache"][:, :, 0],
            expected[f"stream{stream}_final_cnn_cache"][:, :, 0],
        )


@torch.no_grad()
def test_chunks_and_states_equal_those_of_upstreams_batches(conformer_streaming_case: Case, streams: Streams) -> None:
    expected = conformer_streaming_case.expected
    compared = 0
    # Upstream keeps states that end where the batch ends, so a stream that has ended before may go on differently.
    exact = set(range(len(streams.lengths)))
    for k in range(int(expected["num_chunks"])):
        active = expected[f"chunk{k}_stream_ids"].tolist()
        encoded, _ = streams.advance(active, k)
        whole = expected[f"chunk{k}_x_lens"] == expected[f"chunk{k}_x"].shape[1]
        for row, stream in enumerate(active):
            length = max(0, int(expected[f"chunk{k}_encoder_out_lens"][row]))
            if stream in exact:
                difference = largest(encoded[row, :length], expected[f"chunk{k}_encoder_out"][row, :length])
                assert difference <= ENCODER_ATOL, f"chunk {k}, stream {stream}: {difference:.2e}"
            if not whole[row]:
                exact.discard(stream)
            elif stream in exact and f"chunk{k}_attn_cache" in expected:
                caches = (expected[f"chunk{k}_{name}_cache"][:, :, row] for name in ("attn", "cnn"))
                streams.compare_states(stream, *caches)
                compared += 1
    assert compared > 2, "there should be states to compare"
