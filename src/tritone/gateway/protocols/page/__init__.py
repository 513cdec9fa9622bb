"""The page for people, and the addresses that it asks."""

from tritone.gateway.protocols.page.addresses import routes

__all__ = ["routes"]
