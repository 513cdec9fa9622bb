"""A server that is absent, slow, full, defective or killed, as a client hears of it. Model "slow" sleeps on demand."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from toy import toy_waveform
from tritone.client import Client, Endpoint
from tritone.client.failure import Refusal, explain
from tritone.errors import (
    InputError,
    OperatorError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
    StreamError,
    StreamLostError,
)
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer
from waiting import until
from wire_toys import running_server, toy_server

PROTOCOLS = ["grpc", "http"]


def seconds(value: float) -> np.ndarray:
    return np.array([value], np.float32)


def connect(server: TritonServer, protocol: str, timeout_s: float) -> Client:
    address = server.grpc_address if protocol == "grpc" else server.http_address
    return Client(f"{protocol}://{address}", timeout_s=timeout_s)


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with toy_server(tmp_path_factory.mktemp("repository"), "slow", "narrow", "count") as server:
        yield server


@pytest.fixture(scope="module")
def one_slot(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("repository")
    options = ModelOptions(max_streams=1, queue_delay_ms=0)
    build_repository([toy_bundle], repository, modes="streaming", options=options)
    with running_server(repository) as server:
        yield server


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refused_connection_names_the_address_and_the_way_out(protocol: str):
    complaint = f"{protocol}://127.0.0.1:1: list the models.*tritone serve"
    with (
        Client(f"{protocol}://127.0.0.1:1", timeout_s=20) as client,
        pytest.raises(ServerUnreachableError, match=complaint),
    ):
        client.models()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_other_protocols_port_is_unreachable_and_does_not_hang(slow_server: TritonServer, protocol: str):
    wrong = slow_server.http_address if protocol == "grpc" else slow_server.grpc_address
    with Client(f"{protocol}://{wrong}", timeout_s=20) as client, pytest.raises(ServerUnreachableError):
        client.models()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_too_slow_an_answer_is_a_timeout_with_the_limit_in_it(slow_server: TritonServer, protocol: str):
    with connect(slow_server, protocol, timeout_s=1.5) as client:  # which is enough to ask for the model
        (result,) = client.transcribe([seconds(4.0)], model="slow")
        assert isinstance(result.error, ServerTimeoutError)
        assert "1.5 s" in str(result.error)
    with connect(slow_server, protocol, timeout_s=30) as client:
        assert client.transcribe([seconds(0.0)], model="slow")[0].text == "done"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_full_queue_is_busy_and_not_unreachable(slow_server: TritonServer, protocol: str):
    with connect(slow_server, protocol, timeout_s=30) as client:
        results = client.transcribe([seconds(0.2)] * 12, model="narrow", concurrency=12)
    errors = [result.error for result in results if result.error]
    assert errors
    assert {type(error) for error in errors} == {ServerBusyError}
    assert "Exceeds maximum queue size" in str(errors[0])
    assert [result.text for result in results if result.ok]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_defect_in_the_model_is_for_the_operator(slow_server: TritonServer, protocol: str):
    with connect(slow_server, protocol, timeout_s=30) as client:
        (result,) = client.transcribe([seconds(-1.0)], model="slow")
    assert isinstance(result.error, OperatorError)
    assert "a defect in the model" in str(result.error)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_offline_models_need_a_name(slow_server: TritonServer, protocol: str):
    complaint = r"3 offline models.*: count, narrow, slow$"
    with connect(slow_server, protocol, timeout_s=30) as client, pytest.raises(InputError, match=complaint):
        client.transcribe([seconds(0.0)])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_killed_in_the_middle_is_an_error_for_every_input_and_no_hang(tmp_path: Path, protocol: str):
    with toy_server(tmp_path, "slow", "running") as server, connect(server, protocol, timeout_s=60) as client:
        assert client.transcribe([seconds(0.0)], "slow")[0].text == "done"
        stream = client.stream("running")
        stream.accept(np.zeros(8000, np.float32))
        killer = threading.Timer(0.5, os.kill, (server.pid, signal.SIGKILL))
        killer.start()
        started = time.monotonic()
        results = client.transcribe([seconds(20.0)] * 4, "slow", concurrency=2)
        killer.join()
        assert time.monotonic() - started < 15
        assert [type(result.error) for result in results] == [ServerUnreachableError] * 4
        with pytest.raises(ServerUnreachableError):
            client.models()
        with pytest.raises(StreamLostError, match=r"is lost after 0\.48 s of its audio were answered.*from its start"):
            stream.accept(np.zeros(8000, np.float32))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_streams_than_slots_are_busy_until_one_ends(one_slot: TritonServer, protocol: str):
    speech = toy_waveform("hello")
    with connect(one_slot, protocol, timeout_s=30) as client:
        with client.stream() as first:
            first.accept(speech)
            with client.stream() as second, pytest.raises(ServerBusyError, match=r"all 1 streams .* are taken"):
                second.accept(speech)
            assert first.finish().text == "hello"
        with client.stream() as third:
            third.accept(speech)
            assert third.finish().text == "hello"


def test_closing_the_client_ends_what_is_in_flight(slow_server: TritonServer):
    for protocol in PROTOCOLS:
        client = connect(slow_server, protocol, timeout_s=60)
        client.model("slow")
        results = client.transcribe_iter([seconds(4.0)], model="slow")
        closer = threading.Timer(0.5, client.close)
        closer.start()
        (result,) = results
        closer.join()
        assert result.error is not None


def test_what_a_client_abandons_is_not_computed_by_grpc(slow_server: TritonServer):
    """By HTTP it is: Triton 2.51 does not see that a connection has gone."""
    with connect(slow_server, "grpc", timeout_s=30) as client:

        def counted(outcome: str) -> int:
            (statistics,) = client._transport.statistics("slow", 5)
            return int(statistics["inference_stats"][outcome].get("count", 0))

        before, dropped = counted("success"), counted("fail")
        results = client.transcribe_iter([seconds(0.5), *[seconds(0.2)] * 40], "slow", concurrency=41)
        next(results)
        del results  # the generator ends, and abandons what is in flight
        until(lambda: counted("fail") > dropped)  # of those that Triton has got by then
        assert counted("success") - before < 41


def test_words_of_the_transports_become_one_line_with_the_way_out():
    grpc, http = Endpoint.parse("nowhere.example:8001"), Endpoint.parse("http://localhost:8001")
    refused = Refusal("UNAVAILABLE", "errors resolving nowhere.example:8001: not found")
    assert isinstance(explain(refused, grpc, "list the models", 1.0), ServerUnreachableError)
    closed = Refusal("UNAVAILABLE", "UNAVAILABLE: ipv4:127.0.0.1:8000: Socket closed")
    assert "use http://nowhere.example:8001" in str(explain(closed, grpc, "list the models", 1.0))
    garbled = explain(OSError("Bad status line:\n  Expected HTTP/\n\n  b'\\x00'\n    ^"), http, "list the models", 1.0)
    assert "\n" not in str(garbled)
    assert "use grpc://localhost:8001" in str(garbled)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_model_of_the_other_kind_is_refused_with_those_that_fit(slow_server: TritonServer, protocol: str):
    complaint = "'slow' is not streaming but offline. Ready streaming models: none"
    with connect(slow_server, protocol, timeout_s=30) as client, pytest.raises(InputError, match=complaint):
        client.stream("slow")


def test_a_request_that_its_transport_never_ends_is_given_up(
    wire_server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritone.client.requests.LOST_AFTER_S", 0.05)
    with Client(wire_server.grpc_address, timeout_s=30) as client:
        client.model("count")
        client.timeout_s = 0.05
        monkeypatch.setattr(client._transport, "infer", lambda call: Future())
        results = client.transcribe([seconds(0)] * 3, model="count", concurrency=2)
    assert [type(result.error) for result in results] == [ServerTimeoutError] * 3


def test_a_chunk_that_its_transport_never_ends_is_given_up_and_ends_the_stream(
    wire_server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritone.client.stream.LOST_AFTER_S", 0.05)
    with Client(wire_server.grpc_address, timeout_s=30) as client:
        client.model("running", kind="streaming")
        client.timeout_s = 0.05
        monkeypatch.setattr(client._transport, "infer", lambda call: Future())
        stream = client.stream("running")
        with pytest.raises(ServerTimeoutError, match="long after the time limit"):
            stream.accept(np.zeros(16000, np.float32))
        with pytest.raises(StreamError, match="is over"):
            stream.finish()
