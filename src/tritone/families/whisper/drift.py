"""What a Whisper graph in another precision makes of audio: the distributions of the next tokens, against float32.

    recordings  ->  tokens that float32 writes, one after the other  ->  log-probabilities of both  ->  Drift

Both sides read the same tokens, so that one other choice does not count for all that follow it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.bundle import manifest
from tritone.bundle.manifest import Role
from tritone.families.export.drift import Array, Drift, distribution_drift
from tritone.families.export.exportable import Graphs
from tritone.families.whisper.features import FRAME_SHIFT
from tritone.families.whisper.graphs import DecoderGraph, EncoderGraph, FeaturesGraph
from tritone.runtime import Graph

TOKENS = 24  # of each recording, one window of it

Call = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


def token_drift(
    graphs: Graphs, role: Role, opened: Graph, recordings: Sequence[Waveform], special: manifest.Whisper
) -> Drift:
    """Compare the next tokens of the float32 graphs with those where the graph of one role is `opened`."""
    return distribution_drift(_pairs(graphs, role, opened, recordings, special))


@torch.no_grad()
def _pairs(
    graphs: Graphs, role: Role, opened: Graph, recordings: Sequence[Waveform], special: manifest.Whisper
) -> Iterator[tuple[Array, Array]]:
    features, encoder, decoder = graphs["features"], graphs["encoder"], graphs["decoder"]
    assert isinstance(features, FeaturesGraph) and isinstance(encoder, EncoderGraph) and isinstance(decoder, DecoderGraph)
    exact: dict[str, Call] = {"encoder": _of_module(encoder), "decoder": _of_module(decoder)}
    other = exact | {role: _of_opened(opened)}
    prompt = [special.sot, *list(special.languages.values())[:1], *list(special.tasks.values())[-1:]]
    for recording in recordings:
        samples = torch.from_numpy(recording[: special.window_frames * FRAME_SHIFT])[None]
        found, _ = features(samples, torch.tensor([samples.shape[1]]))
        window = torch.zeros(1, special.window_frames, found.shape[2])
        frames = min(samples.shape[1] // FRAME_SHIFT, special.window_frames)
        window[:, :frames] = found[:, :frames]
        tokens = [*prompt, special.no_timestamps]
        ours = exact["encoder"]({"features": window})
        for _ in range(min(TOKENS, special.text_context - len(tokens))):
            tokens.append(int(_read(exact, decoder, ours, tokens, 1)[-1].argmax()))
        theirs = other["encoder"]({"features": window})
        wanted = len(tokens) - len(prompt)
        yield (
            _read(exact, decoder, ours, tokens, wanted).log_softmax(-1).numpy(),
            _read(other, decoder, theirs, tokens, wanted).log_softmax(-1).numpy(),
        )


def _read(
    calls: Mapping[str, Call], decoder: DecoderGraph, heard: Mapping[str, Tensor], tokens: Sequence[int], wanted: int
) -> Tensor:
    """Logits (wanted, vocab) after the last tokens."""
    inputs = {
        "tokens": torch.tensor([tokens]),
        "padding": torch.tensor([0]),
        "places": torch.arange(len(tokens) - wanted, len(tokens))[None],
        **{name: heard[name] for name in decoder.cross_names},
        **decoder.empty(1),
    }
    return calls["decoder"](inputs)["logits"][0]


def _of_module(graph: EncoderGraph | DecoderGraph) -> Call:
    return lambda inputs: dict(zip(graph.outputs, graph(*inputs.values()), strict=True))


def _of_opened(opened: Graph) -> Call:
    def call(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        names = list(opened.outputs)
        found = opened({name: np.ascontiguousarray(value.numpy()) for name, value in inputs.items()}, names)
        return {name: torch.from_numpy(value) for name, value in zip(names, found, strict=True)}

    return call
