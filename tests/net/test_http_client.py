"""Connections to a server that does not wait until it is asked."""

import asyncio
import socket
import threading
import time
from typing import Any
from unittest.mock import Mock

import pytest

from tritone.net.http_client import HttpAnswer, HttpConnections, _Connection
from tritone.net.loop_thread import LoopThread


@pytest.mark.parametrize("closes", [False, True])
def test_what_came_before_a_request_was_sent_is_told_to_who_sends_one(closes: bool) -> None:
    """A gRPC port greets at once; nothing that it says later would end the wait for an answer."""

    async def ask() -> None:
        connection = _Connection(asyncio.get_running_loop())
        connection.connection_made(Mock())
        connection.data_received(b"\0\0\x12\4\0\0\0\0\0")
        if closes:
            connection.connection_lost(None)
        with pytest.raises(ConnectionError, match="Bad status line"):
            await asyncio.wait_for(connection.exchange([b"GET / HTTP/1.1\r\n\r\n"], None), 20)

    asyncio.run(ask())


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def answered(sent: bytes, *, step: int, taken: list[bytes] | None = None) -> HttpAnswer:
    """What a connection makes of bytes that come in parts of `step`."""

    async def ask() -> HttpAnswer:
        connection = _Connection(asyncio.get_running_loop(), 8 << 20)
        connection.connection_made(Mock())
        asking = asyncio.ensure_future(
            connection.exchange([b"GET / HTTP/1.1\r\n\r\n"], None, None if taken is None else taken.append)
        )
        await asyncio.sleep(0)
        for start in range(0, len(sent), step):
            if not asking.done():
                connection.data_received(sent[start : start + step])
                await asyncio.sleep(0)
        return await asyncio.wait_for(asking, 20)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000,
        b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" * 100_000,
        OK + b"X: " + bytes([97]) * (7 << 20),
        OK + b"X: a\r\n" * 100_000 + b"Content-Length: 2\r\n\r\n{}",
        OK + b"X: a\r\n" * 300 + b"Content-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 " + b"O" * (7 << 20),
        CHUNKED + b"2\r\n{}\r\n0\r\n" + b"X: a\r\n" * 100_000,
        CHUNKED + b"2;" + b"x" * (7 << 20),
    ],
    ids=["101", "100", "103", "one header", "headers", "some more headers", "reason", "trailers", "extension"],
)
def test_an_answer_whose_heads_have_no_end_is_refused_before_they_cost_much(sent: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ConnectionError, match="damaged answer"):
        answered(sent, step=1024)
    assert time.process_time() - began < 1


def test_an_answer_may_come_behind_others_that_announce_it() -> None:
    sent = b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + OK + b"Content-Length: 2\r\n\r\n{}"
    assert answered(sent, step=7).body == b"{}"


def test_what_is_read_at_once_is_handed_on_at_once_in_however_many_chunks_it_came() -> None:
    taken: list[bytes] = []
    answered(CHUNKED + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n", step=60_000, taken=taken)
    assert b"".join(taken) == b"x" * 50_000
    assert len(taken) <= 6


def test_trailers_are_read_and_the_answer_is_whole() -> None:
    assert answered(CHUNKED + b"2;a=b\r\n{}\r\n0\r\nX: a\r\n\r\n", step=5).body == b"{}"


def test_a_connection_that_its_server_has_closed_is_not_used_again_however_busy_the_loop_was() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = LoopThread("client")
        connections = HttpConnections("127.0.0.1", listening.getsockname()[1])
        is_busy, goes_on = threading.Event(), threading.Event()

        def keep_busy() -> None:
            is_busy.set()
            goes_on.wait(20)

        async def close() -> None:
            connections.close()

        asked = thread.submit(lambda: connections.request("GET", "/first", {}))
        with listening.accept()[0] as there:
            there.recv(65536)
            there.sendall(OK + b"Content-Length: 0\r\n\r\n")
            assert asked.result(20).status == 200
            thread.loop.call_soon_threadsafe(keep_busy)
            assert is_busy.wait(20)
        asked = thread.submit(lambda: connections.request("GET", "/second", {}))
        goes_on.set()
        listening.settimeout(20)
        with listening.accept()[0] as there:
            assert there.recv(65536).startswith(b"GET /second ")
            there.sendall(OK + b"Content-Length: 0\r\n\r\n")
            assert asked.result(20).status == 200
        thread.close(close)


@pytest.mark.parametrize("rounds", range(6))
def test_a_request_that_is_cancelled_in_the_moment_it_is_connected_ends(rounds: int) -> None:
    async def ask() -> None:
        loop, answers = asyncio.get_running_loop(), asyncio.Event()

        async def connect(make: Any, *_: Any, **__: Any) -> tuple[Mock, _Connection]:
            await answers.wait()
            made = make()
            made.connection_made(Mock())
            return Mock(), made

        loop.create_connection = connect  # type: ignore[method-assign, assignment]
        asking = loop.create_task(HttpConnections("x", 1, connect_s=60).request("GET", "/", {}))
        await asyncio.sleep(0)
        answers.set()
        for _ in range(rounds):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking}, timeout=20)
        assert asking.cancelled()

    asyncio.run(ask())
