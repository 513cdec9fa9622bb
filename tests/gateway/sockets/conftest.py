"""A gateway in a thread that asks a stand-in for its models, and clients of it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import websockets.sync.client as websockets

from fake_speech import FakeSpeech
from tritone.gateway import GatewayLimits, GatewayOptions
from tritone.gateway.server import GatewayServer

TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def faking() -> Iterator[GatewayServer]:
    """A gateway whose limits are small enough to reach."""
    limits = GatewayLimits(max_message_kb=1024, idle_s=600)
    with GatewayServer(GatewayOptions(triton="127.0.0.1:9", port=0, limits=limits)).background() as running:
        yield running


@pytest.fixture
def fake(faking: GatewayServer) -> FakeSpeech:
    found = FakeSpeech()
    faking.gateway.speech = found  # type: ignore[assignment]
    return found


@pytest.fixture
def connect(faking: GatewayServer, fake: FakeSpeech) -> Iterator[Callable[..., websockets.ClientConnection]]:
    """Connects a client to a path; all are closed in the end."""
    with ExitStack() as stack:

        def connect(path: str, **options: Any) -> websockets.ClientConnection:
            address = f"ws://127.0.0.1:{faking.port}{path}"
            client = websockets.connect(address, open_timeout=TIMEOUT_S, close_timeout=TIMEOUT_S, **options)
            stack.callback(client.close)
            return client

        yield connect
