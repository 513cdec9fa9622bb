"""The ASGI application of a gateway: the routes of its doors, health, metrics, limits and errors.

build_app(gateway)  ->  a Starlette application for any ASGI server
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.websockets import WebSocket

from tritone.errors import TritoneError
from tritone.gateway.doors import all_doors
from tritone.gateway.gateway import Gateway
from tritone.gateway.guard import RequestGuard
from tritone.gateway.refusal import CODES, ErrorAnswer, told


def build_app(gateway: Gateway, doors: Iterable[ModuleType] | None = None) -> Starlette:
    """Make the application.

    Args:
        doors: modules with `routes(gateway)`; None takes all there are.
    """
    chosen = all_doors().values() if doors is None else doors
    routes: list[BaseRoute] = [*_health(gateway)]
    for door in chosen:
        if hasattr(door, "routes"):
            routes += door.routes(gateway)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await gateway.close()

    middleware = [Middleware(RequestGuard, gateway=gateway)]
    if gateway.options.cors:
        allowed = list(gateway.options.cors)
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=allowed, allow_methods=["*"], allow_headers=["*"], max_age=600)
        )
    handlers: Any = {TritoneError: _failed, HTTPException: _unknown, Exception: _failed}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=lifespan)


def error_response(answer: ErrorAnswer) -> Response:
    """An error as the gateway's own HTTP doors word it."""
    return JSONResponse(answer.body, answer.status, headers=answer.headers)


def _health(gateway: Gateway) -> list[Route]:
    async def live(request: Request) -> Response:
        return PlainTextResponse("live\n")

    async def ready(request: Request) -> Response:
        why = await gateway.why_not_ready()
        return PlainTextResponse(f"not ready: {why}\n" if why else "ready\n", 503 if why else 200)

    return [Route("/health/live", live), Route("/health/ready", ready)]


async def _failed(scope: Request | WebSocket, error: Exception) -> Response | None:
    answer = told(error)
    if isinstance(scope, WebSocket):  # before it was accepted, or in a door that lets its errors through
        await scope.close(1013 if answer.status in (429, 502, 503, 504) else 1008, answer.message[:120])
        return None
    return error_response(answer)


async def _unknown(request: Request, error: HTTPException) -> Response:
    code = CODES.get(error.status_code, "refused")
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return error_response(ErrorAnswer(status=error.status_code, code=code, message=message))
