"""From the description of a `torch.export` program to operators that run.

    model.json, tensors  ->  Program: inputs, outputs, a torch.fx graph over constants

Only operators on the lists of `torch_operators` are taken, and nothing in a description is evaluated as Python. What
does not depend on the inputs is computed here, once; so weights that are stored narrow are widened when the graph is
opened and not at every call.

torch's own checks of input shapes are left out: the pipelines keep to the contract of the graphs, and those checks
refuse sizes that export took to be different, such as a batch of one.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from tritone.errors import OperatorError, TritoneError
from tritone.runtime.graph import TensorSpec
from tritone.runtime.torch_archive import Archive, field
from tritone.runtime.torch_operators import IDENTITIES, IGNORED, ON_NUMBERS, OPERATORS

MAX_NODES = 2**18

WORD = re.compile(r"[a-z][a-z_]{0,30}|[A-Za-z ,.]{0,60}->[A-Za-z .]{0,30}")  # modes as "tanh", equations of einsum
FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
MEMORY_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 4: torch.preserve_format}
STRIDED = 7  # torch's number of the usual layout


@dataclass(frozen=True)
class Program:
    """A program on its device. `graph` takes the inputs in order and gives all outputs as a tuple."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    graph: fx.Graph
    constants: Mapping[str, Tensor]

    def function(self, outputs: Sequence[str]) -> Callable[..., tuple[Tensor, ...]]:
        """Compile what the named outputs need to a function of all inputs, in the order of `inputs`.

        Raises:
            ValueError: the program has no such output.
        """
        names = list(self.outputs)
        if unknown := [name for name in outputs if name not in names]:
            raise ValueError(f"the graph has no output {', '.join(unknown)}; it has {', '.join(names)}")
        graph = fx.Graph()
        values: Any = graph.graph_copy(self.graph, {})
        graph.output(tuple(values[names.index(name)] for name in outputs))
        graph.eliminate_dead_code()
        module = fx.GraphModule(dict(self.constants), graph)
        return module.forward


def read_program(path: Path, device: torch.device) -> Program:
    """Read a .pt2 file and put it on a device.

    Raises:
        BundleError: the file is damaged, was written by a torch too far from this one, or holds what is not allowed.
        OperatorError: the device has too little memory.
    """
    with Archive(path) as archive:
        try:
            with torch.no_grad():
                return _Builder(archive, device).build()
        except TritoneError:
            raise
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OperatorError(f"{device} has too little free memory to open {path}: {error}") from error
        except Exception as error:  # a description that is not of torch's form can fail anywhere
            raise archive.fault(f"its description is not usable ({type(error).__name__}: {error})") from error


class _Builder:
    """Builds one program. A value is known (a tensor or a number) or a node of the graph."""

    def __init__(self, archive: Archive, device: torch.device) -> None:
        self._archive = archive
        self._device = device
        self._graph = fx.Graph()
        self._values: dict[str, Any] = {}
        self._constants: dict[str, Tensor] = {}
        self._constant_nodes: dict[int, fx.Node] = {}

    def build(self) -> Program:
        module = self._archive.program()
        graph, signature = field(module, "graph", dict), field(module, "signature", dict)
        metas, names = field(graph, "tensor_values", dict), self._archive.names()
        tensors = self._archive.tensors()
        inputs = []
        for index, each in enumerate(field(signature, "input_specs", list)):
            ((kind, spec),) = each.items()
            if kind == "user_input":
                name = spec["arg"]["as_tensor"]["name"]
                self._values[name] = self._graph.placeholder(f"x{index}")
                inputs.append(name)
            elif kind in ("parameter", "buffer", "tensor_constant"):
                tensor = tensors[spec[{"buffer": "buffer_name"}.get(kind, f"{kind}_name")]]
                self._values[spec["arg"]["name"]] = tensor.to(self._device)
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
        self._graph.output(tuple(self._output(self._values[name]) for name in outputs))
        self._graph.lint()
        return Program(
            inputs=self._specs(inputs, names.get("inputs", inputs), metas),
            outputs=self._specs(outputs, names.get("outputs", outputs), metas),
            graph=self._graph,
            constants=self._constants,
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
            function = self._operator(match[1], match[2])
            if match[1] in IDENTITIES or (match[1] == "dropout" and not _value_of(named, "train")):
                self._bind(node, named[0][1])
                return
            args, kwargs = self._bound(function, named)
            foldable = torch.Tag.nondeterministic_seeded not in function.tags
        elif target in ON_NUMBERS:
            function, args, kwargs, foldable = ON_NUMBERS[target], [value for _, value, _ in named], {}, True
        else:
            raise self._archive.fault(f"it calls {target!r}, which is not among the operators that a graph may use")
        if foldable and not _has_node([args, kwargs]):
            self._bind(node, function(*args, **kwargs))
            return
        placed = tuple(_mapped(value, self._node) for value in args)
        named_ones = {name: _mapped(value, self._node) for name, value in kwargs.items()}
        self._bind(node, self._graph.call_function(function, placed, named_ones))

    def _operator(self, name: str, overload: str) -> Any:
        if name not in OPERATORS and name not in IDENTITIES and name != "dropout":
            raise self._archive.fault(f"it calls aten.{name}, which is not among the operators that a graph may use")
        found = getattr(getattr(torch.ops.aten, name, None), overload, None)
        if not isinstance(found, torch._ops.OpOverload):
            raise self._archive.fault(f"it calls aten.{name}.{overload}, which torch {torch.__version__} does not have")
        if found._schema.is_mutable:
            raise self._archive.fault(f"it calls aten.{name}.{overload}, which changes its arguments")
        return found

    def _bound(self, function: Any, named: Sequence[tuple[str, Any, Any]]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments by place as far as possible, and on our device."""
        schema = function._schema.arguments
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, value, _ in named:
            place = len(args)
            if not kwargs and place < len(schema) and schema[place].name == name and not schema[place].kwarg_only:
                args.append(value)
            else:
                kwargs[name] = value
        for place, argument in enumerate(schema):
            if argument.name == "device":
                if place < len(args):
                    args[place] = self._device
                else:
                    kwargs["device"] = self._device
        kwargs.pop("pin_memory", None)
        return args, kwargs

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
            return self._graph.call_function(operator.getitem, (result, index))
        return result[index]

    def _output(self, value: Any) -> fx.Node:
        node: fx.Node = self._node(value)
        # Whoever gets a result may write to it, but not to a constant of the program.
        return self._graph.call_function(torch.ops.aten.clone.default, (node,)) if node.op == "get_attr" else node

    def _node(self, value: Any) -> Any:
        """`value` as an argument in the graph: tensors that are known become constants of it."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._constant_nodes:
            name = f"c{len(self._constants)}"
            self._constants[name] = value
            self._constant_nodes[id(value)] = self._graph.get_attr(name)
        return self._constant_nodes[id(value)]


def _number(value: Any) -> bool | int | float:
    if isinstance(value, str) and value in FLOATS:
        return FLOATS[value]
    if not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {value!r:.40}")
    return value


def _value_of(named: Sequence[tuple[str, Any, Any]], name: str) -> Any:
    return next((value for each, value, _ in named if each == name), None)


def _has_node(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(_has_node, value)) if isinstance(value, list) else isinstance(value, fx.Node)


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    return [_mapped(each, function) for each in value] if isinstance(value, list) else function(value)
