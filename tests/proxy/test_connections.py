"""Connections in numbers, and TLS."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import tritonclient.grpc as triton

from proxied import KEY, Start, get, inputs, text
from tritone.errors import ServerSetupError
from tritone.net.connections import Connections, Descriptor, Peer, as_peer
from tritone.net.prometheus import samples
from tritone.net.tls import expiry
from tritone.proxy import Limits, Tls
from tritone.proxy.request import serve
from tritone.server import TritonServer, free_ports
from waiting import until


def test_health_is_answered_while_somebody_holds_all_connections(upstream: TritonServer) -> None:
    """In a process of its own with few descriptors, as the number of connections follows from them."""
    http_port, grpc_port = free_ports(2)
    code = f"""
        import resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        from tritone.proxy import Proxy, ProxyOptions
        with Proxy(ProxyOptions(
            host="127.0.0.1", http_port={http_port}, grpc_port={grpc_port},
            upstream_http="{upstream.http_address}", upstream_grpc="{upstream.grpc_address}",
        )):
            print("ready", flush=True)
            sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        assert process.stdout.readline() == "ready\n"
        with ExitStack() as stack:
            for port in (http_port, grpc_port):
                for _ in range(300):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            begun = time.monotonic()
            assert get(http_port, "/v2/health/ready")[0] == 200
            with triton.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
                assert client.is_server_ready(client_timeout=40)
            assert time.monotonic() - begun < 50
    finally:
        _, log = process.communicate(timeout=20)
    told = [line for line in log.splitlines() if "File descriptor limit reached" not in line]  # gRPC's, one a second
    assert len("\n".join(told)) < 2000, log
    assert log.count("\n") < 100, log


def test_a_proxy_that_started_is_connected_to_triton(start: Start) -> None:
    """Before the first client, who might leave no descriptor for it."""
    proxy = start()
    host, port = proxy.options.upstream_grpc.split(":")
    connected = [each for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
    assert (host, int(port)) in {as_peer(each.raddr) for each in connected}


def test_a_proxy_starts_without_a_triton(start: Start) -> None:
    proxy = start(upstream_grpc=f"127.0.0.1:{free_ports(1)[0]}")
    with triton.InferenceServerClient(f"127.0.0.1:{proxy.options.grpc_port}") as client:
        assert not client.is_server_ready(client_timeout=40)


def test_a_peer_that_is_connected_to_both_ports_is_swept_from_both(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections(Limits(max_connections=1), (1, 2), only_ipv4=False)
    peers = {("127.0.0.1", 5000 + index): Descriptor(index, index) for index in range(2)}
    shut: list[tuple[Descriptor, Peer]] = []
    monkeypatch.setattr(connections, "_sockets", lambda: {1: dict(peers), 2: dict(peers)})
    monkeypatch.setattr(connections, "_shut", lambda descriptor, peer: shut.append((descriptor, peer)))
    connections.sweep()
    assert sorted(shut) == sorted((descriptor, peer) for peer, descriptor in peers.items() for _ in (1, 2))


def test_who_connected_last_is_kept_however_late_the_loop_accepts_the_others() -> None:
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = listening.getsockname()
        connections = Connections(Limits(max_connections=2), (address[1],), only_ipv4=False)
        clients = []
        for _ in range(4):
            clients.append(stack.enter_context(socket.create_connection(address, 10)))
            wait_ticks_of_the_kernel()
        accepted = [stack.enter_context(listening.accept()[0]) for _ in clients]
        for each in accepted[:3]:  # of the last one the loop has not told yet
            connections.opened(as_peer(each.getpeername()), each)
        connections.sweep()
        assert connections.closed == 3  # two too many, and room for another
        clients[3].setblocking(False)
        with pytest.raises(BlockingIOError):
            clients[3].recv(1)


def wait_ticks_of_the_kernel() -> None:
    """The kernel tells the age of connections in steps of up to 10 ms."""
    begun = time.monotonic()
    while time.monotonic() - begun < 0.03:
        time.sleep(0.005)


def test_a_connection_that_was_shut_down_counts_no_more_though_it_is_not_closed_yet() -> None:
    """Its owner closes it when it gets to it; a new connection must not be shut down in its place."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = listening.getsockname()
        connections = Connections(Limits(max_connections=2), (address[1],), only_ipv4=False)

        def connect() -> tuple[socket.socket, socket.socket]:
            client = stack.enter_context(socket.create_connection(address, 10))
            accepted = stack.enter_context(listening.accept()[0])
            connections.opened(as_peer(accepted.getpeername()), accepted)
            return client, accepted

        first = [connect() for _ in range(3)]
        connections.sweep()
        assert connections.closed == 2  # one too many, and room for another
        newest, _ = connect()
        connections.sweep()
        assert connections.closed == 2
        for client, _ in first[:2]:
            assert client.recv(1) == b""
        for client in (first[2][0], newest):
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)


def test_of_connections_that_were_never_mentioned_the_newest_stay() -> None:
    """As those of gRPC, whose descriptors are in no order."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = listening.getsockname()
        connections = Connections(Limits(max_connections=2), (address[1],), only_ipv4=False)
        clients: list[socket.socket] = []
        accepted: list[socket.socket] = []
        for _ in range(3):
            clients.append(stack.enter_context(socket.create_connection(address, 10)))
            accepted.append(stack.enter_context(listening.accept()[0]))
            time.sleep(0.05)  # the clock of the kernel ticks every few milliseconds
        # The newest gets the lowest number, as it does when the numbers of closed ones are used again.
        spare = os.dup(accepted[0].fileno())
        os.dup2(accepted[2].fileno(), accepted[0].fileno())
        os.dup2(spare, accepted[2].fileno())
        os.close(spare)
        connections.sweep()
        assert connections.closed == 2
        clients[2].setblocking(False)
        with pytest.raises(BlockingIOError):
            clients[2].recv(1)


def test_a_server_on_ipv4_is_not_open_by_ipv6(start: Start) -> None:
    """gRPC binds 0.0.0.0 as [::], where a firewall for IPv4 does not look."""
    proxy = start(host="0.0.0.0")
    try:
        socket.create_connection(("::1", proxy.options.grpc_port), 5).close()
    except OSError:
        return  # a machine without IPv6
    foreign = triton.InferenceServerClient(f"[::1]:{proxy.options.grpc_port}")
    with foreign, pytest.raises(Exception, match=r"IPv4|UNAVAILABLE"):
        foreign.is_server_live()
    with triton.InferenceServerClient(f"127.0.0.1:{proxy.options.grpc_port}") as client:
        assert client.is_server_live()


def test_an_idle_connection_is_closed(start: Start) -> None:
    proxy = start(limits=Limits(idle_s=0.2))
    for port in (proxy.options.http_port, proxy.options.grpc_port):
        with socket.create_connection(("127.0.0.1", port), 10) as idle:
            idle.sendall(b"GET /v2 HT")  # an unfinished head is idle too
            while idle.recv(1000):  # gRPC greets, then it closes
                pass


def test_a_port_that_is_taken_is_told(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for name in ("http_port", "grpc_port"):
            with pytest.raises(ServerSetupError, match="cannot listen"):
                start(**{name: taken.getsockname()[1]})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an authority `ca`, and what it signed: `server` and `client`."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1", encoding="utf-8")
    for name in ("server", "client"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(*signed, "-out", f"{name}.pem", "-days", "2", "-extfile", "names")
    return folder


@pytest.mark.parametrize("mutual", [False, True])
def test_tls_protects_both_protocols(start: Start, certificates: Path, mutual: bool) -> None:
    authority = certificates / "ca.pem"
    proxy = start(
        tls=Tls(
            certificate=certificates / "server.pem",
            key=certificates / "server.key",
            client_ca=authority if mutual else None,
        )
    )
    url = f"https://127.0.0.1:{proxy.options.http_port}/v2"
    target = f"127.0.0.1:{proxy.options.grpc_port}"
    stranger = ssl.create_default_context(cafile=authority)
    known = ssl.create_default_context(cafile=authority)
    known.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    own = {"private_key": str(certificates / "client.key"), "certificate_chain": str(certificates / "client.pem")}
    with urllib.request.urlopen(url, context=known, timeout=60) as answer:
        assert json.load(answer)["name"] == "triton"
    with triton.InferenceServerClient(target, ssl=True, root_certificates=str(authority), **own) as client:
        assert text(client.infer("count", inputs())) == "2 0.8"
    if mutual:
        with pytest.raises(OSError):  # noqa: PT011  # as the handshake or the first read fails
            urllib.request.urlopen(url, context=stranger, timeout=60).read()
    else:
        with urllib.request.urlopen(url, context=stranger, timeout=60) as answer:
            assert answer.status == 200
    with triton.InferenceServerClient(target, ssl=True, root_certificates=str(authority)) as client:
        if mutual:
            with pytest.raises(Exception, match="UNAVAILABLE"):
                client.is_server_ready(client_timeout=20)
        else:
            assert client.is_server_ready()


def test_a_renewed_certificate_is_used_without_a_restart(
    start: Start,
    tmp_path: Path,
    certificates: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tritone.proxy.proxy.TICK_S", 0.1)

    def put(name: str, *suffixes: str) -> None:
        for suffix in suffixes:
            shutil.copy(certificates / f"{name}{suffix}", tmp_path / f"served{suffix}")

    def shown(port: int) -> str:
        context = ssl._create_unverified_context()
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", port), 60) as plain, context.wrap_socket(plain) as encrypted:
            return ssl.DER_cert_to_PEM_cert(encrypted.getpeercert(True))

    def certificate(name: str) -> str:
        return (certificates / f"{name}.pem").read_text(encoding="utf-8")

    put("server", ".pem", ".key")
    tls = Tls(certificate=tmp_path / "served.pem", key=tmp_path / "served.key")
    (metrics_port,) = free_ports(1)
    proxy = start(tls=tls, metrics_port=metrics_port)
    ports = proxy.options.http_port, proxy.options.grpc_port
    assert [shown(port) for port in ports] == [certificate("server")] * 2
    ends = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-in", certificates / "server.pem"], capture_output=True, check=True
    )
    expected = ssl.cert_time_to_seconds(ends.stdout.decode().strip().removeprefix("notAfter="))
    page = get(metrics_port, "/metrics")[1].decode()
    told = [
        value for name, _, value in samples(page.splitlines()) if name == "tritone_proxy_certificate_expires_seconds"
    ]
    assert told == [expected]

    put("client", ".pem")  # its key is still to come
    until(lambda: "the old one stays" in caplog.text)
    assert [shown(port) for port in ports] == [certificate("server")] * 2
    put("client", ".key")
    until(lambda: [shown(port) for port in ports] == [certificate("client")] * 2)
    until(lambda: "is used from now on" in caplog.text)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----", b"\xff"])
def test_what_is_no_certificate_has_no_end(content: bytes) -> None:
    with pytest.raises(ValueError, match="certificate"):
        expiry(content)


def test_unfit_certificates_are_told(start: Start, tmp_path: Path, certificates: Path) -> None:
    with pytest.raises(ValueError, match="is not a file"):
        Tls(certificate=tmp_path / "none.pem", key=certificates / "server.key")
    with pytest.raises(ServerSetupError, match="TLS"):
        start(tls=Tls(certificate=certificates / "server.pem", key=certificates / "client.key"))


def test_the_key_is_in_no_representation(start: Start) -> None:
    assert KEY not in repr(start().options)


def test_a_connection_is_idle_while_its_client_reads_and_not_while_it_waits_for_more() -> None:
    """An answer of many parts may take minutes; what is idle for one is closed."""
    peer = ("127.0.0.1", 9)
    connections = Connections(Limits(), (8000,), only_ipv4=True)
    gate: Any = SimpleNamespace(connections=connections)
    scope: Any = {
        "method": "POST",
        "raw_path": b"/",
        "headers": [],
        "client": peer,
        "state": {"connection": SimpleNamespace(when_lost=set(), is_lost=False)},
    }
    idle: list[bool] = []

    def look() -> None:
        idle.append(not connections._busy[peer])

    class Parts:
        status = 200

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            for part in (b"a", b""):
                look()
                await send({"type": "http.response.body", "body": part})

    async def answer(request: Any) -> Parts:
        look()
        return Parts()

    async def send(message: Any) -> None:
        look()

    asyncio.run(serve(gate, scope, send, send, answer))
    look()
    assert idle == [False, False, True, False, True, True]
