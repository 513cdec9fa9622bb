"""A model whose process ends under live streams, where no proxy is between the gateway and Triton."""

import json
import time
from pathlib import Path

import websockets.sync.client as websockets

from proxied import get
from serving import descendants
from states import WAIT_S, until
from tritone.gateway import GatewayOptions
from tritone.gateway.server import GatewayServer
from tritone.net.prometheus import samples
from wire_toys import COMPLETE, busy, running_server, write_models

TEN = 10


def waiting(port: int) -> float:
    """How many requests wait at Triton."""
    page = get(port, "/metrics")[1].decode().splitlines()
    return sum(value for name, _, value in samples(page) if name == "nv_inference_pending_request_count")


def test_all_streams_of_a_model_whose_process_ended_are_told_at_once(tmp_path: Path) -> None:
    """Triton alone answers one a second."""
    held = busy(write_models(tmp_path, "spoken"), "spoken")
    with running_server(tmp_path, COMPLETE) as server:
        options = GatewayOptions(triton=f"http://{server.http_address}", port=0, stream_model="spoken")
        with GatewayServer(options).background() as gateway:
            path = f"ws://127.0.0.1:{gateway.port}/v1/stream?sample_rate=16000"
            clients = [websockets.connect(path, open_timeout=WAIT_S) for _ in range(TEN)]
            for each in clients:
                each.send(bytes(32000))
                while json.loads(each.recv(timeout=WAIT_S))["type"] != "partial":
                    pass
            held.touch()  # so that all chunks are on their way
            for each in clients:
                each.send(bytes(32000))
            until(lambda: waiting(server.options.metrics_port) >= 1)  # behind those that it is at, which may be several
            next(each for each in descendants(server.pid) if each.name().startswith("triton_python")).kill()
            held.unlink()
            began = time.monotonic()
            for each in clients:
                told = {"type": "partial"}
                while told["type"] == "partial":
                    told = json.loads(each.recv(timeout=WAIT_S))
                assert (told["type"], told["code"]) == ("error", "stream_lost")
                each.close()
            assert time.monotonic() - began < TEN / 2
            server.kill()  # it would wait for what it does not answer any more
