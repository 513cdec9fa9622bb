"""One real server for the folder: toy models with small limits."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import RawClient, quiet_options
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer

# name of the bundle's models -> what is built, how it is served. The queue delay lets requests that are sent at once
# share a batch; a batch that is full does not wait.
MODELS = {
    "toy": ("offline", ModelOptions(max_batch_size=8, queue_delay_ms=100, max_audio_s=20)),
    "narrow": ("offline", ModelOptions(max_batch_size=8, queue_delay_ms=500, queue_limit=2)),
    "toy-chunks": (
        "streaming",
        ModelOptions(max_batch_size=4, queue_delay_ms=50, max_audio_s=20, max_streams=4, stream_idle_timeout_s=600),
    ),
    "brief": ("streaming", ModelOptions(queue_delay_ms=0, max_streams=2, stream_idle_timeout_s=0.3)),
    "pair": ("streaming", ModelOptions(queue_delay_ms=0, instances=2, max_streams=4, stream_idle_timeout_s=600)),
}


@pytest.fixture(scope="session")
def server(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("served") / "repository"
    for name, (mode, options) in MODELS.items():
        build_repository([toy_bundle], repository, names=[name], modes=mode, options=options)  # type: ignore[arg-type]
    with TritonServer(repository, quiet_options()) as running:
        yield running


@pytest.fixture(scope="session")
def raw(server: TritonServer) -> RawClient:
    return RawClient(server.grpc_address)
