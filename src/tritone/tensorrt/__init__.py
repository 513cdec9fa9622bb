"""TensorRT engines: a bundle's ONNX graphs, built for one GPU and for sizes that are given in seconds of audio."""

from tritone.tensorrt.bundled import build_engines
from tritone.tensorrt.profile import Profile

__all__ = ["Profile", "build_engines"]
