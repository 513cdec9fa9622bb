"""One Triton of toy models and one gateway in a thread, for all protocols.

Models: `toy` transcribes recordings and `live` streams, whose segments end after 0.4 s of silence; what they write can
be told from their audio (`toy_waveform`, `frames_waveform`). `talk` finds speech in streams. `voices` embeds. `turns`
says how sure it is that a turn has ended: by the seconds of sound in its window.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import quiet_options
from toy_speaker import write_toy_speaker
from toy_turn import write_toy_turn
from tritone.gateway import GatewayLimits, GatewayOptions
from tritone.gateway.server import GatewayServer
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer
from wire_toys import COMPLETE, write_models

TIMEOUT_S = 60.0  # of what takes a moment, on machines that are busy

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="session")
def triton(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("behind") / "repository"
    offline = ModelOptions(max_batch_size=8, queue_delay_ms=0, max_audio_s=10)
    build_repository([toy_bundle], repository, names=["toy"], modes="offline", options=offline)
    streaming = ModelOptions(
        queue_delay_ms=0, max_streams=32, stream_idle_timeout_s=600, endpoint_silence_after_speech_s=0.4
    )
    build_repository([toy_bundle], repository, names=["live"], modes="streaming", options=streaming)
    write_models(repository, "talk")
    build_repository([write_toy_speaker(repository.parent / "speaker")], repository, names=["voices"])
    build_repository([write_toy_turn(repository.parent / "turn")], repository, names=["turns"])
    with TritonServer(repository, quiet_options(extra=COMPLETE)) as running:
        yield running


@pytest.fixture(scope="session")
def gateway(triton: TritonServer) -> Iterator[GatewayServer]:
    """A gateway with all protocols, on free ports; `gateway.port` is that of HTTP and WebSockets."""
    limits = GatewayLimits(second_pass_s=60)  # which no slow machine needs
    url = f"http://{triton.http_address}"
    with GatewayServer(GatewayOptions(triton=url, port=0, limits=limits)).background() as running:
        yield running


@pytest.fixture(scope="session")
def turning(triton: TritonServer) -> Iterator[GatewayServer]:
    """A gateway whose turns the toy classifier ends."""
    options = GatewayOptions(
        triton=f"http://{triton.http_address}", port=0, ports={"riva": 0, "wyoming": 0}, turn_model="turns"
    )
    with GatewayServer(options).background() as running:
        yield running


@pytest.fixture
def run(gateway: GatewayServer) -> Run:
    """Runs a coroutine in the gateway's event loop, and returns its result."""

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        assert gateway.loop is not None
        return asyncio.run_coroutine_threadsafe(work, gateway.loop).result(TIMEOUT_S)

    return run
