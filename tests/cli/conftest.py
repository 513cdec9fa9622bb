"""A server for the commands: toy bundles as `tritone build` serves them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from toy_speaker import write_toy_speaker
from tritone.gateway import GatewayOptions
from tritone.gateway.server import GatewayServer
from tritone.repository import build_repository
from tritone.server import TritonServer
from wire_toys import running_server


@pytest.fixture(scope="session")
def toy_speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_speaker(tmp_path_factory.mktemp("bundles") / "speaker")


@pytest.fixture(scope="session")
def served_toy(
    toy_bundle: Path,
    toy_speaker: Path,
    silero_bundle: Path,
    searches_compiled: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("repository")
    build_repository([toy_bundle, toy_speaker, silero_bundle], repository)
    with running_server(repository) as server:
        yield server


@pytest.fixture(scope="session")
def served_gateway(served_toy: TritonServer) -> Iterator[GatewayServer]:
    """A gateway in front of it."""
    with GatewayServer(GatewayOptions(triton=served_toy.grpc_address, port=0)).background() as running:
        yield running
