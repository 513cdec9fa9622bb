"""Running exported graphs."""

from pathlib import Path

from tritone.runtime.graph import Graph, TensorSpec

__all__ = ["Graph", "TensorSpec", "open_graph"]


def open_graph(path: Path, device: str = "cpu", threads: int | None = None, *, split_calls: bool = True) -> Graph:
    """Open an exported graph with the runtime that its file name calls for; arguments and errors as of `OnnxGraph`."""
    if path.suffix != ".onnx":
        raise ValueError(f"graphs are .onnx files, got {path}")
    from tritone.runtime.onnx import OnnxGraph  # onnxruntime takes its time to load; the client never needs it

    return OnnxGraph(path, device, threads, split_calls=split_calls)
