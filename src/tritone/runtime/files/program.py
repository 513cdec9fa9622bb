"""From the description of a `torch.export` program to operators that run.

    model.json, tensors  ->  Program: inputs, outputs, a torch.fx graph over constants

Only operators on the lists of `operators.py` are taken, and nothing in a description is evaluated as Python. What
does not depend on the inputs is computed here, once; so weights that are stored narrow are widened when the graph is
opened and not at every call.

torch's own checks of input shapes are left out: the pipelines keep to the contract of the graphs, and those checks
refuse sizes that export took to be different, such as a batch of one.
"""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

from tritone.runtime.files.archive import Archive
from tritone.runtime.files.builder import MAX_NODES, Builder, Program, built
from tritone.runtime.files.operators import IDENTITIES, IGNORED, ON_NUMBERS, WORD
from tritone.runtime.files.records import field
from tritone.runtime.graph import TensorSpec

FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
MEMORY_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 4: torch.preserve_format}
STRIDED = 7  # torch's number of the usual layout


def read_program(path: Path, device: torch.device) -> Program:
    """Read a .pt2 file and put it on a device.

    Raises:
        BundleError: the file is damaged, was written by a torch too far from this one, or holds what is not allowed.
        OperatorError: the device has too little memory.
    """
    with Archive(path) as archive:
        return built(archive, device, _Reader(archive, device).read)


class _Reader:
    """Reads one program."""

    def __init__(self, archive: Archive, device: torch.device) -> None:
        self._archive = archive
        self._device = device
        self._builder = Builder(device, archive.fault)
        self._values: dict[str, Any] = {}

    def read(self) -> Program:
        module = self._archive.program()
        graph, signature = field(module, "graph", dict), field(module, "signature", dict)
        metas, names = field(graph, "tensor_values", dict), self._archive.described()
        tensors = self._archive.tensors(self._device)
        inputs = []
        for index, each in enumerate(field(signature, "input_specs", list)):
            ((kind, spec),) = each.items()
            if kind == "user_input":
                name = spec["arg"]["as_tensor"]["name"]
                self._values[name] = self._builder.input(f"x{index}")
                inputs.append(name)
            elif kind in ("parameter", "buffer", "tensor_constant"):
                tensor = tensors[spec[{"buffer": "buffer_name"}.get(kind, f"{kind}_name")]]
                self._values[spec["arg"]["name"]] = tensor
            else:
                raise self._archive.fault(f"it has an input of kind {kind!r}, which is none that a graph may have")
        del tensors
        nodes = field(graph, "nodes", list)
        if len(nodes) > MAX_NODES:
            raise self._archive.fault(f"it has {len(nodes)} operators, at most {MAX_NODES} are allowed")
        for node in nodes:
            self._add(node)
        outputs = []
        for each in field(signature, "output_specs", list):
            ((kind, spec),) = each.items()
            if kind != "user_output":
                raise self._archive.fault(f"it has an output of kind {kind!r}: a graph must not change itself")
            outputs.append(spec["arg"]["as_tensor"]["name"])
        return self._builder.finish(
            [self._values[name] for name in outputs],
            self._specs(inputs, names.get("inputs", inputs), metas),
            self._specs(outputs, names.get("outputs", outputs), metas),
        )

    def _specs(self, values: Sequence[str], names: Any, metas: Mapping[str, Any]) -> dict[str, TensorSpec]:
        if len(names) != len(values) or len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
            raise self._archive.fault(f"it has {len(values)} tensors and calls them {names}")
        return {name: self._spec(metas[value]) for name, value in zip(names, values, strict=True)}

    def _spec(self, meta: Mapping[str, Any]) -> TensorSpec:
        shape = tuple(size.get("as_int") for size in meta["sizes"])
        dtype = self._archive.dtype(meta["dtype"])
        if dtype is torch.bfloat16:
            raise self._archive.fault("its inputs and outputs must not be bfloat16, which numpy does not have")
        return TensorSpec(np.dtype(str(dtype).removeprefix("torch.")), shape)

    def _add(self, node: Mapping[str, Any]) -> None:
        target = field(node, "target", str)
        match = re.fullmatch(r"torch\.ops\.aten\.(\w+)\.(\w+)", target)
        if match and match[1] in IGNORED:
            return
        named = [(each["name"], self._argument(each["arg"]), each.get("kind")) for each in node["inputs"]]
        if match:
            function = self._builder.operator(match[1], match[2])
            if match[1] in IDENTITIES or (match[1] == "dropout" and not _value_of(named, "train")):
                self._bind(node, named[0][1])
            else:
                self._bind(node, self._builder.apply(function, *_bound(function, named)))
        elif target in ON_NUMBERS:
            self._bind(node, self._builder.call(ON_NUMBERS[target], [value for _, value, _ in named], {}))
        else:
            raise self._archive.fault(f"it calls {target!r}, which is not among the operators that a graph may use")

    def _argument(self, argument: Mapping[str, Any]) -> Any:
        ((kind, value),) = argument.items()
        if kind == "as_none":
            return None
        if kind == "as_tensor":
            return self._values[value["name"]]
        if kind == "as_tensors":
            return [self._values[each["name"]] for each in value]
        if kind in ("as_optional_tensor", "as_sym_int", "as_sym_bool", "as_sym_float"):
            return self._choice(value)
        if kind in ("as_optional_tensors", "as_sym_ints", "as_sym_bools", "as_sym_floats"):
            return [self._choice(each) for each in value]
        if kind in ("as_int", "as_bool", "as_float"):
            return _number(value)
        if kind in ("as_ints", "as_bools", "as_floats"):
            return [_number(each) for each in value]
        if kind == "as_scalar_type":
            return self._archive.dtype(value)
        if kind == "as_memory_format" and value in MEMORY_FORMATS:
            return MEMORY_FORMATS[value]
        if kind == "as_layout" and value == STRIDED:
            return torch.strided
        if kind == "as_device":
            return self._device
        if kind == "as_string" and isinstance(value, str) and WORD.fullmatch(value):
            return value
        raise self._archive.fault(f"an operator has the argument {str(argument)[:80]}, which is not allowed")

    def _choice(self, value: Mapping[str, Any]) -> Any:
        ((kind, content),) = value.items()
        if kind == "as_name":
            return self._values[content]
        return self._argument(value)

    def _bind(self, node: Mapping[str, Any], result: Any) -> None:
        """Give the results of an operator their names."""
        outputs = field(node, "outputs", list)
        if len(outputs) == 1:
            self._bind_one(outputs[0], result)
            return
        for index, output in enumerate(outputs):
            self._bind_one(output, self._item(result, index))

    def _bind_one(self, output: Mapping[str, Any], result: Any) -> None:
        ((kind, value),) = output.items()
        if kind == "as_tensors":
            for index, each in enumerate(value):
                self._values[each["name"]] = self._item(result, index)
        elif kind == "as_tensor":
            self._values[value["name"]] = result
        elif kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
            self._values[value["as_name"]] = result
        elif kind != "as_none":
            raise self._archive.fault(f"an operator gives {str(output)[:80]}, which is not allowed")

    def _item(self, result: Any, index: int) -> Any:
        if isinstance(result, fx.Node):
            return self._builder.call(operator.getitem, [result, index], {})
        return result[index]


def _number(value: Any) -> bool | int | float:
    if isinstance(value, str) and value in FLOATS:
        return FLOATS[value]
    if not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {value!r:.40}")
    return value


def _value_of(named: Sequence[tuple[str, Any, Any]], name: str) -> Any:
    return next((value for each, value, _ in named if each == name), None)


def _bound(function: Any, named: Sequence[tuple[str, Any, Any]]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by place as far as possible."""
    schema = function._schema.arguments
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, value, _ in named:
        place = len(args)
        if not kwargs and place < len(schema) and schema[place].name == name and not schema[place].kwarg_only:
            args.append(value)
        else:
            kwargs[name] = value
    return args, kwargs
