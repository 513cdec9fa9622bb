"""What a pipeline may expect of an exported graph, whatever runs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a graph; an axis of any length is None in `shape`."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


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

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Run the graph on host arrays and return the named outputs, in the order asked for."""
