import json
import threading
import time
from pathlib import Path

import pytest

from killers import NAMES, killer, send
from proxied import body, get, infer
from tritone.proxy import Proxy
from tritone.server import TritonServer
from wire_toys import toy_server


@pytest.mark.parametrize("name", NAMES)
def test_the_proxy_refuses_what_ends_triton(name: str, proxy: Proxy, upstream: TritonServer) -> None:
    pid, request = upstream.pid, killer(name)
    begun = time.monotonic()
    head, _, told = send(f"127.0.0.1:{proxy.options.http_port}", request).partition(b"\r\n\r\n")
    assert time.monotonic() - begun < 60
    status = int(head.split()[1])
    assert status in (400, 413), head
    assert json.loads(told)["error"]
    assert infer(proxy.options.http_port, "count", body()) == (200, "2 0.8")
    assert upstream.pid == pid


def test_others_are_answered_while_a_million_chunks_come(proxy: Proxy) -> None:
    thread = threading.Thread(
        target=send, args=(f"127.0.0.1:{proxy.options.http_port}", killer("a million chunks")), daemon=True
    )
    thread.start()
    while thread.is_alive():
        begun = time.monotonic()
        assert get(proxy.options.http_port, "/v2/health/ready")[0] == 200
        assert time.monotonic() - begun < 20
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, ends in NAMES.items() if ends])
def test_triton_itself_still_ends_by_it(name: str, tmp_path: Path) -> None:
    """Reproduces why the proxy is needed; where a newer Triton fails this test, a rule has become superfluous."""
    with toy_server(tmp_path, "count") as server:
        assert send(server.http_address, killer(name)) == b""
        assert server.wait(60) != 0
