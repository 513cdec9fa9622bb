"""WeSpeaker's networks: sizes as upstream's, and rows of a ragged batch that are each what it is alone."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from families.wespeaker_models import Reference, content_of, random_state, small_content
from tritone.families.wespeaker.config import MODELS, POOLINGS, parse_config
from tritone.families.wespeaker.ecapa import Ecapa
from tritone.families.wespeaker.model import SpeakerNetwork, build_network

SIZES = {  # parameters and entries of the state dict, counted in upstream's own; at its usual embedding sizes
    "ResNet18": (4_105_440, 122),
    "ResNet34": (6_634_336, 218),
    "ResNet50": (11_131_360, 320),
    "ResNet101": (15_892_448, 626),
    "ResNet152": (19_814_880, 932),
    "ResNet221": (23_792_224, 1346),
    "ResNet293": (28_626_016, 1778),
    "ECAPA_TDNN": (5_797_504, 221),
    "ECAPA_TDNN_c512": (5_797_504, 221),
    "ECAPA_TDNN_GLOB_c512": (6_190_720, 221),
    "ECAPA_TDNN_c1024": (14_263_872, 221),
    "ECAPA_TDNN_GLOB_c1024": (14_657_088, 221),
    "CAMPPlus": (7_176_224, 937),
}


def network_of(content: dict[str, Any], seed: int = 0) -> SpeakerNetwork:
    network = build_network(parse_config(content))
    network.load_state_dict(random_state(content, seed), strict=False)
    return network.eval()


def ragged(lengths: list[int], bins: int, seed: int = 0, fill: float = 1e3) -> tuple[torch.Tensor, torch.Tensor]:
    """Random features; behind each row's end something else."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(lengths), max(lengths) + 3, bins, generator=generator)
    for row, length in zip(features, lengths, strict=True):
        row[length:] *= fill
    return features, torch.tensor(lengths)


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["ResNet18", "ResNet34", "ResNet50", "ECAPA_TDNN", "CAMPPlus"]))
    args: dict[str, Any] = {
        "feat_dim": draw(st.sampled_from([8, 16, 24])),
        "embed_dim": draw(st.integers(1, 9)),
        "pooling_func": draw(st.sampled_from(POOLINGS)),
    }
    if kind.startswith("ResNet"):
        args |= {"m_channels": draw(st.integers(1, 4)), "two_emb_layer": draw(st.booleans())}
    elif kind == "ECAPA_TDNN":
        args |= {"channels": draw(st.sampled_from([8, 24])), "emb_bn": draw(st.booleans())}
        args |= {"global_context_att": draw(st.booleans()), "feat_dim": draw(st.integers(1, 20))}
    else:
        forms = ["batchnorm-relu", "batchnorm_-relu", "batchnorm-prelu", "relu-batchnorm"]
        args |= {"growth_rate": 8, "bn_size": 1, "init_channels": 32, "config_str": draw(st.sampled_from(forms))}
    return content_of(kind, **args)


@given(contents(), st.lists(st.integers(0, 60), min_size=1, max_size=3), st.integers(0, 99))
@settings(max_examples=examples(20))
@torch.no_grad()
@pytest.mark.slow
def test_each_row_of_a_ragged_batch_is_what_upstream_gives_it_alone(
    content: dict[str, Any], more: list[int], seed: int
) -> None:
    network = network_of(content, seed).double()
    features, num_frames = ragged([network.min_frames + each for each in more], content["model_args"]["feat_dim"], seed)
    found = network(features.double(), num_frames)
    reference = Reference(content, random_state(content, seed))
    for row, length in enumerate(num_frames.tolist()):
        torch.testing.assert_close(found[row], reference(features[row, :length]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lengths", [[400, 201, 198, 5], [203, 399, 601]])
@torch.no_grad()
@pytest.mark.slow
def test_context_of_segments_ends_with_the_row(lengths: list[int]) -> None:
    content = small_content("campplus", feat_dim=8)
    network = network_of(content).double()
    features, num_frames = ragged(lengths, 8)
    found, reference = network(features.double(), num_frames), Reference(content, random_state(content))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row], reference(features[row, :length]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_networks_have_upstreams_sizes(model: str) -> None:
    usual = 512 if model == "CAMPPlus" else 192 if model.startswith("ECAPA") else 256
    with torch.device("meta"):
        network = build_network(parse_config(content_of(model, embed_dim=usual)))
    parameters = sum(each.numel() for each in network.parameters())
    assert (parameters, len(network.state_dict())) == SIZES[model]
    assert network.embed_dim == usual


@pytest.mark.parametrize(
    ("kind", "changes", "least", "subsampling"),
    [
        ("resnet", {}, 9, 8),
        ("resnet", {"pooling_func": "TSDP"}, 9, 8),
        ("resnet", {"pooling_func": "ASTP"}, 1, 8),
        ("resnet", {"pooling_func": "TAP"}, 1, 8),
        ("ecapa", {}, 2, 1),
        ("ecapa", {"global_context_att": False}, 1, 1),
        ("ecapa", {"pooling_func": "TSTP"}, 2, 1),
        ("campplus", {}, 3, 2),
        ("campplus", {"pooling_func": "MHASTP", "init_channels": 20, "growth_rate": 8}, 1, 2),
    ],
)
@torch.no_grad()
def test_the_shortest_row_is_the_shortest_for_which_upstream_is_finite(
    kind: str, changes: dict[str, Any], least: int, subsampling: int
) -> None:
    content = small_content(kind, **{"feat_dim": 8, **changes})
    network = network_of(content)
    assert (network.min_frames, network.subsampling) == (least, subsampling)
    reference, features = Reference(content, random_state(content)), torch.randn(least, 8)
    assert torch.isfinite(reference(features)).all()
    torch.testing.assert_close(
        network(features[None], torch.tensor([least]))[0].double(), reference(features), rtol=1e-3, atol=1e-3
    )
    if least > 1:
        assert not torch.isfinite(reference(features[:-1])).all()


@pytest.mark.parametrize("kind", ["resnet", "ecapa", "campplus"])
@torch.no_grad()
def test_what_is_behind_a_row_does_not_matter_however_large(kind: str) -> None:
    content = small_content(kind, feat_dim=8)
    network = network_of(content)
    plain, num_frames = ragged([40, 17], 8, fill=0.0)
    loud, _ = ragged([40, 17], 8, fill=1e37)
    assert torch.equal(network(plain, num_frames), network(loud, num_frames))


@pytest.mark.parametrize("changes", [{"kind": "resnet"}, {"kind": "resnet", "model": "ResNet50"}, {"kind": "campplus"}])
@pytest.mark.parametrize("frames", [40, 41, 237])
@torch.no_grad()
def test_rows_without_padding_need_no_masks(changes: dict[str, Any], frames: int) -> None:
    network = network_of(small_content(feat_dim=8, **changes)).double()
    assert not isinstance(network, Ecapa)
    features = torch.randn(3, frames, 8, generator=torch.Generator().manual_seed(frames)).double()
    lengths = torch.full((3,), frames), torch.full((3,), frames - 16)
    full, short = (network(features, each) for each in lengths)
    network.even = True
    torch.testing.assert_close(network(features, lengths[0]), full)
    assert not torch.allclose(network(features, lengths[1]), short)  # those that have padding do need them


@pytest.mark.parametrize("kind", ["resnet", "ecapa", "campplus"])
def test_a_step_of_training_reaches_every_parameter_that_counts(kind: str) -> None:
    network = build_network(parse_config(small_content(kind, feat_dim=8))).train()
    network(torch.randn(4, 40, 8), torch.full((4,), 40)).square().sum().backward()
    unmoved = [name for name, each in network.named_parameters() if each.grad is None or not each.grad.isfinite().all()]
    assert unmoved == []
    counters = [value for name, value in network.state_dict().items() if name.endswith("num_batches_tracked")]
    assert {int(value) for value in counters} == {1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_half_precision_turns_embeddings_a_little(dtype: torch.dtype) -> None:
    network = network_of(small_content("ecapa", feat_dim=8))
    features, num_frames = ragged([150, 40], 8, fill=1.0)
    expected = network(features, num_frames).numpy()
    found = network.to(dtype)(features, num_frames)
    assert found.dtype == torch.float32
    cosine = (expected * found.numpy()).sum(axis=1) / np.linalg.norm(expected, axis=1) / found.norm(dim=1).numpy()
    assert cosine.min() > 0.995
