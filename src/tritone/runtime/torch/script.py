"""TorchScript files, loaded and run by torch itself.

    encoder.ts  ->  Script: names, types and shapes of inputs and outputs, the loaded module

A script is a program: `torch.jit.load` runs code of the file, and the script may read and write files when it is
called. So this runtime is for files whose maker is trusted like the maker of a program, and runs only where it is asked
for by name. What a script takes and returns stands in a record of the file, which is read as data before the script.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tritone.errors import OperatorError
from tritone.runtime.files.records import SCRIPT_TYPES, Records, field
from tritone.runtime.graph import TensorSpec
from tritone.runtime.torch.graph import TorchGraph

ALLOW_TF32 = 12  # the input of aten::_convolution that says so


class ScriptGraph(TorchGraph):
    """One script on one device."""

    @staticmethod
    def read(path: Path, device: torch.device) -> "Script":
        return read_script(path, device)


@dataclass(frozen=True)
class Script:
    """A script on its device. `module` takes the inputs in order and returns all outputs as a tuple."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    module: Any

    def function(self, outputs: Sequence[str]) -> Callable[..., tuple[Tensor, ...]]:
        """A function of all inputs that returns the named outputs; the script computes the others as well.

        Raises:
            ValueError: the script has no such output.
        """
        names = list(self.outputs)
        if unknown := [name for name in outputs if name not in names]:
            raise ValueError(f"the graph has no output {', '.join(unknown)}; it has {', '.join(names)}")
        places = [names.index(name) for name in outputs]

        def compute(*inputs: Tensor) -> tuple[Tensor, ...]:
            # torch's optimiser compiles while the first calls run, which a recorded call on a GPU does not allow.
            with torch.jit.optimized_execution(False):
                results = self.module(*inputs)
            results = results if isinstance(results, tuple) else (results,)
            return tuple(results[place] for place in places)

        return compute


class _ScriptRecords(Records):
    kind = "archive of torch.jit"
    compressible = "code/"


def read_script(path: Path, device: torch.device) -> Script:
    """Load a .ts file to a device. This runs code of the file.

    Raises:
        BundleError: the file is damaged, or does not say what it takes and returns, as those of `tritone export` do.
        OperatorError: the device has too little memory.
    """
    with _ScriptRecords(path) as records:
        described = records.described()
        if not described:
            raise records.fault("it does not say what its inputs and outputs are, as `tritone export` writes it")
        try:
            inputs, outputs = (_specs(field(described, name, list)) for name in ("inputs", "outputs"))
        except ValueError as error:
            raise records.fault(f"its record of inputs and outputs is not usable ({error})") from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch notes on every call that torch.export is newer
                module = torch.jit.load(path, map_location=device)
                _settle(module, device)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OperatorError(f"{device} has too little free memory to open {path}: {error}") from error
        except Exception as error:  # torch raises whatever the damage leads to
            raise records.fault(f"torch cannot load it ({type(error).__name__}: {str(error)[:200]})") from error
        taken = len(module.forward.schema.arguments) - 1  # the first is the module
        if taken != len(inputs):
            raise records.fault(f"it takes {taken} tensors and calls them {', '.join(inputs)}")
    return Script(inputs, outputs, module)


def _settle(module: Any, device: torch.device) -> None:
    """Have a script compute on `device` as other programs do there.

    Tracing has written down the device that it ran on, and that convolutions may compute in TF32, as torch's usual
    settings have it: in a script, those of the process count no more.
    """
    for graph in (each.graph for each in module.modules() if hasattr(each, "graph")):
        for node in graph.findAllNodes("prim::Constant"):
            if node.output().type().kind() == "DeviceObjType":
                node.s_("value", str(device))
        for node in graph.findAllNodes("aten::_convolution"):
            exact = graph.insertConstant(False)
            exact.node().moveBefore(node)
            node.replaceInput(ALLOW_TF32, exact)


def _specs(described: Sequence[Any]) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for each in described:
        name, dtype, shape = field(each, "name", str), field(each, "dtype", str), field(each, "shape", list)
        if dtype not in SCRIPT_TYPES or not all(axis is None or (type(axis) is int and axis >= 0) for axis in shape):
            raise ValueError(f"tensor {name!r} is of type {dtype!r:.40} and shape {str(shape)[:60]}")
        specs[name] = TensorSpec(np.dtype(dtype), tuple(shape))
    if len(specs) != len(described):
        raise ValueError("two tensors have one name")
    return specs
