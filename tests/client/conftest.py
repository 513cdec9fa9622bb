"""Clients for both protocols."""

from collections.abc import Iterator

import pytest

from tritone.client import Client
from tritone.server import TritonServer


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, wire_server: TritonServer) -> Iterator[Client]:
    url = wire_server.grpc_address if request.param == "grpc" else f"http://{wire_server.http_address}"
    with Client(url, timeout_s=30) as client:
        yield client
