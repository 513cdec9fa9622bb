"""What a network's part must know of itself to be exported: shared code traces, stores, checks and measures it by that.

ExportableGraph  ->  example inputs, names, axes (for tracing), runs (for comparing what was exported with it)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tritone.audio import Waveform, read_audio
from tritone.bundle.manifest import Role
from tritone.corpus.clips import read_clips
from tritone.runtime import Graph

EXAMPLE_BATCH = 3

Arrays: TypeAlias = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Run:
    """Inputs for one call of a graph after the other; `states` go into the first, and on from each to the next."""

    steps: Sequence[Mapping[str, Tensor]]
    states: Mapping[str, Tensor] = field(default_factory=dict)


class ExportableGraph(nn.Module, ABC):
    """A module with a contract of docs/design.md: what goes in and comes out is float32 and int64 in any precision.

    `compared`: the outputs that must be those of the network. `counted`: the output that says how many rows of these
    are valid, along their second axis; None if all are. `quantised`: whether int8 is for its products; if not, it stays
    float32 among the graphs in int8. `precise`: whether it computes in float32 in every precision, so that it must
    reproduce the network in each. `relative`: whether the size of what is compared has no meaning, so that differences
    are counted in its root mean square. `single_rows_in_int8`: whether its int8 form takes calls of one utterance, with
    one scale for all that is multiplied with a weight: faster, but rows of a larger call would depend on each other.
    `fine_int8`: whether its int8 weights have all 8 bits, which CPUs without VNNI pay for.

    An attribute `front_end` is what makes features of waveforms.
    """

    compared: tuple[str, ...] = ()
    counted: str | None = "num_frames"
    quantised: bool = True
    precise: bool = False
    relative: bool = False
    single_rows_in_int8: bool = False
    fine_int8: bool = False

    @property
    @abstractmethod
    def outputs(self) -> list[str]:
        """Names of what `forward` returns; the next value of a state `x` is `next_x`."""

    @property
    @abstractmethod
    def dynamic(self) -> dict[str, dict[int, str]]:
        """Axes that vary, by input, as {axis: name}; equal names mean equal sizes."""

    @abstractmethod
    def example(self) -> dict[str, Tensor]:
        """Inputs to trace with, by name, in the order of `forward`.

        Sizes of dynamic axes are traced as unknown ones: they differ from each other, and from 0 and 1.
        """

    @abstractmethod
    def trials(self) -> Iterator[Run]:
        """What an exported graph is tried with: the same at every export, and all that may go wrong in it."""

    def hearing(self, waveform: Waveform) -> Run | None:
        """A run of a recording, None if it is too short; asked only of graphs that take waveforms."""
        raise NotImplementedError

    def evenly(self) -> "ExportableGraph | None":
        """The same, for batches of which every row is as long as the batch; None if it would be no faster.

        ONNX graphs hold both, and take the one that fits.
        """
        return None

    def is_even(self, *inputs: Tensor) -> Tensor:
        """Whether inputs are for `evenly`, as one bool; asked only of graphs that have it."""
        raise NotImplementedError

    @property
    def metadata(self) -> dict[str, str]:
        """Strings that are stored in the file."""
        return {"producer": "tritone", "contract": type(self).__name__}

    @property
    def constants(self) -> list[np.ndarray]:
        """Arrays that stay as they are, however weights are stored: the matrices of the features."""
        front_end = self._modules.get("front_end")
        return [] if front_end is None else [each.numpy() for each in front_end.buffers()]


class UtteranceGraph(ExportableGraph):
    """A graph of whole utterances: waveform (batch, samples) float32, num_samples (batch,) int64.

    A subclass sets `sample_rate`, in Hz. `trial_seconds`: of the utterances that it is tried with.
    """

    compared: tuple[str, ...] = ("log_probs",)
    sample_rate: int
    trial_seconds: tuple[float, ...] = (0.05, 1.3, 2.9)

    front_end: Any

    @property
    @abstractmethod
    def min_samples(self) -> int:
        """The shortest waveform with one encoder frame, or with an embedding."""

    @abstractmethod
    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        """What the network makes of features (batch, frames, bins) of waveforms of so many samples (batch,) int64.

        Frames at or beyond a row's own may be anything.
        """

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        features, _ = self.front_end(waveform, num_samples)
        return self.acoustic(features, num_samples)

    @property
    def outputs(self) -> list[str]:
        return ["log_probs", "num_frames", "encoder_out"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"waveform": {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}}

    @property
    def trial_lengths(self) -> list[int]:
        """Samples of the utterances that it is tried with."""
        return [max(self.min_samples, round(seconds * self.sample_rate)) for seconds in self.trial_seconds]

    def example(self) -> dict[str, Tensor]:
        samples = self.min_samples + 30011
        return {"waveform": torch.zeros(EXAMPLE_BATCH, samples), "num_samples": torch.tensor([samples, 20000, 5000])}

    def trials(self) -> Iterator[Run]:
        lengths = self.trial_lengths
        signal = trial_signal(max(lengths), self.sample_rate)
        # What follows the shorter ones must not matter.
        yield Run([{"waveform": signal.repeat(len(lengths), 1), "num_samples": torch.tensor(lengths)}])
        # A trace may have taken the number of rows for a constant.
        yield Run([{"waveform": signal[None, : lengths[1]], "num_samples": torch.tensor(lengths[1:2])}])

    def hearing(self, waveform: Waveform) -> Run | None:
        """A recording as input; None if it is too short."""
        return utterances([waveform]) if len(waveform) >= self.min_samples else None


Graphs: TypeAlias = Mapping[Role, ExportableGraph]


@torch.no_grad()
def network_outputs(graph: ExportableGraph, run: Run) -> Iterator[Arrays]:
    """Run a network; yields the compared outputs and the counts of each step."""
    states = dict(run.states)
    for step in run.steps:
        results = dict(zip(graph.outputs, graph(*step.values(), *states.values()), strict=True))
        states = {name: results[f"next_{name}"] for name in run.states}
        yield {name: results[name].numpy() for name in _looked_at(graph)}


def graph_outputs(opened: Graph, graph: ExportableGraph, run: Run) -> Iterator[Arrays]:
    """Run what a network was exported to; yields the same."""
    states = {name: value.numpy() for name, value in run.states.items()}
    looked_at = _looked_at(graph)
    wanted = [*looked_at, *(f"next_{state}" for state in states)]
    for step in run.steps:
        feed = {name: value.numpy() for name, value in step.items()}
        found = dict(zip(wanted, opened({**feed, **states}, wanted), strict=True))
        states = {name: found[f"next_{name}"] for name in states}
        yield {name: found[name] for name in looked_at}


def _looked_at(graph: ExportableGraph) -> list[str]:
    return [*graph.compared, *([graph.counted] if graph.counted else [])]


def follow(graph: ExportableGraph, opened: Graph, run: Run) -> Iterator[tuple[Arrays, Arrays]]:
    """Run a network and what it was exported to side by side; each keeps the states of its own.

    Yields:
        For each step, the compared outputs and the counts, of the network and of the opened graph.
    """
    return zip(network_outputs(graph, run), graph_outputs(opened, graph, run), strict=True)


def valid_rows(arrays: Arrays, output: str, counted: str | None) -> list[npt.NDArray[np.float32]]:
    """What is valid of an output: an array for each row of the batch."""
    values = arrays[output]
    if counted is None:
        return list(values)
    return [row[:count] for row, count in zip(values, arrays[counted].tolist(), strict=True)]


def trial_signal(samples: int, sample_rate: int) -> Tensor:
    """Speech (samples,): the shipped clips one after the other, as often as it takes. The same at every export."""
    speech = _speech(sample_rate)
    return speech.repeat(-(-samples // len(speech)))[:samples]


@cache
def _speech(sample_rate: int) -> Tensor:
    return torch.cat([torch.from_numpy(read_audio(clip.path, sample_rate)) for clip in read_clips()])


def utterances(waveforms: Sequence[Waveform]) -> Run:
    """Whole utterances in one batch."""
    batch = torch.zeros(len(waveforms), max(map(len, waveforms)))
    for row, waveform in zip(batch, waveforms, strict=True):
        row[: len(waveform)] = torch.from_numpy(waveform)
    return Run([{"waveform": batch, "num_samples": torch.tensor([len(each) for each in waveforms])}])
