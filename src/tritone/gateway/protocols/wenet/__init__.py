"""The protocol of the clients of WeNet's WebSocket server."""

from tritone.gateway.protocols.wenet.websocket import routes

__all__ = ["routes"]
