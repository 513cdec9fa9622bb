"""The metrics port: health, and drains by `tritone drain`, while streams are live."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from proxied import KEY, Start, body, get, infer, post
from tritone.cli.main import app
from tritone.proxy import Proxy
from tritone.server import free_ports
from waiting import until

WAIT_S = 60


@pytest.fixture
def proxy(start: Start) -> Proxy:
    return start(metrics_port=free_ports(1)[0])


def drain(proxy: Proxy, *options: str, key: str = KEY, url: str | None = None) -> Result:
    url = url or f"127.0.0.1:{proxy.options.metrics_port}"
    return CliRunner().invoke(app, ["drain", "--metrics-url", url, *options], env={"TRITONE_KEY": key})


def chunk(proxy: Proxy, stream: int, **flags: bool) -> tuple[int, Any]:
    told = {f"sequence_{name}": value for name, value in flags.items()}
    return infer(proxy.options.http_port, "running", body([0.5], parameters={"sequence_id": stream, **told}))


def is_ready(proxy: Proxy) -> list[int]:
    ports = (proxy.options.http_port, proxy.options.metrics_port)
    assert [get(port, "/v2/health/live")[0] for port in ports] == [200, 200]
    return [get(port, "/v2/health/ready")[0] for port in ports]


def state(proxy: Proxy) -> dict[str, Any]:
    found: dict[str, Any] = get(proxy.options.metrics_port, "/drain")[1]
    return found


def test_a_drain_lasts_until_the_last_stream_has_ended_and_refuses_new_ones(proxy: Proxy) -> None:
    assert is_ready(proxy) == [200, 200]
    for stream in (1, 2, 3):
        assert chunk(proxy, stream, start=True) == (200, f"1 1 of {stream}")
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(drain, proxy, "--settle-s", "0", "--limit-s", str(WAIT_S))
        until(lambda: state(proxy)["state"] == "draining")
        assert is_ready(proxy) == [503, 503]
        assert "tritone_proxy_draining 1" in proxy.metrics()
        status, told = chunk(proxy, 4, start=True)
        assert (status, "is ending" in told) == (503, True)
        for stream in (1, 2, 3):
            assert chunk(proxy, stream) == (200, f"2 2 of {4 - stream}")
            assert not drained.done()
            assert state(proxy) == {"state": "draining", "requests": 0, "streams": 4 - stream}
            assert chunk(proxy, stream, end=True) == (200, f"3 3 of {4 - stream}")
        found = drained.result(WAIT_S)
    assert found.exit_code == 0, found.output
    assert found.stderr.splitlines()[0] == "leaving: 3 streams open, 0 requests in flight"
    assert found.stderr.splitlines()[-1] == "drained: nothing is open"
    assert is_ready(proxy) == [503, 503]
    assert drain(proxy, "--cancel").exit_code == 0
    assert is_ready(proxy) == [200, 200]
    assert chunk(proxy, 5, start=True, end=True)[0] == 200


def test_a_server_that_leaves_is_not_ready_and_takes_what_still_comes(proxy: Proxy) -> None:
    key = {"tritone-key": KEY}
    assert post(proxy.options.metrics_port, "/drain", b'{"state": "leaving"}', key)[1]["state"] == "leaving"
    assert is_ready(proxy) == [503, 503]
    assert chunk(proxy, 6, start=True, end=True) == (200, "1 1 of 1")


def test_a_drain_gives_up_at_its_limit_and_tells_what_is_left(proxy: Proxy) -> None:
    chunk(proxy, 7, start=True)
    found = drain(proxy, "--settle-s", "0", "--limit-s", "0.3")
    assert found.exit_code == 1
    assert "after 0.3 s still 1 streams" in found.stderr
    assert chunk(proxy, 7, end=True)[0] == 200


def test_a_server_that_is_not_ready_yet_has_nothing_to_drain(proxy: Proxy) -> None:
    proxy.set_ready(False, "the server starts")
    found = drain(proxy, key="")
    assert (found.exit_code, "nothing is open" in found.stderr) == (0, True)
    assert state(proxy)["state"] == "serving"


def test_only_the_key_drains_and_other_requests_are_refused(proxy: Proxy) -> None:
    port = proxy.options.metrics_port
    found = drain(proxy, key="wrong")
    assert (found.exit_code, "TRITONE_KEY" in found.stderr) == (1, True)
    assert state(proxy)["state"] == "serving"
    for wanted in ({"state": "gone"}, {}, [], {"state": "leaving", "more": 1}, {"state": ["leaving"]}):
        assert post(port, "/drain", json.dumps(wanted).encode(), {"tritone-key": KEY})[0] == 400
    assert post(port, "/drain", b"x" * 2000, {"tritone-key": KEY})[0] == 413
    assert post(port, "/metrics")[0] == get(port, "/v2/models/count")[0] == 404
    assert drain(proxy, url="nowhere").exit_code == 2
    missing = free_ports(1)[0]
    found = drain(proxy, url=f"127.0.0.1:{missing}")
    assert (found.exit_code, "does not answer" in found.stderr) == (1, True)
    assert "cannot be drained: it answers 404" in drain(proxy, url=f"127.0.0.1:{proxy.options.http_port}").stderr
