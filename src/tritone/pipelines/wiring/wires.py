"""Whether the wires of an ensemble fit: names, types and sizes at both ends, no circle, nothing left open.

EnsembleSpec, bundle of each step  ->  Wiring: steps in order, inputs and outputs of the ensemble
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from tritone.bundle.bundle import Bundle
from tritone.errors import InputError
from tritone.kinds.generic.part import GenericPart
from tritone.pipelines.kind import Mode, kind_of
from tritone.pipelines.wire import Tensor
from tritone.pipelines.wiring.spec import EnsembleSpec, split

MODES: tuple[Mode, ...] = ("generic", "embedding")  # whose tensors are those that they declare, row by row


@dataclass(frozen=True)
class Wiring:
    """Wires that fit. `order`: of the steps. `inputs`, `outputs`: of the ensemble, as clients see them.

    `max_batch_size`: the smallest of the steps; 0 where tensors have no axis of rows. `decoupled`: the last step
    answers many times. `notes`: sizes that are known only at each request.
    """

    order: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    decoupled: bool = False
    notes: tuple[str, ...] = ()


def wire(spec: EnsembleSpec, bundles: Mapping[str, Bundle], max_batch_size: int) -> Wiring:
    """Check the wires of an ensemble.

    Args:
        bundles: by the names of the steps, and of the models that they call.
        max_batch_size: rows of steps whose bundles have no number of their own.

    Raises:
        InputError: something does not fit; says where, what is there, and what would fit.
        BundleError: a bundle is of an unknown kind.
    """
    sides = {name: _Ends(name, bundles[name]) for name in spec.steps}
    faults = [fault for name in spec.steps for fault in _faults(spec, sides, name)]
    faults += [*_calls(spec, bundles)]
    wired = list(spec.outputs.values())
    taken = {each for step in spec.steps.values() for each in step.inputs.values() if split(each) is None}
    for name, reference in spec.outputs.items():
        if "." in name or name in taken:
            faults.append(f"output {name}: outputs need names without a point, other than those of inputs")
        if wired.count(reference) > 1:
            faults.append(f"output {name}: {reference} is the output of another name already")
        if (fault := _source(reference, sides, inputs=False)[1]) is not None:
            faults.append(f"output {name}: {fault}")
    if faults:
        raise InputError(f"ensemble {spec.name}: {'; '.join(faults)}")
    order = _order(spec)
    inputs = _open_inputs(spec, sides, order)
    outputs = tuple(replace(_tensor(reference, sides), name=name) for name, reference in spec.outputs.items())
    rows = {name: each.rows if each.rows is not None else max_batch_size for name, each in sides.items()}
    if 0 in rows.values() and any(rows.values()):
        flat = ", ".join(name for name, count in rows.items() if not count)
        raise InputError(
            f"ensemble {spec.name}: tensors of {flat} have no axis of rows, those of other steps do. Export all of "
            "them with --max-batch-size above 0, or all with 0."
        )
    return Wiring(
        order=order,
        inputs=inputs,
        outputs=outputs,
        max_batch_size=min(rows.values()),
        decoupled=_is_decoupled(spec, sides, order),
        notes=tuple(_notes(spec, sides)),
    )


class _Ends:
    """What goes in and out of a step."""

    def __init__(self, name: str, bundle: Bundle) -> None:
        kind = kind_of(bundle)
        self.mode = next((mode for mode in kind.encoders if mode in MODES), None)
        if self.mode is None:
            raise InputError(
                f"step {name}: {bundle.path} is {kind.noun}; steps are generic models, functions and speaker models"
            )
        self.inputs = {each.name: each for each in kind.inputs(bundle)}
        self.outputs = {each.name: each for each in kind.outputs(bundle)}
        generic = bundle.manifest.find(GenericPart)
        self.rows = None if generic is None else generic.max_batch_size
        self.decoupled = generic is not None and generic.python is not None and generic.python.decoupled
        if generic is not None and generic.is_sequence:
            raise InputError(
                f"step {name}: {bundle.path} keeps states from request to request, which a step of an ensemble cannot"
            )


def _source(reference: str, sides: Mapping[str, _Ends], *, inputs: bool = True) -> tuple[Tensor | None, str | None]:
    """The output that a wire begins at, or None for an input of the ensemble; and what is wrong with it."""
    parts = split(reference)
    if parts is None:
        if inputs:
            return None, None
        return None, f"{reference!r} is no output of a step; write STEP.OUTPUT, of {', '.join(sides)}"
    step, output = parts
    if step not in sides:
        return None, f"{reference!r}: there is no step {step}; there are {', '.join(sides)}"
    if output not in sides[step].outputs:
        return None, f"{reference!r}: step {step} has no output {output}; it has {', '.join(sides[step].outputs)}"
    return sides[step].outputs[output], None


def _tensor(reference: str, sides: Mapping[str, _Ends]) -> Tensor:
    found, fault = _source(reference, sides, inputs=False)
    if found is None:
        raise InputError(str(fault))
    return found


def _faults(spec: EnsembleSpec, sides: Mapping[str, _Ends], name: str) -> Iterator[str]:
    """What is wrong at the inputs of a step."""
    wires, ends = spec.steps[name].inputs, sides[name]
    for key, reference in wires.items():
        if key not in ends.inputs:
            yield f"step {name} has no input {key}; it has {', '.join(ends.inputs)}"
            continue
        source, fault = _source(reference, sides)
        if fault is not None:
            yield f"step {name}, input {key}: {fault}"
        elif source is not None and not _fits(source, ends.inputs[key]):
            yield f"step {name}, input {key}: {reference} is {_shown(source)}, needed is {_shown(ends.inputs[key])}"
    if missing := [key for key, each in ends.inputs.items() if not each.optional and key not in wires]:
        yield f"step {name}: nothing is wired to {', '.join(missing)}"


def _calls(spec: EnsembleSpec, bundles: Mapping[str, Bundle]) -> Iterator[str]:
    """Models that are called and not there, or there and not called."""
    wanted: dict[str, str] = {}
    for name in (*spec.steps, *spec.models):
        tensors = bundles[name].manifest.find(GenericPart)
        for called in tensors.python.calls if tensors is not None and tensors.python is not None else ():
            wanted[called] = name
    for called, name in wanted.items():
        if called not in spec.models:
            yield f"{name} calls the model {called}; give it under `models`"
    if idle := [name for name in spec.models if name not in wanted]:
        yield f"nothing calls {', '.join(idle)}, given under `models`"
    if twice := [name for name in spec.models if name in spec.steps]:
        yield f"{', '.join(twice)} is both a step and a model that is called; give them names of their own"


def _fits(source: Tensor, target: Tensor) -> bool:
    return (
        source.type == target.type
        and len(source.dims) == len(target.dims)
        and all(a == b or -1 in (a, b) for a, b in zip(source.dims, target.dims, strict=True))
    )


def _shown(tensor: Tensor) -> str:
    return f"{tensor.type} {list(tensor.dims)}"


def _order(spec: EnsembleSpec) -> tuple[str, ...]:
    before = {
        name: {parts[0] for reference in step.inputs.values() if (parts := split(reference))}
        for name, step in spec.steps.items()
    }
    try:
        order = tuple(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise InputError(f"ensemble {spec.name}: steps wait for each other: {' <- '.join(error.args[1])}") from error
    used = {parts[0] for reference in spec.outputs.values() if (parts := split(reference))}
    used |= {name for names in before.values() for name in names}
    if idle := [name for name in order if name not in used]:
        raise InputError(f"ensemble {spec.name}: nothing comes of step {', '.join(idle)}; leave it out, or wire it")
    return order


def _open_inputs(spec: EnsembleSpec, sides: Mapping[str, _Ends], order: Sequence[str]) -> tuple[Tensor, ...]:
    """The inputs of the ensemble, with what all steps that take them agree on."""
    found: dict[str, Tensor] = {}
    users: dict[str, str] = {}
    for name in order:
        for key, reference in spec.steps[name].inputs.items():
            if split(reference) is not None:
                continue
            # Ensembles have no optional tensors, and do not batch.
            tensor = replace(sides[name].inputs[key], name=reference, optional=False, ragged=False)
            before = found.get(reference, tensor)
            if not _fits(before, tensor):
                raise InputError(
                    f"ensemble {spec.name}: input {reference} is {_shown(before)} for {users[reference]}, and "
                    f"{_shown(tensor)} for {name}.{key}"
                )
            dims = tuple(max(a, b) for a, b in zip(before.dims, tensor.dims, strict=True))
            found[reference] = replace(before, dims=dims)
            users.setdefault(reference, f"{name}.{key}")
    if not found:
        raise InputError(f"ensemble {spec.name}: no step takes an input of the ensemble")
    return tuple(found.values())


def _notes(spec: EnsembleSpec, sides: Mapping[str, _Ends]) -> Iterator[str]:
    for name, step in spec.steps.items():
        for key, reference in step.inputs.items():
            source, _ = _source(reference, sides)
            target = sides[name].inputs[key]
            if source and any(a == -1 and b != -1 for a, b in zip(source.dims, target.dims, strict=True)):
                yield (
                    f"{reference} may have any size where {name}.{key} takes {_shown(target)}: requests in which it is "
                    "another are refused"
                )


def _is_decoupled(spec: EnsembleSpec, sides: Mapping[str, _Ends], order: Sequence[str]) -> bool:
    many = [name for name in order if sides[name].decoupled]
    if not many:
        return False
    outside = {parts[0] for reference in spec.outputs.values() if (parts := split(reference))}
    inside = {
        parts[0] for step in spec.steps.values() for reference in step.inputs.values() if (parts := split(reference))
    }
    if len(many) > 1 or outside != set(many) or many[0] in inside:
        raise InputError(
            f"ensemble {spec.name}: {', '.join(many)} answers many times, so it must be the last step, the only one of "
            "its sort, and all outputs of the ensemble must be its own"
        )
    return True
