"""What a pipeline may expect of an exported graph, whatever runs it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PCM_SCALE = 32768  # where a graph that `widens` gets int16 for float32, n stands for n / 32768

EVEN_ROWS = "even_rows"
"""The node of an ONNX graph that chooses: a form for batches of rows that are as long as the batch, or one for any."""

HELD = "held:"
"""Before the name of an output: it stays on the device, as a `Held` that other graphs there take as an input."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a graph; an axis of any length is None in `shape`.

    `least`, `most`: the sizes that such an axis may have, where the graph has limits of its own, as engines do; one
    number for each axis, or nothing at all.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    least: tuple[int, ...] = ()
    most: tuple[int, ...] = ()


@dataclass(frozen=True, order=True)
class Bucket:
    """A size of calls that a graph is fastest at: `rows` of `samples` each.

    What is shorter is padded to it, and rows that nobody needs have no samples. Of a graph that takes features instead
    of a waveform, `samples` counts frames.
    """

    rows: int
    samples: int


# Rows that calls are padded to; each is recorded once. Powers of two alone would cost up to twice what the rows need.
ROW_STEPS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def rows_up_to(most: int) -> list[int]:
    """The numbers of rows that calls of a graph that takes so many are padded to."""
    return [*(step for step in ROW_STEPS if step < most), most]


def largest(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Of buckets of one length the one with the most rows, and one of a single row."""
    return sorted({(each.samples, each.rows == 1): each for each in sorted(buckets)}.values())


class EngineStamp(Protocol):
    """What an engine of TensorRT was built with; it runs nowhere else. `compute_capability` of the GPU like "9.0"."""

    @property
    def library(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def gpu(self) -> str | None: ...

    @property
    def compute_capability(self) -> str | None: ...


@dataclass(frozen=True)
class FunctionStamp:
    """Which function of Python is run: `target` is `module:function` of a folder, `requirements` what pip installs.

    `has_rows`: the model's tensors have the axis of rows; without it each call gives the function one row.
    """

    folder: Path
    target: str
    requirements: Sequence[str] = ()
    has_rows: bool = True


class Slots(Protocol):
    """The state of many streams between calls of a graph: one row a slot, kept where the graph runs.

    A slot is cleared before its first step. States may grow along one axis: every call says how long it is, and rows
    that were shorter get zeros at its start.
    """

    def clear(self, slot: int) -> None:
        """Set the state of a slot to zeros."""

    def release(self, slot: int) -> None:
        """Take back the memory that the state of a slot grew to; the slot is cleared before it is used again."""

    def reserve(self, count: int) -> None:
        """Make room for calls that together have `count` rows and run at once."""

    def sizes(self, most: int) -> list[int]:
        """Numbers of rows, ascending, after steps of which any step of up to `most` rows finds everything ready."""

    def room(self, count: int, inputs: Mapping[str, TensorSpec]) -> dict[str, Array]:
        """Arrays (count, …) to be filled with the inputs of the next step: no others get there as fast.

        Args:
            inputs: type and shape of one row of each input other than states. The numbers in it are anything.
        """

    def start(
        self, slots: Sequence[int], inputs: Mapping[str, Array], outputs: Sequence[str], first: int = 0, length: int = 0
    ) -> Callable[[], list[Array]]:
        """Begin a step; what is returned waits for its outputs. Arguments as of a call.

        A device computes it meanwhile, and takes further steps behind it; in host memory it is over at once. The inputs
        may not change before the outputs are there.
        """

    def __call__(
        self, slots: Sequence[int], inputs: Mapping[str, Array], outputs: Sequence[str], first: int = 0, length: int = 0
    ) -> list[Array]:
        """Run the graph on a step of some slots: their states go in, and what comes out takes their place.

        Args:
            slots: one for each row of the inputs, all different.
            inputs: the inputs other than states.
            outputs: what to return, states not among them.
            first: the place of the first row among those that `reserve` made room for; calls that run at once
                take different ones.
            length: of the axis along which states grow, in this call and in what it keeps.
        """


class Graph(Protocol):
    """One exported graph on one device. Calling it is thread-safe."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """The inputs by name; all of them must be fed."""

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """The outputs by name."""

    @property
    def concurrency(self) -> int:
        """How many calls at once make full use of the device; more of them only wait for each other."""

    @property
    def widens(self) -> bool:
        """Whether a float32 input may be given as int16 numbers n, for n / 32768: half the bytes on the way there."""

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Run the graph on host arrays and return the named outputs, in the order asked for."""

    def buckets_for(self, outputs: Sequence[str]) -> Sequence[Bucket]:
        """The sizes that calls for some outputs are compiled for, in order; empty where any size will do.

        Of no outputs: the sizes of calls for any.
        """

    def give_back(self, inputs: Mapping[str, Array]) -> None:
        """Return the memory to the system that earlier calls left for later ones.

        Args:
            inputs: of the smallest call there is, since some runtimes can do it only at the end of one.
        """

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """A host array to be filled and fed: no other gets to the device as fast. Its numbers are anything."""

    def slots(self, states: Mapping[str, TensorSpec], capacity: int) -> Slots:
        """Keep the states of up to `capacity` streams for this graph.

        Args:
            states: type and shape of each state of one stream, without the batch axis; None for the axis along which
                it grows. It is the input of its name, and output `next_<name>`, which is as long, is its next value.
        """


@runtime_checkable
class CompilableGraph(Graph, Protocol):
    """A graph that can be compiled for sizes that calls often have, and for fewer rows with them.

    For a single row there may be code of its own, a little faster: it is asked for as a size like others.
    """

    def compile(
        self,
        buckets: Iterable[Bucket],
        outputs: Sequence[str],
        *,
        history: int = 0,
        done: Callable[[Any], None] = lambda call: None,
    ) -> None:
        """Compile the graph for some sizes, as far as it has not been on this machine, and add them to `buckets_for`.

        Args:
            outputs: what calls of these sizes will ask for.
            history: length of the axis along which states may grow, of a step of streams.
            done: is called after each length that was compiled, from any thread.

        Raises:
            OperatorError: the compiler failed; says why.
        """


@runtime_checkable
class ShapedGraph(Graph, Protocol):
    """A graph that can be compiled for any shapes of its inputs, where rows and samples do not determine them."""

    @property
    def compiled_shapes(self) -> Sequence[Mapping[str, tuple[int, ...]]]:
        """The shapes of all inputs of each call that the graph is compiled for."""

    def compile_shapes(
        self,
        shapes: Sequence[Mapping[str, tuple[int, ...]]],
        outputs: Sequence[str],
        *,
        done: Callable[[Any], None] = lambda call: None,
    ) -> None:
        """Compile the graph for calls of these shapes; all else as of `CompilableGraph.compile`."""


@runtime_checkable
class DeviceGraph(Graph, Protocol):
    """A graph that leaves outputs on its device, where their names begin with `HELD`, and computes others of them."""

    @property
    def is_on_gpu(self) -> bool:
        """Whether what is copied to the host costs more than what is computed on the device."""

    def derive(self, name: str, needs: Sequence[str], function: Callable[..., Any]) -> None:
        """Add an output that is computed from others, on the device.

        Args:
            name: of the new output; it is not among `outputs`.
            needs: the outputs that it is computed from.
            function: pure, of those as tensors; its shapes depend on theirs alone.
        """


class Models(Protocol):
    """Other models by name, for a function that decides which to call: `models["NAME"](text=...)`.

    A call takes arrays by the names of the model's inputs and returns the outputs by name. In a server it is a request
    to a model of the same server, in process it is a call of a loaded bundle.
    """

    def __getitem__(self, name: str) -> Callable[..., Mapping[str, Array]]:
        """The model of this name; raises `OperatorError` if there is none."""


@runtime_checkable
class FunctionGraph(Graph, Protocol):
    """A graph that is a program's function. `models`: those that it may call, None if it was given none."""

    models: Models | None

    def stream(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Iterator[list[Array]]:
        """Each answer of a function that answers many times."""
