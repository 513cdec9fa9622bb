"""TensorRT engines: a bundle's ONNX graphs, built for one GPU and for sizes that are given in seconds of audio."""

from tritone.engines.bundled import build_engines
from tritone.engines.profile import Profile

__all__ = ["Profile", "build_engines"]
