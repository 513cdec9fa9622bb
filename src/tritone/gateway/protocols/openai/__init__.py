"""The protocols of OpenAI's clients: REST for recordings, Realtime for live streams."""

from starlette.routing import BaseRoute

from tritone.gateway.gateway import Gateway
from tritone.gateway.protocols.openai.realtime import realtime_routes
from tritone.gateway.protocols.openai.rest import rest_routes


def routes(gateway: Gateway) -> list[BaseRoute]:
    """The routes below `/v1`."""
    return [*rest_routes(gateway), *realtime_routes(gateway)]
