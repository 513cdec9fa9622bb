"""The protocol of vosk-server's clients."""

from tritone.gateway.protocols.vosk.websocket import routes

__all__ = ["routes"]
