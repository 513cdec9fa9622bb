"""One Triton of toy models with locked APIs, and proxies in front of it as tests need them."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from proxied import KEY, Start
from serving import quiet_options
from states import States
from tritone.gateway import GatewayOptions
from tritone.gateway.server import GatewayServer
from tritone.proxy import Proxy, ProxyOptions
from tritone.server import TritonServer, free_ports
from wire_toys import COMPLETE, write_models


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = write_models(
        tmp_path_factory.mktemp("proxied"), "count", "running", "slow", "speaker", "narrow", "either", "many"
    )
    for name in ("slow", "narrow"):
        config = repository / name / "config.pbtxt"
        config.write_text(
            config.read_text(encoding="utf-8") + 'parameters { key: "sample_rate" value: { string_value: "1000" } }',
            encoding="utf-8",
        )
    config = repository / "slow" / "config.pbtxt"
    config.write_text(
        config.read_text(encoding="utf-8") + 'parameters { key: "max_queued_s" value: { string_value: "10" } }',
        encoding="utf-8",
    )
    options = quiet_options(key=KEY, extra=COMPLETE)
    with TritonServer(repository, options) as server:
        yield server


@pytest.fixture
def start(upstream: TritonServer) -> Iterator[Start]:
    """Starts proxies in front of `upstream`."""
    with ExitStack() as stack:

        def start(**options: Any) -> Proxy:
            http_port, grpc_port = free_ports(2)
            told = {
                "host": "127.0.0.1",
                "http_port": http_port,
                "grpc_port": grpc_port,
                "upstream_http": upstream.http_address,
                "upstream_grpc": upstream.grpc_address,
                "key": KEY,
            }
            return stack.enter_context(Proxy(ProxyOptions(**told | options)))

        yield start


@pytest.fixture
def proxy(start: Start) -> Proxy:
    return start()


@pytest.fixture(scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[States]:
    served = States(tmp_path_factory.mktemp("states"))
    yield served
    served.close()


@pytest.fixture(scope="session")
def before(states: States) -> Iterator[GatewayServer]:
    """A gateway in front of `states`."""
    options = GatewayOptions(
        triton=f"http://127.0.0.1:{states.http}", port=0, model="count", stream_model="running", aliases=("whisper-1",)
    )
    with GatewayServer(options).background() as running:
        yield running
