"""ONNX graphs on OpenVINO; see `graph`."""
