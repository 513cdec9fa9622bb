"""Models that are lost, unloaded or drained behind a proxy, as live streams, clients and gateways learn of it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxied import Served, body, get, infer, post
from states import WAIT_S, States, form, hint, until
from tritone.client import Client
from tritone.errors import RetryError, StreamLostError
from tritone.gateway import GatewayOptions
from tritone.gateway.server import GatewayServer
from wire_toys import write_models

TEN = 10
RAMP = np.linspace(0, 0.5, 800, dtype=np.float32)


@contextmanager
def streams(served: States, count: int) -> Iterator[list[Any]]:
    """Open streams, each after its first chunk."""
    with Client(f"http://127.0.0.1:{served.http}") as client:
        opened = [client.stream("running", chunk_ms=50) for _ in range(count)]
        for each in opened:
            each.accept(RAMP)
        yield opened
        for each in opened:
            each.close()


def test_all_streams_of_a_lost_model_are_told_at_once(states: States, before: GatewayServer) -> None:
    """Triton alone answers one a second."""
    with streams(states, TEN) as opened, ThreadPoolExecutor(TEN) as pool:
        states.busy.touch()  # so that all chunks are on their way
        sent = [pool.submit(each.accept, RAMP) for each in opened]
        until(lambda: f"tritone_proxy_requests_in_flight {TEN}" in get(states.metrics, "/metrics")[1].decode())
        states.stub("running").kill()
        states.busy.unlink()
        began = time.monotonic()
        for each in sent:
            with pytest.raises(StreamLostError) as caught:
                each.result(WAIT_S)
            assert "was lost" in str(caught.value)
        took_s = time.monotonic() - began
    assert took_s < TEN / 2
    until(lambda: states.state("running") == "READY")


def test_a_client_that_retries_has_its_answer_when_the_model_is_ready(states: States) -> None:
    with Client(f"http://127.0.0.1:{states.http}", retries=50) as client, ThreadPoolExecutor(1) as pool:
        with states.losing("count"):
            sent = pool.submit(lambda: client.transcribe(RAMP, "count").text)
            with suppress(TimeoutError):
                sent.result(0.1)
            assert not sent.done()
        assert sent.result(WAIT_S).startswith("800")


def test_a_model_that_was_unloaded_exists_and_one_that_was_removed_does_not(states: States) -> None:
    assert post(states.http, "/v2/repository/models/slow/unload", b"{}", states.key)[0] == 200
    until(lambda: states.state("slow") == "UNAVAILABLE")
    assert infer(states.http, "slow", body())[0] == 503
    folder = states.holds["count"].parents[2] / "slow"
    folder.rename(folder.parents[1] / "elsewhere")
    assert infer(states.http, "slow", body())[0] == 404
    (folder.parents[1] / "elsewhere").rename(folder)
    assert post(states.http, "/v2/repository/models/slow/load", b"{}", states.key)[0] == 200


def test_while_a_client_loads_a_model_by_http_all_requests_are_answered(states: States) -> None:
    path = "/v2/repository/models/count"
    assert post(states.http, f"{path}/unload", b"{}", states.key)[0] == 200
    until(lambda: states.state("count") == "UNAVAILABLE")
    states.holds["count"].touch()
    with ThreadPoolExecutor(1) as pool:
        loaded = pool.submit(post, states.http, f"{path}/load", b"{}", states.key)
        until(lambda: states.state("count") == "LOADING")
        assert infer(states.http, "count", body())[0] == 503
        assert infer(states.http, "slow", body())[0] == 200
        assert not loaded.done()
        states.holds["count"].unlink()
        assert loaded.result(WAIT_S)[0] == 200
    assert infer(states.http, "count", body())[0] == 200
    status, told, _ = post(states.http, "/v2/repository/models/nobody/load", b"{}", states.key)
    assert (status >= 400, "nobody" in told["error"]) == (True, True)
    assert post(states.http, f"{path}/load", b'{"parameters": {"file:1/a": 5}}', states.key)[0] == 400


def test_a_gateway_whose_server_is_drained_and_gone_says_503_and_not_502(tmp_path: Path) -> None:
    served = Served(write_models(tmp_path, "count"))
    options = GatewayOptions(triton=f"http://127.0.0.1:{served.http}", port=0)
    try:
        with GatewayServer(options).background() as running:
            assert post(running.port, "/v1/audio/transcriptions", *form(model="count"))[0] == 200
            served.process.terminate()
            assert served.process.wait(WAIT_S) == 0
            status, told, headers = post(running.port, "/v1/audio/transcriptions", *form(model="count"))
            assert (status, told["error"]["code"], hint(headers)) == (503, "unreachable", 1)
    finally:
        served.close()
    with Client(f"http://127.0.0.1:{served.http}") as client, pytest.raises(RetryError):
        client.models()
