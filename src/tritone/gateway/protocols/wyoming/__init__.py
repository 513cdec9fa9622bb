"""Wyoming, the protocol of Home Assistant's voice services."""

from tritone.gateway.protocols.wyoming.server import serve

__all__ = ["serve"]
