"""The first beam request of a machine on which nothing was compiled: it comes again, and nobody else waits for it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from serving import descendants, quiet_options
from toy import toy_waveform
from tritone.client import Client
from tritone.errors import ServerBusyError
from tritone.proxy import Proxy, ProxyOptions
from tritone.repository import build_repository
from tritone.server import TritonServer, free_ports

pytestmark = pytest.mark.slow
BEAM = {"search": "prefix-beam", "nbest": 2}
READY_S = 120.0  # until all is compiled, on a busy machine


@pytest.fixture
def server(toy_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TritonServer]:
    """Two models that search greedily, on a machine where numba's cache is empty."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    build_repository([toy_bundle], tmp_path / "repository")
    with TritonServer(tmp_path / "repository", quiet_options()) as running:
        yield running


class Crowd:
    """Clients that ask for greedy search all the time; how long each answer took, and what was wrong with any."""

    def __init__(self, url: str) -> None:
        self._url, self._over = url, threading.Event()
        self.took_s: list[float] = []
        self.wrong: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(text,)) for text in ("ab", "cd ef")]

    def _ask(self, text: str) -> None:
        with Client(self._url) as client:
            while not self._over.is_set():
                start = time.perf_counter()
                try:
                    found = client.transcribe(toy_waveform(text), model="toy", search={}).text
                except Exception as error:  # whatever it is, the test tells of it
                    found = repr(error)
                self.took_s.append(time.perf_counter() - start)
                if found != text:
                    self.wrong.append(found)

    def __enter__(self) -> "Crowd":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()


def test_others_are_answered_while_the_first_beam_request_waits_for_a_compiler(server: TritonServer) -> None:
    with Crowd(server.grpc_address) as crowd, Client(server.grpc_address) as client:
        with pytest.raises(ServerBusyError, match="prefix-beam search is being compiled for this server") as caught:
            client.transcribe(toy_waveform("gh"), model="toy", search=BEAM)
        assert caught.value.retry_after_s is not None
        assert 2 <= caught.value.retry_after_s <= 15
        http_port, grpc_port = free_ports(2)
        options = ProxyOptions(
            host="127.0.0.1",
            http_port=http_port,
            grpc_port=grpc_port,
            upstream_http=server.http_address,
            upstream_grpc=server.grpc_address,
        )
        with Proxy(options):
            for url in (f"grpc://127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}"):
                with Client(url) as other, pytest.raises(ServerBusyError, match="is being compiled") as caught:
                    other.transcribe(toy_waveform("gh"), model="toy", search=BEAM)
                assert caught.value.retry_after_s is not None
                assert caught.value.retry_after_s >= 2  # the model's hint, and not the proxy's own

        refused = client.stream("toy-streaming", search=BEAM)
        refused.accept(toy_waveform("gh"))  # less than a chunk
        with pytest.raises(ServerBusyError, match="The stream was not opened"):
            refused.finish()
        with client.stream("toy-streaming") as stream:  # others are opened
            stream.accept(toy_waveform("gh"))
            assert stream.finish().text == "gh"

        patient = Client(server.grpc_address, retries=100, timeout_s=READY_S)
        with patient, patient.stream("toy-streaming", search=BEAM) as stream:
            found = patient.transcribe(toy_waveform("gh"), model="toy", search=BEAM, details=True)
            stream.accept(toy_waveform("ij"))
            assert stream.finish().text == "ij"
        assert found.text == "gh"
        assert len(found.alternatives) == 2
    assert crowd.wrong == []
    assert len(crowd.took_s) > 100
    assert max(crowd.took_s) < 5  # the model loads what was compiled; compiling would take 10 s


def test_a_server_that_stops_ends_the_compiler(server: TritonServer) -> None:
    with Client(server.grpc_address) as client, pytest.raises(ServerBusyError):
        client.transcribe(toy_waveform("gh"), model="toy", search=BEAM)
    compilers = [each for each in descendants(server.pid) if "tritone.pipelines.ahead" in each.cmdline()]
    assert compilers
    server.stop()
    assert psutil.wait_procs(compilers, timeout=READY_S)[1] == []
