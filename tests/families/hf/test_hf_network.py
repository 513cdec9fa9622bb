"""Networks of random shapes against transformers, whose result for an utterance alone every row must have."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from effort import examples
from families.conftest import babble
from families.hf_models import extractor_of, random_model, upstream_log_probs
from tritone.families.export.fused import fused
from tritone.families.export.precision import in_precision
from tritone.families.hf.checkpoint import renamed
from tritone.families.hf.config import parse_config
from tritone.families.hf.features import read_front_end
from tritone.families.hf.graphs import OfflineGraph
from tritone.families.hf.layers import distance_buckets
from tritone.families.hf.model import Network

ATOL = 1e-3  # of log-probabilities around -10 of networks with large weights; measured differences are below 1e-4


def graph_of(model: Any, do_normalize: bool = True) -> OfflineGraph:
    config = parse_config(model.config.to_dict(), "config.json")
    network = Network.of(config, renamed(model.state_dict(), config.model_type), "the test")
    settings = extractor_of(config.model_type, do_normalize).to_dict()
    front_end, sample_rate = read_front_end(settings, Path("preprocessor_config.json"), config)
    return OfflineGraph(network, front_end, sample_rate).eval()


@st.composite
def models(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    model_type = draw(
        st.sampled_from(["wav2vec2", "wav2vec2", "hubert", "wavlm", "wavlm", "data2vec-audio", "unispeech-sat"])
    )
    # Upstream refuses a norm over a single frame, which kernels of 1 behind the first convolution would leave.
    strides = draw(st.lists(st.integers(2, 4), min_size=3, max_size=3))
    settings: dict[str, Any] = {
        "conv_stride": strides,
        "conv_kernel": [stride + draw(st.integers(0, 4)) for stride in strides],
        "conv_bias": draw(st.booleans()),
        "feat_extract_activation": draw(st.sampled_from(["gelu", "relu", "gelu_new"])),
        "hidden_act": draw(st.sampled_from(["gelu", "silu"])),
        "num_conv_pos_embeddings": draw(st.integers(1, 20)),
    }
    if model_type == "data2vec-audio":
        return model_type, settings | {
            "num_conv_pos_embeddings": draw(st.integers(1, 3)),
            "conv_pos_kernel_size": draw(st.integers(1, 8)),
        }
    settings |= {
        "feat_extract_norm": draw(st.sampled_from(["group", "layer"])),
        "do_stable_layer_norm": draw(st.booleans()),
    }
    if model_type == "hubert":
        settings |= {"conv_pos_batch_norm": draw(st.booleans()), "feat_proj_layer_norm": draw(st.booleans())}
    if model_type == "wavlm":
        settings |= {"num_buckets": draw(st.sampled_from([8, 33])), "max_bucket_distance": draw(st.integers(9, 60))}
    if model_type == "wav2vec2" and settings["do_stable_layer_norm"]:
        settings |= {"adapter_attn_dim": draw(st.sampled_from([None, 4]))}
    return model_type, settings


@st.composite
def conformers(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    kind = draw(st.sampled_from(["wav2vec2-conformer", "wav2vec2-bert"]))
    types = ["relative", "rotary", None, *(["relative_key"] if kind == "wav2vec2-bert" else [])]
    settings: dict[str, Any] = {
        "position_embeddings_type": draw(st.sampled_from(types)),
        "conv_depthwise_kernel_size": draw(st.sampled_from([3, 7, 31])),
        "layer_norm_eps": draw(st.sampled_from([1e-5, 1e-2])),
        "rotary_embedding_base": draw(st.sampled_from([10000, 100])),
    }
    if kind == "wav2vec2-bert":
        settings |= {"left_max_position_embeddings": draw(st.integers(0, 70)), "right_max_position_embeddings": 8}
    return kind, settings | {"num_attention_heads": 2 if settings["position_embeddings_type"] == "rotary" else 3}


LASR = st.tuples(
    st.just("lasr_ctc"),
    st.fixed_dictionaries(
        {
            "conv_kernel_size": st.sampled_from([3, 8, 32]),
            "attention_bias": st.booleans(),
            "convolution_bias": st.booleans(),
            "conv_residual_weights": st.sampled_from([(2.0, 1.0), (1.0, 0.5)]),
            "subsampling_conv_channels": st.just(16),
        }
    ),
)
OMNIASR = st.tuples(st.just("omniasr_ctc"), st.builds(dict, hidden_act=st.sampled_from(["gelu", "relu"])))
GRANITE = st.tuples(
    st.just("granite_speech5_ctc"),
    st.builds(
        dict,
        num_hidden_layers=st.just(3),
        subsample_layers=st.sampled_from([[0, 1], [1], [0, 2], []]),
        context_size=st.sampled_from([3, 8]),
        max_position_embeddings=st.sampled_from([8, 20]),
        conv_kernel_size=st.sampled_from([3, 7]),
        attention_bias=st.booleans(),
        head_dim=st.sampled_from([None, 6]),
    ),
)


@given(
    model=models() | conformers() | OMNIASR | LASR | GRANITE,
    do_normalize=st.booleans(),
    seed=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=examples(24), deadline=None)
@torch.no_grad()
def test_every_row_of_a_batch_has_the_result_of_transformers_for_it_alone(
    model: tuple[str, dict[str, Any]], do_normalize: bool, seed: int, data: st.DataObject
) -> None:
    upstream = random_model(model[0], seed, **model[1])
    graph = graph_of(upstream, do_normalize)
    least = graph.min_samples
    lengths = [least, *data.draw(st.lists(st.integers(least, 4000), min_size=1, max_size=2))]
    waveforms = [babble(length, seed + row) + np.float32(0.1) for row, length in enumerate(lengths)]
    batch = torch.full((len(lengths), max(lengths) + 37), torch.nan)
    for row, waveform in zip(batch, waveforms, strict=True):
        row[: len(waveform)] = torch.from_numpy(waveform)
    for form in (graph, fused(graph)):
        log_probs, num_frames, encoded = form(batch, torch.tensor(lengths))
        assert bool(torch.isfinite(encoded).all())
        for row, waveform in enumerate(waveforms):
            expected = upstream_log_probs(upstream, waveform, do_normalize)
            assert num_frames[row] == len(expected)
            torch.testing.assert_close(log_probs[row, : len(expected)], expected, atol=ATOL, rtol=0)


@torch.no_grad()
def test_rows_without_a_frame_harm_nobody() -> None:
    graph = graph_of(random_model())
    waveform = torch.from_numpy(np.stack([babble(4000, row) for row in range(4)]))
    log_probs, num_frames, _ = graph(waveform, torch.tensor([0, 1, graph.min_samples - 1, 4000]))
    alone, count, _ = graph(waveform[3:], torch.tensor([4000]))
    assert num_frames.tolist() == [0, 0, 0, int(count)]
    assert bool(torch.isfinite(log_probs).all())
    torch.testing.assert_close(log_probs[3], alone[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_silence_and_a_constant_are_finite() -> None:
    graph = graph_of(random_model())
    log_probs, _, _ = graph(torch.tensor([[0.0], [0.5]]).repeat(1, 4000), torch.tensor([4000, 4000]))
    assert bool(torch.isfinite(log_probs).all())


@pytest.mark.parametrize(("count", "furthest"), [(320, 800), (33, 9), (8, 60)])
def test_the_table_of_distances_has_the_buckets_of_upstream(count: int, furthest: int) -> None:
    from transformers.models.wavlm.modeling_wavlm import WavLMAttention

    attention = WavLMAttention(6, 3, num_buckets=count, max_distance=furthest)
    reach = furthest + 300
    expected = attention._relative_positions_bucket(torch.arange(-reach, reach + 1))
    table = distance_buckets(count, furthest)
    assert torch.equal(table, expected[300:-300])
    assert len(set(expected[:301].tolist())) == len(set(expected[-301:].tolist())) == 1  # so the table is enough


@torch.no_grad()
def test_narrow_networks_compute_norms_and_softmax_in_float32_where_a_graph_has_to_say_it() -> None:
    model = random_model("wavlm", num_buckets=32, max_bucket_distance=40)
    graph = graph_of(model)
    waveform, lengths = torch.from_numpy(babble(8000, 1))[None], torch.tensor([8000])
    expected = graph(waveform, lengths)[0].exp()
    narrow = in_precision(graph.network, "fp16", explicit=True)
    assert not any(type(part) is nn.LayerNorm and part.weight.dtype != torch.float32 for part in narrow.modules())
    found = OfflineGraph(narrow, graph.front_end, 16000).eval()(waveform, lengths)
    assert {each.dtype for each in found} == {torch.float32, torch.int64}
    assert float((found[0].exp() - expected).abs().mean()) < 0.01
