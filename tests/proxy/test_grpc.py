import asyncio
import itertools
import queue
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from proxied import KEY, Start, inputs, text
from tritone.proxy import Limits, Proxy, ProxyOptions
from tritone.proxy.checks import ModelFacts
from tritone.proxy.gate import Gate
from tritone.proxy.grpc import SERVICE, _Relay
from tritone.proxy.owners import Owner, Stream
from tritone.proxy.proxy import TICK_S
from tritone.server import TritonServer
from waiting import until

Client = triton.InferenceServerClient


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Any]:
    with Client(f"127.0.0.1:{proxy.options.grpc_port}") as client:
        yield client


def refusal(call: Any, *arguments: Any, **named: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as refused:
        call(*arguments, **named)
    return str(refused.value.status()).removeprefix("StatusCode."), str(refused.value.message())


def raw(port: int, name: str, message: bytes, **how: Any) -> Any:
    """A call as bytes."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return channel.unary_unary(name)(message, timeout=60, **how)


def test_the_apis_of_the_protocol_pass(client: Any, proxy: Proxy) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("count")
    assert client.get_server_metadata().name == "triton"
    assert client.get_model_metadata("count").name == "count"
    assert client.get_model_config("count").config.name == "count"
    assert {each.name for each in client.get_inference_statistics().model_stats} >= {"count", "slow"}
    assert raw(proxy.options.grpc_port, "/grpc.health.v1.Health/Check", b"") == b"\x08\x01"
    assert text(client.infer("count", inputs(), request_id="mine")) == "2 0.8"
    assert refusal(client.infer, "nobody", inputs())[0] == "NOT_FOUND"
    with pytest.raises(grpc.RpcError) as refused:
        raw(proxy.options.grpc_port, "/other.Service/Call", b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_locked_apis_need_the_key(client: Any) -> None:
    locked = (
        client.get_model_repository_index,
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        client.get_log_settings,
        client.get_trace_settings,
        lambda headers: client.load_model("count", headers=headers),
        lambda headers: client.unload_model("count", headers=headers),
        lambda headers: client.register_system_shared_memory("x", "/x", 1, headers=headers),
    )
    for call in locked:
        for headers in ({}, {"triton-grpc-protocol-tritone-key": "guess"}):
            assert refusal(call, headers=headers)[0] == "PERMISSION_DENIED"
    key = {"triton-grpc-protocol-tritone-key": KEY}
    assert len(client.get_model_repository_index(headers=key).models) >= 4
    assert client.get_log_settings(headers=key).settings
    shared = inputs()
    shared[0].set_shared_memory("x", 8)
    assert refusal(client.infer, "count", shared)[0] == "PERMISSION_DENIED"
    status, told = refusal(client.infer, "count", shared, headers=key)
    assert (status, "x" in told) == ("NOT_FOUND", True)


def test_classification_of_text_is_refused_and_of_numbers_is_not(client: Any) -> None:
    ranked = [triton.InferRequestedOutput("TRANSCRIPTS", class_count=1)]
    assert refusal(client.infer, "count", inputs(), outputs=ranked)[0] == "INVALID_ARGUMENT"
    numbers = client.infer("speaker", inputs(), outputs=[triton.InferRequestedOutput("EMBEDDINGS", class_count=1)])
    assert numbers.as_numpy("EMBEDDINGS").dtype == object


def test_damaged_and_large_messages_are_refused(start: Start) -> None:
    port = start(limits=Limits(max_body_bytes=100_000)).options.grpc_port
    call = "/inference.GRPCInferenceService/ModelInfer"
    for message, code in (
        (b"\x0a\x05count\x0b", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\x0a\x02\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (bytes(200_000), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            raw(port, call, message)
        assert refused.value.code() is code
    bomb = pb.ModelInferRequest(model_name="count", raw_input_contents=[bytes(10_000_000)]).SerializeToString()
    with pytest.raises(grpc.RpcError) as refused:
        raw(port, call, bomb, compression=grpc.Compression.Gzip)
    assert "when it is unpacked" in refused.value.details()
    with Client(f"127.0.0.1:{port}") as client:
        for packed in ("gzip", "deflate"):
            assert text(client.infer("count", inputs([0.0] * 9000), compression_algorithm=packed)) == "9000 0.0"


def test_deadlines_are_kept_and_nobody_waits_for_what_was_cancelled(
    client: Any, proxy: Proxy, upstream: TritonServer
) -> None:
    """Triton is left to answer all the same: it may crash where a call is cancelled."""
    before = answered(upstream, "slow")
    begun = time.monotonic()
    answers: queue.Queue[Any] = queue.Queue()
    call = client.async_infer("slow", inputs([6.0]), lambda result, error: answers.put(error))
    until(lambda: proxy.in_flight)
    call.cancel()
    assert "CANCELLED" in str(answers.get(timeout=60).status())
    status, told = refusal(client.infer, "slow", inputs([0.0]), timeout=200_000)
    assert (status, "deadline" in told) == ("UNAVAILABLE", True)
    # The deadline travels along: whichever of the client and the proxy sees it pass first says so.
    status, told = refusal(client.infer, "slow", inputs([0.0]), client_timeout=0.2)
    assert status == "DEADLINE_EXCEEDED" or (status == "UNAVAILABLE" and "deadline" in told)
    assert time.monotonic() - begun < 6  # the model sleeps for six seconds
    assert proxy.in_flight == 3  # they take their room until then
    assert proxy.wait_idle(60)
    until(lambda: (answered(upstream, "slow") - before).tolist() == [3, 0])  # it counts after it has answered


def answered(server: TritonServer, model: str) -> Any:
    """How many requests Triton has answered well, and with an error."""
    with triton.InferenceServerClient(server.grpc_address) as asking:
        (found,) = asking.get_inference_statistics(model).model_stats
    return np.array([found.inference_stats.success.count, found.inference_stats.fail.count])


def test_a_stream_whose_chunk_was_given_up_may_begin_again_at_once(client: Any, proxy: Proxy) -> None:
    status, _ = refusal(client.infer, "slow", inputs([0.5]), sequence_id=7, sequence_start=True, timeout=100_000)
    assert status == "UNAVAILABLE"
    assert text(client.infer("slow", inputs([0.0]), sequence_id=7, sequence_start=True, sequence_end=True))
    assert proxy.wait_idle(60)
    assert not proxy.open_streams


def test_audio_in_flight_is_bounded(client: Any, proxy: Proxy) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.async_infer("slow", inputs([0.7] + [0.0] * 7999), lambda result, error: answers.put(error))
    until(lambda: proxy.in_flight)
    with grpc.insecure_channel(f"127.0.0.1:{proxy.options.grpc_port}") as channel:
        request = pb.ModelInferRequest(model_name="slow", raw_input_contents=[bytes(16_000), bytes(4)])
        request.inputs.add(name="WAV", datatype="FP32", shape=[1, 4000])
        request.inputs.add(name="WAV_LENS", datatype="INT32", shape=[1, 1])
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request.SerializeToString())
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "8.0 s of audio in flight and takes 10 s; this one has 4.0 s" in refused.value.details()
    hints = dict(refused.value.trailing_metadata())
    assert int(hints["retry-after-ms"]) >= 100
    assert answers.get(timeout=60) is None


def test_a_stream_belongs_to_its_connection_and_ends_with_it(proxy: Proxy) -> None:
    address = f"127.0.0.1:{proxy.options.grpc_port}"
    ann, bob = (Client(address, channel_args=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(2))

    def say(client: Any, samples: int, **flags: bool) -> str:
        return text(client.infer("running", inputs([0.0] * samples), sequence_id=10086, **flags))

    assert say(ann, 10, sequence_start=True).startswith("1 10 ")
    assert say(bob, 100, sequence_start=True).startswith("1 100 ")
    assert say(ann, 10).startswith("2 20 ")
    status, _ = refusal(ann.infer, "running", inputs(), sequence_id=10086, sequence_start=True)
    assert status == "ALREADY_EXISTS"
    assert say(bob, 100).startswith("2 200 ")
    ann.close()
    until(lambda: proxy.open_streams == 1)
    assert say(bob, 100, sequence_end=True) == "3 300 of 1"  # ann's was ended upstream
    bob.close()


class Conversation:
    """A call of ModelStreamInfer through tritonclient."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: self.answers.put((result, error)))

    def send(self, model: str, samples: list[float], **how: Any) -> None:
        self.client.async_stream_infer(model, inputs(samples), **how)

    def next(self) -> str:
        result, error = self.answers.get(timeout=60)
        return f"error: {error.message()}" if error else text(result)


def test_the_bidirectional_call_passes_in_order_with_the_same_rules(client: Any, proxy: Proxy) -> None:
    talk = Conversation(client)
    for number in range(1, 4):
        talk.send("running", [0.0] * 10, sequence_id=5, sequence_start=number == 1, sequence_end=number == 3)
    talk.send("running", [0.0], sequence_id=5)
    talk.send("count", [0.5])
    told = [talk.next() for _ in range(5)]
    assert [each.split(" of ")[0] for each in told[:3]] == ["1 10", "2 20", "3 30"]
    assert "not open" in told[3]
    assert told[4] == "1 0.5"
    talk.send("slow", [0.5], timeout=100_000)
    assert "deadline" in talk.next()
    talk.send("count", [-0.9])
    assert talk.next().endswith("the first sample is too low")  # and not the answer that came too late
    proxy.drain()
    talk.send("count", [0.5])
    assert "is ending" in talk.next()
    assert proxy.in_flight == 0
    client.stop_stream()


def test_a_client_that_breaks_off_its_call_leaves_no_stream_open(client: Any, proxy: Proxy) -> None:
    talk = Conversation(client)
    talk.send("running", [0.0] * 10, sequence_id=5, sequence_start=True)
    assert talk.next().startswith("1 10 ")
    client.stop_stream(cancel_requests=True)
    assert proxy.wait_idle(60)
    again = text(client.infer("running", inputs([0.0]), sequence_id=6, sequence_start=True, sequence_end=True))
    assert again == "1 1 of 1"


@pytest.mark.slow
def test_clients_that_break_off_calls_to_a_generator_do_not_end_triton(proxy: Proxy, upstream: TritonServer) -> None:
    request = pb.ModelInferRequest(model_name="many")
    request.inputs.add(name="WORD", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"again")
    pid, message = upstream.pid, request.SerializeToString()
    address, own = f"127.0.0.1:{proxy.options.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]

    def break_off(thread: int) -> None:
        with grpc.insecure_channel(address, own) as channel:
            for number in range(100):
                open_end: queue.Queue[bytes | None] = queue.Queue()
                requests = itertools.chain([message], iter(open_end.get, None) if number % 3 == 2 else ())
                with suppress(grpc.RpcError):
                    limit_s = 0.005 if number % 5 == 4 else 60.0  # the end of which breaks a call off, too
                    call = channel.stream_stream(SERVICE + "ModelStreamInfer")(requests, timeout=limit_s)
                    list(itertools.islice(call, (number + thread) % 4))
                    call.cancel()
                open_end.put(None)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(break_off, range(4)))
    assert proxy.wait_idle(60)
    assert (upstream.pid, proxy.in_flight) == (pid, 0)
    with grpc.insecure_channel(address) as channel:
        found = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter([message]), timeout=60)
        answers = [pb.ModelStreamInferResponse.FromString(each) for each in found]
    assert len(answers) == 50
    assert not any(each.error_message for each in answers)


class GeneratorCall:
    """Triton's side of a call: a megabyte for each answer, the first on a request, the others when `go_on` is set."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read = 0
        self.events: list[str] = []
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def write(self, message: bytes) -> None:
        self.events.append("request")
        self.begun.set()

    async def done_writing(self) -> None:
        self.events.append("end")
        self.begun.set()

    def cancel(self) -> None:
        self.events.append("cancel")
        self.count = 0
        self.go_on.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self.begun.wait()
        while self.events[0] == "request" and self.read < self.count:
            if self.read:
                await self.go_on.wait()
            self.read += 1
            yield bytes([8]) * (1 << 20)


class LeftCalls:
    """Calls to a generator through a relay, each left by its client after the first answer."""

    def __init__(self, **limits: Any) -> None:
        self.calls: list[GeneratorCall] = []
        self.ending: list[asyncio.Task[None]] = []
        options = ProxyOptions(upstream_http="", upstream_grpc="", limits=Limits(**limits))
        facts = SimpleNamespace(facts=self.facts)
        self.gate = Gate(options, facts, SimpleNamespace(), lambda stream: None)  # type: ignore[arg-type]

    async def facts(self, model: str) -> ModelFacts:
        return ModelFacts(name=model, outputs={}, decoupled=True)

    async def leave_one(self) -> list[bytes]:
        """What the client read before it went away."""
        call, written, first = GeneratorCall(50), [], asyncio.Event()
        self.calls.append(call)

        async def write(response: bytes) -> None:
            written.append(response)
            first.set()

        async def requests() -> AsyncIterator[bytes]:
            yield pb.ModelInferRequest(model_name="many").SerializeToString()
            await asyncio.Event().wait()

        upstream = SimpleNamespace(
            stream_infer=lambda: call, finish=lambda work: self.ending.append(asyncio.ensure_future(work))
        )
        owner = Owner.of({}, ("127.0.0.1", 1), connected=True)
        relay = _Relay(self.gate, upstream, SimpleNamespace(write=write), owner, False)  # type: ignore[arg-type]
        running = asyncio.ensure_future(relay.run(requests()))
        await first.wait()
        running.cancel()
        await asyncio.wait((running,))
        relay.close()
        return written


def test_what_is_generated_for_a_client_that_is_gone_is_dropped_as_it_comes() -> None:
    async def leave() -> None:
        left = LeftCalls()
        written = await left.leave_one()
        (call,), (ending,) = left.calls, left.ending
        assert left.gate.in_flight == 1
        tracemalloc.start()
        call.go_on.set()
        await ending
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5 << 20  # of 50 MB
        assert (call.read, call.events) == (50, ["request", "end"])
        assert len(written) == 1
        assert left.gate.in_flight == 0

    asyncio.run(leave())


def test_calls_that_their_clients_left_are_in_flight_until_a_time_limit_cancels_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def leave() -> None:
        left = LeftCalls(max_requests=2, request_s=0.5)
        for _ in range(2):
            await left.leave_one()
        (refused,) = await left.leave_one()
        assert "2 requests are in flight" in pb.ModelStreamInferResponse.FromString(refused).error_message
        await asyncio.wait(left.ending)
        assert [each.events for each in left.calls] == [["request", "end", "cancel"]] * 2 + [["end"]]
        assert left.gate.in_flight == 0

    asyncio.run(leave())
    assert "did not end its answers in 0.5 s" in caplog.text


def test_a_stream_is_open_until_triton_has_ended_it(client: Any, proxy: Proxy) -> None:
    upstream, held = proxy._running._upstream_grpc, asyncio.Event()
    call = upstream.call

    async def waiting(*arguments: Any, **how: Any) -> bytes:
        await held.wait()
        return await call(*arguments, **how)

    talk = Conversation(client)
    talk.send("running", [0.0] * 10, sequence_id=5, sequence_start=True)
    assert talk.next().startswith("1 10 ")
    upstream.call = waiting  # type: ignore[method-assign]
    client.stop_stream(cancel_requests=True)
    until(lambda: proxy.open_streams == 0)
    assert not proxy.wait_idle(1.5 * TICK_S)
    assert proxy._thread is not None
    proxy._thread.loop.call_soon_threadsafe(held.set)
    assert proxy.wait_idle(60)


def test_a_call_that_seems_to_end_before_it_is_broken_off_leaves_no_stream_open() -> None:
    """gRPC may tell of the end of the requests first, and that they were broken off when Triton has answered."""

    async def ended_streams(broken_off: bool) -> list[Any]:
        stream, ended, answered = Stream(None, "running", 5, 6, b""), [], asyncio.Event()

        class Call:
            async def done_writing(self) -> None:
                pass

            async def __aiter__(self) -> AsyncIterator[bytes]:
                answered.set()
                return
                yield b""

        async def no_requests() -> AsyncIterator[bytes]:
            return
            yield b""

        gate, upstream = SimpleNamespace(streams=SimpleNamespace(end=ended.append)), SimpleNamespace(stream_infer=Call)
        relay = _Relay(gate, upstream, None, None, False)
        relay._streams = {stream}
        running = asyncio.ensure_future(relay.run(no_requests()))
        await answered.wait()
        for _ in range(5):
            await asyncio.sleep(0)  # all that it does without waiting
        if broken_off:
            running.cancel()
        await asyncio.wait((running,))
        relay.close()
        return ended

    assert len(asyncio.run(ended_streams(True))) == 1
    assert asyncio.run(ended_streams(False)) == []  # it goes on in another call


def test_a_server_that_is_gone_is_told_with_a_hint(start: Start) -> None:
    proxy = start(upstream_grpc="127.0.0.1:9")
    with Client(f"127.0.0.1:{proxy.options.grpc_port}") as client:
        status, told = refusal(client.infer, "count", inputs())
        assert (status, "may be restarting" in told) == ("UNAVAILABLE", True)
        assert not client.is_server_ready()


def test_health_follows_draining(client: Any, proxy: Proxy) -> None:
    proxy.drain()
    assert client.is_server_live()
    assert not client.is_server_ready()
    assert not client.is_model_ready("count")
    assert raw(proxy.options.grpc_port, "/grpc.health.v1.Health/Check", b"") == b"\x08\x02"


def test_answers_do_not_depend_on_the_way(client: Any, upstream: TritonServer) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 20_000).tolist()
    with Client(upstream.grpc_address) as direct:
        ours, theirs = (each.infer("count", inputs(samples)).get_response() for each in (client, direct))
    assert ours == theirs
