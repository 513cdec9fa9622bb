"""Streams of a real model behind the proxy: whose client is killed, its slot is free."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as triton

import tritone
from proxied import Start
from serving import Ask, RawClient, Refusal, quiet_options
from toy import SAMPLE_RATE, toy_waveform
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer
from waiting import until


@pytest.fixture(scope="module")
def server(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("streams")
    options = ModelOptions(max_streams=2, stream_idle_timeout_s=600, queue_delay_ms=0)
    build_repository([toy_bundle], repository, names=["live"], modes="streaming", options=options)
    with TritonServer(repository, quiet_options()) as running:
        yield running


def test_slots_of_killed_clients_are_free(server: TritonServer, start: Start) -> None:
    proxy = start(upstream_http=server.http_address, upstream_grpc=server.grpc_address)
    address = f"127.0.0.1:{proxy.options.grpc_port}"

    def open_stream(stream: int | str) -> tuple[RawClient, object]:
        client = RawClient(address)
        client.grpc.close()
        own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own, as a process has
        client.grpc = triton.InferenceServerClient(address, channel_args=own)
        return client, client.ask(Ask(model="live", wav=toy_waveform("abcd"), stream=stream, start=True))

    clients = [open_stream(stream) for stream in (5, "five")]
    assert [answer for _, answer in clients] == ["abcd", "abcd"]
    late, refused = open_stream(9)
    assert isinstance(refused, Refusal)
    assert refused.message.startswith("stream 9: all 2 streams")  # the client's number, not ours
    for client, _ in [*clients, (late, None)]:
        client.grpc.close()
    until(lambda: not proxy.open_streams)

    def is_open_again() -> bool:
        client, answer = open_stream(5)
        client.grpc.close()
        return not isinstance(answer, Refusal)

    until(is_open_again)  # END is on its way to the model


def test_our_client_streams_by_both_protocols(server: TritonServer, start: Start) -> None:
    proxy = start(upstream_http=server.http_address, upstream_grpc=server.grpc_address)
    for url in (f"grpc://127.0.0.1:{proxy.options.grpc_port}", f"http://127.0.0.1:{proxy.options.http_port}"):
        with tritone.Client(url) as client, client.stream("live", sample_rate=SAMPLE_RATE) as stream:
            stream.accept(toy_waveform("good day"))
            assert stream.finish().text == "good day"
