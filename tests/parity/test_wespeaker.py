"""WeSpeaker's networks against embeddings that upstream's own code made, from the features given with them.

Tolerances are those of the golden data's README. Everything is compared with what upstream gives an utterance alone.
"""

import re

import numpy as np
import pytest
import torch

from parity.golden_cases import Case, largest
from tritone.families.wespeaker.checkpoint import load_network, read_config
from tritone.families.wespeaker.model import SpeakerNetwork
from tritone.families.wespeaker.resnet import ResNet

COSINE = 0.99999
_networks: dict[str, SpeakerNetwork] = {}


def network_of(case: Case) -> SpeakerNetwork:
    if case.name not in _networks:
        _networks[case.name], _ = load_network(read_config(case.path / "config.yaml"), case.path / "avg_model.pt")
    return _networks[case.name]


def tolerance(case: Case) -> float:
    """What the case's README suggests: features are given, float32 is all that is between the two."""
    said = re.search(r"([0-9.e-]+) from the given features", (case.path / "README.md").read_text(encoding="utf-8"))
    assert said is not None
    return float(said[1])


def utterances(case: Case) -> list[np.ndarray]:
    count = sum(name.startswith("feats_") for name in case.inputs)
    return [case.inputs[f"feats_{index}"] for index in range(count)]


def batch(rows: list[np.ndarray], fill: float) -> tuple[torch.Tensor, torch.Tensor]:
    block = np.full((len(rows), max(map(len, rows)) + 5, rows[0].shape[1]), fill, np.float32)
    for place, row in zip(block, rows, strict=True):
        place[: len(row)] = row
    return torch.from_numpy(block), torch.tensor([len(row) for row in rows])


def check(case: Case, found: np.ndarray, expected: np.ndarray) -> None:
    assert largest(found, expected) <= tolerance(case)
    turned = (found * expected).sum(axis=-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert turned.min() >= COSINE


@torch.no_grad()
def test_embeddings_of_single_utterances_are_upstreams(wespeaker_case: Case) -> None:
    network = network_of(wespeaker_case)
    for index, features in enumerate(utterances(wespeaker_case)):
        found = network(torch.from_numpy(features)[None], torch.tensor([len(features)]))
        check(wespeaker_case, found[0].numpy(), wespeaker_case.expected[f"emb_{index}"])


@pytest.mark.parametrize("fill", [0.0, -1e4])
@torch.no_grad()
def test_embeddings_in_a_ragged_batch_are_upstreams_of_each_utterance_alone(wespeaker_case: Case, fill: float) -> None:
    rows = utterances(wespeaker_case)
    found = network_of(wespeaker_case)(*batch(rows, fill)).numpy()
    for index in range(len(rows)):
        check(wespeaker_case, found[index], wespeaker_case.expected[f"emb_{index}"])


@torch.no_grad()
def test_embeddings_of_a_batch_of_one_length_are_upstreams(wespeaker_case: Case) -> None:
    rows = utterances(wespeaker_case)
    chosen = [rows[index] for index in wespeaker_case.expected["batch_index"]]
    found = network_of(wespeaker_case)(torch.from_numpy(np.stack(chosen)), torch.full((len(chosen),), len(chosen[0])))
    check(wespeaker_case, found.numpy(), wespeaker_case.expected["emb_batch"])


@torch.no_grad()
def test_both_layers_of_a_head_are_upstreams(wespeaker_case: Case) -> None:
    firsts = [name for name in wespeaker_case.expected if name.startswith("embed_a_")]
    network = network_of(wespeaker_case)
    if not firsts or not isinstance(network, ResNet):
        pytest.skip("one layer, or no first one in the case")
    rows = utterances(wespeaker_case)
    first, last = network.embeddings(*batch(rows, 7.0))
    for name in firsts:
        index = int(name.removeprefix("embed_a_"))
        check(wespeaker_case, first[index].numpy(), wespeaker_case.expected[name])
        check(wespeaker_case, last[index].numpy(), wespeaker_case.expected[f"emb_{index}"])


@torch.no_grad()
def test_what_is_pooled_is_upstreams(wespeaker_case: Case) -> None:
    """Frame by frame, of an utterance in a batch with longer ones."""
    expected, rows = wespeaker_case.expected, utterances(wespeaker_case)
    if "frame_feat_0_mean" not in expected:
        pytest.skip("no frames in the case")
    frames, lengths = network_of(wespeaker_case).frames(*batch(rows[:2], 3.0))
    first, second = (frames[row, :, : lengths.frames[row]].T.numpy() for row in (0, 1))
    order = _upstreams_order(wespeaker_case, first.shape[1])
    assert first.shape == tuple(expected["frame_feat_0_shape"])
    # Tolerances are of embeddings, whose size is about 1; frames may be larger.
    limit = tolerance(wespeaker_case) * max(1.0, float(np.abs(expected["frame_feat_0_first3"]).max()))
    assert largest(first.mean(axis=0)[order], expected["frame_feat_0_mean"]) <= limit
    assert largest(first[:3][:, order], expected["frame_feat_0_first3"]) <= limit
    assert largest(second[-2:][:, order], expected["frame_feat_1_last2"]) <= limit


def _upstreams_order(case: Case, size: int) -> np.ndarray:
    """Upstream gives frames of ResNets bin by bin, but pools them channel by channel."""
    network = network_of(case)
    if not isinstance(network, ResNet):
        return np.arange(size)
    bins = read_config(case.path / "config.yaml").features.num_mel_bins // 8
    return np.arange(size).reshape(-1, bins).T.reshape(-1)
