"""The graphs of a Whisper bundle, as modules ready for export; contract in docs/design.md.

FeaturesGraph    waveform, num_samples              ->  features, num_frames
EncoderGraph     features of one window             ->  encoder_out, cross_key_i, cross_value_i
DecoderGraph     tokens, padding, places, caches    ->  logits, alignment, next_self_key_i, next_self_value_i

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from tritone.bundle.attending import layer_names
from tritone.bundle.manifest import Precision, Role
from tritone.families.export.exportable import ExportableGraph, Graphs, Run, trial_signal
from tritone.families.export.precision import DTYPES, as_dtype
from tritone.families.layers.clipped_mel import FRAME_LENGTH, FRAME_SHIFT, SAMPLE_RATE
from tritone.families.layers.decoder_graph import DecoderGraph
from tritone.families.layers.text_decoder import Attention, Block
from tritone.families.whisper.dims import Dims, State
from tritone.families.whisper.features import LogMel
from tritone.families.whisper.model import Network

TRIAL_SECONDS = (0.05, 1.3, 2.9)


def graphs_of(dims: Dims, state: State, alignment_heads: Sequence[tuple[int, int]], precision: Precision) -> Graphs:
    """The graphs of a model with these tensors, by role; in float32 they share the tensors' memory."""
    with torch.device("meta"):
        network = Network(dims).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays of a mapped file cannot be written to, which nobody does
        tensors = {name: torch.from_numpy(value) for name, value in state.items()}
    network.load_state_dict(tensors, assign=True)
    network.to(DTYPES[precision])
    encoder = EncoderGraph(network).eval()
    graphs: dict[Role, ExportableGraph] = {
        "features": FeaturesGraph(LogMel(dims.num_bins)).eval(),
        "encoder": encoder,
        "decoder": DecoderGraph(network.decoder, encoder.spoken, alignment_heads).eval(),
    }
    return graphs


class FeaturesGraph(ExportableGraph):
    """Log-mel features of whole recordings."""

    compared = ("features",)
    precise = True
    quantised = False

    def __init__(self, front_end: LogMel) -> None:
        super().__init__()
        self.front_end = front_end

    @property
    def outputs(self) -> list[str]:
        return ["features", "num_frames"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"waveform": {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}}

    def example(self) -> dict[str, Tensor]:
        return {"waveform": torch.zeros(3, 30011), "num_samples": torch.tensor([30011, 20000, 5000])}

    def trials(self) -> Iterator[Run]:
        lengths = [round(seconds * SAMPLE_RATE) for seconds in TRIAL_SECONDS]
        signal = trial_signal(max(lengths), SAMPLE_RATE)
        # What follows the shorter ones must not matter.
        yield Run([{"waveform": signal.repeat(len(lengths), 1), "num_samples": torch.tensor(lengths)}])
        short = signal[None, : FRAME_LENGTH // 3]  # not even half a window
        yield Run([{"waveform": short, "num_samples": torch.tensor([short.shape[1]])}])

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        features, num_frames = self.front_end(waveform, num_samples)
        return features, num_frames


class EncoderGraph(ExportableGraph):
    """Windows of features (batch, window_frames, bins) to what the decoder attends to."""

    counted = None
    relative = True

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.encoder = network.encoder
        self.cross = torch.nn.ModuleList(block.cross_attn for block in cast(Iterable[Block], network.decoder.blocks))
        self.dims = network.dims
        self.compared = ("encoder_out", *layer_names("cross", self.dims.text_layers))

    @property
    def outputs(self) -> list[str]:
        return list(self.compared)

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"features": {0: "batch"}}

    def example(self) -> dict[str, Tensor]:
        return {"features": self.window().repeat(3, 1, 1)}

    def trials(self) -> Iterator[Run]:
        yield Run([{"features": self.window()}])  # one, since of a large model it takes long enough

    def window(self) -> Tensor:
        """Features of speech, (1, window_frames, bins)."""
        frames = 2 * self.dims.audio_context
        signal = trial_signal(frames * FRAME_SHIFT, SAMPLE_RATE)[None]
        return LogMel(self.dims.num_bins)(signal, torch.tensor([signal.shape[1]]))[0][:, :frames]

    def spoken(self) -> dict[str, Tensor]:
        """What the decoder attends to of a window of speech."""
        return dict(zip(self.compared[1:], self(self.window())[1:], strict=True))

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        found = self.encoder(features)
        outputs = [found]
        for attention in cast(Iterable[Attention], self.cross):
            outputs += [attention.keys(found).transpose(2, 3), attention.values(found)]
        return tuple(as_dtype(each, torch.float32) for each in outputs)
