"""The network against a second, plain implementation of NeMo's facts: features, encoder, log-probabilities, tokens."""

from typing import Any

import numpy as np
import pytest
import torch

from families.conftest import babble
from families.nemo_models import LABELS, make_model, small_config
from nemo_reference import Reference
from tritone.families.export.fused import fused
from tritone.families.export.joiner import JoinerGraph
from tritone.families.layers.log_mel import LogMel
from tritone.families.nemo.config import parse_config
from tritone.families.nemo.graphs import OfflineGraph, PredictorGraph
from tritone.families.nemo.model import NemoModel
from tritone.search.transducer.stateful import StatefulState, advance_stateful

LENGTHS = (9000, 5555, 320, 319, 0)  # the fourth is too short for two frames of features

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "FastConformer": ("ctc", {}),
    "without biases, scaled": ("ctc", {"use_bias": False, "xscaling": True}),
    "Conformer": (
        "ctc",
        {
            "subsampling": "striding",
            "subsampling_factor": 4,
            "subsampling_conv_channels": -1,
            "xscaling": True,
            "conv_norm_type": "layer_norm",
            "feat_out": 10,
        },
    ),
    "for streams": (
        "rnnt",
        {
            "causal_downsampling": True,
            "conv_context_size": "causal",
            "conv_norm_type": "layer_norm",
            "att_context_style": "chunked_limited",
            "att_context_size": [[4, 1], [2, 0]],
        },
    ),
    "limited to both sides": (
        "rnnt",
        {"att_context_size": [3, 2], "subsampling_factor": 4, "conv_context_size": [3, 1]},
    ),
    "chunks with all of the past": ("ctc", {"att_context_style": "chunked_limited", "att_context_size": [-1, 2]}),
}


def network_of(model: Reference) -> NemoModel:
    config = parse_config(model.content)
    return NemoModel.of(config, len(LABELS), model.float().state_dict(), "a test")


def graph_of(model: Reference, head: Any = None) -> OfflineGraph:
    network = network_of(model)
    head = head or ("ctc" if network.joint is None else "transducer")
    return OfflineGraph(network, LogMel(network.config.features), head).eval()


def block(lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Waveforms in one batch, with what must not matter behind the ends."""
    waveform = np.full((len(lengths), max(lengths)), 0.4, np.float32)
    for row, length in zip(waveform, lengths, strict=True):
        row[:length] = babble(length, seed=length)
    return torch.from_numpy(waveform), torch.tensor(lengths)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"normalize": "all_features", "preemph": None},
        {"normalize": None, "log_zero_guard_type": "clamp", "log_zero_guard_value": 1e-3},
        {"window": "hamming", "window_size": 0.032, "features": 16, "n_fft": 512},
    ],
)
def test_features_in_a_batch_are_those_of_each_utterance_alone(changes: dict[str, Any]) -> None:
    content = small_config(feat_in=changes.get("features", 20))
    content["preprocessor"] |= changes
    reference, front_end = Reference(content, len(LABELS)), LogMel(parse_config(content).features)
    waveform, num_samples = block(LENGTHS)
    waveform[0, 4000:6000] = 0.0  # digital silence, where the guard counts
    found, counts = front_end(waveform, num_samples)
    for row, length in enumerate(LENGTHS):
        if length < front_end.min_samples:
            assert counts[row] == 0
            continue
        expected = reference.features(waveform[row, :length])
        assert counts[row] == expected.shape[1] == length // 160
        np.testing.assert_allclose(found[row, : counts[row]].T, expected, atol=2e-3 if not changes else 5e-3)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_frames_in_a_ragged_batch_are_the_references_of_each_utterance_alone(name: str) -> None:
    kind, encoder = ENCODERS[name]
    model = make_model(small_config(kind, **encoder))
    graph = graph_of(model)
    waveform, num_samples = block(LENGTHS)
    for module in (graph, fused(graph)):
        results = dict(zip(module.outputs, module(waveform, num_samples), strict=True))
        for row, length in enumerate(LENGTHS):
            count = int(results["num_frames"][row])
            if length < graph.min_samples:
                assert count == 0
                continue
            encoded = model.encode(waveform[row, :length])
            assert count == len(encoded)
            if kind == "ctc":
                np.testing.assert_allclose(results["log_probs"][row, :count], model.decoder(encoded), atol=1e-3)
            else:
                encoded = model.joint.enc(encoded)
            np.testing.assert_allclose(results["encoder_out"][row, :count], encoded, atol=1e-4)


class Network:
    """Predictor and joiner of a network, as the search wants them."""

    def __init__(self, network: NemoModel) -> None:
        assert network.predictor is not None
        assert network.joint is not None
        self.predictor = PredictorGraph(network.predictor, network.joint).eval()
        self.joiner = JoinerGraph(network.joint).eval()
        self.vocab_size, self.blank_id = len(LABELS) + 1, len(LABELS)
        assert network.config.transducer is not None
        self.durations = network.config.transducer.durations
        self.start = len(LABELS) if network.config.transducer.blank_as_pad else -1

    @torch.no_grad()
    def step(self, tokens: Any, states: Any) -> Any:
        vector, *after = self.predictor(torch.from_numpy(tokens), *map(torch.from_numpy, states))
        return vector.numpy(), [each.numpy() for each in after]

    @property
    def first(self) -> Any:
        states = [each.numpy() for each in self.predictor.zero_states(1).values()]
        return self.step(np.array([[self.start]]), states)

    @torch.no_grad()
    def join(self, frames: Any, vectors: Any) -> Any:
        return self.joiner(torch.from_numpy(frames), torch.from_numpy(vectors))[0].numpy()


def transducer(kind: str, *, seed: int = 0, **changes: Any) -> Reference:
    """A model with settings at `a__b` of its config changed."""
    content = small_config(kind)
    for path, value in changes.items():
        section = content
        *parents, key = path.split("__")
        for parent in parents:
            section = section[parent]
        section[key] = value
    return make_model(content, seed=seed)


@pytest.mark.parametrize(
    ("kind", "seed", "changes"),
    [
        ("rnnt", 0, {}),
        ("tdt", 1, {}),
        ("tdt", 2, {"decoding__durations": [0, 2], "joint__num_extra_outputs": 2}),
        ("rnnt", 3, {"decoding__greedy__max_symbols": 1, "joint__jointnet__dropout": 0}),
        ("hybrid", 0, {"decoder__blank_as_pad": False, "joint__jointnet__activation": "tanh"}),
    ],
    ids=["rnnt", "tdt", "tdt of two", "one symbol", "no blank in the embedding"],
)
@torch.no_grad()
def test_tokens_and_their_frames_are_the_references(kind: str, seed: int, changes: dict[str, Any]) -> None:
    model = transducer(kind, seed=seed, **changes)
    lengths = (16000, 9000, 30000, 2000)
    waveform, num_samples = block(lengths)
    expected = [model.greedy(waveform[row, :length]) for row, length in enumerate(lengths)]
    assert sum(map(len, expected)) > 10
    assert len({token for row in expected for token, _ in row}) > 2
    frames, counts = graph_of(model)(waveform, num_samples)
    network = Network(network_of(model))
    settings = network_of(model).config.transducer
    assert settings is not None
    searches = [StatefulState(network, max_symbols=settings.max_symbols) for _ in lengths]
    found = advance_stateful(searches, frames.numpy(), counts.numpy())
    assert [[(token.id, token.start_frame) for token in row] for row in found] == expected


@torch.no_grad()
def test_both_heads_of_a_hybrid_model_are_the_references() -> None:
    model = transducer("hybrid")
    waveform, num_samples = block((9000,))
    log_probs, _, _ = graph_of(model, "ctc")(waveform, num_samples)
    np.testing.assert_allclose(log_probs[0], model.log_probs(waveform[0]), atol=1e-3)
