"""The protocols of the clients of sherpa-onnx's WebSocket servers."""

from tritone.gateway.protocols.sherpa_onnx.online import routes

__all__ = ["routes"]
