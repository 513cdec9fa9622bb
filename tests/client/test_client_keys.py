"""A server whose model control is locked by a key: ordinary clients need none, and every request carries one."""

import shutil
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from fronts import Front
from tritone.client import Client, Endpoint
from tritone.errors import InputError, ServerBusyError
from tritone.server import TritonServer
from wire_toys import toy_server

PROTOCOLS = ["grpc", "http"]
KEY = "open sesame"
HEADERS = {"grpc": "triton-grpc-protocol-tritone-key", "http": "tritone-key"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server with the index of models behind a key; of its models, "broken" failed to load."""
    folder = tmp_path_factory.mktemp("repository")
    with toy_server(folder, "count", "running") as server:
        shutil.copytree(folder / "count", folder / "broken")
        (folder / "broken" / "config.pbtxt").write_text('name: "broken" backend: "python"', encoding="utf-8")
        (folder / "broken" / "1" / "model.py").write_text("raise RuntimeError('no weights')", encoding="utf-8")
        with (
            triton.InferenceServerClient(server.http_address) as control,
            pytest.raises(InferenceServerException, match="no weights"),
        ):
            control.load_model("broken", headers={"tritone-key": server.options.key})
        yield server


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_models_are_listed_and_used_without_a_key(locked: TritonServer, protocol: str):
    with Client(f"{protocol}://{locked.options.address(protocol)}") as client:
        assert [(model.name, model.kind) for model in client.models()] == [
            ("count", "offline"),
            ("running", "streaming"),
        ]
        assert client.transcribe(np.ones(800, np.float32)).text == "800 800.0"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_why_a_model_is_not_ready_is_told_to_those_with_the_key(locked: TritonServer, protocol: str):
    url = f"{protocol}://{locked.options.address(protocol)}"
    told = "no ready model 'broken' (Internal: RuntimeError: no weights). Ready models: count"
    with Client(url, key=locked.options.key) as client, pytest.raises(InputError) as caught:
        client.model("broken")
    assert told in str(caught.value)
    for key in (None, "wrong"):  # to the others it may be one that is being loaded
        with Client(url, key=key) as client, pytest.raises(ServerBusyError, match="'broken': it is not ready"):
            client.model("broken")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_lock_says_what_opens_it(locked: TritonServer, protocol: str):
    url = f"{protocol}://{locked.options.address(protocol)}"
    for key, complaint in ((None, "the server's key in"), ("wrong", "the key that was sent does not fit")):
        with Client(url, key=key) as client, pytest.raises(InputError, match=complaint):
            client._transport.model_index(5)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_request_carries_the_key(wire_server: TritonServer, protocol: str):
    with Front(wire_server, protocol) as front, Client(front.url, key=KEY) as client:
        client.models()
        client.transcribe(np.ones(800, np.float32), "count")
        client.stream("running").finish()
        assert len(front.inferences) == 2
        assert {each.headers.get(HEADERS[protocol]) for each in front.seen} == {KEY}


def test_a_key_is_not_shown_and_one_that_cannot_travel_is_refused():
    assert KEY not in repr(Endpoint.parse("localhost:8001", key=KEY))
    for wrong in ("", "schlüssel", "two\nlines", " padded "):
        with pytest.raises(ValueError, match="the key must be printable ASCII") as caught:
            Endpoint.parse("localhost:8001", key=wrong)
        assert not wrong or wrong not in str(caught.value)
