"""From a file of Murmur's training to a bundle."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from murmur.network import BINS, FRAME_LENGTH, FRAME_SHIFT, RATE, SAMPLE_RATE, Murmur, Sizes, StepGraph, WholeGraph
from murmur.options import MurmurOptions
from tritone.bundle.manifest import Encoder, Features, Precision, Role, State, Streaming, Vocabulary
from tritone.errors import ExportError
from tritone.families.export.checkpoint import load_checkpoint, require_fit, tensors_of
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.frame import ExportedModel, tail_samples, write_bundle
from tritone.families.export.precision import in_precision
from tritone.families.export.report import ExportReport


def write_checkpoint(path: Path, network: Murmur, tokens: list[str]) -> None:
    """What training writes; `tokens`: in the order of their ids, the first is the blank."""
    torch.save({"murmur": asdict(network.sizes), "tokens": tokens, "state": network.state_dict()}, path)


def export_murmur(**choices: Any) -> ExportReport:
    """Export a Murmur; `choices`: the fields of `MurmurOptions`. Raises as `write_bundle`."""
    options = MurmurOptions(**choices)
    return write_bundle(MurmurModel(options), options)


class MurmurModel(ExportedModel):
    """A trained Murmur."""

    family, sample_rate = "murmur", SAMPLE_RATE

    def __init__(self, options: MurmurOptions) -> None:
        options.progress("reading the checkpoint")
        path = options.checkpoint
        content = load_checkpoint(path, plain="Write it with murmur's write_checkpoint.", usual="small.murmur")
        try:
            sizes, self.tokens = Sizes(**content["murmur"]), [str(each) for each in content["tokens"]]
        except (TypeError, KeyError) as error:
            raise ExportError(f"{path} is no checkpoint of Murmur's: {error}") from error
        state = tensors_of(content.get("state"), path, "tensors by name under `state`")
        self.network = Murmur(sizes)
        wanted = {name: tuple(each.shape) for name, each in self.network.state_dict().items()}
        require_fit(wanted, state, str(path), "the network")
        self.network.load_state_dict(state)
        self.options, self.sources = options, {"checkpoint": path}
        self.choices = {"streaming": options.streaming, "chunk_size": options.chunk_size}

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network = in_precision(self.network, precision, explicit=explicit)
        graphs: dict[Role, ExportableGraph] = {"encoder": WholeGraph(network)}
        if self.options.streaming:
            graphs["streaming_encoder"] = StepGraph(network, self.options.chunk_size)
        return {role: graph.eval() for role, graph in graphs.items()}

    def manifest(self) -> dict[str, Any]:
        whole, step, sizes = self.graphs["encoder"], self.graphs.get("streaming_encoder"), self.network.sizes
        streaming = isinstance(step, StepGraph) and Streaming(
            chunk_size=step.chunk_size,
            left_chunks=0,
            window_samples=step.window,
            shift_samples=step.shift,
            states=(State(name="past", shape=tuple(self.network.silence(1).shape[1:]), dtype="float32"),),
        )
        return {
            "kind": "ctc",
            "features": Features(frame_length=FRAME_LENGTH, frame_shift=FRAME_SHIFT, num_mel_bins=BINS, window="povey"),
            "encoder": Encoder(
                subsampling_rate=RATE,
                output_dim=sizes.width,
                min_samples=whole.min_samples,
                tail_samples=tail_samples(self.options, SAMPLE_RATE),
            ),
            "vocabulary": Vocabulary(size=sizes.vocab, units="char", blank_id=0),
            "streaming": streaming or None,
        }
