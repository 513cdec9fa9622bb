"""From upstream's files to a bundle.

a folder of transformers or of CTranslate2's, or OpenAI's .pt and a .tiktoken file
    ->  manifest.json, tokens.txt, and for each runtime and precision the graphs of features, encoder and decoder

ONNX graphs are written node by node (`onnx_graphs`); where torch is installed they are compared with its network
(`model`), which programs of torch are made of. Without torch a folder of CTranslate2's is exported all the same.
"""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from tritone.audio import Waveform
from tritone.bundle.manifest import Encoder, Features, Precision, Role, Vocabulary
from tritone.families.export.drift import Drift
from tritone.families.export.frame import ExportedModel, write_bundle
from tritone.families.export.graph_files import Part
from tritone.families.export.report import ExportReport
from tritone.families.onnx.large import WeightFile, beside
from tritone.families.whisper.checkpoint import read_checkpoint
from tritone.families.whisper.dims import FRAME_LENGTH, FRAME_SHIFT, SAMPLE_RATE
from tritone.families.whisper.drift import TokenDrift
from tritone.families.whisper.log_mel import matrices
from tritone.families.whisper.onnx_graphs import onnx_graph
from tritone.families.whisper.options import WhisperOptions
from tritone.runtime import Graph, open_graph
from tritone.runtime.foreign import refuse_foreign

if TYPE_CHECKING:
    from tritone.families.export.exportable import Graphs
    from tritone.families.export.networks import Networks


@dataclass(frozen=True)
class WhisperPart:
    """What is known of a graph, see `ExportableGraph`."""

    quantised: bool
    precise: bool = False
    single_rows_in_int8: bool = False
    fine_int8: bool = True  # with seven bits small models write other tokens
    constants: Sequence[np.ndarray] = ()


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
        self._state = found.state
        self._weights: WeightFile | None = None
        self._drift: TokenDrift | None = None
        if find_spec("torch") is None:
            self.notes += (
                "torch is not installed: float32 graphs were not compared with its network, and stand in for it where "
                "other precisions are compared",
            )

    @property
    def parameters(self) -> int:
        return sum(array.size for array in self._state.values())

    @cached_property
    def parts(self) -> Mapping[Role, Part]:
        dft, mel = matrices(self.dims.num_bins)
        features = WhisperPart(quantised=False, precise=True, constants=(dft, np.concatenate([mel, mel])))
        return {"features": features, "encoder": WhisperPart(True), "decoder": WhisperPart(True)}

    @cached_property
    def networks(self) -> "Networks | None":
        return None if find_spec("torch") is None else super().networks

    def onnx_graph(self, role: Role, precision: Precision, weights: WeightFile) -> onnx.ModelProto:
        self._weights = weights
        return onnx_graph(self.dims, self._state, self.special.alignment_heads, role, precision, weights)

    def graphs_in(self, precision: Precision, explicit: bool) -> "Graphs":
        from tritone.families.whisper.graphs import graphs_of

        return graphs_of(self.dims, self._state, self.special.alignment_heads, precision)

    def prepare_drift(self, recordings: Sequence[Waveform]) -> None:
        """Read the recordings with the float32 ONNX graphs, whatever runtime other graphs are for."""
        if self._drift is not None:
            return
        with ExitStack() as stack:
            weights = self._weights  # they are there already, unless nothing but programs of torch is exported
            if weights is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                weights = stack.enter_context(WeightFile(Path(folder, "weights.bin")))

            def exact(role: Role) -> Graph:
                path = weights.path.with_name(f".{role}.float32.onnx")
                path.write_bytes(beside(self.onnx_graph(role, "fp32", weights)).SerializeToString())
                stack.callback(path.unlink)
                return open_graph(path)

            self._drift = TokenDrift(exact, self.special, recordings)

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
        self.prepare_drift(recordings)
        assert self._drift is not None
        return self._drift.of(role, opened)

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
