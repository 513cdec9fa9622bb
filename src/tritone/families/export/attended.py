"""What exports of encoder-decoders share whose recordings may be of any length: Moonshine's and Canary's.

network with an encoder and a decoder, the manifest's part  ->  graphs, what they are compared by on audio
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from tritone.audio import Waveform
from tritone.bundle.manifest import Precision, Role
from tritone.families.export.checkpoint import require_fit
from tritone.families.export.exportable import ExportableGraph, Graphs, utterances
from tritone.families.export.precision import in_precision
from tritone.families.export.token_drift import AttendingModel, Inputs, Opener
from tritone.families.layers.decoder_graph import AttendedGraph, DecoderGraph
from tritone.families.layers.text_decoder import TextDecoder
from tritone.kinds.encoder_decoder.part import EncoderDecoderPart
from tritone.pipelines.whisper.attended import job
from tritone.pipelines.whisper.options import DecodingOptions

Module = TypeVar("Module", bound=nn.Module)


class Network(Protocol):
    """A model's two halves; the encoder as `AttendedGraph` takes it."""

    encoder: nn.Module
    decoder: TextDecoder


def filled(network: Module, state: dict[str, torch.Tensor], origin: str) -> Module:
    """A network that was made on the device "meta", with tensors in float32.

    Raises:
        ExportError: tensors are missing, misshapen, not finite or unknown; see `require_fit`.
    """
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    require_fit(shapes, state, origin, "its config")
    network.load_state_dict({name: value.float() for name, value in state.items()}, assign=True)
    return network.requires_grad_(False).eval()


class AttendedModel(AttendingModel):
    """A trained model. `min_samples`: of audio that gives an encoder frame."""

    special: EncoderDecoderPart
    network: Any  # a `Network`, which is a module
    min_samples: int

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network: Network = in_precision(self.network, precision, explicit=explicit)
        encoder = AttendedGraph(network.encoder, network.decoder, self.sample_rate, self.min_samples).eval()
        decoder = DecoderGraph(network.decoder, encoder.spoken, counted=True).eval()
        graphs: dict[Role, ExportableGraph] = {"encoder": encoder, "decoder": decoder}
        return graphs

    def start(self) -> Sequence[int]:
        return job(self.special, DecodingOptions(), 1.0).prompt

    def windows(self, exact: Opener, recordings: Sequence[Waveform]) -> Sequence[Inputs]:
        runs = [utterances([recording[: self.special.max_samples]]) for recording in recordings]
        return [{name: value.numpy() for name, value in run.steps[0].items()} for run in runs]
