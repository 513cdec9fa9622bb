"""TorchScript files, read as data and run as any other program of torch.

    the text of `forward`, constants  ->  Program: inputs, outputs, a torch.fx graph over constants

The code of a traced and frozen module is one assignment after another of operators to names. It is taken operator by
operator, through the lists of `torch_operators`, so that a file of a stranger can do what a .pt2 file of a stranger
can, and no more. Running it without torch's interpreter for scripts also means that the device which tracing wrote into
it does not matter, that only what is asked for is computed, and that a GPU gets recorded calls, as of .pt2 files.

Sizes are numbers here. Tracing puts them into tensors of one element and computes with these; that is undone.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from tritone.errors import BundleError
from tritone.runtime.graph import TensorSpec
from tritone.runtime.torch.builder import MAX_NODES, Builder, Program, built
from tritone.runtime.torch.graph import TorchGraph, obstacle
from tritone.runtime.torch.operators import IDENTITIES, WORD
from tritone.runtime.torch.records import field
from tritone.runtime.torch.script_archive import ScriptArchive, describe

__all__ = ["ScriptGraph", "obstacle", "read_script"]

SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}
"""The numbers that stand for types in the code."""
CODES: Mapping[str, Mapping[int, Any]] = {
    "ScalarType": SCALAR_TYPES,
    "Layout": {0: torch.strided},
    "MemoryFormat": {0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last},
}
KINDS = {
    bool: ("bool", "number"),
    int: ("int", "float", "number"),
    float: ("float", "number"),
    torch.device: ("Device",),
}
END = 2**63 - 1  # of a slice that has none
MAX_AXES = 16
FLOATS = {"inf": math.inf, "nan": math.nan}

# Operators that only traced code calls: their public twin, and how many of the arguments that one takes.
TWINS = {"_convolution": ("convolution", 9)}
# Between sizes and tensors, which are all numbers here; also what code is annotated with.
CONVERSIONS = {
    "int",
    "float",
    "ops.prim.NumToTensor",
    "ops.aten.Int",
    "ops.aten.IntImplicit",
    "ops.aten.ScalarImplicit",
}
NUMBERS: Mapping[str, Callable[[Any], Any]] = {"int": int, "float": float, "ops.aten.Int": int}
CASTS = {"annotate", "unchecked_cast"}
ON_SIZES: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
}


class ScriptGraph(TorchGraph):
    """One script on one device."""

    @staticmethod
    def read(path: Path, device: torch.device) -> Program:
        return read_script(path, device)


def read_script(path: Path, device: torch.device) -> Program:
    """Read a .ts file and put it on a device.

    Raises:
        BundleError: the file is damaged, was not written by `tritone export`, or holds what is not allowed.
        OperatorError: the device has too little memory.
    """
    with ScriptArchive(path) as archive:
        return built(archive, device, _Reader(archive, device).read)


class _Reader:
    """Reads one script. Values are as of `Builder`; which nodes are sizes, and which are lists, is kept beside."""

    def __init__(self, archive: ScriptArchive, device: torch.device) -> None:
        self._archive = archive
        self._builder = Builder(device, archive.fault)
        self._device = device
        self._values: dict[str, Any] = {}
        self._sizes: set[fx.Node] = set()
        self._lists: set[fx.Node] = set()
        self._constants: list[Tensor] = []
        self._numbers: dict[int, Any] = {}  # what 0-dim constants are where they take part in computing sizes

    def read(self) -> Program:
        self._constants = [tensor.to(self._device) for tensor in self._archive.constants()]
        self._numbers = {id(each): each.item() for each in self._constants if each.dim() == 0}
        described = self._archive.described()
        if not described:
            raise self._fault("it does not say what its inputs and outputs are, as `tritone export` writes it")
        inputs, outputs = (self._specs(field(described, name, list)) for name in ("inputs", "outputs"))
        forward = self._archive.forward()
        if sum(isinstance(each, ast.Call) for each in ast.walk(forward)) > MAX_NODES:
            raise self._fault(f"it has more than {MAX_NODES} operators")
        given = [argument.arg for argument in forward.args.args[1:]]
        if len(given) != len(inputs):
            raise self._fault(f"it takes {len(given)} tensors and calls them {', '.join(inputs)}")
        for index, name in enumerate(given):
            self._values[name] = self._builder.input(f"x{index}")
        for statement in forward.body[:-1]:
            self._run(statement)
        last = forward.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            raise self._fault(f"it ends with {describe(last)}, not by returning something")
        result = self._value(last.value)
        results = list(result) if isinstance(result, tuple) else [result]
        if len(results) != len(outputs) or not all(self._is_tensor(each) for each in results):
            raise self._fault(f"it returns {len(results)} values, which should be the tensors {', '.join(outputs)}")
        return self._builder.finish(results, inputs, outputs)

    def _fault(self, reason: str) -> BundleError:
        return self._archive.fault(reason)

    def _specs(self, described: Sequence[Any]) -> dict[str, TensorSpec]:
        specs: dict[str, TensorSpec] = {}
        for each in described:
            shape = field(each, "shape", list)
            if len(shape) > MAX_AXES or not all(axis is None or (type(axis) is int and axis >= 0) for axis in shape):
                raise self._fault(f"a tensor has the shape {str(shape)[:60]}")
            dtype = getattr(torch, field(each, "dtype", str), None)
            if dtype not in SCALAR_TYPES.values() or dtype is torch.bfloat16:
                raise self._fault(f"a tensor has the type {each['dtype']!r:.40}, which numpy does not have")
            specs[field(each, "name", str)] = TensorSpec(np.dtype(each["dtype"]), tuple(shape))
        if len(specs) != len(described):
            raise self._fault("two of its tensors have one name")
        return specs

    def _run(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._values[name] = self._value(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._values[name] = self._value(value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                whole = self._value(value)
                for index, target in enumerate(targets):
                    if not isinstance(target, ast.Name):
                        raise self._fault(f"it assigns to {describe(target)}")
                    self._values[target.id] = self._item(whole, index)
            case _:
                raise self._fault(f"it does more than to compute one value after the other: {describe(statement)}")

    def _value(self, expression: ast.expr) -> Any:
        match expression:
            case ast.Name(id=name) if name in self._values:
                return self._values[name]
            case ast.Name(id=name) if name in FLOATS:
                return FLOATS[name]
            case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._value(operand)
                if type(value) in (int, float):
                    return -value
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                values = [self._value(each) for each in elements]
                # Lists of lists could grow without end in a few lines, and no operator takes them.
                if not any(isinstance(value, list | tuple) for value in values):
                    return values if isinstance(expression, ast.List) else tuple(values)
            case ast.Subscript(value=whole, slice=ast.Constant(value=int() as index)):
                return self._item(self._value(whole), index)
            case ast.Attribute(value=ast.Name(id="CONSTANTS"), attr=name) if name[1:].isdigit():
                return self._constants[int(name[1:])]
            case ast.Call(func=function, args=args, keywords=keywords):
                return self._call(_dotted(function), args, keywords)
        raise self._fault(f"it uses {describe(expression)}, which a graph must not")

    def _call(self, name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        if name in CASTS and len(args) == 2 and not keywords:
            value = self._value(args[1])  # the first is a type
            return self._number(value, name) if ast.unparse(args[0]) in ("number", "int", "float") else value
        if name in ("torch.device", "ops.prim.device"):
            return self._device
        given = [self._value(each) for each in args]
        named = {str(each.arg): self._value(each.value) for each in keywords}
        if name in CONVERSIONS and len(given) == 1:
            if isinstance(given[0], str) and given[0].lstrip("-") in FLOATS:
                return float(given[0])
            return self._number(given[0], name)
        for prefix in ("torch.", "ops.aten."):
            if name.startswith(prefix) and name.removeprefix(prefix).isidentifier():
                return self._operator(name.removeprefix(prefix), given, named)
        raise self._fault(f"it calls {name[:80]!r}, which is not among the operators that a graph may use")

    def _operator(self, name: str, args: list[Any], named: dict[str, Any]) -> Any:
        if name == "size":
            return self._size(*args)
        has_size = any(isinstance(value, fx.Node) and value in self._sizes for value in args)
        if name in (*ON_SIZES, "rsub", "div") and has_size and all(self._is_number(value) for value in args):
            return self._on_sizes(name, [self._plain(value) for value in args], named)
        if name in TWINS:
            name, count = TWINS[name]
            args = args[:count]
        function, args, named = self._resolve(name, args, named)
        if name in IDENTITIES or (name == "dropout" and args[2:] == [False]):
            return args[0]
        if name == "slice" and args[2:] in ([0, END], [0, END, 1]):
            return args[0]  # tracing writes one for every axis that an index leaves alone
        result = self._builder.apply(function, args, named)
        if isinstance(result, fx.Node):
            returns = function._schema.returns
            if len(returns) != 1 or str(returns[0].type) != "Tensor":
                self._lists.add(result)
        return result

    def _size(self, tensor: Any, axis: Any = None) -> Any:
        if not self._is_tensor(tensor) or type(axis) is not int:
            raise self._fault("it asks for the sizes of something other than one axis of a tensor")
        if isinstance(tensor, Tensor):
            return tensor.shape[axis]
        return self._counted(self._builder.call(torch.ops.aten.sym_size.int, [tensor, axis], {}))

    def _on_sizes(self, name: str, args: list[Any], named: dict[str, Any]) -> Any:
        if name == "rsub":
            name, args = "sub", [args[1], args[0], *args[2:]]
        if name == "div" and named == {"rounding_mode": "floor"}:
            name, named = "floor_divide", {}
        if named.get("alpha", 1) != 1 or set(named) - {"alpha"} or args[2:] not in ([], [1]) or name not in ON_SIZES:
            raise self._fault(f"it computes {name[:40]!r} of sizes, which is not among what a graph may do")
        return self._counted(self._builder.call(ON_SIZES[name], args[:2], {}))

    def _counted(self, result: Any) -> Any:
        if isinstance(result, fx.Node):
            self._sizes.add(result)
        return result

    def _resolve(self, name: str, args: list[Any], named: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """The form of an operator that takes these arguments, and them as it takes them."""
        packet = getattr(torch.ops.aten, name, None)
        overloads = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ["default"]
        self._builder.operator(name, overloads[0])
        for sizes_as_tensors in (False, True):
            for overload in overloads:
                try:
                    arguments = getattr(packet, overload)._schema.arguments
                    fitted = self._bound(arguments, args, named, sizes_as_tensors)
                except _MisfitError:
                    continue
                return self._builder.operator(name, overload), *fitted
        raise self._fault(f"it calls aten.{name} with arguments that no form of it takes")

    def _bound(
        self, arguments: Sequence[Any], args: list[Any], named: dict[str, Any], sizes_as_tensors: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        places = [argument for argument in arguments if not argument.kwarg_only]
        by_name = {argument.name: argument for argument in arguments}
        given = {argument.name for argument in places[: len(args)]} | set(named)
        required = {argument.name for argument in arguments if not argument.has_default_value()}
        if len(args) > len(places) or not required <= given <= set(by_name):
            raise _MisfitError
        return (
            [
                self._fitted(value, str(each.real_type), sizes_as_tensors)
                for value, each in zip(args, places, strict=False)
            ],
            {key: self._fitted(value, str(by_name[key].real_type), sizes_as_tensors) for key, value in named.items()},
        )

    def _fitted(self, value: Any, kind: str, sizes_as_tensors: bool) -> Any:
        """A value as an argument of a type, the way operators name types."""
        if kind.startswith("Optional["):
            return None if value is None else self._fitted(value, kind[9:-1], sizes_as_tensors)
        if kind.startswith("List[") and isinstance(value, list):
            return [self._fitted(each, kind[5:-1], sizes_as_tensors) for each in value]
        if isinstance(value, fx.Node) and value in self._sizes:
            if kind == "Tensor" and sizes_as_tensors:
                return self._builder.apply(torch.ops.aten.scalar_tensor.default, [value], {"dtype": torch.int64})
            fits = kind in ("int", "number")
        elif isinstance(value, fx.Node) and value in self._lists:
            fits = kind == "List[Tensor]"
        elif self._is_tensor(value):
            fits = kind == "Tensor"
        elif kind in CODES:
            if type(value) is int and value in CODES[kind]:
                return CODES[kind][value]
            fits = False
        elif isinstance(value, str):
            fits = kind == "str" and WORD.fullmatch(value) is not None
        else:
            fits = kind in KINDS.get(type(value), ())
        if not fits:
            raise _MisfitError
        return value

    def _item(self, whole: Any, index: int) -> Any:
        if isinstance(whole, fx.Node) and whole in self._lists:
            return self._builder.call(operator.getitem, [whole, index], {})
        if isinstance(whole, list | tuple):
            return whole[index]
        raise self._fault("it takes parts of something that is no list")

    def _is_tensor(self, value: Any) -> bool:
        if isinstance(value, fx.Node):
            return value not in self._sizes and value not in self._lists
        return isinstance(value, Tensor)

    def _is_number(self, value: Any) -> bool:
        if isinstance(value, fx.Node):
            return value in self._sizes
        return type(value) in (int, float) or id(value) in self._numbers

    def _number(self, value: Any, name: str) -> Any:
        """A value where the code makes a number of it."""
        if not self._is_number(value):
            raise self._fault(f"it makes a number with {name!r} of something other than a size")
        value = self._plain(value)
        return self._counted(self._builder.call(NUMBERS[name], [value], {})) if name in NUMBERS else value

    def _plain(self, value: Any) -> Any:
        return self._numbers.get(id(value), value)


class _MisfitError(Exception):
    """This form of an operator does not take these arguments."""


def _dotted(function: ast.expr) -> str:
    """`torch.add` of the code that means it; empty for anything but names and dots."""
    if isinstance(function, ast.Attribute):
        return f"{before}.{function.attr}" if (before := _dotted(function.value)) else ""
    return function.id if isinstance(function, ast.Name) else ""
