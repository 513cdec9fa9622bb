"""The graphs of models whose decoder attends to audio, as modules ready for export; contract in docs/design.md.

waveform, num_samples                        ->  encoder_out, num_frames, cross_key_i, cross_value_i
tokens, padding, places, num_frames, caches  ->  logits, alignment, next_self_key_i, next_self_value_i

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from tritone.bundle.attending import NUM_FRAMES, layer_names
from tritone.families.export.exportable import ExportableGraph, Run, UtteranceGraph, trial_signal
from tritone.families.export.precision import as_dtype
from tritone.families.layers.text_decoder import Attention, Block, TextDecoder

SPOKEN_S = 3  # of trials


class AttendedGraph(UtteranceGraph):
    """The encoder of recordings of any length: waveform (batch, samples), num_samples (batch,) int64.

    `encoder_out` (batch, frames, width) is zero at and beyond a row's `num_frames`, so that all of every output is
    compared. Of the decoder it has the projections to keys and values of each layer, (batch, heads, head_dim, frames)
    and (batch, heads, frames, head_dim).
    """

    counted = None
    relative = True

    def __init__(self, encoder: nn.Module, decoder: TextDecoder, sample_rate: int, min_samples: int) -> None:
        """Take a module from a waveform and its length to its frames (batch, frames, width) and their number."""
        super().__init__()
        self.encoder = encoder
        self.cross = nn.ModuleList(block.cross_attn for block in cast(Iterable[Block], decoder.blocks))
        self.compared = ("encoder_out", *layer_names("cross", decoder.sizes.layers))
        self.sample_rate, self._least = sample_rate, min_samples

    @property
    def min_samples(self) -> int:
        return self._least

    @property
    def constants(self) -> list[np.ndarray]:
        front_end = getattr(self.encoder, "front_end", None)
        return [] if front_end is None else [each.numpy() for each in front_end.buffers()]

    @property
    def outputs(self) -> list[str]:
        return [self.compared[0], NUM_FRAMES, *self.compared[1:]]

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError  # there are no stages of it

    @torch.no_grad()
    def spoken(self) -> dict[str, Tensor]:
        """What the decoder attends to of some speech."""
        signal = trial_signal(SPOKEN_S * self.sample_rate, self.sample_rate)[None]
        return dict(zip(self.outputs, self(signal, torch.tensor([signal.shape[1]])), strict=True))

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        found, num_frames = self.encoder(waveform, num_samples)
        there = torch.arange(found.shape[1], device=found.device)
        found = found.masked_fill((there >= num_frames.unsqueeze(1)).unsqueeze(2), 0.0)
        outputs = [as_dtype(found, torch.float32), num_frames]
        for attention in cast(Iterable[Attention], self.cross):
            for each in (attention.keys(found).transpose(2, 3), attention.values(found)):
                outputs.append(as_dtype(each, torch.float32))
        return tuple(outputs)


class DecoderGraph(ExportableGraph):
    """The next tokens of rows of text; see `TextDecoder` for its inputs.

    `alignment` (rows, heads, length, positions) has the scores of the cross-attention heads that follow the audio, if
    these are known.

    Args:
        spoken: computes what the decoder attends to of a window of speech in trials, by the names of the inputs, with
            `num_frames` (1,) if recordings differ in length.
        counted: whether they do.
    """

    counted = None
    relative = True

    def __init__(
        self,
        decoder: TextDecoder,
        spoken: Callable[[], dict[str, Tensor]],
        alignment_heads: Sequence[tuple[int, int]] = (),
        *,
        counted: bool = False,
    ) -> None:
        super().__init__()
        self.decoder, self.sizes = decoder, decoder.sizes
        self.heads = tuple(alignment_heads)
        self.compared = ("logits", "alignment") if self.heads else ("logits",)
        self._speak = spoken
        self.cross_names = ((NUM_FRAMES,) if counted else ()) + layer_names("cross", self.sizes.layers)
        self.self_names = layer_names("self", self.sizes.layers)

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
        if self.cross_names[0] == NUM_FRAMES:  # of any length
            for name in self.cross_names[1:]:
                axes[name][3 if "_key_" in name else 2] = "positions"
        return axes | {name: {0: "rows", 2: "past"} for name in self.self_names}

    def empty(self, rows: int, past: int = 0) -> dict[str, Tensor]:
        """Caches of rows without a past, or with one of zeros."""
        shape = (rows, self.sizes.heads, past, self.sizes.head_dim)
        return {name: torch.zeros(shape) for name in self.self_names}

    def cross(self, recordings: int) -> dict[str, Tensor]:
        """What the decoder attends to in trials: a window of speech, and the same with its positions moved on.

        Where recordings differ in length, each has fewer positions than the one before.
        """

        def changed(name: str, value: Tensor, index: int) -> Tensor:
            if name == NUM_FRAMES:
                return torch.clamp(value - 7 * index, min=1)
            return value.roll(100 * index, dims=3 if "_key_" in name else 2)

        return {
            name: torch.cat([changed(name, self._spoken[name], index) for index in range(recordings)])
            for name in self.cross_names
        }

    @cached_property
    @torch.no_grad()
    def _spoken(self) -> dict[str, Tensor]:
        return self._speak()

    def example(self) -> dict[str, Tensor]:
        return {
            "tokens": torch.arange(24).reshape(6, 4) % self.sizes.vocab,
            "padding": torch.arange(6) % 3,
            "places": torch.tensor([[1, 2, 3]] * 6),
            **self.cross(3),
            **self.empty(6, 5),
        }

    def trials(self) -> Iterator[Run]:
        # Two hypotheses for each of two recordings, prompts of different lengths, and two steps after them.
        tokens = torch.arange(20).reshape(4, 5) * 7 % self.sizes.vocab
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
        num_frames = cross.pop(0) if self.cross_names[0] == NUM_FRAMES else None
        logits, found, scores = self.decoder(tokens, padding, places, cross, past, num_frames)
        chosen = [scores[layer][:, head] for layer, head in self.heads]
        outputs = [logits, *([torch.stack(chosen, dim=1)] if chosen else []), *found]
        return tuple(as_dtype(each, torch.float32) for each in outputs)
