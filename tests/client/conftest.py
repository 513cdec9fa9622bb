"""One server with toy models for all tests of the client, and clients for both protocols."""

from collections.abc import Iterator

import pytest

from tritone.client import Client
from tritone.server import TritonServer
from wire_toys import toy_server


@pytest.fixture(scope="session")
def wire_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    models = ("count", "running", "other", "scale", "speaker", "lone")
    with toy_server(tmp_path_factory.mktemp("repository"), *models) as server:
        yield server


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, wire_server: TritonServer) -> Iterator[Client]:
    url = wire_server.grpc_address if request.param == "grpc" else f"http://{wire_server.http_address}"
    with Client(url, timeout_s=30) as client:
        yield client
