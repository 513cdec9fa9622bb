"""The forms of operators that a zipformer has here compute what icefall's own do, which published graphs have."""

import math
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from benchmarks.models.transducer import random_network, smaller
from benchmarks.models.upstream import upstream_operators

from tritone.families.export.exportable import Run, follow
from tritone.families.icefall.conformer import ConformerConfig
from tritone.families.icefall.graphs import OfflineGraph, make_fbank
from tritone.families.icefall.zipformer_config import ZipformerConfig
from tritone.families.icefall.zipformer_streaming import StreamingZipformer
from tritone.families.onnx.int8 import LEAST_ELEMENTS, quantise_products
from tritone.families.onnx.writer import export_graph
from tritone.runtime import open_graph

ENCODER = smaller("zipformer-m")
assert isinstance(ENCODER, ZipformerConfig)
WIDER = replace(ENCODER, stacks=tuple(replace(stack, width=32, feed_forward=48) for stack in ENCODER.stacks))


CONFORMER = smaller("conformer-m")
assert isinstance(CONFORMER, ConformerConfig)
WIDER_CONFORMER = replace(CONFORMER, encoder_dim=32, feed_forward_dim=48, layers=2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [WIDER, WIDER_CONFORMER])
@torch.no_grad()
def test_whole_utterances_are_encoded_as_by_upstreams_operators(
    size: ZipformerConfig | ConformerConfig, causal: bool
) -> None:
    network = random_network(size, causal=causal).encoder
    feats, lengths = 3 * torch.randn(2, 103, 80), torch.tensor([103, 103])
    ours, _ = network(feats, lengths)
    with upstream_operators():
        theirs, _ = network(feats, lengths)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_step_of_streams_is_encoded_as_by_upstreams_operators() -> None:
    network = random_network(WIDER, causal=True).encoder
    step = StreamingZipformer(network, 16, 32)  # type: ignore[arg-type]
    states = [
        torch.tensor([16, 64]) if name == "processed" else torch.randn(2, *shape)
        for name, shape in step.state_shapes.items()
    ]
    inputs = torch.randn(2, step.window_frames, 80), torch.full((2,), step.window_frames), *states
    ours = step(*inputs)
    with upstream_operators():
        theirs = step(*inputs)
    for mine, upstreams in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, upstreams, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@torch.no_grad()
def test_in_int8_an_utterance_has_the_same_frames_to_the_last_bit_whatever_is_beside_it(tmp_path: Path) -> None:
    network = random_network(WIDER)
    graph = OfflineGraph(network, make_fbank(80), "transducer").eval()
    traced = export_graph(graph, graph.example(), graph.outputs, graph.dynamic, graph.metadata)
    narrow = quantise_products(traced)
    pointwise = [
        node
        for node in narrow.graph.node
        if node.op_type == "Conv"
        and any(each.name == "kernel_shape" and list(each.ints) == [1, 1] for each in node.attribute)
    ]
    assert not pointwise  # they are products, and in int8 as such
    # nothing that is multiplied with a weight stays float32, nor a second copy of a weight that is also part of a bias
    left = [tensor for tensor in narrow.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
    assert not [tensor.dims for tensor in left if len(tensor.dims) == 2 and math.prod(tensor.dims) >= LEAST_ELEMENTS]
    path = tmp_path / "encoder.onnx"
    path.write_bytes(narrow.SerializeToString())
    opened = open_graph(path)
    waveform = 0.1 * torch.randn(1, 12000)
    results = []
    for loudness in (0.01, 30.0):
        both = torch.cat([waveform, loudness * torch.randn(1, 12000)])
        run = Run([{"waveform": both, "num_samples": torch.tensor([12000, 9000])}])
        results += [found["encoder_out"][0] for _, found in follow(graph, opened, run)]
    assert (results[0] == results[1]).all()
