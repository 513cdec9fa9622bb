"""`AsyncClient` beside `Client`: the same answers, from tasks that may be cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from tritone.client import AsyncClient, Client
from tritone.errors import InputError, TritoneError
from tritone.server import TritonServer
from waiting import until
from wire_toys import toy_server

SECOND = np.full(16_000, 0.5, np.float32)


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, wire_server: TritonServer) -> str:
    return wire_server.grpc_address if request.param == "grpc" else f"http://{wire_server.http_address}"


def with_client(url: str, work: Callable[[AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with AsyncClient(url, timeout_s=60) as client:
            return await work(client)

    return asyncio.run(run())


def test_tasks_get_what_threads_get(url: str) -> None:
    cuts = [SECOND[: 1000 * count] for count in range(1, 17)]

    async def work(client: AsyncClient) -> Any:
        found = await asyncio.gather(*(client.transcribe(cut, "count", sample_rate=16_000) for cut in cuts))
        return found, await client.embed(SECOND, "speaker"), await client.model("count")

    found, embedding, model = with_client(url, work)
    with Client(url) as client:
        assert found == [client.transcribe(cut, "count", sample_rate=16_000).value for cut in cuts]
        assert np.array_equal(embedding, client.embed(SECOND, "speaker").value)
        assert model == client.model("count")


def test_streams_of_tasks_do_not_mix(url: str) -> None:
    async def work(client: AsyncClient) -> list[str]:
        async def speak(chunks: int) -> str:
            async with await client.stream("running", chunk_ms=100) as stream:
                for _ in range(chunks):
                    await stream.accept(SECOND[:1600])
                return (await stream.finish()).text.split(" of ")[0]

        return await asyncio.gather(*(speak(chunks) for chunks in range(1, 8)))

    assert with_client(url, work) == [f"{chunks + 1} {1600 * chunks}" for chunks in range(1, 8)]


def test_errors_are_those_of_the_client(url: str) -> None:
    async def work(client: AsyncClient) -> Any:
        with pytest.raises(InputError, match="nothing"):
            await client.transcribe(SECOND, "nothing")
        return await client.transcribe(SECOND, "count", sample_rate=16_000)  # the connection is still good

    with_client(url, work)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf", "disconnected"),
        (b"220 mail.example ESMTP\r\n", "does not speak HTTP/1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "is not Triton"),
        (
            b"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\nRetry-After: 7\r\n\r\n3\r\nbus\r\n1\r\ny\r\n0\r\n\r\n",
            "busy",
        ),
        (b"HTTP/1.0 503 x\r\n\r\nbusy until the end", "busy until the end"),
        (
            b"HTTP/1.1 308 x\r\nLocation: https://asr.example/\r\nContent-Length: 0\r\n\r\n",
            "at https://asr.example/; use",
        ),
        (b"", "no answer within"),
    ],
)
def test_what_is_no_answer_is_told(wire_server: TritonServer, said: bytes, told: str) -> None:
    """By HTTP, where the answers are read by `net/http_client.py`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        if said:
            writer.close()
        else:
            await reader.read()  # until the client gives up
            writer.close()

    async def run() -> str:
        async with AsyncClient(f"http://{wire_server.http_address}") as knowing:
            model = await knowing.model("count")
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            timeout_s = 60.0 if said else 0.5
            async with AsyncClient(f"http://127.0.0.1:{port}", timeout_s=timeout_s, retries=0) as client:
                client._known["count", "offline"] = model
                with pytest.raises(TritoneError) as caught:
                    await client.transcribe(SECOND, "count")
        return str(caught.value)

    assert told in asyncio.run(run())


def test_a_task_that_is_cancelled_leaves_its_call_to_triton(tmp_path: Path) -> None:
    """A server may crash where calls are cancelled; closing the client waits for them."""

    async def work(client: AsyncClient) -> None:
        await client.model("slow")
        task = asyncio.ensure_future(client.transcribe(np.full(99, 0.5, np.float32), "slow", sample_rate=16_000))
        while not client._transport._unanswered._all:  # type: ignore[attr-defined]
            assert not task.done()
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with toy_server(tmp_path, "slow") as server, triton.InferenceServerClient(server.grpc_address) as asking:
        with_client(server.grpc_address, work)

        def counted() -> tuple[int, int]:
            (found,) = asking.get_inference_statistics("slow").model_stats
            return found.inference_stats.success.count, found.inference_stats.fail.count

        assert until(lambda: any(counted()) and counted()) == (1, 0)  # Triton counts after it has answered
