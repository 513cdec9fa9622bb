"""Models that answer one request many times: "answers" says a word twice."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tritone.client import AsyncClient, Client
from tritone.client.models import ModelInfo, Tensor
from tritone.errors import InputError
from tritone.server import TritonServer
from wire_toys import toy_server

ASKED = {"WORD": ["twice"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with toy_server(tmp_path_factory.mktemp("repository"), "answers", "scale", "running") as running:
        yield running


@pytest.fixture
def grpc(server: TritonServer) -> Iterator[Client]:
    with Client(server.grpc_address, timeout_s=30) as client:
        yield client


def test_each_answer_comes_by_itself(grpc: Client):
    assert [answer["SAID"].tolist() for answer in grpc.infer_stream(ASKED, "answers")] == [[b"twice"], [b"twice"]]


def test_a_loop_that_is_left_early_leaves_the_client_as_it_was(grpc: Client):
    assert next(grpc.infer_stream(ASKED, "answers"))["SAID"].tolist() == [b"twice"]
    assert len(list(grpc.infer_stream(ASKED, "answers"))) == 2


def test_a_model_with_one_answer_gives_one(grpc: Client):
    table = np.ones((1, 2), np.float32)
    (answer,) = grpc.infer_stream({"TABLE": table, "TIMES": [3]}, "scale", outputs=["PRODUCT"])
    np.testing.assert_array_equal(answer["PRODUCT"], 3 * table)


def test_what_the_model_refuses_is_the_callers_error(grpc: Client):
    with pytest.raises(InputError, match="TIMES is below 0"):
        list(grpc.infer_stream({"TABLE": np.ones((1, 2), np.float32), "TIMES": [-1]}, "scale"))


def test_the_way_to_ask_is_told_to_who_asks_otherwise(grpc: Client, server: TritonServer):
    with Client(f"http://{server.http_address}") as http:
        for client in (grpc, http):
            (result,) = client.infer([ASKED], "answers")
            with pytest.raises(InputError, match=r"many times to one request; ask it with Client\.infer_stream"):
                result.get()
        with pytest.raises(InputError, match="use its gRPC port"):
            list(http.infer_stream(ASKED, "answers"))
    with pytest.raises(InputError, match=r"keeps states; use Client\.infer_sequence"):
        list(grpc.infer_stream({}, "running"))
    with pytest.raises(ValueError, match="put a single one into a list"):
        grpc.infer(ASKED, "answers")


def test_tasks_ask_any_model_and_read_many_answers(server: TritonServer):
    table = np.ones((1, 2), np.float32)

    async def ask() -> tuple[Any, ...]:
        async with AsyncClient(server.grpc_address, timeout_s=30) as client:
            said = [answer["SAID"].tolist() async for answer in client.infer_stream(ASKED, "answers")]
            async for answer in client.infer_stream(ASKED, "answers"):
                first = answer["SAID"].tolist()
                break  # and the client is as it was
            scaled = await client.infer({"TABLE": table, "TIMES": [3]}, "scale", outputs=["PRODUCT"])
            with pytest.raises(InputError, match="TIMES is below 0"):
                await client.infer({"TABLE": table, "TIMES": [-1]}, "scale")
            with pytest.raises(InputError, match="TIMES is below 0"):
                _ = [each async for each in client.infer_stream({"TABLE": table, "TIMES": [-1]}, "scale")]
            with pytest.raises(InputError, match="keeps states"):
                await client.infer({}, "running")
        async with AsyncClient(f"http://{server.http_address}", timeout_s=30) as client:
            again = await client.infer({"TABLE": table, "TIMES": [3]}, "scale", outputs=["PRODUCT"])
            with pytest.raises(InputError, match="use its gRPC port"):
                _ = [each async for each in client.infer_stream(ASKED, "answers")]
        return said, first, scaled["PRODUCT"], again["PRODUCT"]

    said, first, scaled, again = asyncio.run(ask())
    assert said == [[b"twice"], [b"twice"]]
    assert first == [b"twice"]
    np.testing.assert_array_equal(scaled, 3 * table)
    np.testing.assert_array_equal(again, 3 * table)


@pytest.mark.parametrize(("characters", "limits"), [(1, 1), (1000, 1), (1001, 2), (16_384, 17)])
def test_a_long_text_may_be_spoken_for_longer(monkeypatch: pytest.MonkeyPatch, characters: int, limits: int) -> None:
    asked: list[float] = []

    def answers(call: Any) -> Iterator[Any]:
        asked.append(call.timeout_s)
        yield from ()

    with Client("localhost:1", timeout_s=20) as client:
        info = ModelInfo(name="voice", kind="synthesis", inputs={"TEXT": Tensor("BYTES", (1,))})
        monkeypatch.setattr(client, "model", lambda *_, **__: info)
        monkeypatch.setattr(client._transport, "answers", answers)
        assert list(client.speak_iter("a" * characters)) == []
    assert asked == [20 * limits]
