"""Servers as processes of their own, and a balancer in front of them with the configuration of deploy/routing.

with Fleet(repository, folder) as fleet:
    a, b = fleet.add(), fleet.add()
    with Balancer("nginx", fleet.replicas, folder) as balancer:
        Client(balancer.url("grpc")) ...  a.drain()  b.kill()  fleet.add()  balancer.reload(fleet.replicas)
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import psutil

from benchmarks.measure import ROOT
from tritone.client import Client
from tritone.errors import TritoneError
from tritone.server import free_ports
from tritone.server.guard import NAME as GUARD

if TYPE_CHECKING:
    from typing import Self

Kind = Literal["nginx", "haproxy"]
FILES: dict[Kind, str] = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}
START_S = 180.0
DRAIN_S = 300
# Of the files: servers listen on 81.., 82.. and 83..; the first of them stands for all, the others are left out.
FIRST = re.compile(r"^( *server )(a |)127\.0\.0\.1:81(0[01])(.*)\n", re.MULTILINE)
OTHERS = re.compile(r"^ *server (?:[bc] |)127\.0\.0\.1:8[23]0[01].*\n", re.MULTILINE)
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def missing(kind: Kind) -> bool:
    """Whether this machine does not have the balancer."""
    return executable(kind) is None


def executable(kind: Kind) -> str | None:
    """The balancer's program; Debian keeps it where only root looks."""
    return shutil.which(kind, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Replica:
    """`tritone serve --proxy` on free ports of 127.0.0.1."""

    def __init__(self, name: str, repository: Path, folder: Path) -> None:
        self.name = name
        self.http, self.grpc, self.metrics = free_ports(3)
        ports = [f"--http-port={self.http}", f"--grpc-port={self.grpc}", f"--metrics-port={self.metrics}"]
        command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "serve", str(repository), "--proxy"]
        self._log = open(folder / f"replica-{name}.log", "ab")  # noqa: SIM115  # closed by `close`
        self.process = subprocess.Popen([*command, *ports, f"--drain-s={DRAIN_S}"], stdout=self._log, stderr=self._log)

    def wait_ready(self) -> None:
        """Return when it is ready; raises `RuntimeError` if it ends, or takes too long."""
        deadline = time.monotonic() + START_S
        while not self.is_ready:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"server {self.name} did not become ready; its log is {self._log.name}")
            time.sleep(0.1)

    @property
    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/health/ready", timeout=10) as answer:
                if answer.status != 200:
                    return False
            # Triton answers HTTP a moment before gRPC.
            with Client(f"grpc://127.0.0.1:{self.grpc}", timeout_s=10) as client:
                return bool(client.models())
        except (OSError, TritoneError):
            return False

    @property
    def open_streams(self) -> int:
        """The streams that its proxy has."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=30) as answer:
            found = re.search(rb"^tritone_proxy_open_streams (\d+)", answer.read(), re.MULTILINE)
        if found is None:
            raise RuntimeError(f"server {self.name} has no metric of its open streams")
        return int(found[1])

    def drain(self) -> None:
        """Have it end as soon as its streams have ended."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and everything below it at once, as a machine that fails; its guard tidies up."""
        guards = []
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            for each in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    if GUARD in each.cmdline():
                        guards.append(each)
                    else:
                        each.kill()
        self.process.wait()
        psutil.wait_procs(guards, START_S)

    def close(self) -> None:
        self.kill()
        self._log.close()


class Fleet:
    """The servers of one repository."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.replicas: list[Replica] = []
        self._repository, self._folder = repository, folder

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self.replicas:
            each.close()

    def add(self, count: int = 1) -> list[Replica]:
        """Start servers and wait until they are ready."""
        names = [chr(ord("a") + len(self.replicas) + index) for index in range(count)]
        added = [Replica(name, self._repository, self._folder) for name in names]
        self.replicas += added
        for each in added:
            each.wait_ready()
        return added


class Balancer:
    """nginx or HAProxy with the configuration of deploy/routing, on free ports of 127.0.0.1."""

    def __init__(self, kind: Kind, replicas: Sequence[Replica], folder: Path) -> None:
        self.kind, self._folder = kind, folder / kind
        self._folder.mkdir(exist_ok=True)
        self._file = self._folder / FILES[kind]
        self.http, self.grpc, self._peers = free_ports(3)
        self._write(replicas)
        program = executable(kind)
        if program is None:
            raise RuntimeError(f"there is no {kind} here; install the Debian package")
        self._log = open(self._folder / "log", "ab")  # noqa: SIM115  # closed by `close`
        if kind == "nginx":
            more = f"pid {self._folder}/pid; daemon off; error_log {self._folder}/error.log notice;"
            command = [program, "-p", str(self._folder), "-c", str(self._file), "-e", str(self._folder / "error.log")]
            command += ["-g", more]
        else:
            command = [program, "-W", "-L", "tritone-balancer", "-f", str(self._file), "-p", str(self._folder / "pid")]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self._await_ready()

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, protocol: str) -> str:
        return f"{protocol}://127.0.0.1:{self.http if protocol == 'http' else self.grpc}"

    @property
    def cpu_s(self) -> float:
        """CPU seconds that its processes have used."""
        process = psutil.Process(self._process.pid)
        times = [each.cpu_times() for each in [process, *process.children(recursive=True)]]
        return sum(each.user + each.system for each in times)

    def reload(self, replicas: Sequence[Replica], *, ends: bool = False) -> None:
        """Balance over these servers from now on; with `ends`, return when no process of before is left."""
        self._write(replicas)
        before = set(psutil.Process(self._process.pid).children())
        self._process.send_signal(signal.SIGHUP if self.kind == "nginx" else signal.SIGUSR2)
        deadline = time.monotonic() + START_S
        while (now := set(psutil.Process(self._process.pid).children())) <= before or (ends and now & before):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.kind} did not take its new configuration; see {self._folder}")
            time.sleep(0.05)
        self._await_ready()

    def close(self) -> None:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            for each in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        self._process.wait()
        self._log.close()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.grpc), 1):
                    pass
                with urllib.request.urlopen(f"{self.url('http')}/v2/health/ready", timeout=5):
                    return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.kind} does not answer; see {self._folder}") from None
                time.sleep(0.05)

    def _write(self, replicas: Sequence[Replica]) -> None:
        text = OTHERS.sub("", (ROOT / "deploy" / "routing" / FILES[self.kind]).read_text(encoding="utf-8"))

        def lines(found: "re.Match[str]") -> str:
            start, name, port, rest = found.groups()
            ports = [each.http if port == "00" else each.grpc for each in replicas]
            return "".join(
                f"{start}{each.name + ' ' if name else ''}127.0.0.1:{at}{re.sub('/a$', '/' + each.name, rest)}\n"
                for each, at in zip(replicas, ports, strict=True)
            )

        text = FIRST.sub(lines, text)
        for port, own in ((8000, self.http), (8001, self.grpc)):
            text = re.sub(rf"^( *listen |    bind :){port}\b", rf"\g<1>{own}", text, flags=re.MULTILINE)
        text = re.sub(r"^( *listen )(\d+)", r"\g<1>127.0.0.1:\2", text, flags=re.MULTILINE)
        text = text.replace("bind :", "bind 127.0.0.1:").replace("127.0.0.1:8009", f"127.0.0.1:{self._peers}")
        if self.kind == "nginx":  # of a user who is not root
            paths = "".join(f"    {name}_temp_path {self._folder}/{name};\n" for name in TEMPORARY)
            text = text.replace("http {\n", f"http {{\n{paths}", 1)
        self._file.write_text(text, encoding="utf-8")
