"""The doors of OpenAI's clients: REST for recordings, Realtime for live streams."""

from starlette.routing import BaseRoute

from tritone.gateway.doors.openai.realtime import realtime_routes
from tritone.gateway.doors.openai.rest import rest_routes
from tritone.gateway.gateway import Gateway


def routes(gateway: Gateway) -> list[BaseRoute]:
    """The routes below `/v1`."""
    return [*rest_routes(gateway), *realtime_routes(gateway)]
