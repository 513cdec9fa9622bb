"""NVIDIA's perf_analyzer and ApacheBench themselves, on a real server with the files that we write for them.

They are looked for beside the interpreter, where `make test-all` puts perf_analyzer, on PATH, or where the variables
PERF_ANALYZER and AB say; without them the tests are skipped.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving import quiet_options
from toy import SAMPLE_RATE, toy_waveform
from tritone.bench.perf_analyzer import PerfAnalyzer
from tritone.bench.perf_input import PerfInput, write_inputs
from tritone.bench.plan import Point
from tritone.client.endpoint import Endpoint, Protocol
from tritone.errors import InputError
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.requests.offline import measure_closed
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.workload.workload import Workload
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer
from wire_toys import toy_server

pytestmark = pytest.mark.slow

WORDS = ["one", "two three", "four five six"]
WINDOWS = WindowPlan(window_s=0.5, max_windows=3)
LENGTHS_S = [len(toy_waveform(word)) / SAMPLE_RATE for word in WORDS]


def needed(name: str) -> Path:
    beside = Path(sys.executable).parent
    found = os.environ.get(name.upper()) or shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if not found:
        where = "`make .venv/bin/perf_analyzer` fetches it" if name == "perf_analyzer" else "Debian: apache2-utils"
        pytest.skip(f"there is no {name} beside Python or on PATH, and {name.upper()} does not name one ({where})")
    return Path(found)


@pytest.fixture(scope="module")
def served(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("others") / "repository"
    build_repository([toy_bundle], repository, options=ModelOptions(queue_delay_ms=0))
    with TritonServer(repository, quiet_options()) as server:
        yield server


@pytest.fixture(scope="module", params=[False, True], ids=["samples", "base64"])
def inputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[PerfInput]:
    folder = tmp_path_factory.mktemp("inputs")
    waveforms = map(toy_waveform, WORDS)
    return write_inputs(waveforms, folder, sample_rate=SAMPLE_RATE, chunk_s=0.1, as_base64=request.param)


def target_of(server: TritonServer, protocol: Protocol, model: str = "toy", streaming: bool = False) -> Target:
    address = server.grpc_address if protocol == "grpc" else server.http_address
    endpoint = Endpoint.parse(address, protocol)
    return Target(endpoint=endpoint, model=model, sample_rate=SAMPLE_RATE, streaming=streaming)


def perf_analyzer(server: TritonServer, target: Target, inputs: PerfInput) -> PerfAnalyzer:
    metrics_url = f"http://{server.options.address('metrics')}/metrics"
    binary = needed("perf_analyzer")
    return PerfAnalyzer(target=target, inputs=inputs, binary=binary, windows=WINDOWS, metrics_url=metrics_url)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(
    "point", [Point(loop="closed", load=2), Point(loop="constant", load=50)], ids=["closed", "rate"]
)
def test_perf_analyzer_measures_whole_utterances(
    served: TritonServer, inputs: list[PerfInput], protocol: Protocol, point: Point
) -> None:
    found = perf_analyzer(served, target_of(served, protocol), inputs[0]).measure(point)
    assert found.errors == {}
    assert found.requests == found.utterances > 10
    assert found.latency is not None
    assert 0 < found.latency.p50_ms <= found.latency.p95_ms <= found.latency.p99_ms < 1000 * found.wall_s
    assert 1 < found.wall_s < 10  # three windows of half a second, which it takes a little longer
    if point.loop == "constant":
        assert found.throughput == pytest.approx(50, rel=0.4)
    assert found.server is not None
    assert found.server.failures == 0
    assert found.server.audio_s is not None
    # All that it sent arrived as it was, some utterances more often than others when it sends at a rate.
    sent = sum(size * count for size, count in found.server.batches.items())
    if point.loop == "closed":
        assert found.server.audio_s == pytest.approx(sent * sum(LENGTHS_S) / len(WORDS), rel=0.1)
    assert min(LENGTHS_S) * 0.9 < found.server.audio_s / sent < max(LENGTHS_S) * 1.1
    assert found.audio_s == pytest.approx(found.utterances * found.server.audio_s / sent)


def test_perf_analyzer_plays_streams(served: TritonServer, inputs: list[PerfInput]) -> None:
    target = target_of(served, "grpc", "toy-streaming", streaming=True)
    found = perf_analyzer(served, target, inputs[1]).measure(Point(loop="closed", load=3))
    assert found.errors == {}
    assert found.utterances > 3
    assert found.requests / found.utterances == pytest.approx(inputs[1].requests / len(WORDS), rel=0.2)


def test_batches_of_equal_utterances_are_counted_by_the_utterance(served: TritonServer, tmp_path: Path) -> None:
    (equal,) = write_inputs([toy_waveform("abc")] * 4, tmp_path, sample_rate=SAMPLE_RATE, streaming=False)
    found = perf_analyzer(served, target_of(served, "grpc"), equal).measure(Point(loop="closed", load=1, batch_size=4))
    assert found.utterances == 4 * found.requests
    assert found.server is not None
    assert set(found.server.batches) == {4}


def test_an_error_that_the_server_answers_ends_it_and_is_reported(served: TritonServer, tmp_path: Path) -> None:
    poisoned = np.full(SAMPLE_RATE, 1e30, np.float32)
    (bad,) = write_inputs([toy_waveform("abc"), poisoned], tmp_path, sample_rate=SAMPLE_RATE, streaming=False)
    found = perf_analyzer(served, target_of(served, "grpc"), bad).measure(Point(loop="closed", load=1))
    (error,) = found.errors
    assert re.match("perf_analyzer gave up: .*samples reach", error), error
    assert found.latency is None


def test_an_unknown_model_is_told(served: TritonServer, inputs: list[PerfInput]) -> None:
    with pytest.raises(InputError, match="unknown model: 'nobody'"):
        perf_analyzer(served, target_of(served, "grpc", "nobody"), inputs[0]).measure(Point(loop="closed", load=1))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_both_generators_agree_on_a_model_of_known_speed(
    concurrency: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    binary = needed("perf_analyzer")
    nap_s = 0.05  # the model sleeps as many seconds as the first sample says, one request after the other
    waveform = np.full(1000, nap_s, np.float32)
    (inputs,) = write_inputs([waveform], tmp_path, sample_rate=SAMPLE_RATE, streaming=False)
    with toy_server(tmp_path_factory.mktemp("slow"), "slow") as server:
        target = target_of(server, "grpc", "slow")
        theirs = PerfAnalyzer(target=target, inputs=inputs, binary=binary, windows=WINDOWS)
        workload = Workload(seconds="nap", sample_rate=SAMPLE_RATE, waveforms=[waveform])
        found = [
            theirs.measure(Point(loop="closed", load=concurrency)),
            measure_closed(target, workload, concurrency, LoadOptions(windows=WINDOWS, processes=1)),
        ]
    for each in found:
        assert each.failed == 0
        # A busy machine adds to a nap, which a mistake in counting would multiply.
        assert each.throughput == pytest.approx(1 / nap_s, rel=0.4)
        assert each.latency is not None
        assert each.latency.p50_ms == pytest.approx(1000 * nap_s * concurrency, rel=0.4)
