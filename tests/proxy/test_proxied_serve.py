"""`tritone serve --proxy` as a process: the proxy in front, the key for commands, ends and restarts."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import yaml
from typer.testing import CliRunner

from killers import killer, send
from proxied import Served, body, get, infer
from tritone.cli.main import app
from tritone.keys import find_key
from tritone.net.prometheus import samples
from waiting import until
from wire_toys import write_models

ROOT = Path(__file__).parents[2]
WAIT_S = 60


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    repository = write_models(tmp_path, "count", "running", "slow", "spoken")
    served = Served(repository)
    yield served
    served.close()


def test_the_proxy_stands_in_front_and_lasts_longer_than_triton(served: Served) -> None:
    assert re.search(rf"http 127.0.0.1:{served.http} +grpc 127.0.0.1:{served.grpc}", served.said)
    triton = served.triton()
    listening = {each.laddr for each in triton.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert not {address.port for address in listening} & {served.http, served.grpc, served.metrics}

    assert send(f"127.0.0.1:{served.http}", killer("classification of text")).startswith(b"HTTP/1.1 400 ")
    assert infer(served.http, "count", body()) == (200, "2 0.8")
    assert get(served.http, "/v2/logging")[0] == 403
    key = find_key(served.grpc)
    assert get(served.http, "/v2/logging", {"tritone-key": key})[0] == 200
    told = get(served.metrics, "/metrics")[1].decode()
    assert "tritone_proxy_ready 1" in told
    assert "nv_inference_count" in told
    assert "\ntritone_server_starts_total 1.0\n" in told
    assert '\ntritone_model_ready{model="slow"} 1.0\n' in told
    values = {name: value for name, _, value in samples(told.splitlines())}
    assert 30e6 < values["tritone_memory_bytes"] < values["tritone_memory_limit_bytes"]
    assert 0 < values["tritone_shared_memory_free_bytes"] < values["tritone_shared_memory_bytes"]

    stream = body(parameters={"sequence_id": 5, "sequence_start": True})
    assert infer(served.http, "running", stream)[0] == 200
    triton.kill()
    until(lambda: get(served.http, "/v2/health/ready")[0] != 200)
    until(lambda: get(served.http, "/v2/health/ready")[0] == 200)
    assert "\ntritone_server_starts_total 2.0\n" in get(served.metrics, "/metrics")[1].decode()
    assert infer(served.http, "count", body()) == (200, "2 0.8")
    status, told = infer(served.http, "running", body(parameters={"sequence_id": 5}))
    assert (status, "was lost" in told) == (503, True)

    # the commands of the user who started it find the key
    for how in (("--settle-s", "0", "--limit-s", str(WAIT_S)), ("--cancel",)):
        drained = CliRunner().invoke(app, ["drain", "--metrics-url", f"127.0.0.1:{served.metrics}", *how])
        assert drained.exit_code == 0, drained.output
        assert get(served.http, "/v2/health/ready")[0] == (200 if how == ("--cancel",) else 503)

    # what is in flight ends, what is new is refused
    busy = http.client.HTTPConnection("127.0.0.1", served.http, timeout=20)
    busy.request("POST", "/v2/models/slow/infer", json.dumps(body([1.0])))
    until(lambda: "tritone_proxy_requests_in_flight 1" in get(served.metrics, "/metrics")[1].decode())
    served.process.send_signal(signal.SIGTERM)
    until(lambda: get(served.http, "/v2/health/ready")[0] != 200)
    status, told = infer(served.http, "count", body())
    assert (status, "is ending" in told) == (503, True)
    assert busy.getresponse().status == 200
    busy.close()
    _, log = served.process.communicate(timeout=WAIT_S)
    assert served.process.returncode == 0, log


def spoken(served: Served, stream: int, **flags: bool) -> tuple[int, str]:
    told = {f"sequence_{name}": value for name, value in flags.items()}
    return infer(served.http, "spoken", body([0.0, 0.0], parameters={"sequence_id": stream, **told}))


@pytest.mark.slow
def test_a_pod_that_goes_keeps_fifty_live_streams_until_they_end(served: Served) -> None:
    """The preStop hook of deploy/kubernetes, with the ports of this server, then SIGTERM."""
    pod = next(
        each["spec"]["template"]["spec"]
        for each in yaml.safe_load_all((ROOT / "deploy/kubernetes/plain/cpu-volume.yaml").read_text(encoding="utf-8"))
        if each["kind"] == "Deployment"
    )
    _, *hook = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    hook = [
        *(word for word in hook if not word.startswith("--settle-s")),
        "--settle-s=1",
        f"--url=127.0.0.1:{served.metrics}",
    ]
    speaking, over = [threading.Event() for _ in range(50)], threading.Event()

    def speak(stream: int) -> tuple[int, bool]:
        assert spoken(served, stream, start=True)[0] == 200
        samples = 2
        while not over.wait(0.5):
            samples += 2
            assert spoken(served, stream) == (200, str(samples))
            speaking[stream - 1].set()
        status, text = spoken(served, stream, end=True)
        return status, text == str(samples + 2)

    with ThreadPoolExecutor(len(speaking)) as pool:
        streams = [pool.submit(speak, stream) for stream in range(1, len(speaking) + 1)]
        try:
            assert all(each.wait(WAIT_S) for each in speaking)
            command = [sys.executable, "-c", "from tritone.cli.main import app; app()", *hook]
            with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") as drain:
                until(lambda: spoken(served, 99, start=True, end=True)[0] != 200)
                for port in (served.http, served.metrics):
                    assert get(port, "/v2/health/ready")[0] == 503
                    assert get(port, "/v2/health/live")[0] == 200
                assert get(served.metrics, "/drain")[1]["streams"] == len(speaking)
                assert drain.poll() is None
                over.set()
                assert [each.result(WAIT_S) for each in streams] == [(200, True)] * len(speaking)
                _, told = drain.communicate(timeout=WAIT_S)
                assert (drain.returncode, told.splitlines()[-1]) == (0, "drained: nothing is open")
        finally:
            over.set()
    served.process.send_signal(signal.SIGTERM)
    _, log = served.process.communicate(timeout=WAIT_S)
    assert served.process.returncode == 0, log


def test_tls_without_a_proxy_is_wrong_usage(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "serve", str(tmp_path), "--no-proxy"]
    done = subprocess.run([*command, "--tls-key", "k"], capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 2
    assert "--proxy" in done.stderr
