"""From upstream's files to a bundle.

a folder of transformers, or OpenAI's .pt and a .tiktoken file
    ->  manifest.json, tokens.txt, and for each runtime and precision the graphs of features, encoder and decoder
"""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from tritone.audio import Waveform
from tritone.bundle.manifest import Encoder, Features, Precision, Role, Vocabulary
from tritone.families.export.checkpoint import refuse_foreign
from tritone.families.export.drift import Drift
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.frame import ExportedModel, write_bundle
from tritone.families.export.precision import DTYPES
from tritone.families.export.report import ExportReport
from tritone.families.whisper.checkpoint import read_checkpoint
from tritone.families.whisper.drift import TokenDrift
from tritone.families.whisper.features import FRAME_LENGTH, FRAME_SHIFT, SAMPLE_RATE, LogMel
from tritone.families.whisper.graphs import DecoderGraph, EncoderGraph, FeaturesGraph
from tritone.families.whisper.model import Network
from tritone.families.whisper.options import WhisperOptions
from tritone.runtime import Graph


def export_whisper(**choices: Any) -> ExportReport:
    """Export a Whisper model.

    Args:
        choices: the fields of `WhisperOptions`.

    Raises:
        ExportError: a file is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`.
    """
    options = WhisperOptions(**choices)
    return write_bundle(WhisperModel(options), options)


class WhisperModel(ExportedModel):
    """A trained Whisper."""

    family = "whisper"
    sample_rate = SAMPLE_RATE

    def __init__(self, options: WhisperOptions) -> None:
        """Read the files that the options name."""
        options.progress("reading the checkpoint")
        refuse_foreign(options.checkpoint)
        found = read_checkpoint(options.checkpoint, options.tokens)
        self.options = options
        self.dims, self.special, self.tokens = found.dims, found.special, found.tokens
        self.sources, self.notes = found.sources, found.notes
        self.choices = {}
        with torch.device("meta"):  # the checkpoint's tensors are taken as they are
            self.network = Network(found.dims)
        self.network.load_state_dict({name: value.float() for name, value in found.state.items()}, assign=True)
        self.network.eval().requires_grad_(False)

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network = self.network
        if precision in ("fp16", "bf16"):
            network = copy.deepcopy(network).to(DTYPES[precision])
        encoder = EncoderGraph(network).eval()
        graphs: dict[Role, ExportableGraph] = {
            "features": FeaturesGraph(LogMel(self.dims.num_bins)).eval(),
            "encoder": encoder,
            "decoder": DecoderGraph(network, encoder, self.special.alignment_heads).eval(),
        }
        return graphs

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
        return self._token_drift.of(role, opened, recordings)

    @cached_property
    def _token_drift(self) -> TokenDrift:
        return TokenDrift(self.graphs, self.special)

    def manifest(self) -> dict[str, Any]:
        return {
            "kind": "whisper",
            "features": Features(
                kind="log-mel",
                frame_length=FRAME_LENGTH,
                frame_shift=FRAME_SHIFT,
                num_mel_bins=self.dims.num_bins,
                window="hanning",
                preemphasis=0.0,
                low_freq=0.0,
                high_freq=0.0,
                snip_edges=False,
                sample_scale=1.0,
            ),
            "encoder": Encoder(subsampling_rate=2, output_dim=self.dims.audio_width, min_samples=FRAME_SHIFT),
            "vocabulary": Vocabulary(
                size=self.dims.vocab, units="byte-level", blank_id=self.special.eot, eos_id=self.special.eot
            ),
            "whisper": self.special,
        }
