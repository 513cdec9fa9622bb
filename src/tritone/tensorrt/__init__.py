"""TensorRT engines: a bundle's ONNX graphs, built for one GPU and for sizes that are given in seconds of audio."""

from tritone.tensorrt.bundled import build_engines

__all__ = ["build_engines"]
