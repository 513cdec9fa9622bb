"""The application around the doors: health, errors, limits, and the ports of a running gateway."""

import http.client
import json
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tritone.errors import AudioError, OperatorError, ServerBusyError, ServerSetupError
from tritone.gateway import GatewayLimits, GatewayOptions
from tritone.gateway.refusal import GatewayRefusal, told
from tritone.gateway.server import GatewayServer


def ask(port: int, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Status, body (of JSON what it holds) and headers of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, json.loads(text) if "json" in found.get("content-type", "") else text, found
    finally:
        connection.close()


def echo(gateway: Any) -> list[Route]:
    async def size(request: Request) -> PlainTextResponse:
        await gateway.admit(request.headers, request.query_params, door="echo")
        return PlainTextResponse(str(len(await request.body())))

    async def fail(request: Request) -> PlainTextResponse:
        raise ValueError("a secret of this gateway")

    return [Route("/echo", size, methods=["POST"]), Route("/fail", fail)]


ECHO = {"echo": SimpleNamespace(routes=echo)}


def test_health_tells_of_triton(gateway: Any) -> None:
    assert ask(gateway.port, "/health/live")[:2] == (200, "live\n")
    assert ask(gateway.port, "/health/ready")[:2] == (200, "ready\n")


def test_a_gateway_without_triton_lives_and_is_not_ready() -> None:
    options = GatewayOptions(triton="127.0.0.1:9", port=0)
    with GatewayServer(options, doors=ECHO).background() as running:  # type: ignore[arg-type]
        assert ask(running.port, "/health/live")[0] == 200
        status, text, _ = ask(running.port, "/health/ready")
        assert (status, text.startswith("not ready: grpc://127.0.0.1:9")) == (503, True)


def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    limits = GatewayLimits(max_body_mb=0.001)
    with GatewayServer(GatewayOptions(port=0, limits=limits), doors=ECHO).background() as running:  # type: ignore[arg-type]
        assert ask(running.port, "/echo", b"x" * 1000)[:2] == (200, "1000")
        status, body, _ = ask(running.port, "/echo", b"x" * 2000)
        assert (status, body["error"]["code"]) == (413, "too_large")
        assert "0.001 MB" in body["error"]["message"]
        assert ask(running.port, "/fail")[:2] == (
            500,
            {"error": {"code": "internal_error", "message": "the gateway failed; its log says more"}},
        )
        assert ask(running.port, "/nothing")[1]["error"]["code"] == "not_found"


def test_a_port_that_is_taken_is_an_error_with_advice(gateway: Any) -> None:
    with (
        pytest.raises(ServerSetupError, match="Choose another with --port"),
        GatewayServer(GatewayOptions(port=gateway.port), doors={}).background(),
    ):
        pass


def test_errors_tell_clients_what_they_can_do_and_no_more() -> None:
    busy = ServerBusyError("grpc://10.0.0.7:8001: model 'a': Exceeds maximum queue size")
    busy.retry_after_s = 0.3
    answer = told(busy)
    assert (answer.status, answer.code, answer.headers) == (
        503,
        "overloaded",
        {"retry-after": "1", "retry-after-ms": "300"},
    )
    assert "10.0.0.7" not in answer.message
    assert told(AudioError("the audio data: not audio")).message == "the audio data: not audio"
    assert "secret" not in told(OperatorError("a secret")).message
    assert told(GatewayRefusal(429, "too many", 2.0)).code == "rate_limited"
