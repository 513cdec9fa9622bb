"""gRPC calls and messages that never become whole, and a good client beside them."""

import functools
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton

from proxied import Start, get, inputs, text
from tritone.proxy import Limits, Proxy

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
WAIT_S = 20


@pytest.fixture
def never() -> Iterator[Callable[[], Iterator[bytes]]]:
    """Requests that do not come until the test is over."""
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        over.wait()
        yield from ()

    try:
        yield requests
    finally:
        over.set()


def answers(proxy: Proxy) -> bool:
    """Whether somebody else's request is answered."""
    with triton.InferenceServerClient(f"127.0.0.1:{proxy.options.grpc_port}") as client:
        return bool(text(client.infer("count", inputs(), client_timeout=WAIT_S)))


def half_message(port: int, size: int, sent: int) -> socket.socket:
    """A connection with the beginning of a gRPC message, by hand (RFC 9113, RFC 7541)."""

    def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        return struct.pack(">I", len(content))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + content

    headers = b"".join(
        b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", INFER.encode()),
            (b":authority", b"x"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )
    connection = socket.create_connection(("127.0.0.1", port), WAIT_S)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers))
    connection.sendall(frame(0, 0, 1, b"\0" + struct.pack(">I", size)))
    for _ in range(sent // 10_000):
        connection.sendall(frame(0, 0, 1, bytes(10_000)))
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side ends a connection; what it sends before is read."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("path", [INFER, STREAM])
def test_calls_without_a_message_keep_nobody_out(start: Start, never: Callable[[], Iterator[bytes]], path: str) -> None:
    proxy = start(limits=Limits(max_waiting=20))
    with grpc.insecure_channel(f"127.0.0.1:{proxy.options.grpc_port}") as channel:
        calls = [channel.stream_stream(path)(never(), timeout=60) for _ in range(40)]
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for call in calls:
            if not call.add_callback(functools.partial(ended.put, call)):  # it is over already
                ended.put(call)
        first = [ended.get(timeout=WAIT_S) for _ in range(20)]
        assert {call.code() for call in first} == {grpc.StatusCode.UNAVAILABLE}
        assert "20 calls wait for their message" in first[0].details()
        assert "tritone_proxy_calls_waiting 20" in proxy.metrics()
        assert answers(proxy)
        ended.get(timeout=WAIT_S)
        assert sum(call.done() for call in calls) == 21  # who sends what it begins takes the place of one that does not


def test_a_call_without_a_message_is_ended(start: Start, never: Callable[[], Iterator[bytes]]) -> None:
    proxy = start(limits=Limits(body_grace_s=0.1))
    with grpc.insecure_channel(f"127.0.0.1:{proxy.options.grpc_port}") as channel:
        with pytest.raises(grpc.RpcError, match="of the message came") as error:
            channel.stream_unary(INFER)(never(), timeout=WAIT_S)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.RpcError, match="the call has no message"):
            channel.stream_unary(INFER)(iter(()), timeout=WAIT_S)


def test_a_connection_that_sends_half_messages_is_counted_and_ended(start: Start) -> None:
    proxy = start(limits=Limits(max_buffered_bytes=80_000))
    with closing(half_message(proxy.options.grpc_port, 1_000_000, 20_000)) as little:
        with closing(half_message(proxy.options.grpc_port, 1_000_000, 60_000)) as much:
            assert is_closed(much)
        assert answers(proxy)
        little.settimeout(0.1)
        assert not is_closed(little)


def test_ready_means_that_grpc_gets_through(start: Start) -> None:
    proxy = start(upstream_grpc="127.0.0.1:1")
    status, answer, _ = get(proxy.options.http_port, "/v2/health/ready")
    assert (status, answer["error"]) == (503, "not ready: gRPC does not get through")
