"""Recordings of a GPU, played on the CPU: operators are noted with their tensors, and done again in the same memory.

What is wrong with a recording shows here as there: a number of the host in it, memory that has become other memory,
shapes of the first call, and asking the device for a number within it is an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tritone.runtime.cuda.loop import DeviceLoops


class Graph:
    """In place of `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.operators: list[Any] = []

    def replay(self) -> None:
        for function, args, kwargs, found in self.operators:
            again = function(*args, **kwargs)
            if not function._schema.is_mutable:
                for place, value in zip(tree_leaves(found), tree_leaves(again), strict=True):
                    assert place.shape == value.shape
                    place.copy_(value)


class _Noting(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a recording cannot wait for a number of the device")
        found = func(*args, **(kwargs or {}))
        self._graph.operators.append((func, args, kwargs or {}, found))
        return found


class Queue:
    """In place of a `CudaQueue`."""

    device = torch.device("cpu")
    stream = SimpleNamespace(synchronize=lambda: None)

    def turn(self) -> Any:
        return nullcontext()

    @contextmanager
    def recording(self) -> Iterator[Any]:
        yield lambda graph, pool: _Noting(graph)

    def pinned(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array)

    def fetch(self, tensors: Any) -> Any:
        arrays = [each.numpy().copy() for each in tensors]
        return SimpleNamespace(wait=lambda: arrays)


def record(loops: DeviceLoops, patch: pytest.MonkeyPatch) -> None:
    """Have loops on the CPU recorded."""
    patch.setattr(torch.cuda, "CUDAGraph", Graph)
    patch.setattr(torch.cuda, "graph_pool_handle", object)
    patch.setattr(loops, "_queue", Queue())
