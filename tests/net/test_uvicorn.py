"""What of uvicorn the HTTP server uses beyond uvicorn's documents.

uvicorn has no option for the time or the size of a request's head, and none for the patience of pings, so its
connections are classes of ours above its own (`tritone.net.http_server`, `tritone.net.websockets`). pyproject.toml
allows the one minor version that they were tried with. To take a newer one: change the bound, and run tests/net,
tests/proxy and tests/gateway; what fails here names what uvicorn has changed.
"""

import asyncio
import inspect
import tomllib
from pathlib import Path

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from tritone.net.http_server import Connection, HttpServer, _Flow
from tritone.net.websockets import ClientProtocol

ROOT = Path(__file__).resolve().parents[2]
OURS = {
    "_go_on",
    "_is_full",
    "_read_on",
    "_is_answered",
    "_refuse_head",
    "_refuse",
    "_lose",
    "_abort_after",
    "_stop_timer",
}


def test_the_version_is_bounded_wherever_it_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [*project["dependencies"], *(each for group in project["optional-dependencies"].values() for each in group)]
    bounds = {str(found.specifier) for each in named if (found := Requirement(each)).name == "uvicorn"}
    major, minor = map(int, uvicorn.__version__.split(".")[:2])
    assert bounds == {f"<{major}.{minor + 1},>={major}.{minor}"}


@pytest.mark.parametrize(
    ("ours", "theirs", "own"),
    [
        (Connection, HttpToolsProtocol, OURS),
        (_Flow, FlowControl, set()),
        (ClientProtocol, WebSocketsSansIOProtocol, set()),
    ],
)
def test_methods_that_are_replaced_are_there(ours: type, theirs: type, own: set[str]) -> None:
    replaced = {name for name, value in vars(ours).items() if inspect.isfunction(value)} - own
    assert replaced <= set(vars(theirs))


def test_attributes_that_are_used_are_there() -> None:
    asyncio.run(_look())


async def _look() -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    config = uvicorn.Config(app, http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    http = Connection(HttpServer(app, idle_s=1.0), config, ServerState())
    for name in ("_should_upgrade", "_unset_keepalive_if_required", "handle_websocket_upgrade", "parser"):
        assert hasattr(http, name), name
    for name in ("cycle", "flow", "transport", "loop", "url", "headers", "server_state", "pipeline"):
        assert hasattr(http, name) or name == "url", name  # that is set by the first request
    assert {"connections", "tasks", "default_headers"} <= set(vars(ServerState()))
    used = {"response_started", "response_complete", "more_body", "disconnected", "message_event", "body"}
    assert used <= set(RequestResponseCycle.__init__.__code__.co_names)
    socket = ClientProtocol(config, ServerState(), {})
    for name in ("read_paused", "ping_sent_at", "pong_timer", "handshake_complete", "schedule_ping"):
        assert hasattr(socket, name), name
    assert asyncio.get_running_loop() is http.loop
