"""From upstream's files to a bundle.

a folder of transformers or of CTranslate2's, or OpenAI's .pt and a .tiktoken file
    ->  manifest.json, tokens.txt, and for each runtime and precision the graphs of features, encoder and decoder

ONNX graphs are written node by node (`onnx_graphs`); where torch is installed they are compared with its network
(`model`), which programs of torch are made of. Without torch a folder of CTranslate2's is exported all the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from tritone.audio import Waveform
from tritone.bundle.manifest import Encoder, Features, Precision, Role, Vocabulary
from tritone.families.export.frame import write_bundle
from tritone.families.export.graph_files import Part
from tritone.families.export.report import ExportReport
from tritone.families.export.token_drift import AttendingModel, Inputs, Opener
from tritone.families.known import refuse_foreign
from tritone.families.layers.clipped_mel import FRAME_LENGTH, FRAME_SHIFT, SAMPLE_RATE, matrices
from tritone.families.onnx.large import WeightFile
from tritone.families.whisper.checkpoint import read_checkpoint
from tritone.families.whisper.onnx_graphs import onnx_graph
from tritone.families.whisper.options import WhisperOptions
from tritone.kinds.whisper.part import WhisperPart

if TYPE_CHECKING:
    from tritone.families.export.exportable import Graphs
    from tritone.families.export.networks import Networks


@dataclass(frozen=True)
class WhisperGraph:
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


class WhisperModel(AttendingModel):
    """A trained Whisper."""

    family = "whisper"
    sample_rate = SAMPLE_RATE
    special: WhisperPart

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
        features = WhisperGraph(quantised=False, precise=True, constants=(dft, np.concatenate([mel, mel])))
        return {"features": features, "encoder": WhisperGraph(True), "decoder": WhisperGraph(True)}

    @cached_property
    def networks(self) -> "Networks | None":
        return None if find_spec("torch") is None else super().networks

    def onnx_graph(self, role: Role, precision: Precision, weights: WeightFile) -> onnx.ModelProto:
        self._weights = weights
        return onnx_graph(self.dims, self._state, self.special.alignment_heads, role, precision, weights)

    def graphs_in(self, precision: Precision, explicit: bool) -> "Graphs":
        from tritone.families.whisper.graphs import graphs_of

        return graphs_of(self.dims, self._state, self.special.alignment_heads, precision)

    def start(self) -> Sequence[int]:
        special = self.special
        tokens = [special.sot, *list(special.languages.values())[:1], *list(special.tasks.values())[-1:]]
        return [*tokens, special.no_timestamps]

    def windows(self, exact: Opener, recordings: Sequence[Waveform]) -> Sequence[Inputs]:
        graph, size = exact("features"), self.special.window_frames
        found = []
        for recording in recordings:
            samples = np.ascontiguousarray(recording[: size * FRAME_SHIFT])[None]
            [features] = graph(
                {"waveform": samples, "num_samples": np.array([samples.shape[1]], np.int64)}, ["features"]
            )
            window = np.zeros((1, size, features.shape[2]), np.float32)
            frames = min(samples.shape[1] // FRAME_SHIFT, size)
            window[:, :frames] = features[:, :frames]
            found.append({"features": window})
        return found

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
