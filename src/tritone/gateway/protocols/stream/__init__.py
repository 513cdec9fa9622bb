"""The gateway's own WebSocket."""

from tritone.gateway.protocols.stream.websocket import routes

__all__ = ["routes"]
