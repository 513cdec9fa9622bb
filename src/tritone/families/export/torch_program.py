"""From torch modules to `torch.export` programs, files that the runtime `torch` opens.

    torch.nn.Module  ->  encoder.pt2

A program holds its own weights. Greedy search needs the best token of each frame alone, so programs give it beside the
log-probabilities, which then need not leave the device.
"""

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from tritone.errors import ExportError
from tritone.families.export.dynamic import dynamic_shapes
from tritone.installing import pip_install

NAMES = "tritone.json"  # the record in the file that says what inputs and outputs are called
LOG_PROBS, BEST = "log_probs", ("best_tokens", "best_log_probs")
OLDEST = (2, 11)  # of torch
COMPRESS_FROM_ELEMENTS = 2048
OF_THIS_MACHINE = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")

Module = TypeVar("Module", bound=nn.Module)


def with_best(module: nn.Module, outputs: Sequence[str]) -> tuple[nn.Module, list[str]]:
    """A module and the names of its outputs, with the best token of each frame if there are log-probabilities."""
    if LOG_PROBS not in outputs:
        return module, [*outputs]
    return _WithBest(module, [*outputs].index(LOG_PROBS)).eval(), [*outputs, *BEST]


class _WithBest(nn.Module):
    """A module with two more outputs: the best token of each frame, and its log-probability."""

    def __init__(self, module: nn.Module, log_probs: int) -> None:
        super().__init__()
        self.module = module
        self.log_probs = log_probs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = self.module(*inputs)
        values, tokens = outputs[self.log_probs].max(dim=-1)
        return (*outputs, tokens, values)


def save_program(
    module: nn.Module,
    path: Path,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, str]],
    metadata: Mapping[str, str],
    *,
    narrow_weights: bool = False,
) -> None:
    """Trace `module` and write it to `path`, a .pt2 file.

    Args:
        module, inputs, outputs, dynamic, metadata: as of `families.onnx.writer.export_graph`. A module with an output
            `log_probs` (batch, frames, vocab) gets `best_tokens` and `best_log_probs` (batch, frames) as well.
        narrow_weights: store float32 weights as float16, and widen them when the file is opened; see `rounded`.

    Raises:
        ExportError: this torch is too old to write the kind of file that the runtime reads.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST:
        raise ExportError(
            f"programs for the runtime torch are written by torch {'.'.join(map(str, OLDEST))} or newer, this is "
            f"{torch.__version__}: {pip_install('torch')} --upgrade"
        )
    module, names = with_best(module, outputs)
    axes = dynamic_shapes(module, inputs, dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own parts warn of each other
        program = torch.export.export(module, tuple(inputs.values()), dynamic_shapes=axes)
        if narrow_weights:
            _narrow(program)
        # Source positions of the exporting machine, and example inputs as a pickle: nobody reads them.
        for node in program.graph.nodes:
            for key in OF_THIS_MACHINE:
                node.meta.pop(key, None)
        program.example_inputs = None
        record = {"inputs": list(inputs), "outputs": names, "metadata": dict(metadata)}
        torch.export.save(program, path, extra_files={NAMES: json.dumps(record)})


def rounded(module: Module) -> Module:
    """A copy of `module` with the weights that `save_program` stores narrow rounded to what float16 has."""
    result = copy.deepcopy(module)
    for parameter in result.parameters():
        if _is_narrowed(parameter):
            parameter.data = parameter.data.half().float()
    return result


def _is_narrowed(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.dim() >= 2 and weight.numel() >= COMPRESS_FROM_ELEMENTS


def _narrow(program: ExportedProgram) -> None:
    """Replace large float32 weights by float16 ones and operators that widen them, in place."""
    graph = program.graph
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for spec in program.graph_signature.input_specs:
        weight = program.state_dict.get(cast(str, spec.target))
        if spec.kind is not InputKind.PARAMETER or weight is None or not _is_narrowed(weight):
            continue
        node: Any = placeholders[spec.arg.name]
        with graph.inserting_before(first):
            wide = graph.call_function(torch.ops.aten.to.dtype, (node, torch.float32))
        node.replace_all_uses_with(wide, delete_user_cb=lambda user, wide=wide: user is not wide)
        wide.meta["val"] = node.meta["val"]
        with node.meta["val"].fake_mode:
            node.meta["val"] = node.meta["val"].to(torch.float16)
        program.state_dict[spec.target] = nn.Parameter(weight.detach().half(), requires_grad=False)
    program.graph_module.recompile()
