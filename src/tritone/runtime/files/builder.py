"""Building a graph that runs from the description of one, operator by operator.

    operators, tensors  ->  Program: inputs, outputs, a torch.fx graph over constants

Only operators on the lists of `operators.py` are taken. What does not depend on the inputs is computed here, once;
so weights that are stored narrow are widened when the graph is opened and not at every call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from tritone.errors import BundleError, OperatorError, TritoneError
from tritone.runtime.files.operators import IDENTITIES, OPERATORS
from tritone.runtime.files.records import Records
from tritone.runtime.graph import TensorSpec

MAX_NODES = 2**18


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


def built(records: Records, device: torch.device, build: Callable[[], Program]) -> Program:
    """What `build` makes of an open file.

    Raises:
        BundleError: the file is not what it should be, in whatever way that came up.
        OperatorError: the device has too little memory.
    """
    try:
        with torch.no_grad():
            return build()
    except TritoneError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OperatorError(f"{device} has too little free memory to open {records.path}: {error}") from error
    except Exception as error:  # a description that is not of torch's form can fail anywhere
        raise records.fault(f"its description is not usable ({type(error).__name__}: {error})") from error


class Builder:
    """Builds one graph. A value is known (a tensor or a number) or a node of the graph."""

    def __init__(self, device: torch.device, fault: Callable[[str], BundleError]) -> None:
        """Take the place where the graph shall run, and what makes an error of a reason."""
        self.device = device
        self.fault = fault
        self.constants: dict[str, Tensor] = {}
        self._graph = fx.Graph()
        self._constant_nodes: dict[int, fx.Node] = {}

    def input(self, name: str) -> fx.Node:
        """The next input."""
        return self._graph.placeholder(name)

    def operator(self, name: str, overload: str) -> Any:
        """An operator of aten that a graph may use."""
        if name not in OPERATORS and name not in IDENTITIES and name != "dropout":
            raise self.fault(f"it calls aten.{name}, which is not among the operators that a graph may use")
        found = getattr(getattr(torch.ops.aten, name, None), overload, None)
        if not isinstance(found, torch._ops.OpOverload):
            raise self.fault(f"it calls aten.{name}.{overload}, which torch {torch.__version__} does not have")
        if found._schema.is_mutable:
            raise self.fault(f"it calls aten.{name}.{overload}, which changes its arguments")
        return found

    def apply(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operator of aten, its arguments put on our device."""
        foldable = torch.Tag.nondeterministic_seeded not in function.tags
        return self.call(function, *self._placed(function, args, kwargs), foldable)

    def call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], foldable: bool = True) -> Any:
        """The result of a function: computed now if all arguments are known, a node if not."""
        if foldable and not has_node([list(args), dict(kwargs)]):
            return function(*args, **kwargs)
        placed = tuple(_mapped(value, self._node) for value in args)
        named = {name: _mapped(value, self._node) for name, value in kwargs.items()}
        return self._graph.call_function(function, placed, named)

    def finish(
        self, outputs: Sequence[Any], inputs: Mapping[str, TensorSpec], specs: Mapping[str, TensorSpec]
    ) -> Program:
        """The program that gives these values."""
        self._graph.output(tuple(self._output(value) for value in outputs))
        self._graph.lint()
        return Program(inputs=inputs, outputs=specs, graph=self._graph, constants=self.constants)

    def _placed(
        self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        placed, named = list(args), dict(kwargs)
        for place, argument in enumerate(function._schema.arguments):
            if argument.name == "device":
                if place < len(placed):
                    placed[place] = self.device
                else:
                    named["device"] = self.device
        named.pop("pin_memory", None)
        return placed, named

    def _output(self, value: Any) -> fx.Node:
        node: fx.Node = self._node(value)
        # Whoever gets a result may write to it, but not to a constant of the program.
        return self._graph.call_function(torch.ops.aten.clone.default, (node,)) if node.op == "get_attr" else node

    def _node(self, value: Any) -> Any:
        """`value` as an argument in the graph: tensors that are known become constants of it."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._constant_nodes:
            name = f"c{len(self.constants)}"
            self.constants[name] = value
            self._constant_nodes[id(value)] = self._graph.get_attr(name)
        return self._constant_nodes[id(value)]


def has_node(value: Any) -> bool:
    """Does anything in `value`, lists and dicts included, depend on the inputs?"""
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(has_node, value)) if isinstance(value, list) else isinstance(value, fx.Node)


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    return [_mapped(each, function) for each in value] if isinstance(value, list) else function(value)
