"""The form of torch's fused kernels computes what the plain form does, on the same weights."""

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from families.conftest import CONFIG, with_cmvn
from families.jasper_models import random_state, small_config
from tritone.families.export.exportable import trial_signal
from tritone.families.export.fused import fused
from tritone.families.export.precision import in_precision
from tritone.families.icefall.conformer import Conformer, ConformerConfig
from tritone.families.jasper.config import parse_config as parse_jasper
from tritone.families.jasper.model import Convolution, Network, Rows
from tritone.families.layers.fbank import Fbank
from tritone.families.wenet.config import parse_config
from tritone.families.wenet.graphs import OfflineGraph, StreamingGraph
from tritone.families.wenet.model import AsrModel
from tritone.families.wenet.rescoring import RescoringGraph
from tritone.families.wespeaker.config import ResNetConfig
from tritone.families.wespeaker.resnet import ResNet

ATOL = 1e-4  # natural-log units; sums in another order


def wenet(**encoder: Any) -> AsrModel:
    config: dict[str, Any] = copy.deepcopy(CONFIG)
    config["encoder_conf"] |= encoder
    with_cmvn(config)
    torch.manual_seed(3)
    model = AsrModel(parse_config(config)).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, 0, 0.3) if parameter.dim() > 1 or name.endswith("bias") else None
    assert model.encoder.global_cmvn is not None
    model.encoder.global_cmvn.mean.fill_(5.0)
    model.encoder.global_cmvn.istd.fill_(0.3)
    return model


def largest_difference(plain: Tensor, other: Tensor, count: Tensor) -> float:
    return max(float((a[:n] - b[:n]).abs().max()) for a, b, n in zip(plain, other, count, strict=True) if n)


@pytest.mark.parametrize(
    "encoder",
    [
        {},
        {"causal": False, "cnn_module_norm": "batch_norm", "use_dynamic_chunk": False},
        {"input_layer": "conv2d6", "attention_heads": 1},
        {"input_layer": "conv2d8", "pos_enc_layer_type": "abs_pos", "selfattention_layer_type": "selfattn"},
        {"query_bias": False, "key_bias": False, "value_bias": False},
        {"use_dynamic_chunk": False, "static_chunk_size": 4},
    ],
    ids=lambda encoder: ",".join(encoder) or "default",
)
@torch.no_grad()
def test_wenets_whole_utterances_are_the_same(encoder: dict[str, Any]) -> None:
    graph = OfflineGraph(wenet(**encoder), Fbank())
    lengths = torch.tensor([16000, 7000, 3000, 0])
    inputs = trial_signal(16000, 16000).repeat(4, 1), lengths
    (plain, count, _), (other, frames, encoded) = graph(*inputs), fused(graph)(*inputs)
    assert frames.tolist() == count.tolist()
    assert largest_difference(plain, other, count) < ATOL
    assert torch.isfinite(encoded).all()  # also where there is nothing to attend to


@torch.no_grad()
def test_either_form_of_wenets_steps_continues_a_stream_of_the_other() -> None:
    graph = StreamingGraph(wenet(), Fbank(), chunk_size=4, left_chunks=2)
    forms = graph, fused(graph)
    window, shift = graph.window_for(4), graph.shift_for(4)
    signal = trial_signal(window + 4 * shift, 16000).repeat(2, 1)
    states = list(graph.zero_states(2, 8).values())
    for step in range(4):
        inputs = signal[:, step * shift :][:, :window], torch.full((2,), window)
        plain, other = (form(*inputs, *states) for form in forms)
        for one, another in zip(plain, other, strict=True):
            torch.testing.assert_close(one, another, atol=ATOL, rtol=1e-4)
        states = list((plain, other)[step % 2][3:])


@torch.no_grad()
def test_the_attention_decoder_is_the_same() -> None:
    model = wenet()
    assert model.decoder is not None
    graph = RescoringGraph(model.decoder, 28, 28, 16).eval()
    for run in graph.trials():
        for step in run.steps:
            torch.testing.assert_close(fused(graph)(*step.values()), graph(*step.values()), atol=ATOL, rtol=1e-5)


@pytest.mark.parametrize("streamed", [False, True])
@torch.no_grad()
def test_icefalls_conformer_is_the_same(streamed: bool) -> None:
    torch.manual_seed(3)
    config = ConformerConfig(encoder_dim=16, heads=2, feed_forward_dim=24, layers=2, kernel=7, causal=True)
    model = Conformer(config).eval()
    feats, lengths = torch.randn(3, 91, 80), torch.tensor([91, 40, 3])
    if not streamed:
        for chunk in ({}, {"chunk_size": 4, "left_context": 8}):
            (plain, count), (other, _) = model(feats, lengths, **chunk), fused(model)(feats, lengths, **chunk)
            assert largest_difference(plain, other, count) < 1e-4
        return
    step = model.streaming(3, 5, 1)
    states = [torch.zeros(3, *shape) for shape in step.state_shapes.values()]
    states[0] = states[0].long()
    for _ in range(3):
        inputs = torch.randn(3, step.window_frames, 80), torch.tensor([step.window_frames, 20, 4])
        plain, other = step(*inputs, *states), fused(step)(*inputs, *states)
        for one, another in zip(plain, other, strict=True):
            torch.testing.assert_close(one, another, atol=1e-4, rtol=1e-4)
        states = plain[2:]


def test_both_forms_have_the_same_weights_and_the_plain_one_stays_plain() -> None:
    model = wenet()
    other = fused(model)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(one is another for one, another in pairs)

    def forms(module: nn.Module) -> set[bool]:
        return {bool(part.fused) for part in module.modules() if hasattr(part, "fused")}

    assert (forms(model), forms(other)) == ({False}, {True})


@torch.no_grad()
def test_features_are_made_by_fft_where_the_network_is_narrow() -> None:
    graph = OfflineGraph(wenet(), Fbank())
    narrow = OfflineGraph(in_precision(wenet(), "bf16"), graph.front_end)
    front_end = fused(narrow).front_end
    assert (vars(fused(graph).front_end)["fused"], vars(front_end)["fused"]) == (False, True)
    waveform, count = trial_signal(16000, 16000)[None], torch.tensor([16000])
    (expected, frames), (found, others) = graph.front_end(waveform, count), front_end(waveform, count)
    assert frames.tolist() == others.tolist()
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_attention_that_sees_nothing_is_finite_in_half_precisions(dtype: torch.dtype) -> None:
    attention: Any = fused(cast(nn.Module, wenet().encoder.encoders[0].self_attn)).to(dtype)
    x, positions = torch.randn(2, 9, 16, dtype=dtype), torch.randn(1, 9, 16, dtype=dtype)
    mask = torch.arange(9).expand(2, 1, 9) < torch.tensor([5, 0]).view(2, 1, 1)
    attended, _ = attention.attend_self(x, positions, mask, None)
    assert torch.isfinite(attended).all()


@torch.no_grad()
def test_attention_is_one_operator_with_layouts_that_its_kernels_for_gpus_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else torch falls back to plain products, masks and sums, several times as slow, and says nothing."""
    attend, calls = nn.functional.scaled_dot_product_attention, []

    def attended(query: Tensor, key: Tensor, value: Tensor, added: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        calls.append([query, key, value, added])
        return attend(query, key, value, added, *args, **kwargs)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", attended)
    inputs = trial_signal(16000, 16000).repeat(2, 1), torch.tensor([16000, 7000])
    fused(OfflineGraph(wenet(), Fbank()))(*inputs)
    icefall = Conformer(ConformerConfig(encoder_dim=16, heads=2, feed_forward_dim=24, layers=1, kernel=7)).eval()
    fused(icefall)(torch.randn(2, 91, 80), torch.tensor([91, 40]))
    assert len(calls) == 2 + 1
    for query, *others, added in calls:
        assert {each.stride(-1) for each in (query, *others, added)} == {1}
        assert all(each.shape[-1] == 8 and each.stride(2) % 8 == 0 for each in (query, *others))
    added = calls[-1][-1]
    assert all(step % 8 == 0 for step in added.stride()[:-1])


def layouts(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> list[bool]:
    """A list that grows with each convolution that is run: did its input have the channels last?"""
    found: list[bool] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0].is_contiguous(memory_format=torch.channels_last))

    for part in module.modules():
        if isinstance(part, kinds):
            part.register_forward_pre_hook(note)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # double: in place of the half precisions
@torch.no_grad()
def test_resnets_have_channels_last_but_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    model = (
        ResNet(ResNetConfig(bottleneck=True, blocks=(1, 1, 1, 1), feat_dim=40, embed_dim=8, width=4)).eval().to(dtype)
    )
    other, inputs = fused(model), (torch.randn(3, 50, 40, dtype=dtype), torch.tensor([50, 31, 9]))
    seen = layouts(other, (nn.Conv2d,))
    torch.testing.assert_close(other(*inputs), model(*inputs), atol=1e-5, rtol=1e-5)
    assert set(seen[1:]) == {dtype == torch.float64}


@pytest.mark.parametrize("kind", ["jasper", "quartznet"])
@torch.no_grad()
def test_jaspers_have_channels_last_unless_they_are_separable(kind: str) -> None:
    config = parse_jasper(small_config(kind))
    model = Network.of(config, random_state(config)).double()
    other, lengths = fused(model), torch.tensor([80, 33])
    seen = layouts(other, (Convolution,))
    x = torch.randn(2, 16, 1, 80, dtype=torch.float64)
    rows = Rows.starting(x, lengths, lengths, lengths)
    (plain, count, _), (found, _, _) = model(x, rows), other(x, rows)
    assert largest_difference(plain, found, count) < 1e-5
    assert set(seen) == {kind == "jasper"}
