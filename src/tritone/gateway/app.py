"""The ASGI application of a gateway: the routes of its protocols, health, metrics, limits and errors.

build_app(gateway)  ->  a Starlette application for `HttpServer`
"""

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from tritone.gateway.gateway import Gateway
from tritone.gateway.protocol import Protocol
from tritone.gateway.protocols import all_protocols
from tritone.gateway.refusal import CODES, LOG, ErrorAnswer, GatewayRefusal
from tritone.gateway.sockets import RouteOfSubprotocol
from tritone.gateway.visits import Visits, error_response
from tritone.paths import without_paths


def build_app(gateway: Gateway, protocols: Iterable[Protocol] | None = None) -> Starlette:
    """Make the application.

    Args:
        protocols: those to serve; None takes all there are.
    """
    chosen = all_protocols().values() if protocols is None else protocols
    routes: list[BaseRoute] = operators_routes(gateway, metrics=gateway.options.metrics_port is None)
    for protocol in chosen:
        routes += _routes_of(protocol, gateway)
    sockets = dict.fromkeys(each.path for each in routes if isinstance(each, WebSocketRoute))
    routes.sort(key=lambda each: not isinstance(each, RouteOfSubprotocol))  # which leave their paths to others
    routes.append(_no_socket(list(sockets)))

    middleware = []
    if gateway.options.cors:
        allowed = list(gateway.options.cors)
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=allowed, allow_methods=["*"], allow_headers=["*"], max_age=600)
        )
    middleware.append(Middleware(Visits, gateway=gateway))
    handlers: Any = {HTTPException: _unknown}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


def _routes_of(protocol: Protocol, gateway: Gateway) -> list[BaseRoute]:
    """The routes of a protocol; none of one of another package whose code fails."""
    try:
        return protocol.all_routes(gateway)
    except Exception as error:
        if not protocol.interface:
            raise
        LOG.warning(
            f"{protocol.package}, which has the protocol {protocol.name!r}, fails as its routes are made: "
            f"{type(error).__name__}: {str(error)[:200]}. It is left out; notify its makers"
        )
        return []


def operators_app(gateway: Gateway) -> Starlette:
    """Health and metrics alone, for a port of their own."""
    return Starlette(routes=operators_routes(gateway, metrics=True))


def operators_routes(gateway: Gateway, *, metrics: bool) -> list[BaseRoute]:
    """Health, and metrics where they are wanted."""

    async def live(request: Request) -> Response:
        return PlainTextResponse("live\n")

    async def ready(request: Request) -> Response:
        why = await gateway.why_not_ready()
        lines = [f"not ready: {without_paths(why)}" if why else "ready"]
        lines += [f"upstream {name}: circuit {each.circuit.state}" for name, each in gateway.speech.upstreams.items()]
        return PlainTextResponse("".join(f"{each}\n" for each in lines), 503 if why else 200)

    async def numbers(request: Request) -> Response:
        gateway.metrics.draining.set(gateway.state == "draining")
        return Response(gateway.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    routes: list[BaseRoute] = [Route("/health/live", live), Route("/health/ready", ready)]
    return [*routes, Route("/metrics", numbers)] if metrics else routes


def _no_socket(known: Sequence[str]) -> WebSocketRoute:
    """Where no WebSocket is, for starlette would refuse its client without a word."""

    async def refuse(socket: WebSocket) -> None:
        raise GatewayRefusal(404, f"there is no WebSocket at {socket.url.path[:200]}, but at {', '.join(known)}")

    return WebSocketRoute("/{path:path}", refuse)


async def _unknown(request: Request, error: HTTPException) -> Response:
    code = CODES.get(error.status_code, "refused")
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return error_response(ErrorAnswer(status=error.status_code, code=code, message=message))
