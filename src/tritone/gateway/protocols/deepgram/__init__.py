"""The protocol of Deepgram's clients at `/v1/listen`: recordings by HTTP, live streams by a WebSocket."""

from starlette.routing import BaseRoute

from tritone.gateway.gateway import Gateway
from tritone.gateway.protocols.deepgram.live import live_routes
from tritone.gateway.protocols.deepgram.rest import rest_routes


def routes(gateway: Gateway) -> list[BaseRoute]:
    """Both are at one path."""
    return [*rest_routes(gateway), *live_routes(gateway)]
