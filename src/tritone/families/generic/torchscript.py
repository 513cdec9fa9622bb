"""TorchScript files of any use, as bundles.

    model.pt  ->  GraphFacts  ->  manifest.json, model.ts, labels

A script says what its inputs are called and nothing of their types and sizes, so the user gives that. It is run on two
sizes to learn of its outputs. A script is a program: making a bundle of it loads and runs it.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tritone.bundle.part import TensorType
from tritone.errors import BundleError, ExportError
from tritone.families.graphs.proposal import GraphFacts, Proposal, TensorFacts, TensorOptions, propose
from tritone.families.graphs.writer import GraphReport, new_names, write_graph
from tritone.kinds.generic.part import ServingPart
from tritone.pipelines.generic.tensors import DTYPES
from tritone.runtime.files.records import NAMES, SCRIPT_TYPES
from tritone.runtime.files.torch_description import describe, type_name
from tritone.runtime.graph import Array

GRAPH = "model.ts"
GIVE = (
    "Say the sizes of inputs without the batch axis, -1 for any (--dims NAME=SIZE,...), and their types where they are "
    "not FP32 (--type NAME=INT64)."
)
Results = Mapping[str, Array]


def export_torchscript(
    *,
    model: str | Path,
    output: str | Path | None,
    name: str | None = None,
    options: TensorOptions | None = None,
    types: Mapping[str, str] | None = None,
    rename: Mapping[str, str] | None = None,
    serving: ServingPart | None = None,
    propose_only: Callable[[Proposal], None] = lambda proposal: None,
) -> GraphReport | Proposal:
    """Make a bundle of a script; arguments as of `export_onnx`. This loads the script, and so runs its code.

    Args:
        types: of inputs by their names, as Triton calls them; FP32 where nothing is given.

    Raises:
        ExportError: the script or an option cannot be used; nothing is written then.
        BundleError: the output is in the way.
    """
    path, options = Path(model), options or TensorOptions()
    if not path.is_file():
        raise ExportError(f"there is no file {path}; give the path of a file of torch.jit.save")
    try:
        described = describe(path)
    except BundleError as error:
        raise ExportError(str(error)) from error
    if described.format != "TorchScript":
        raise ExportError(f"{path} is of {described.format}; `tritone export torch-export` makes a bundle of it")
    if unfit := [
        f"{each.name}: {each.type}" for each in described.inputs if each.shape is None and " " not in each.type
    ]:
        raise ExportError(f"{path} takes what is no tensor ({', '.join(unfit)}); wrap the module and save it again")
    module = _loaded(path)
    known = [each.name for each in described.inputs]
    names = new_names(known, {old: new for old, new in (rename or {}).items() if old in known}, known)
    facts = GraphFacts(
        name=path.stem,
        inputs=tuple(TensorFacts(each, kind, None) for each, kind in _types(names, types or {})),
        outputs=(),
        about=(path.name, f"{path.stat().st_size / 1e6:.2f} MB"),
    )
    if missing := [each for each in names if not _is_given(each, options, len(names))]:
        raise ExportError(f"{path} is a script, which says nothing of the sizes of {', '.join(missing)}. {GIVE}")
    run = _Runner(module, facts.inputs)
    facts = _with_outputs(facts, options, run, dict(rename or {}), known)
    proposal = propose(facts, options, run, name=name, output=output)
    propose_only(proposal)
    if output is None:
        return proposal
    tensors = proposal.generic
    rows: tuple[None, ...] = (None,) if tensors.max_batch_size else ()
    own = {each.input: each for each in tensors.states} | {each.output: each for each in tensors.states}
    shapes = {each.name: each.shape for each in (*tensors.inputs, *tensors.outputs)}
    shapes |= {key: each.dims for key, each in own.items()} | {each.input: (1,) for each in tensors.controls}

    def recorded(tensor: TensorFacts) -> dict[str, Any]:
        axes = (*rows, *(None if size < 0 else size for size in shapes[tensor.name]))
        return {"name": tensor.name, "dtype": DTYPES[tensor.type].name, "shape": axes}

    record = {"inputs": [*map(recorded, facts.inputs)], "outputs": [*map(recorded, facts.outputs)], "metadata": {}}
    return write_graph(
        lambda target: _save(module, target, record),
        GRAPH,
        runtime="torchscript",
        family="torchscript",
        original=path,
        proposal=proposal,
        output=Path(output),
        serving=serving or ServingPart(),
        options={},
    )


class _Runner:
    """Runs a script on host arrays. `names`: of its outputs."""

    def __init__(self, module: Any, inputs: Sequence[TensorFacts]) -> None:
        self._module, self._inputs = module, inputs
        self.names: Sequence[str] = ()

    def __call__(self, inputs: Mapping[str, Array]) -> Results:
        results = self.results(inputs)
        names = self.names or [f"output_{index}" for index in range(len(results))]
        return {name: result.numpy() for name, result in zip(names, results, strict=True)}

    def results(self, inputs: Mapping[str, Array]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad(), torch.jit.optimized_execution(False):
            found = self._module(*(torch.from_numpy(inputs[each.name]) for each in self._inputs))
        found = found if isinstance(found, tuple) else (found,)
        if unfit := [type(each).__name__ for each in found if not isinstance(each, torch.Tensor)]:
            raise ExportError(
                f"the script returns a {unfit[0]}; a model returns a tensor or a tuple of tensors. Wrap the module and "
                "save it again."
            )
        return found


def _loaded(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells on every call that torch.export is newer
            return torch.jit.load(path, map_location="cpu").eval()
    except Exception as error:  # torch raises whatever the damage leads to
        raise ExportError(f"torch cannot load {path}: {type(error).__name__}: {str(error)[:300]}") from error


def _save(module: Any, path: Path, record: Mapping[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(module, path, _extra_files={NAMES: json.dumps(record)})


def _types(names: Sequence[str], given: Mapping[str, str]) -> list[tuple[str, TensorType]]:
    known = [name for name, dtype in DTYPES.items() if dtype.name in SCRIPT_TYPES and name != "BF16"]
    for name, kind in given.items():
        if name not in names:
            raise ExportError(f"--type {name}={kind}: the script has no input {name}; it has {', '.join(names)}")
        if kind not in known:
            raise ExportError(f"--type {name}={kind}: the types of scripts are {', '.join(known)}")
    return [(name, given.get(name, "FP32")) for name in names]  # type: ignore[misc]


def _with_outputs(
    facts: GraphFacts, options: TensorOptions, run: _Runner, rename: dict[str, str], known: list[str]
) -> GraphFacts:
    """The facts with the outputs that the script has: their types, and the sizes that stay when inputs grow."""
    first = propose(
        replace(facts, outputs=(_PLACEHOLDER,)), replace(options, labels=(), states=(), controls=()), _silent(run)
    )
    sample = {each.name: (*_rows(first), *(each.sample or ())) for each in first.generic.inputs}
    if any(each.sample is None for each in first.generic.inputs):
        raise ExportError(f"{'; '.join(first.notes)} {GIVE}")
    inputs = {each.name: np.zeros(sample[each.name], DTYPES[each.type]) for each in facts.inputs}
    results = run.results(inputs)
    numbered = [f"output_{index}" for index in range(len(results))]
    names = new_names(numbered, rename, known + numbered)
    run.names = names
    open_axes = {each.name: [size < 0 for size in each.dims] for each in first.generic.inputs}
    grown = dict(inputs)
    for name, array in inputs.items():
        flags = [*(True for _ in _rows(first)), *open_axes[name]]
        grown[name] = np.zeros(
            [size + 1 if free else size for size, free in zip(array.shape, flags, strict=True)], array.dtype
        )
    try:
        others = run.results(grown)
    except Exception:  # sizes that do not go together: nothing is known to stay then
        others = ()
    outputs = []
    for index, (name, result) in enumerate(zip(names, results, strict=True)):
        same = others[index].shape if others else ()
        shape = tuple(
            size if others and len(same) == result.dim() and same[axis] == size else None
            for axis, size in enumerate(result.shape)
        )
        if result.dtype == torch.bfloat16 or str(result.dtype).removeprefix("torch.") not in SCRIPT_TYPES:
            raise ExportError(f"output {name} is {result.dtype}, which is none of {', '.join(SCRIPT_TYPES)}; cast it")
        outputs.append(TensorFacts(name, type_name(result.dtype), shape))  # type: ignore[arg-type]
    return replace(facts, outputs=tuple(outputs))


_PLACEHOLDER = TensorFacts("output_0", "FP32", (None,))


def _is_given(name: str, options: TensorOptions, count: int) -> bool:
    return any(text.startswith(f"{name}=") or (count == 1 and "=" not in text) for text in options.dims)


def _silent(run: _Runner) -> Callable[[Mapping[str, Array]], Results]:
    return lambda inputs: {_PLACEHOLDER.name: run.results(inputs)[0].numpy()}


def _rows(proposal: Proposal) -> tuple[int, ...]:
    return (1,) if proposal.generic.max_batch_size else ()
