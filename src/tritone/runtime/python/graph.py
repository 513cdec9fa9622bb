"""A Python function of a bundle, run as a graph is: the runtime `python`.

    bundle/python, "steps:tokenize"  ->  PythonGraph

Such a file is a program of the bundle's author; see `runtime/functions/function.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tritone.runtime.device import cuda_index
from tritone.runtime.functions.function import PythonFunction
from tritone.runtime.functions.signature import TYPES, Argument, Models
from tritone.runtime.graph import Array, FunctionStamp, TensorSpec
from tritone.runtime.slots import HostGraph


class PythonGraph(HostGraph):
    """A function with its inputs and outputs. `models`: those that it may call, None if it was given none."""

    concurrency = 1

    def __init__(
        self,
        path: Path,
        device: str = "cpu",
        threads: int | None = None,
        *,
        split_calls: bool = True,
        function: FunctionStamp,
    ) -> None:
        """Import the function, which runs code of its file; where it computes is its own matter.

        Args:
            path: its file.
            function: where it is imported from, its name, and the packages that it needs.

        Raises:
            MissingDependencyError, BundleError: as of `PythonFunction`.
        """
        cuda_index(device)  # is it a device at all
        self.path = path
        self.function = PythonFunction(function.folder, function.target, function.requirements)
        self._has_rows = function.has_rows
        signature = self.function.signature
        self.inputs: Mapping[str, TensorSpec] = {each.name: self._spec(each) for each in signature.inputs}
        self.outputs: Mapping[str, TensorSpec] = {each.name: self._spec(each) for each in signature.outputs}
        self.models: Models | None = None

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """See `Graph`; errors as of `PythonFunction`."""
        found = self.function(self._as_rows(inputs), outputs, self.models)
        return [self._answered(found[name]) for name in outputs]

    def stream(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Iterator[list[Array]]:
        """Each answer of a generator; errors as of `PythonFunction`."""
        for found in self.function.stream(self._as_rows(inputs), self.models):
            yield [self._answered(found[name]) for name in outputs]

    def give_back(self, inputs: Mapping[str, Array]) -> None:
        """See `Graph.give_back`; what a function keeps is its own."""

    def _as_rows(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return inputs if self._has_rows else {name: array[None] for name, array in inputs.items()}

    def _answered(self, rows: Array) -> Array:
        return rows if self._has_rows else rows[0]

    def _spec(self, argument: Argument) -> TensorSpec:
        rows = (None,) if self._has_rows else ()
        return TensorSpec(TYPES[argument.type], (*rows, *(None if size < 0 else size for size in argument.dims)))


def obstacle(device: str) -> str | None:
    """Functions run wherever they like."""
    cuda_index(device)
    return None
