"""Models that are being loaded again, behind a proxy and a gateway: what clients get, by every protocol."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import websockets.sync.client as websockets
from tritonclient.grpc import service_pb2 as pb
from websockets.exceptions import ConnectionClosed

from proxied import Served, body, get, infer, inputs, post
from states import SOUND, WAIT_S, States, form, hint
from tritone.client import Client
from tritone.errors import InputError, ServerBusyError
from tritone.gateway.server import GatewayServer
from tritone.net.refusal import LONGEST_HINT_S

TEN = 10
RAMP = np.linspace(0, 0.5, 800, dtype=np.float32)


@pytest.fixture(scope="module")
def loading(states: States, before: GatewayServer) -> Iterator[States]:
    """The server while both models are being loaded again."""
    with states.losing("count"), states.losing("running"):
        yield states


@pytest.mark.parametrize("path", ["", "/config", "/ready", "/stats", "/infer"])
def test_a_model_that_is_loaded_again_is_503_by_http_and_says_when(loading: States, path: str) -> None:
    ask = (lambda p: post(loading.http, p, json.dumps(body()).encode())) if path == "/infer" else get_of(loading)
    status, told, headers = ask(f"/v2/models/count{path}")
    assert (status, "'count' is not ready" in told["error"]) == (503, True)
    assert 1 <= hint(headers) <= LONGEST_HINT_S
    assert ask(f"/v2/models/nobody{path}")[0] == 404


def get_of(served: Served) -> Callable[[str], tuple[int, Any, dict[str, str]]]:
    return lambda path: get(served.http, path)


def test_a_model_that_is_loaded_again_is_unavailable_by_grpc_and_says_when(loading: States) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{loading.grpc}")
    for ask in (client.get_model_config, client.get_model_metadata, client.get_inference_statistics):
        for model, status in (("count", "StatusCode.UNAVAILABLE"), ("nobody", "StatusCode.NOT_FOUND")):
            with pytest.raises(triton.InferenceServerException) as caught:
                ask(model)
            assert caught.value.status() == status
    assert not client.is_model_ready("count")
    request = pb.ModelInferRequest(model_name="count", inputs=[each._get_tensor() for each in inputs()])
    request.raw_input_contents.extend(each._get_content() for each in inputs())
    with pytest.raises(grpc.RpcError) as refused:
        client._client_stub.ModelInfer(request)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert int(dict(refused.value.trailing_metadata())["retry-after-ms"]) >= 1


def test_other_models_answer_while_one_is_loaded(loading: States) -> None:
    for _ in range(4):
        assert infer(loading.http, "slow", body([0.0]))[0] == 200
        assert get(loading.http, "/v2/models/slow/config")[0] == 200
    assert get(loading.http, "/v2/health/ready")[0] == 503
    assert get(loading.http, "/v2/health/live")[0] == 200


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_client_can_try_a_model_that_is_loaded_again_later(loading: States, protocol: str) -> None:
    with Client(f"{protocol}://127.0.0.1:{getattr(loading, protocol)}") as client:
        assert [each.name for each in client.models()] == ["slow"]
        with pytest.raises(ServerBusyError) as caught:
            client.transcribe(RAMP, "count")
        assert caught.value.retry_after_s
        with pytest.raises(ServerBusyError):
            client.stream("running")
        with pytest.raises(InputError, match="no ready model 'nobody'"):
            client.transcribe(RAMP, "nobody")


@pytest.mark.parametrize("model", ["count", "whisper-1", "running"])
def test_recordings_through_a_gateway_are_503_while_the_model_is_loaded(
    loading: States, before: GatewayServer, model: str
) -> None:
    for more in ({}, {"stream": "true"}):
        status, told, headers = post(before.port, "/v1/audio/transcriptions", *form(model=model, **more))
        assert (status, told["error"]["code"], hint(headers)) == (503, "overloaded", 1)
    assert post(before.port, "/v1/audio/transcriptions", *form(model="nobody"))[0] == 404
    status, told, headers = post(before.port, "/v1/listen", SOUND, {"content-type": "audio/wav"})
    assert (status, hint(headers)) == (503, 1)
    assert get(before.port, "/v1/models")[0] == 200  # those that are ready; and nothing is forgotten by it
    assert get(before.port, "/v1/models/count")[0] == 503
    assert get(before.port, "/v1/models/nobody")[0] == 404
    assert get(before.port, "/health/ready")[0] == 503


SAID = {
    "/v1/stream": '{"type": "start"}',
    "/v1/listen?encoding=linear16&sample_rate=16000": "",
    "/v2/listen?encoding=linear16&sample_rate=16000": "",
    "/vosk": '{"config": {"sample_rate": 16000}}',
    "/wenet": '{"signal": "start"}',
}


@pytest.mark.parametrize("path", SAID)
def test_live_streams_are_closed_with_try_again_later_while_the_model_is_loaded(
    loading: States, before: GatewayServer, path: str
) -> None:
    with websockets.connect(f"ws://127.0.0.1:{before.port}{path}", open_timeout=WAIT_S) as client:
        if SAID[path]:
            client.send(SAID[path])
        client.send(bytes(6400))
        with suppress(ConnectionClosed):
            while True:
                client.recv(timeout=WAIT_S)
        assert client.close_code == 1013


def test_calls_of_many_answers_say_that_it_can_be_tried_later(loading: States) -> None:
    answers: list[Any] = []
    told = threading.Event()

    def took(result: Any, error: Any) -> None:
        answers.append(error)
        told.set()

    client = triton.InferenceServerClient(f"127.0.0.1:{loading.grpc}")
    client.start_stream(took)
    client.async_stream_infer("count", inputs())
    assert told.wait(WAIT_S)
    client.stop_stream()
    assert "is not ready" in str(answers[0])
