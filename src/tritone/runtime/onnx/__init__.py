"""Graphs in ONNX format, run by onnxruntime."""
