"""Whether a graph is what its manifest and its kind ask for: names, types and shapes of its inputs and outputs.

A bundle may come from a stranger. What does not fit is reported when the pipeline is opened, not by the first request.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.errors import BundleError
from tritone.pipelines.kind import kind_of
from tritone.runtime.graph import Graph, TensorSpec

BLOCK = ("waveform", "num_samples", "language", "use_itn")
"""The inputs of an encoder of whole utterances."""
BITS = np.dtype(np.int16)


def check_graph(graph: Graph, bundle: Bundle, role: Role, path: Path) -> None:
    """Compare the graph opened from `path` with the manifest of its bundle; see "Graph contracts" in docs/design.md.

    Raises:
        BundleError: a tensor is missing, unknown, or of another type or shape; the message names all of them.
    """
    kind = kind_of(bundle)
    inputs, outputs = kind.tensors(bundle.manifest, role)
    outputs |= {name: spec for name, spec in kind.optional_outputs.items() if name in graph.outputs}
    if role == "encoder":
        inputs |= {name: _of_one_row(spec, graph.inputs.get(name)) for name, spec in inputs.items() if name in BLOCK}
    if role == "streaming_encoder" and bundle.manifest.streaming is not None:
        for state in bundle.manifest.streaming.states:
            if state.dtype == "float32" and _is_of_bits(graph.inputs.get(state.name)):
                for specs, name in ((inputs, state.name), (outputs, f"next_{state.name}")):
                    specs[name] = replace(specs[name], dtype=BITS)
    faults = [*_faults("input", graph.inputs, inputs), *_faults("output", graph.outputs, outputs)]
    faults += [f"input {name} is unknown to the manifest" for name in graph.inputs if name not in inputs]
    if faults:
        raise BundleError(f"{path} does not fit its manifest: {'; '.join(faults)}. Export the bundle again.")


def _is_of_bits(found: TensorSpec | None) -> bool:
    """Whether a state is kept as the bits of bfloat16, as graphs of that precision do; float32 has none more for it."""
    return found is not None and found.dtype == BITS


def _of_one_row(wanted: TensorSpec, found: TensorSpec | None) -> TensorSpec:
    """What is wanted, but for a single row where that is what the graph takes: then each utterance is a call."""
    if found is None or found.shape[:1] != (1,):
        return wanted
    return replace(wanted, shape=(1, *wanted.shape[1:]))


def _faults(kind: str, found: Mapping[str, TensorSpec], wanted: Mapping[str, TensorSpec]) -> Iterator[str]:
    for name, spec in wanted.items():
        if name not in found:
            yield f"{kind} {name} is missing"
        elif not _fits(found[name], spec, exact=kind == "input"):
            yield f"{kind} {name} is {_described(found[name])}, it should be {_described(spec)}"


def _fits(found: TensorSpec, wanted: TensorSpec, exact: bool) -> bool:
    """`exact`: where any size will be fed, any size must be taken. What comes out may tell more than was asked."""
    if found.dtype != wanted.dtype or len(found.shape) != len(wanted.shape):
        return False
    return all(
        size is None or size == (size if axis is None and not exact else axis)
        for size, axis in zip(found.shape, wanted.shape, strict=True)
    )


def _described(spec: TensorSpec) -> str:
    return f"{spec.dtype} ({', '.join('any' if axis is None else str(axis) for axis in spec.shape)})"
