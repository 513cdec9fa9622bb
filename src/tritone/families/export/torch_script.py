"""From torch modules to TorchScript files, which the runtime `torchscript` and `torch.jit.load` open.

    torch.nn.Module  ->  encoder.ts

A script holds its own weights, as constants of one function. Tracing follows one call, and what that call took for a
constant stays one: so another call of other sizes and values must give the same script, and the script must say what
the module says for these as well.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tritone.errors import ExportError
from tritone.families.export.torch_program import NAMES, OLDEST, with_best
from tritone.installing import pip_install

# Largest difference between module and script, relative to the largest number. The same operators run in the same
# order, but sums may be cut differently from one call to the next.
TOLERANCE = 1e-4
NARROW_TOLERANCE = 0.05  # where weights are not float32


def save_script(
    module: nn.Module,
    path: Path,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, str]],
    metadata: Mapping[str, str],
) -> None:
    """Trace `module` and write it to `path`, a .ts file. It runs on any device, whatever device it was traced on.

    Args:
        module, inputs, outputs, dynamic, metadata: as of `families.onnx.writer.export_graph`. A module with an output
            `log_probs` (batch, frames, vocab) gets `best_tokens` and `best_log_probs` (batch, frames) as well.

    Raises:
        ExportError: what was traced holds for the sizes of `inputs` alone, or depends on values in a way that cannot be
            traced; or this torch is too old.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST:
        raise ExportError(
            f"scripts for the runtime torchscript are written by torch {'.'.join(map(str, OLDEST))} or newer, this is "
            f"{torch.__version__}: {pip_install('torch')} --upgrade"
        )
    module, names = with_best(module, outputs)
    trials = list(_trials(inputs, dynamic))
    with torch.no_grad(), _quiet():
        script = _traced(module.eval(), trials, path.name)
        _forget_device(script.graph)
        results = _check(module, script, path.name, trials)
        record = {
            "inputs": [_described(*each) for each in zip(inputs, zip(*trials, strict=True), strict=True)],
            "outputs": [_described(*each) for each in zip(names, zip(*results, strict=True), strict=True)],
            "metadata": dict(metadata),
        }
        torch.jit.save(script, path, _extra_files={NAMES: json.dumps(record)})


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells on every call that torch.export is newer
        yield


def _traced(module: nn.Module, trials: Sequence[tuple[Tensor, ...]], name: str) -> Any:
    """Trace on the first inputs, and once more on the second to see whether anything of them went into the script."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        script, other = (
            torch.jit.freeze(torch.jit.trace(module, trial, check_trace=False), optimize_numerics=False)
            for trial in trials[:2]
        )
    (code, held), (other_code, other_held) = (each.code_with_constants for each in (script, other))
    ours, others = held.const_mapping, other_held.const_mapping
    if code != other_code or ours.keys() != others.keys() or not all(_same(ours[key], others[key]) for key in ours):
        hints = [each for each in caught if issubclass(each.category, torch.jit.TracerWarning)]
        where = "; ".join(f"{each.filename}:{each.lineno}: {str(each.message).strip()}" for each in hints[:3])
        raise ExportError(f"{name} would hold for inputs of one size, or of certain values, alone. {where}".strip())
    return script


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def _forget_device(graph: Any) -> None:
    """Let tensors be made where the first input is, not on the device of the exporting machine."""
    first = next(each for each in graph.inputs() if each.type().kind() == "TensorType")
    for constant in graph.findAllNodes("prim::Constant", recurse=True):
        if constant.output().type().kind() == "DeviceObjType":
            device = graph.create("prim::device", [first], 1)
            device.output().setType(constant.output().type())
            device.insertBefore(constant)
            constant.output().replaceAllUsesWith(device.output())
            constant.destroy()
    graph.lint()


def _trials(inputs: Mapping[str, Tensor], dynamic: Mapping[str, Mapping[int, str]]) -> Iterator[tuple[Tensor, ...]]:
    """The example inputs, then others of which every varying axis is longer, then those in a batch of one.

    Numbers differ too, and stay within what is allowed: lengths and places become smaller.
    """
    yield tuple(inputs.values())
    for change in (lambda size, _: size + size // 2 + 1, lambda size, axis: size if axis else 1):
        changed = []
        for name, value in inputs.items():
            value = value.flip(0) / -2 if value.is_floating_point() else value.flip(0) // 2
            for axis in dynamic.get(name, {}):
                size = value.shape[axis]
                if size:
                    value = value.index_select(axis, torch.arange(change(size, axis)) % size)
            changed.append(value)
        yield tuple(changed)


def _check(module: nn.Module, script: Any, name: str, trials: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """Hold a script against its module; returns what that says, trial by trial."""
    narrow = any(each.is_floating_point() and each.dtype != torch.float32 for each in module.parameters())
    tolerance = NARROW_TOLERANCE if narrow else TOLERANCE
    results = []
    for trial in trials:
        sizes = ", ".join(str(tuple(value.shape)) for value in trial)
        results.append(_as_tuple(module(*trial)))
        try:
            with torch.jit.optimized_execution(False):  # which takes longer than it saves in one call
                scripted = _as_tuple(script(*trial))
        except RuntimeError as error:
            raise ExportError(f"{name} cannot take inputs of {sizes}: {str(error)[-300:]}") from error
        for expected, found in zip(results[-1], scripted, strict=True):
            if expected.shape != found.shape or expected.dtype != found.dtype or not _close(expected, found, tolerance):
                raise ExportError(
                    f"{name} does not say what the network says for inputs of {sizes}: tracing took a size or a value "
                    "for a constant. Please report this with the version of torch."
                )
    return results


def _close(expected: Tensor, found: Tensor, tolerance: float) -> bool:
    if not expected.is_floating_point():
        return torch.equal(expected, found)
    largest = float(expected.nan_to_num(0, 0, 0).abs().amax()) if expected.numel() else 0.0
    return torch.allclose(expected.float(), found.float(), rtol=0.0, atol=largest * tolerance, equal_nan=True)


def _as_tuple(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _described(name: str, examples: Sequence[Tensor]) -> dict[str, Any]:
    """What the runtime wants to know of an input or output: axes whose size differs between examples may have any."""
    sizes = [set(each) for each in zip(*(example.shape for example in examples), strict=True)]
    shape = [each.pop() if len(each) == 1 else None for each in sizes]
    return {"name": name, "dtype": str(examples[0].dtype).removeprefix("torch."), "shape": shape}
