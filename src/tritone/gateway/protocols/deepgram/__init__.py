"""The protocol of Deepgram's clients: recordings by HTTP, live streams by WebSockets, with turns at `/v2/listen`."""

from starlette.routing import BaseRoute

from tritone.gateway.gateway import Gateway
from tritone.gateway.protocols.deepgram.flux import flux_routes
from tritone.gateway.protocols.deepgram.live import live_routes
from tritone.gateway.protocols.deepgram.rest import rest_routes


def routes(gateway: Gateway) -> list[BaseRoute]:
    """HTTP and the first WebSocket are at one path."""
    return [*rest_routes(gateway), *live_routes(gateway), *flux_routes(gateway)]
