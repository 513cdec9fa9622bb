"""The application around the protocols: health, errors, limits, and the ports of a running gateway."""

import asyncio
import errno
import gc
import http.client
import json
import logging
import re
import socket
import ssl
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from certificates import write_certificates
from toy import toy_waveform
from tritone.errors import AudioError, OperatorError, ServerBusyError, ServerSetupError
from tritone.gateway import GatewayLimits, GatewayOptions
from tritone.gateway.callers import Caller, hash_of
from tritone.gateway.protocol import Protocol
from tritone.gateway.refusal import GatewayRefusal, answer_to
from tritone.gateway.server import GatewayServer, collect_again
from tritone.gateway.speech import Ask
from tritone.gateway.tracing import Traces
from tritone.net.json_log import JsonLines
from tritone.net.limits import Tls
from waiting import until


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


def echo(gateway: Any) -> list[BaseRoute]:
    async def size(request: Request) -> PlainTextResponse:
        await gateway.admit(request.headers, request.query_params, protocol="echo")
        return PlainTextResponse(str(len(await request.body())))

    async def wait(request: Request) -> PlainTextResponse:
        await request.body()
        gateway.waiting = True
        try:
            await asyncio.Event().wait()
        finally:
            gateway.left = True
        return PlainTextResponse("never")

    async def full(request: Request) -> PlainTextResponse:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def fail(request: Request) -> PlainTextResponse:
        raise ValueError("a secret of this gateway")

    async def talk(socket: WebSocket) -> None:
        caller = await gateway.admit(socket.headers, socket.query_params, protocol="talk")
        await socket.accept()
        with suppress(WebSocketDisconnect), caller.streaming():
            while True:
                await socket.send_text(await socket.receive_text())

    return [
        Route("/echo", size, methods=["POST"]),
        Route("/wait", wait, methods=["GET", "POST"]),
        Route("/full", full),
        Route("/fail", fail),
        WebSocketRoute("/talk", talk),
    ]


POSTED = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"


class Echo(Protocol):
    """The page of the protocol of this file."""

    def all_routes(self, gateway: Any) -> list[BaseRoute]:
        return echo(gateway)


ECHO = {"echo": Echo(name="echo", package="", what="What comes goes back.", paths=("/echo",))}


@contextmanager
def started(**options: Any) -> Iterator[GatewayServer]:
    """A gateway with the protocol of this file alone, and no Triton."""
    with GatewayServer(
        GatewayOptions(**{"triton": "127.0.0.1:9", "port": 0} | options), protocols=ECHO
    ).background() as it:
        yield it


def test_health_tells_of_triton(gateway: Any) -> None:
    assert ask(gateway.port, "/health/live")[:2] == (200, "live\n")
    assert ask(gateway.port, "/health/ready")[:2] == (200, "ready\n")


def test_a_gateway_without_triton_lives_and_is_not_ready() -> None:
    with started() as running:
        assert ask(running.port, "/health/live")[0] == 200
        status, text, _ = ask(running.port, "/health/ready")
        assert (status, text.startswith("not ready: grpc://127.0.0.1:9")) == (503, True)


def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    with started(limits=GatewayLimits(max_body_mb=0.001)) as running:
        assert ask(running.port, "/echo", b"x" * 1000)[:2] == (200, "1000")
        status, body, _ = ask(running.port, "/echo", b"x" * 2000)
        assert (status, body["error"]["code"]) == (413, "too_large")
        assert "0.001 MB" in body["error"]["message"]
        assert ask(running.port, "/fail")[:2] == (
            500,
            {
                "error": {
                    "message": "the gateway failed; its log says more",
                    "type": "server_error",
                    "param": None,
                    "code": "internal_error",
                }
            },
        )
        assert ask(running.port, "/nothing")[1]["error"]["code"] == "not_found"


def test_slow_heads_and_bodies_end_and_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritone.net.http_server.HEAD_S", 1.0)
    limits = GatewayLimits(body_grace_s=0.3, max_uploads=2, max_requests=4)
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\na"
    with started(limits=limits) as server, ExitStack() as stack:

        def connection(sent: bytes) -> socket.socket:
            made = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
            made.sendall(sent)
            return made

        slow = [connection(head) for _ in range(2)]
        unfinished = [connection(b"GET /health/live HTTP/1.1\r\nX: "), connection(b"")]
        unfinished.append(connection(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert unfinished[-1].recv(65536).startswith(b"HTTP/1.1 200")
        unfinished[-1].sendall(b"GET /health/live HTTP/1.1\r\n")
        told = [each.recv(65536).partition(b"\r\n")[0] for each in slow]
        assert told == [b"HTTP/1.1 408 Request Timeout"] * 2
        for each in unfinished:
            with suppress(ConnectionError):
                while each.recv(65536):
                    pass
        assert ask(server.port, "/echo", b"whole")[:2] == (200, "5")


@pytest.mark.parametrize("request_", [b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n", POSTED % b"wait"])
def test_work_ends_when_its_client_is_gone(request_: bytes) -> None:
    with started() as server:
        state: Any = server.gateway
        with socket.create_connection(("127.0.0.1", server.port), 20) as one:
            one.sendall(request_)
            until(lambda: hasattr(state, "waiting"))
        until(lambda: hasattr(state, "left"))
        assert ask(server.port, "/echo", b"whole")[:2] == (200, "5")
        assert 'outcome="failed"' not in state.metrics.text().decode()


def test_a_full_disk_is_told_with_advice(caplog: pytest.LogCaptureFixture) -> None:
    with started() as server:
        status, body, headers = ask(server.port, "/full")
    assert (status, body["error"]["code"], headers["retry-after"]) == (507, "disk_full", "30")
    assert "TMPDIR" in caplog.text
    assert "Traceback" not in caplog.text


def test_bodies_of_one_address_are_limited() -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    with started(limits=GatewayLimits(max_uploads=1)) as server:
        with socket.create_connection(("127.0.0.1", server.port), 20) as one:
            one.sendall(head)
            assert one.recv(100).startswith(b"HTTP/1.1 100")  # it is being read
            status, told, _ = ask(server.port, "/echo", b"whole")
            assert (status, "1 bodies are coming from 127.0.0.1" in str(told)) == (503, True)
            one.sendall(b"whole")
            assert one.recv(1000).startswith(b"HTTP/1.1 200")
        assert ask(server.port, "/echo", b"whole")[0] == 200


@pytest.mark.parametrize(
    ("name", "option"), [("", "--port"), ("sherpa_onnx", "--sherpa-onnx-port"), ("riva", "--riva-port")]
)
def test_a_port_that_is_taken_is_an_error_with_advice(name: str, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        options = GatewayOptions(port=0, ports={name: port}) if name else GatewayOptions(port=port)
        with pytest.raises(ServerSetupError) as caught, GatewayServer(options).background():
            pass
    reason = "Address already in use"
    assert str(caught.value) == (
        f"the gateway cannot listen on 127.0.0.1:{port}: {reason}. Choose another with {option} or --host."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70000}, "port must be 1 to 65535, or 0 for any, got 70000"),
        ({"ports": {"vosk": -1}}, "vosk_port must be 1 to 65535"),
        ({"metrics_port": 9000}, "port and metrics_port are both 9000"),
        ({"cors": ("https://app.example/",)}, "without a path, got 'https://app.example/'"),
        ({"traces": "localhost:4318"}, "traces takes an address like http://localhost:4318, got 'localhost:4318'"),
    ],
)
def test_options_that_cannot_work_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        GatewayOptions(**options)


def test_an_address_of_ipv6_is_in_brackets() -> None:
    assert GatewayOptions(host="::1").address(50051) == "[::1]:50051"
    assert GatewayOptions().address(9000) == "127.0.0.1:9000"


def test_a_gateway_without_triton_says_so_when_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    with started():
        until(lambda: "nothing can be asked yet: grpc://127.0.0.1:9: " in caplog.text)


def test_errors_tell_clients_what_they_can_do_and_no_more() -> None:
    busy = ServerBusyError("grpc://10.0.0.7:8001: model 'a': Exceeds maximum queue size")
    busy.retry_after_s = 0.3
    answer = answer_to(busy)
    assert (answer.status, answer.code, answer.headers) == (
        503,
        "overloaded",
        {"retry-after": "1", "retry-after-ms": "300"},
    )
    assert "10.0.0.7" not in answer.message
    assert answer_to(AudioError("the audio data: not audio")).message == "the audio data: not audio"
    assert "secret" not in answer_to(OperatorError("a secret")).message
    assert answer_to(GatewayRefusal(429, "too many", 2.0)).code == "rate_limited"


def test_requests_are_logged_and_counted_without_keys_or_bodies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keys.yaml").write_text(
        f"keys: [{{name: desk, sha256: {hash_of('secret')}, streams: 1}}]", encoding="utf-8"
    )
    caplog.set_level(logging.INFO, "tritone.gateway.access")
    with started(keys=tmp_path / "keys.yaml") as running:
        assert ask(running.port, "/echo?key=secret", b"audio")[0] == 200
        assert ask(running.port, "/echo", b"audio")[0] == 401
        metrics = ask(running.port, "/metrics")[1]
    lines = [json.loads(record.message) for record in caplog.records if record.name == "tritone.gateway.access"]
    assert [(line["caller"], line["protocol"], line["path"], line["status"], line["error"]) for line in lines] == [
        ("desk", "echo", "/echo", 200, ""),
        ("", "echo", "/echo", 401, "unauthorized"),
    ]
    assert len({line["id"] for line in lines}) == 2
    assert all(datetime.fromisoformat(line["time"]).tzinfo is not None for line in lines)
    assert "secret" not in caplog.text
    assert 'tritone_gateway_requests_total{outcome="ok",protocol="echo"} 1.0' in metrics
    assert 'tritone_gateway_refusals_total{code="unauthorized",protocol="echo"} 1.0' in metrics
    assert "desk" not in metrics


@pytest.mark.parametrize(("given", "kept"), [("call 7", False), ("call-7", True), ("x" * 129, False), ("", False)])
def test_a_request_has_the_id_of_its_client_or_one_of_its_own(
    given: str, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tritone.gateway.access")
    with started() as running:
        *_, headers = ask(running.port, "/echo", b"audio", **{"x-request-id": given})
    [line] = [json.loads(each.message) for each in caplog.records if each.name == "tritone.gateway.access"]
    assert (headers["x-request-id"], line["id"] == given) == (line["id"], kept)


def test_lines_of_the_log_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("tritone.gateway")
    logger.addHandler(handler)
    try:
        raise ValueError("odd\nlines")
    except ValueError as error:
        logger.error("%s", error, exc_info=error)
    line = json.loads(capsys.readouterr().out)
    assert (line["level"], line["message"], "ValueError" in line["trace"]) == ("ERROR", "odd\nlines", True)
    assert datetime.fromisoformat(line["time"]).tzinfo is not None


def test_a_websocket_is_refused_by_an_answer_of_http_and_has_the_limits_of_its_key(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(f"keys: [{{name: desk, sha256: {hash_of('k')}, streams: 1}}]", encoding="utf-8")
    with started(keys=tmp_path / "keys.yaml") as running:
        url = f"ws://127.0.0.1:{running.port}/talk"
        with pytest.raises(InvalidStatus) as caught:
            connect(url, proxy=None)
        assert caught.value.response.status_code == 401
        assert json.loads(caught.value.response.body)["error"]["code"] == "unauthorized"
        with connect(f"{url}?key=k", proxy=None) as first:
            first.send("hello")
            assert first.recv(60) == "hello"
            with connect(f"{url}?key=k", proxy=None) as second, pytest.raises(ConnectionClosed, match="stream_limit"):
                second.recv(60)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [("/talk", 401, "unauthorized"), ("/nowhere", 404, "not_found"), ("/echo", 404, "not_found")],
)
def test_the_log_has_one_line_about_a_websocket_that_is_refused(
    path: str, status: int, code: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keys.yaml").write_text(f"keys: [{{name: desk, sha256: {hash_of('k')}}}]", encoding="utf-8")
    caplog.set_level(logging.INFO, "tritone.gateway.access")
    with started(keys=tmp_path / "keys.yaml") as running, pytest.raises(InvalidStatus) as caught:
        connect(f"ws://127.0.0.1:{running.port}{path}", proxy=None)
    assert caught.value.response.status_code == status
    error = json.loads(caught.value.response.body)["error"]
    assert error["code"] == code
    assert status != 404 or error["message"] == f"there is no WebSocket at {path}, but at /talk"
    (record,) = (each for each in caplog.records if path in each.message or each.name.startswith("uvicorn"))
    line = json.loads(record.message)
    assert (record.levelname, line["method"], line["path"]) == ("INFO", "WEBSOCKET", path)
    assert (line["status"], line["error"]) == (status, code)


def test_a_websocket_on_which_nothing_comes_is_closed() -> None:
    with (
        started(limits=GatewayLimits(idle_s=0.2)) as running,
        connect(f"ws://127.0.0.1:{running.port}/talk", proxy=None) as socket,
        pytest.raises(ConnectionClosed, match="nothing came for"),
    ):
        socket.recv(60)


def test_pages_of_other_origins_may_ask_only_where_they_are_allowed() -> None:
    page = "https://app.example"
    asked = {"Origin": page, "Access-Control-Request-Method": "POST"}
    for allowed, expected in (((), None), ((page,), page)):
        with started(cors=allowed) as running:
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
            connection.request("OPTIONS", "/echo", headers=asked)
            assert connection.getresponse().headers.get("access-control-allow-origin") == expected
            connection.close()
            assert ask(running.port, "/nothing", Origin=page)[2].get("access-control-allow-origin") == expected


def test_tls_is_of_the_files_that_are_given(tmp_path: Path) -> None:
    files = write_certificates(tmp_path)
    with started(tls=Tls(certificate=files / "good.pem", key=files / "good.key")) as running:
        trusted = ssl.create_default_context(cafile=files / "ca.pem")
        connection = http.client.HTTPSConnection("localhost", running.port, timeout=60, context=trusted)
        connection.request("GET", "/health/live")
        assert connection.getresponse().status == 200
        connection.close()
    with pytest.raises(ValueError, match="cannot be used"):
        GatewayServer(
            GatewayOptions(tls=Tls(certificate=files / "good.pem", key=files / "me.key"), port=0), protocols=ECHO
        )


def test_metrics_and_doors_may_have_ports_of_their_own() -> None:
    with started(metrics_port=0, ports={"echo": 0}) as running:
        assert ask(running.ports["metrics"], "/metrics")[0] == 200
        assert ask(running.port, "/metrics")[0] == 404
        assert ask(running.ports["metrics"], "/echo", b"x")[0] == 404
        assert ask(running.ports["echo"], "/", b"four")[:2] == (200, "4")


def test_a_gateway_that_ends_lets_streams_finish_and_takes_nothing_new(gateway: Any, triton: Any) -> None:
    options = GatewayOptions(triton=triton.grpc_address, port=0, drain_s=60)
    with GatewayServer(options, protocols=ECHO).background() as running:
        speech = running.gateway.speech

        def run(work: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(work, running.loop).result(60)

        live = run(speech.open(Ask(model="live"), 16000, Caller()))
        run(live.accept(toy_waveform("hello", 4)))
        running.end()
        until(lambda: ask(running.port, "/health/ready")[0] != 200)  # the loop has to hear of it
        status, body, headers = ask(running.port, "/echo", b"x")
        assert (status, body["error"]["code"], headers["retry-after"]) == (503, "draining", "1")
        events = run(live.finish())
        assert events[-1].transcript.text == "hello"
        run(live.close())


def test_a_trace_goes_from_the_client_through_the_gateway() -> None:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    client = {"traceparent": f"00-{trace}-{span}-01", "tracestate": "a=b"}
    assert Traces().outgoing(client) == client  # passed on as it is
    assert Traces().outgoing({"traceparent": "00-1-2-3\r\nx: y"}) == {}
    spans = InMemorySpanExporter()
    traces = Traces(exporter=spans)
    with traces.span("POST /v1/x", client):
        sent = traces.outgoing(client)["traceparent"]
    (own,) = spans.get_finished_spans()
    assert own.parent is not None
    assert f"{own.parent.span_id:016x}" == span
    assert sent == f"00-{trace}-{own.context.span_id:016x}-01"
    traces.close()


def test_cycles_that_live_long_are_collected_again_and_again() -> None:
    class Connection:
        def __init__(self) -> None:
            self.itself = self

    async def run() -> None:
        collect_again(asyncio.get_running_loop(), 0.01)
        for _ in range(2):
            connection = Connection()
            gc.collect()  # it is of the oldest generation now
            left = weakref.ref(connection)
            del connection
            while left() is not None:
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(run(), 60))
