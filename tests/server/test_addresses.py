"""Servers of both families of addresses."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from tritone.client import Client
from tritone.net.http_server import HttpServer
from tritone.server import ServerOptions, TritonServer, free_ports
from tritone.server.checks import check_port

ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    ("host", "http", "grpc"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0", "0.0.0.0"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("::1", "ipv6:::1", "[::1]"),
        ("::", "ipv6:::", "[::]"),
    ],
)
def test_triton_is_given_each_address_in_the_form_of_its_service(host: str, http: str, grpc: str) -> None:
    given = [each for each in ServerOptions(host=host).arguments() if "-address=" in each]
    assert given == [f"--http-address={http}", f"--grpc-address={grpc}", f"--metrics-address={http}"]


@ipv6
def test_a_server_of_ipv6_is_ready_and_answers_by_both_protocols(tmp_path: Path) -> None:
    with TritonServer(tmp_path, ServerOptions.on_free_ports(host="::1")) as server:
        assert server.http_address == f"[::1]:{server.options.http_port}"
        for url in (f"http://{server.http_address}", f"grpc://{server.grpc_address}"):
            with Client(url) as client:
                assert client.models() == []
        assert server.open_streams() == {}
        taken = check_port("::1", "http", server.options.http_port)
    assert taken.status == "broken"
    assert taken.seen.startswith(f"[::1]:{server.options.http_port} is taken by")


@ipv6
def test_the_address_for_every_network_is_for_clients_of_both_families() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def answers(port: int) -> list[bytes]:
        server = HttpServer(app, idle_s=5.0)
        await server.start(host="::", port=port)
        lines = []
        try:
            for host in ("127.0.0.1", "::1"):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                lines.append(await reader.readline())
                writer.close()
                await writer.wait_closed()
        finally:
            await server.stop(5.0)
        return lines

    assert asyncio.run(answers(free_ports(1)[0])) == [b"HTTP/1.1 204 No Content\r\n"] * 2
