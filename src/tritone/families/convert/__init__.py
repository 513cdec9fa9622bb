"""Conversions of ONNX graphs, and how far one graph's outputs are from another's."""
