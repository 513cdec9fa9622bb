"""Compiling calls of a program ahead of time, with torch's AOTInductor.

    program, outputs, shapes  ->  library of machine code  ->  cache folder, see `compiled`

The program is traced with the shapes of the call, whose sizes become plain numbers, all but the rows: code for any
number of them is as fast, and a number more costs a recording in place of a minute of the compiler. Nothing is left to
decide on the host when it runs. Several calls are compiled at once, each in a process of its own.
"""

import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from tritone.errors import OperatorError
from tritone.runtime.files.builder import Program
from tritone.runtime.torch.compiled import CompiledCall, CompiledStore, Shapes, lifted_constants, most_rows
from tritone.runtime.torch.lowering import lower, wants_channels_last


def compile_call(
    program: Program,
    device: torch.device,
    store: CompiledStore,
    outputs: Sequence[str],
    shapes: Shapes,
    options: Mapping[str, Any] | None = None,
) -> CompiledCall:
    """Compile one call, for any number of rows up to that of its shapes, and keep it in the store.

    Args:
        outputs: of the program that the call returns.
        shapes: of each of its inputs, rows first.
        options: further options of inductor.

    Raises:
        OperatorError: torch cannot compile it here; says why.
    """
    from torch._inductor import aoti_compile_and_package  # takes seconds to load
    from torch.export import Dim, export

    store.prepare()
    start = time.perf_counter()
    module, constants = lifted(program, outputs)
    inputs = [
        torch.zeros(shape, dtype=getattr(torch, program.inputs[name].dtype.name), device=device)
        for name, shape in shapes.items()
    ]
    try:
        with torch.no_grad(), warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=store.folder) as folder:
            warnings.simplefilter("ignore")  # torch's own parts warn of each other
            rows = {0: Dim("rows", min=1, max=most_rows(shapes))} if most_rows(shapes) > 1 else None
            exported = export(
                module,
                (*inputs, *constants),
                dynamic_shapes=(*[rows] * len(inputs), *[None] * len(constants)),
                prefer_deferred_runtime_asserts_over_guards=True,  # as that frames are not 1, which it cannot prove
            )
            package = Path(folder) / "call.pt2"
            aoti_compile_and_package(
                exported, package_path=str(package), inductor_configs={**options_for(device, module), **(options or {})}
            )
            return store.keep(outputs, shapes, package, time.perf_counter() - start)
    except Exception as error:  # the compiler, a C++ compiler and the device can fail in any way
        size = store.place(outputs, shapes).name
        raise OperatorError(
            f"torch {torch.__version__} cannot compile {size} for {device}: {type(error).__name__}: "
            f"{str(error)[:2000]}. A C++ compiler (g++), and for GPUs the headers of CUDA, must be there"
        ) from error


def options_for(device: torch.device, module: fx.GraphModule) -> dict[str, Any]:
    """Inductor's options for a network on a device."""
    # Precompiling the headers takes g++ as long as five calls gain from it.
    common: dict[str, Any] = {"aot_inductor.precompile_headers": False}
    if device.type == "cpu":
        return common | {"cpp.dynamic_threads": True}  # each call has its own share of the threads
    # Launches are recorded, so what the host does between them need not be fast, and g++ takes a third of the time.
    options = common | {"aot_inductor.compile_wrapper_opt_level": "O0"}
    # Inductor finds that out for itself only where the number of rows is fixed.
    return options | {"force_layout_optimization": wants_channels_last(module.graph)}


def lifted(program: Program, outputs: Sequence[str]) -> tuple[fx.GraphModule, list[Tensor]]:
    """What the named outputs need, as a module without state; it takes the inputs and then these constants."""
    order = list(program.outputs)
    graph = fx.Graph()
    values: Any = graph.graph_copy(program.graph, {})
    graph.output(tuple(values[order.index(name)] for name in outputs))
    graph.eliminate_dead_code()
    lower(graph, program.constants)
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    constants = lifted_constants(program)
    for name in constants:
        with graph.inserting_after(last):
            last = graph.placeholder(f"constant_{name}")
        for node in graph.find_nodes(op="get_attr", target=name):
            node.replace_all_uses_with(last)
            graph.erase_node(node)
    graph.lint()
    return fx.GraphModule({}, graph), list(constants.values())
