"""One request by HTTP to a port that answers as it is told."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tritone.net.fetch import fetch


@pytest.fixture
def answering() -> Iterator[Callable[..., tuple[str, list[bytes]]]]:
    """Starts a port that says one thing to one client; returns its URL, and what came."""
    with ExitStack() as stack:

        def start(said: bytes) -> tuple[str, list[bytes]]:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            came: list[bytes] = []

            def serve() -> None:
                with listening.accept()[0] as client:
                    came.append(client.recv(65536))
                    client.sendall(said)

            thread = threading.Thread(target=serve)
            thread.start()
            stack.callback(thread.join)
            return f"http://127.0.0.1:{listening.getsockname()[1]}/page", came

        yield start


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found", b"503 Busy"])
def test_an_answer_is_returned_whatever_its_status(answering: Callable[..., tuple[str, list[bytes]]], status: bytes):
    url, came = answering(b"HTTP/1.1 " + status + b"\r\nX-Hint: 7\r\nContent-Length: 4\r\n\r\ntext")
    answer = fetch(url, method="POST", body=b"{}", headers={"key": "k"}, timeout_s=20)
    assert (answer.status, answer.headers["x-hint"], answer.body) == (int(status[:3]), "7", b"text")
    assert came[0].startswith(b"POST /page HTTP/1.1\r\n")
    assert b"Content-Type: application/json\r\n" in came[0]


def test_what_is_no_answer_is_an_error(
    answering: Callable[..., tuple[str, list[bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # is not asked
    with pytest.raises(ConnectionError):
        fetch(answering(b"220 mail.example ESMTP\r\n")[0], timeout_s=20)
    with pytest.raises(ConnectionError):
        fetch(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf")[0], timeout_s=20)
    with pytest.raises(ConnectionRefusedError):
        fetch("http://127.0.0.1:9/", timeout_s=20)
    with pytest.raises(ValueError, match="more than 3 bytes"):
        fetch(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext")[0], timeout_s=20, max_bytes=3)
    with pytest.raises(ValueError, match="port"):
        fetch("http://127.0.0.1:none/", timeout_s=20)
