"""The graphs of a Whisper bundle, as modules ready for export; contract in docs/design.md.

FeaturesGraph    waveform, num_samples              ->  features, num_frames
EncoderGraph     features of one window             ->  encoder_out, cross_key_i, cross_value_i
DecoderGraph     tokens, padding, places, caches    ->  logits, alignment, next_self_key_i, next_self_value_i

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from tritone.bundle.manifest import Precision, Role, layer_names
from tritone.families.export.exportable import ExportableGraph, Graphs, Run, trial_signal
from tritone.families.export.precision import DTYPES, as_dtype
from tritone.families.whisper.dims import FRAME_LENGTH, FRAME_SHIFT, SAMPLE_RATE, Dims, State
from tritone.families.whisper.features import LogMel
from tritone.families.whisper.model import Attention, Block, Network

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
        "decoder": DecoderGraph(network, encoder, alignment_heads).eval(),
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

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        found = self.encoder(features)
        outputs = [found]
        for attention in cast(Iterable[Attention], self.cross):
            outputs += [attention.keys(found).transpose(2, 3), attention.values(found)]
        return tuple(as_dtype(each, torch.float32) for each in outputs)


class DecoderGraph(ExportableGraph):
    """The next tokens of rows of text; see `TextDecoder` for its inputs.

    `alignment` (rows, heads, length, positions) has the scores of the cross-attention heads that follow the audio, if
    these are known.
    """

    counted = None
    relative = True

    def __init__(self, network: Network, encoder: EncoderGraph, alignment_heads: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.decoder = network.decoder
        self.dims = network.dims
        self.heads = tuple(alignment_heads)
        self.compared = ("logits", "alignment") if self.heads else ("logits",)
        self._trial_encoder = [encoder]  # for trials; a list, since it is no part of the graph
        self.cross_names = layer_names("cross", self.dims.text_layers)
        self.self_names = layer_names("self", self.dims.text_layers)

    @property
    def outputs(self) -> list[str]:
        return [*self.compared, *(f"next_{name}" for name in self.self_names)]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        axes: dict[str, dict[int, str]] = {
            "tokens": {0: "rows", 1: "length"},
            "padding": {0: "rows"},
            "places": {0: "rows", 1: "wanted"},
        }
        axes |= {name: {0: "recordings"} for name in self.cross_names}
        return axes | {name: {0: "rows", 2: "past"} for name in self.self_names}

    def empty(self, rows: int, past: int = 0) -> dict[str, Tensor]:
        """Caches of rows without a past, or with one of zeros."""
        shape = (rows, self.dims.text_heads, past, self.dims.head_dim)
        return {name: torch.zeros(shape) for name in self.self_names}

    def cross(self, recordings: int) -> dict[str, Tensor]:
        """What the decoder attends to in trials: a window of speech, and the same with its positions moved on."""
        return {
            name: torch.cat([value.roll(100 * index, dims=3 if "_key_" in name else 2) for index in range(recordings)])
            for name, value in self._spoken.items()
        }

    @cached_property
    @torch.no_grad()
    def _spoken(self) -> dict[str, Tensor]:
        [encoder] = self._trial_encoder
        return dict(zip(self.cross_names, encoder(encoder.window())[1:], strict=True))

    def example(self) -> dict[str, Tensor]:
        return {
            "tokens": torch.arange(24).reshape(6, 4) % self.dims.vocab,
            "padding": torch.arange(6) % 3,
            "places": torch.tensor([[1, 2, 3]] * 6),
            **self.cross(3),
            **self.empty(6, 5),
        }

    def trials(self) -> Iterator[Run]:
        # Two hypotheses for each of two recordings, prompts of different lengths, and two steps after them.
        tokens = torch.arange(20).reshape(4, 5) * 7 % self.dims.vocab
        prefill = {
            "tokens": tokens,
            "padding": torch.tensor([0, 0, 3, 1]),
            "places": torch.tensor([[3, 4]] * 4),
            **self.cross(2),
        }
        step = prefill | {"tokens": tokens[:, 2:3], "places": torch.zeros(4, 1, dtype=torch.int64)}
        yield Run([prefill, step, step], self.empty(4))
        # A trace may have taken the number of rows for a constant.
        alone = {"tokens": tokens[:1], "padding": torch.tensor([0]), "places": torch.tensor([[4]]), **self.cross(1)}
        yield Run([alone], self.empty(1))

    def forward(self, tokens: Tensor, padding: Tensor, places: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        cross, past = list(caches[: len(self.cross_names)]), list(caches[len(self.cross_names) :])
        logits, found, scores = self.decoder(tokens, padding, places, cross, past)
        chosen = [scores[layer][:, head] for layer, head in self.heads]
        outputs = [logits, *([torch.stack(chosen, dim=1)] if chosen else []), *found]
        return tuple(as_dtype(each, torch.float32) for each in outputs)
