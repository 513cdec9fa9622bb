"""`tritone top` and the files of deploy/monitoring: what they show of a real server is what was sent to it."""

import asyncio
import json
import math
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from typer.testing import CliRunner

from elsewhere import Elsewhere, wav
from serving import Ask, RawClient
from toy import SAMPLE_RATE, toy_waveform
from tritone.cli.main import app
from tritone.client.endpoint import Endpoint
from tritone.gateway import GatewayOptions
from tritone.gateway.ask import Ask as SpeechAsk
from tritone.gateway.callers import Caller
from tritone.gateway.server import GatewayServer
from tritone.gateway.upstreams.options import UpstreamOptions
from tritone.loadtest.findings.statistics import Look
from tritone.monitor import Activity, ModelActivity, Monitor, Snapshot, activity
from tritone.proxy import Proxy, ProxyOptions
from tritone.server import TritonServer, free_ports

DOCS = Path(__file__).parents[2] / "docs"
MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
DASHBOARD = MONITORING / "grafana" / "tritone.json"
WORD = toy_waveform("good day")
WAIT_S = 90.0
needs_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus") or not shutil.which("promtool"), reason="Prometheus is not installed"
)


def metrics_url(server: TritonServer) -> str:
    return f"http://{server.options.address('metrics')}/metrics"


def counted(monitor: Monitor, before: Snapshot, requests: int) -> tuple[ModelActivity, Activity, Snapshot]:
    """What a monitor sees of the toy model once so many requests were counted: Triton does so after it answered."""
    end = time.monotonic() + WAIT_S
    while True:
        after = monitor.look()
        found = activity(before, after)
        (toy,) = (each for each in found.models if each.model == "toy")
        if (seen := round(toy.requests_per_s * found.seconds)) >= requests or time.monotonic() > end:
            assert seen == requests
            return toy, found, after
        time.sleep(0.02)


def test_rates_batches_and_memory_are_of_what_was_sent(server: TritonServer, raw: RawClient) -> None:
    with Monitor(Endpoint.parse(server.grpc_address), metrics_url(server)) as monitor:
        before = monitor.look()
        assert raw.together([Ask(model="toy", wav=WORD)] * 6) == ["good day"] * 6
        raw.ask(Ask(model="toy", wav=WORD, parameters={"nothing": 1}))
        time.sleep(0.06)  # numbers are told at most every 50 ms, with a request
        raw.ask(Ask(model="toy", wav=WORD))
        toy, found, after = counted(monitor, before, 8)
    assert round(toy.failures_per_s * found.seconds) == 1
    assert toy.latency_ms == pytest.approx(toy.queue_ms + toy.compute_ms)
    assert 0 < toy.p50_ms <= toy.p95_ms <= toy.p99_ms
    assert 0 <= toy.queue_p95_ms <= toy.p99_ms
    assert 1 <= toy.batch <= 7
    assert toy.fill == pytest.approx(toy.batch / after.max_batch_sizes["toy"])
    assert 0 < toy.audio_rate * found.seconds <= 7 * len(WORD) / SAMPLE_RATE + 0.01
    assert 0 <= toy.padding < 1
    assert toy.waiting == 0
    assert 10e6 < toy.memory < 10e9
    assert toy.streams is None  # a model for whole utterances
    assert not found.restarted
    others = [each for each in found.models if each.model != "toy"]
    assert all(each.requests_per_s == 0 and each.latency_ms is None for each in others)
    assert any(each.streams is not None for each in others)


def test_counters_that_began_anew_are_no_negative_rates(server: TritonServer) -> None:
    with Monitor(Endpoint.parse(f"http://{server.http_address}"), metrics_url(server)) as monitor:
        earlier, now = monitor.look(), monitor.look()
    of_a_new_server = {name: type(look)() for name, look in now.looks.items()}
    found = activity(earlier, type(now)(time_s=now.time_s + 1, looks=of_a_new_server, gauges={}))
    assert found.restarted
    assert {each.requests_per_s for each in found.models} == {0.0}


def test_a_model_that_never_heard_audio_has_no_rate_of_it() -> None:
    looks = [{"table": Look(requests=count, audio_s=0.0, padding_s=0.0)} for count in (0, 5)]
    earlier, later = (Snapshot(time_s=second, looks=look, gauges={}) for second, look in enumerate(looks))
    (found,) = activity(earlier, later).models
    assert (found.requests_per_s, found.audio_rate) == (5.0, None)


def test_percentiles_through_the_proxy_are_of_what_passed_between_the_looks() -> None:
    bounds = (0.01, 0.02, 0.05, math.inf)
    counts = [dict(zip(bounds, each, strict=True)) for each in ((90.0, 95, 100, 100), (90.0, 145, 200, 200))]
    earlier, later, restarted = (
        Snapshot(time_s=second, looks={"toy": Look()}, gauges={}, through={"toy": each})
        for second, each in enumerate([*counts, counts[0]])
    )
    (found,) = activity(earlier, later).models
    assert found.proxy_p50_ms == pytest.approx(20)  # 50 from 10 to 20 ms, 50 from 20 to 50 ms
    assert found.proxy_p95_ms == pytest.approx(47)
    assert activity(later, restarted).models[0].proxy_p50_ms == pytest.approx(10 * 50 / 90)
    assert activity(later, later).models[0].proxy_p99_ms is None
    beyond = Snapshot(time_s=9, looks={"toy": Look()}, gauges={}, through={"toy": {0.01: 0.0, math.inf: 3.0}})
    assert activity(Snapshot(time_s=8, looks={}, gauges={}), beyond).models[0].proxy_p50_ms == pytest.approx(10)


def test_the_command_prints_tables_and_lines_of_json(server: TritonServer) -> None:
    common = ["top", "--url", server.grpc_address, "--interval", "0.1", "--count", "2"]
    result = CliRunner().invoke(app, [*common, "--metrics-url", metrics_url(server)])
    assert result.exit_code == 0, result.output
    assert result.output.count("req/s") == 2
    assert re.search(r"^toy +0\.0 +0\.0 ", result.output, re.MULTILINE)
    result = CliRunner().invoke(app, [*common, "--json", "--metrics-url", "http://127.0.0.1:1/metrics"])
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert len(lines) == 2
    assert "toy" in {each["model"] for each in lines[0]["models"]}
    assert {each["streams"] for each in lines[0]["models"]} == {None}


def test_a_server_that_is_not_there_is_an_error() -> None:
    result = CliRunner().invoke(app, ["top", "--url", "localhost:1"])
    assert result.exit_code == 1
    assert "Is a server running there?" in result.output


@needs_prometheus
def test_promtool_takes_the_configuration_and_the_alerts_hold_for_what_they_are_meant() -> None:
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=MONITORING, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_unit_test_a_section_of_the_handbook_and_says_what_to_do() -> None:
    alerts = re.findall(r"alert: (\w+)", (MONITORING / "alerts.yml").read_text(encoding="utf-8"))
    tests = (MONITORING / "alerts_test.yml").read_text(encoding="utf-8")
    assert len(alerts) >= 10
    assert [name for name in alerts if name not in tests] == []
    text = (MONITORING / "alerts.yml").read_text(encoding="utf-8")
    assert text.count("action:") == len(alerts)
    assert re.findall(r"runbook_url: (\S+)", text) == [f"operations/alerts.md#{name.lower()}" for name in alerts]
    sections = re.findall(r"^## (\w+)$", (DOCS / "operations" / "alerts.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(sections) == sorted(alerts)


@pytest.fixture
def proxy(server: TritonServer) -> Iterator[Proxy]:
    """One in front of the server, whose metrics page has the server's, too."""
    http, grpc, metrics = free_ports(3)
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    behind = {"upstream_http": server.http_address, "upstream_grpc": server.grpc_address}
    behind["upstream_metrics"] = server.options.address("metrics")
    with Proxy(ProxyOptions(host="127.0.0.1", key=server.options.key, **ports, **behind)) as running:
        yield running


@pytest.fixture
def gateway(proxy: Proxy) -> Iterator[GatewayServer]:
    """One in front of the proxy, with a server of others that answers and one that is not there."""
    with Elsewhere() as there:
        upstreams = (
            UpstreamOptions(name="there", url=there.url),
            UpstreamOptions(name="away", url="http://127.0.0.1:1/v1", failures=1, retries=0, rest_s=0.5),
        )
        options = GatewayOptions(
            triton=f"http://127.0.0.1:{proxy.options.http_port}", port=0, upstreams=upstreams, access_log=False
        )
        with GatewayServer(options).background() as running:
            yield running


@pytest.fixture
def prometheus(proxy: Proxy, gateway: GatewayServer, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes the server and the gateway five times a second."""
    config = (MONITORING / "prometheus.yml").read_text(encoding="utf-8")
    config = config.replace("localhost:8002", f"127.0.0.1:{proxy.options.metrics_port}").replace("15s", "200ms")
    config = config.replace("localhost:9000", f"127.0.0.1:{gateway.port}")
    (tmp_path / "prometheus.yml").write_text(config, encoding="utf-8")
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    (port,) = free_ports(1)
    command = [
        *("prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
@needs_prometheus
def test_a_prometheus_that_scrapes_a_busy_server_answers_every_query_of_the_dashboard(
    proxy: Proxy, gateway: GatewayServer, prometheus: str
) -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = {
        f"{panel['title']}: {target['legendFormat']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }
    assert len(queries) >= 40
    # These have nothing to show without a GPU or a failure.
    empty = re.compile("nv_gpu|request_failure")
    wanted = {name for name, query in queries.items() if not empty.search(query)}
    done = threading.Event()

    async def spoken() -> None:
        async with await gateway.gateway.speech.open(SpeechAsk(model="segments"), SAMPLE_RATE, Caller()) as live:
            await live.accept(WORD)
            await live.finish()
            gateway.gateway.speech.observe("turn", live, 0.07)  # no classifier of ends of turns is served here

    def load() -> None:
        client = RawClient(f"127.0.0.1:{proxy.options.grpc_port}")
        assert gateway.loop is not None
        for number in range(1, 10_000):
            client.ask(Ask(model="toy", wav=WORD))
            client.ask(Ask(model="segments", wav=WORD, stream=number, start=True, end=True))
            for model in ("toy", "there", "away"):
                with suppress(openai.APIStatusError):
                    applications.audio.transcriptions.create(file=wav(WORD), model=model)
            asyncio.run_coroutine_threadsafe(spoken(), gateway.loop).result(WAIT_S)
            if done.wait(0.02):
                return

    url = f"http://127.0.0.1:{gateway.port}/v1"
    applications = openai.OpenAI(base_url=url, api_key="any", timeout=WAIT_S, max_retries=0)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        deadline = time.monotonic() + WAIT_S
        answered: set[str] = set()
        while not wanted <= answered:
            assert time.monotonic() < deadline, f"without an answer: {wanted - answered}"
            answered = {name for name, query in queries.items() if ask(prometheus, query)}
            time.sleep(0.2)
        rates = {labels["model"]: rate for labels, rate in ask(prometheus, queries["Requests answered: {{model}}"])}
        assert rates["toy"] > 0
        # Other tests leave streams open on this server, the machine is what it is, and one upstream is away.
        names = "TritoneMemoryNearLimit|TritoneStreamsNearLimit|TritoneUpstreamDown"
        assert ask(prometheus, f'ALERTS{{alertname!~"{names}"}}') == []
        for name in ("instance", "model"):  # the variables by which panels are narrowed
            (variable,) = (each for each in dashboard["templating"]["list"] if each["name"] == name)
            series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            found = {labels[label] for labels, _ in ask(prometheus, series)}
            assert (
                found
                >= {
                    "instance": {f"127.0.0.1:{proxy.options.metrics_port}", f"127.0.0.1:{gateway.port}"},
                    "model": {"toy", "segments", "there"},
                }[name]
            )
    finally:
        done.set()
        thread.join()
        applications.close()


def ask(prometheus: str, query: str) -> list[tuple[dict[str, str], float]]:
    """The labels and values that a query of the dashboard finds now; none while Prometheus starts."""
    for variable, value in {"$__rate_interval": "10s", "$instance": ".*", "$model": ".*"}.items():
        query = query.replace(variable, value)
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: Any = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return []
        raise AssertionError(f"{query}: {error.read().decode()}") from error
    except urllib.error.URLError:
        return []
    return [(each["metric"], float(each["value"][1])) for each in found["data"]["result"]]
