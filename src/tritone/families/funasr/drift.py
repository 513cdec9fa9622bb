"""What a Paraformer's graph in another precision makes of audio, against float32; see `families.export.drift`.

Tokens are compared one by one: the other graph of the pair is the float32 one.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from tritone.audio import Waveform
from tritone.families.export.drift import Array, Drift, distribution_drift
from tritone.families.funasr.graphs import DecoderGraph, EncoderGraph, StreamingGraph
from tritone.runtime import Graph


def token_drift(encoder: EncoderGraph, decoder: DecoderGraph, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
    """Compare the log-probabilities of tokens, where `opened` is in the place of the encoder or of the decoder."""
    return distribution_drift(_paired(encoder, decoder, opened, recordings))


def stream_drift(graph: StreamingGraph, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
    """Compare the log-probabilities of the tokens of each step, both graphs having had the same before it."""
    return distribution_drift(_steps(graph, opened, recordings))


@torch.no_grad()
def _steps(graph: StreamingGraph, opened: Graph, recordings: Sequence[Waveform]) -> Iterator[tuple[Array, Array]]:
    for run in map(graph.hearing, recordings):
        states = dict(run.states)
        for step in run.steps:
            inputs = {**step, **states}
            expected = dict(zip(graph.outputs, graph(*inputs.values()), strict=True))
            [found] = opened({name: value.numpy() for name, value in inputs.items()}, ["log_probs"])
            count = int(expected["num_tokens"])
            yield expected["log_probs"][0, :count].numpy(), found[0, :count]
            states = {name: expected[f"next_{name}"] for name in states}


@torch.no_grad()
def _paired(
    encoder: EncoderGraph, decoder: DecoderGraph, opened: Graph, recordings: Sequence[Waveform]
) -> Iterator[tuple[Array, Array]]:
    is_encoder = "waveform" in opened.inputs
    for run in filter(None, map(encoder.hearing, recordings)):
        [inputs] = run.steps
        expected = dict(zip(encoder.outputs, encoder(**inputs), strict=True))
        count = int(expected["num_tokens"])
        if not count:
            continue
        feed = {name: value.numpy() for name, value in inputs.items()}
        found = expected
        if is_encoder:
            values = opened(feed, encoder.outputs)
            found = {
                name: torch.from_numpy(np.array(value)) for name, value in zip(encoder.outputs, values, strict=True)
            }
        places = torch.arange(count)
        wanted, *_ = decoder(*(expected[name] for name in encoder.outputs), places)
        if is_encoder:
            ours = decoder(*(found[name] for name in encoder.outputs), places)[0].numpy()
        else:
            given = {**{name: value.numpy() for name, value in found.items()}, "places": places.numpy()}
            [ours] = opened(given, ["log_probs"])
        yield wanted[0].numpy(), ours[0]
