"""Ready-made ONNX models in the layout of sherpa-onnx's folders. Needs the package onnx, and no torch."""
