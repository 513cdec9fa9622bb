"""The protocols of the clients of sherpa-onnx's WebSocket servers."""
