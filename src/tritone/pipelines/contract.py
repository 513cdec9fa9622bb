"""Whether a graph is what its manifest says: names, types and shapes of its inputs and outputs.

A bundle may come from a stranger. What does not fit is told when the pipeline is opened, not by the first request.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.errors import BundleError
from tritone.runtime.graph import Graph, TensorSpec

Tensors = dict[str, TensorSpec]
# Outputs that a graph may have.
OPTIONAL = {
    "best_tokens": TensorSpec(np.dtype(np.int64), (None, None)),
    "best_log_probs": TensorSpec(np.dtype(np.float32), (None, None)),
}


def check_graph(graph: Graph, bundle: Bundle, role: Role, path: Path) -> None:
    """Compare the graph opened from `path` with the manifest of its bundle; see "Graph contracts" in docs/design.md.

    Raises:
        BundleError: a tensor is missing, unknown, or of another type or shape; the message names all of them.
    """
    inputs, outputs = _tensors(bundle.manifest, role)
    outputs |= {name: spec for name, spec in OPTIONAL.items() if name in graph.outputs}
    faults = [*_faults("input", graph.inputs, inputs), *_faults("output", graph.outputs, outputs)]
    faults += [f"input {name} is unknown to the manifest" for name in graph.inputs if name not in inputs]
    if faults:
        raise BundleError(f"{path} does not fit its manifest: {'; '.join(faults)}. Export the bundle again.")


def _tensors(manifest: Manifest, role: Role) -> tuple[Tensors, Tensors]:
    float32, int64 = np.dtype(np.float32), np.dtype(np.int64)
    streaming = manifest.streaming if role == "streaming_encoder" else None
    inputs = {
        "waveform": TensorSpec(float32, (None, streaming.window_samples if streaming else None)),
        "num_samples": TensorSpec(int64, (None,)),
    }
    outputs = {
        "log_probs": TensorSpec(float32, (None, None, manifest.vocabulary.size)),
        "num_frames": TensorSpec(int64, (None,)),
    }
    for state in streaming.states if streaming else ():
        inputs[state.name] = outputs[f"next_{state.name}"] = TensorSpec(np.dtype(state.dtype), (None, *state.shape))
    return inputs, outputs


def _faults(kind: str, found: Mapping[str, TensorSpec], wanted: Tensors) -> Iterator[str]:
    for name, spec in wanted.items():
        if name not in found:
            yield f"{kind} {name} is missing"
        elif not _fits(found[name], spec):
            yield f"{kind} {name} is {_described(found[name])}, it should be {_described(spec)}"


def _fits(found: TensorSpec, wanted: TensorSpec) -> bool:
    if found.dtype != wanted.dtype or len(found.shape) != len(wanted.shape):
        return False
    return all(None in pair or pair[0] == pair[1] for pair in zip(found.shape, wanted.shape, strict=True))


def _described(spec: TensorSpec) -> str:
    return f"{spec.dtype} ({', '.join('any' if axis is None else str(axis) for axis in spec.shape)})"
