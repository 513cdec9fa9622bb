"""Whether a graph is what its manifest says: names, types and shapes of its inputs and outputs.

A bundle may come from a stranger. What does not fit is told when the pipeline is opened, not by the first request.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import LEFT_FRAMES, Manifest, Role
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
    inputs, outputs = tensors(bundle.manifest, role)
    outputs |= {name: spec for name, spec in OPTIONAL.items() if name in graph.outputs}
    faults = [*_faults("input", graph.inputs, inputs), *_faults("output", graph.outputs, outputs)]
    faults += [f"input {name} is unknown to the manifest" for name in graph.inputs if name not in inputs]
    if faults:
        raise BundleError(f"{path} does not fit its manifest: {'; '.join(faults)}. Export the bundle again.")


def tensors(manifest: Manifest, role: Role) -> tuple[Tensors, Tensors]:
    """The inputs and outputs that a graph for a role must have, by the contract."""
    float32, int64 = np.dtype(np.float32), np.dtype(np.int64)
    if role == "decoder":
        return _decoder_tensors(manifest, float32, int64)
    if role in ("predictor", "joiner"):
        return _transducer_tensors(manifest, role, float32, int64)
    streaming = manifest.streaming if role == "streaming_encoder" else None
    window = streaming.window_samples if streaming and not streaming.flexible else None
    features = TensorSpec(float32, (None, None, manifest.features.num_mel_bins))
    inputs = {
        "waveform": TensorSpec(float32, (None, window)),
        "num_samples": TensorSpec(int64, (None,)),
    }
    if role == "features":
        return inputs, {"features": features}
    if role == "acoustic":
        inputs = {"features": features, "num_samples": inputs["num_samples"]}
    if manifest.kind == "embedding":
        return inputs, {"embeddings": TensorSpec(float32, (None, manifest.encoder.output_dim))}
    if manifest.kind == "transducer":
        outputs = {"encoder_out": TensorSpec(float32, (None, None, manifest.encoder.output_dim))}
    else:
        outputs = {"log_probs": TensorSpec(float32, (None, None, manifest.tokens.size))}
    outputs["num_frames"] = TensorSpec(int64, (None,))
    for state in streaming.states if streaming else ():
        inputs[state.name] = outputs[f"next_{state.name}"] = TensorSpec(
            np.dtype(state.dtype), (None, *(None if axis == LEFT_FRAMES else axis for axis in state.shape))
        )
    return inputs, outputs


def _decoder_tensors(manifest: Manifest, float32: np.dtype, int64: np.dtype) -> tuple[Tensors, Tensors]:
    inputs = {
        "encoder_out": TensorSpec(float32, (None, None, manifest.encoder.output_dim)),
        "num_frames": TensorSpec(int64, (None,)),
        "hypotheses": TensorSpec(int64, (None, None, None)),
        "num_tokens": TensorSpec(int64, (None, None)),
    }
    scores = TensorSpec(float32, (None, None))
    both = manifest.decoder is not None and manifest.decoder.bidirectional
    return inputs, {"left_scores": scores, **({"right_scores": scores} if both else {})}


def _transducer_tensors(manifest: Manifest, role: Role, float32: np.dtype, int64: np.dtype) -> tuple[Tensors, Tensors]:
    vector = TensorSpec(float32, (None, manifest.encoder.output_dim))
    if role == "joiner":
        logits = TensorSpec(float32, (None, manifest.tokens.size))
        return {"encoder_out": vector, "predictor_out": vector}, {"logits": logits}
    context_size = manifest.transducer.context_size if manifest.transducer else None
    return {"context": TensorSpec(int64, (None, context_size))}, {"predictor_out": vector}


def _faults(kind: str, found: Mapping[str, TensorSpec], wanted: Tensors) -> Iterator[str]:
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
