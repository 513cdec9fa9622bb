"""What connections of HTTP are held to, by one application on a real port."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from websockets.sync.client import connect as open_socket

from tritone.net.http_server import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_WAITING,
    WAITING_BYTES,
    Connection,
    HttpServer,
    Response,
    when_lost,
)
from tritone.net.limits import LeastRate
from tritone.net.loop_thread import LoopThread
from tritone.net.refusal import RefusedError
from tritone.net.upload import Upload
from tritone.net.websockets import ClientProtocol
from waiting import until

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Echo:
    """Answers with the size of the body; `/wait` waits until its client has gone, `/held` until it is let go.

    `/begun` has begun its answer, and waits as `/wait` does.
    """

    def __init__(self) -> None:
        self.left: list[str] = []
        self.goes_on = threading.Event()
        self.begun = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        rate = LeastRate(grace_s=0.5, bytes_per_s=1 << 20)
        try:
            upload = Upload(scope, receive, max_bytes=1 << 20, rate=rate)
            size = 0
            async for part in upload.parts():
                size += len(part)
        except RefusedError as error:
            await Response(error.reason.http, str(error).encode())(scope, receive, send)
            return
        except ConnectionError:
            self.left.append("coming")
            return
        if scope["path"] == "/held":
            await asyncio.to_thread(self.goes_on.wait, 20)
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            self.begun.set()
        if scope["path"] in ("/wait", "/begun"):
            gone = asyncio.Event()
            with when_lost(scope, gone.set):
                await gone.wait()
            self.left.append("waiting")
            return
        await Response(body=str(size).encode())(scope, receive, send)


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def server(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    monkeypatch.setattr("tritone.net.http_server.LINGER_S", 20.0)  # a busy machine reads refusals later than others
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server, thread = HttpServer(echo, idle_s=60.0, ws=ClientProtocol), LoopThread("http-server")
        thread.submit(lambda: server.start(sock=listening)).result(20)
        yield server
        thread.close(lambda: server.stop(0.1))


@pytest.fixture
def port(server: HttpServer) -> int:
    assert server._listener is not None
    number: int = server._listener.sockets[0].getsockname()[1]
    return number


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        yield connection


@contextmanager
def sending(connection: socket.socket, data: bytes) -> Iterator[None]:
    """Send more than is read at once, in a thread that ends with the block: when all is sent, or when it fails."""

    def send() -> None:
        with suppress(OSError):
            connection.sendall(data)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    except BaseException:
        connection.shutdown(socket.SHUT_RDWR)
        raise
    finally:
        sender.join()


def answer(connection: socket.socket) -> tuple[bytes, bytes]:
    """Status line and body of one answer, and not a byte of the next."""
    with connection.makefile("rb", buffering=0) as reader:
        status = _line(reader)
        fields = dict(line.split(b": ", 1) for line in iter(lambda: _line(reader), b""))
        assert fields[b"server"] == b"tritone"
        assert fields[b"date"].endswith(b"GMT")
        return status, b"".join(reader.read(1) for _ in range(int(fields[b"content-length"])))


def _line(reader: Any) -> bytes:
    line: bytes = reader.readline()
    assert line.endswith(b"\r\n"), "the connection was closed"
    return line.rstrip()


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(65536) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + MAX_HEAD_BYTES * b"x" + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + MAX_HEAD_BYTES * b"x",  # its end never comes
        b"GET /" + MAX_HEAD_BYTES * b"x" + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + MAX_HEADERS * b"X: x\r\n" + b"\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + 200_000 * b"X: x\r\n",  # trailers
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nno length\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
        b"\x16\x03\x01 this is TLS, or nothing at all\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_heads_are_bounded_and_what_is_no_http_is_told_so(port: int, sent: bytes) -> None:
    with connected(port) as one:
        one.sendall(sent)
        status, body = answer(one)
        assert (status, b'{"error": ' in body) == (b"HTTP/1.1 400 Bad Request", True)
        assert is_closed(one)
    with connected(port) as another:
        another.sendall(GET)
        assert answer(another) == (b"HTTP/1.1 200 OK", b"0")


def test_large_bodies_are_no_large_heads(port: int) -> None:
    size = 8 * MAX_HEAD_BYTES
    with connected(port) as one:
        for _ in range(2):
            one.sendall(HEAD + f"Content-Length: {size}\r\n\r\n".encode() + bytes(size))
            assert answer(one) == (b"HTTP/1.1 200 OK", str(size).encode())
        one.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + 9000 * b"2\r\nxx\r\n" + b"0\r\n\r\n")
        assert answer(one) == (b"HTTP/1.1 200 OK", b"18000")


def test_requests_may_be_sent_one_behind_the_other(port: int) -> None:
    body = bytes(100_000)
    with connected(port) as one:
        one.sendall(3 * (HEAD + b"Content-Length: 100000\r\n\r\n" + body) + GET)
        for size in (b"100000", b"100000", b"100000", b"0"):
            assert answer(one) == (b"HTTP/1.1 200 OK", size)


def test_sixteen_requests_may_wait_behind_the_one_at_hand(port: int, echo: Echo) -> None:
    with connected(port) as one:
        for _ in range(3):
            one.sendall((1 + MAX_WAITING) * GET)
            assert [answer(one) for _ in range(1 + MAX_WAITING)] == (1 + MAX_WAITING) * [(b"HTTP/1.1 200 OK", b"0")]
    with connected(port) as one:
        one.sendall(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n" + MAX_WAITING * GET)
        one.sendall(20_000 * GET)  # nobody reads answers
        status, told = answer(one)
        assert (status, b"more than 16 requests, or" in told) == (b"HTTP/1.1 400 Bad Request", True)
        assert is_closed(one)
    with connected(port) as one:
        one.sendall(8 * (b"GET /held HTTP/1.1\r\nHost: x\r\nX: " + 15_000 * b"x" + b"\r\n\r\n"))
        assert answer(one)[0] == b"HTTP/1.1 400 Bad Request"
    echo.goes_on.set()


def test_a_refused_connection_is_not_read_for_ever(port: int) -> None:
    with connected(port) as one:
        one.sendall(40 * GET)
        with pytest.raises(ConnectionError):
            one.sendall(bytes(1 << 30))


def test_bodies_of_requests_that_wait_are_bounded(port: int, echo: Echo, server: HttpServer) -> None:
    body = bytes(1_000_000)
    sent = b"POST /held HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    sent += MAX_WAITING * (HEAD + b"Content-Length: 1000000\r\n\r\n" + body)
    with connected(port) as one, sending(one, sent):
        until(lambda: len(server._state.connections) == 1)
        (connection,) = server._state.connections
        assert isinstance(connection, Connection)

        async def held() -> int:
            return sum(len(cycle.body) for cycle, _ in connection.pipeline)

        def within(work: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(work, connection.loop).result(20)

        until(lambda: within(held()) > WAITING_BYTES)
        assert connection.flow.read_paused
        connection.loop.call_soon_threadsafe(connection.flow.resume_reading)  # as uvicorn does at each `receive`
        assert within(held()) <= WAITING_BYTES + (256 << 10)  # what one read takes
        assert connection.flow.read_paused
        echo.goes_on.set()
        assert [answer(one)[1] for _ in range(1 + MAX_WAITING)] == [b"0", *MAX_WAITING * [b"1000000"]]


@pytest.mark.parametrize(
    "behind", [3 * GET, HEAD + b"Content-Length: 9\r\n\r\nhalf"], ids=["requests", "half a request"]
)
def test_work_for_a_client_that_goes_ends_though_more_requests_wait(port: int, echo: Echo, behind: bytes) -> None:
    with connected(port) as one:
        one.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n" + behind)
    until(lambda: echo.left == ["waiting"])


@pytest.mark.parametrize("behind", [b"", GET], ids=["", "another request"])
def test_a_refusal_is_not_written_into_an_answer(port: int, echo: Echo, behind: bytes) -> None:
    with connected(port) as one:
        one.sendall(b"GET /begun HTTP/1.1\r\nHost: x\r\n\r\n" + behind)
        assert echo.begun.wait(20)
        one.sendall(b"noise\r\n\r\n")
        until(lambda: echo.left == ["waiting"])
        seen = b""
        with suppress(ConnectionError):
            while part := one.recv(65536):
                seen += part
        assert seen.count(b"HTTP/1.1") <= 1


def test_a_websocket_does_not_begin_before_the_requests_in_front_of_it_are_answered(port: int, echo: Echo) -> None:
    offer = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
    with connected(port) as one:
        one.sendall(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + offer + b"MDEyMzQ1Njc4OTAxMjM0NQ==\r\n\r\n")
        status, told = answer(one)
        assert (status, b"all requests before it" in told) == (b"HTTP/1.1 400 Bad Request", True)
        assert is_closed(one)
    echo.goes_on.set()


def test_a_client_that_proposes_http_2_is_answered_by_http_1(port: int) -> None:
    """As Java's does with each request."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    with connected(port) as one:
        for _ in range(2):
            one.sendall(HEAD + offer + b"Content-Length: 5\r\n\r\nhello")
            assert answer(one) == (b"HTTP/1.1 200 OK", b"5")
        one.sendall(HEAD + offer + b"Content-Length: 5\r\n\r\n")
        one.sendall(b"hello" + GET)
        assert [answer(one)[1], answer(one)[1]] == [b"5", b"0"]
        one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n")
        assert answer(one) == (b"HTTP/1.1 200 OK", b"0")


def test_the_rest_of_a_refused_body_is_read_so_that_its_client_reads_the_refusal(port: int) -> None:
    size = (1 << 20) + 1
    with connected(port) as one:
        one.sendall(HEAD + f"Content-Length: {size}\r\n\r\n".encode() + bytes(size))
        status, told = answer(one)
        assert (status, b"more than 1048576 bytes (1 MB)" in told) == (b"HTTP/1.1 413 Request Entity Too Large", True)
        one.sendall(GET)
        assert answer(one) == (b"HTTP/1.1 200 OK", b"0")


def test_a_refused_body_that_goes_on_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritone.net.http_server.HEAD_S", 0.2)
    with connected(port) as one:
        one.sendall(HEAD + b"Content-Length: 100000000\r\n\r\nx")
        assert answer(one)[0].startswith(b"HTTP/1.1 413")
        assert is_closed(one)


@pytest.mark.parametrize("size", [0, 10, 200_000])
def test_work_for_a_client_that_goes_is_told_so_at_once(port: int, echo: Echo, size: int) -> None:
    """Also behind a body of which more is there than is read at once: reading may have paused."""
    with connected(port) as one:
        one.sendall(b"POST /wait HTTP/1.1\r\nHost: x\r\n" + f"Content-Length: {size}\r\n\r\n".encode() + size * b"x")
    until(lambda: echo.left == ["waiting"])


def test_a_body_whose_client_goes_is_given_up(port: int, echo: Echo) -> None:
    with connected(port) as one:
        one.sendall(HEAD + b"Content-Length: 100\r\n\r\nx")
    until(lambda: echo.left == ["coming"])


def test_a_slow_body_is_refused(port: int) -> None:
    with connected(port) as one:
        one.sendall(HEAD + b"Content-Length: 100\r\n\r\nx")
        status, told = answer(one)
    assert (status, b"only 1 bytes of the body came" in told) == (b"HTTP/1.1 408 Request Timeout", True)


def test_noise_behind_a_request_ends_it(port: int, echo: Echo) -> None:
    with connected(port) as one:
        one.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        one.sendall(b"noise\r\n\r\n")
        assert answer(one)[0] == b"HTTP/1.1 400 Bad Request"
        assert is_closed(one)
    until(lambda: echo.left == ["waiting"])


def test_a_half_made_handshake_ends(echo: Echo, monkeypatch: pytest.MonkeyPatch, tls: ssl.SSLContext) -> None:
    monkeypatch.setattr("tritone.net.http_server.HEAD_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server, thread = HttpServer(echo, idle_s=60.0), LoopThread("http-server")
        thread.submit(lambda: server.start(sock=listening, tls=tls)).result(20)
        with connected(listening.getsockname()[1]) as one:
            one.sendall(b"\x16\x03\x01")
            assert is_closed(one)
        thread.close(lambda: server.stop(0.1))


def test_a_websocket_lives_longer_than_a_head_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answers(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})

    monkeypatch.setattr("tritone.net.http_server.HEAD_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server, thread = HttpServer(answers, idle_s=60.0, ws=ClientProtocol), LoopThread("http-server")
        thread.submit(lambda: server.start(sock=listening)).result(20)
        port = listening.getsockname()[1]
        with open_socket(f"ws://127.0.0.1:{port}/") as one, connected(port) as later:
            later.sendall(b"GET")
            assert is_closed(later)
            one.send("still here")
            assert one.recv(20) == "still here"
        thread.close(lambda: server.stop(0.1))


@pytest.fixture
def tls(tmp_path: Any) -> ssl.SSLContext:
    import trustme

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    return context


def test_a_server_that_stops_waits_for_answers_no_longer_than_it_is_told(echo: Echo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server, thread = HttpServer(echo, idle_s=60.0), LoopThread("http-server")
        thread.submit(lambda: server.start(sock=listening)).result(20)
        with connected(listening.getsockname()[1]) as one, connected(listening.getsockname()[1]) as idle:
            idle.sendall(GET)
            assert answer(idle)[1] == b"0"
            one.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            thread.close(lambda: server.stop(0.2))
            assert is_closed(one)
            assert is_closed(idle)
    assert echo.left == ["waiting"]
