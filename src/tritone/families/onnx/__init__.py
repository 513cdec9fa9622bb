"""ONNX graphs as files: written, read, joined, quantised and tried."""
