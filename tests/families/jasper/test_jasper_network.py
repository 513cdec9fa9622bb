"""Folded and merged networks of random shapes against upstream's, written out straight in float64."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from families.jasper_models import LABELS, Reference, random_state
from tritone.errors import ExportError
from tritone.families.jasper.config import BlockConfig, FeatureConfig, ModelConfig
from tritone.families.jasper.graphs import OfflineGraph
from tritone.families.jasper.model import Block, Network
from tritone.families.layers.log_mel import LogMel

ATOL = 1e-3  # float32 against float64, of log-probabilities around -10
BINS = 8


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """A net that upstream can run: at most one run of dense blocks, branches where frames stay as many."""
    quartznet_names = draw(st.booleans())
    runs = draw(st.permutations(["plain", "none", "dense"]))
    kinds = ["none", *(kind for kind in runs for _ in range(draw(st.integers(0, 2))))]
    blocks = []
    for index, kind in enumerate(kinds):
        strided = index == 0 or (kind == "none" and draw(st.booleans()))
        kernels = [1, 3, 5] if kind != "none" or quartznet_names else [1, 2, 3, 4, 5]
        stride = draw(st.integers(1, 3)) if strided else 1
        of_quartznet = {
            "separable": draw(st.booleans()),
            "groups": draw(st.sampled_from([1, 1, 2])),
            "normalization": draw(st.sampled_from(["batch", "batch", "group", "instance", "layer"])),
            "norm_groups": draw(st.sampled_from([1, 2, -1])),
        }
        blocks.append(
            BlockConfig(
                filters=draw(st.sampled_from([4, 6, 8])),
                repeat=draw(st.integers(1, 2 if strided else 3)),
                kernel_size=draw(st.sampled_from(kernels)),
                stride=stride,
                dilation=draw(st.integers(1, 2)) if stride == 1 else 1,
                residual=kind != "none",
                dense=kind == "dense",
                **(of_quartznet if quartznet_names else {}),  # type: ignore[arg-type]
            )
        )
    if "dense" in kinds and "plain" in kinds[kinds.index("dense") :]:
        # Upstream can add what the dense run began with only where its blocks have as many channels.
        begun = max(kinds.index("dense") - 1, 0)
        blocks[begun:] = [replace(block, filters=blocks[begun].filters) for block in blocks[begun:]]
    return ModelConfig(
        labels=tuple(LABELS),
        features=FeatureConfig(n_filt=BINS, pad_align=draw(st.sampled_from([0, 4, 16]))),
        blocks=tuple(blocks),
        activation=draw(st.sampled_from(["relu", "hardtanh", "selu"])),
        masked=draw(st.booleans()),
        quartznet_names=quartznet_names,
    )


@given(config=configs(), seed=st.integers(0, 1000), data=st.data())
@settings(max_examples=examples(30), deadline=None)
@torch.no_grad()
def test_any_net_gives_each_row_what_upstream_gives_it_alone(
    config: ModelConfig, seed: int, data: st.DataObject
) -> None:
    state = random_state(config, seed)
    graph = OfflineGraph(Network.of(config, state), LogMel(config.features)).eval()
    samples = data.draw(st.lists(st.integers(graph.min_samples, 6000), min_size=1, max_size=3))
    num_samples = torch.tensor(samples)
    counts = graph.front_end.num_frames(num_samples).tolist()
    features = torch.randn(len(samples), max(counts), BINS, generator=torch.Generator().manual_seed(seed))
    log_probs, num_frames, _ = graph.acoustic(features, num_samples)
    reference, align = Reference(config, state), config.features.pad_align
    for row, (count, length) in enumerate(zip(counts, samples, strict=True)):
        frames = length // 160 + 1
        padded = torch.zeros(BINS, -(-frames // align) * align if align else frames)
        padded[:, :count] = features[row, :count].T
        wanted, expected_count = reference(padded, count)
        assert num_frames[row] == expected_count
        difference = (log_probs[row, :expected_count] - wanted[:expected_count]).abs().amax()
        assert difference <= ATOL, float(difference)


def blocks(*kinds: str) -> tuple[BlockConfig, ...]:
    return tuple(BlockConfig(filters=4, residual=kind != "none", dense=kind == "dense") for kind in kinds)


def test_a_dense_run_after_another_is_refused_as_upstream_cannot_run_it() -> None:
    features = FeatureConfig(n_filt=4)
    assert ModelConfig(labels=("a",), features=features, blocks=blocks("plain", "none", "dense", "dense", "plain"))
    for second in ("plain", "none"):
        with pytest.raises(ExportError, match=r"blocks\[2\] is dense, and an earlier run"):
            ModelConfig(labels=("a",), features=features, blocks=blocks("dense", second, "dense"))


@torch.no_grad()
def test_a_plain_block_behind_a_dense_run_adds_what_the_run_began_with() -> None:
    kinds = blocks("none", "dense", "dense", "plain")
    config = ModelConfig(labels=("a",), features=FeatureConfig(n_filt=4), blocks=kinds)
    network = Network.of(config, random_state(config))
    graph = OfflineGraph(network, LogMel(config.features)).eval()
    x, rows = graph.rows(torch.randn(1, 4, 1, 20, generator=torch.Generator().manual_seed(0)), torch.tensor([3200]))
    begun, _, last, found = network.outputs_of_blocks(x, rows)[0]
    plain = network.blocks[3]
    assert isinstance(plain, Block)
    expected, _ = plain([begun, last], rows)
    assert torch.equal(found, expected)
    assert not torch.allclose(found, plain([last], rows)[0], atol=1e-2)
    odd = (*kinds[:2], replace(kinds[2], filters=6), kinds[3])
    with pytest.raises(ExportError, match=r"blocks\[3\] adds its input.* 4 channels and this block reads 6"):
        ModelConfig(labels=("a",), features=FeatureConfig(n_filt=4), blocks=odd)


def test_rows_too_short_for_a_window_have_no_frames_and_harm_nobody() -> None:
    config = ModelConfig(labels=("a",), features=FeatureConfig(n_filt=4), blocks=blocks("none", "dense"))
    graph = OfflineGraph(Network.of(config, random_state(config)), LogMel(config.features)).eval()
    waveform = torch.rand(4, 5000, generator=torch.Generator().manual_seed(0)) - 0.5
    log_probs, num_frames, _ = graph(waveform, torch.tensor([0, 1, 319, 5000]))
    alone, count, _ = graph(waveform[3:], torch.tensor([5000]))
    assert num_frames.tolist() == [0, 0, 0, int(count)]
    assert torch.allclose(log_probs[3], alone[0], atol=1e-5)
    assert bool(torch.isfinite(log_probs).all())


def test_padding_to_the_longest_audio_is_refused_where_it_would_be_heard() -> None:
    features = FeatureConfig(n_filt=4, max_frames=1670)
    config = ModelConfig(labels=("a",), features=features, blocks=blocks("none"))
    network = Network.of(config, random_state(config))
    assert OfflineGraph(network, LogMel(features)).min_samples == 320
    with pytest.raises(ExportError, match="pad_to_max_duration"):
        OfflineGraph(network.masked(False), LogMel(features))


def test_masks_can_be_changed_without_a_second_set_of_weights() -> None:
    config = ModelConfig(labels=("a",), features=FeatureConfig(n_filt=4), blocks=blocks("plain"))
    network = Network.of(config, random_state(config))
    other = network.masked(False)
    assert other.config == replace(config, masked=False)
    assert other.head.weight is network.head.weight
