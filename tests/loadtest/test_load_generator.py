"""Load tests against a real Triton with a model whose answers, delays and defects are commanded by the audio itself."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import psutil
import pytest

from tritone.client import Client, Endpoint
from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.requests.offline import Interrupted, measure_closed, measure_open
from tritone.loadtest.requests.windows import Tick
from tritone.loadtest.senders.open import open_sender
from tritone.loadtest.senders.wire import Reply, Target, encode
from tritone.loadtest.workload.workload import Workload
from tritone.server import TritonServer
from waiting import until
from wire_toys import toy_server

RATE = 8000
ERROR, LIE, SHORT = 1.0, 2.0, 3.0
# Short windows, and any three of them agree: what is tested here is not how calm the machine is.
BRIEF = WindowPlan(warmup_s=0.2, window_s=0.3, max_window_s=3.0, min_requests=4, max_windows=3, tolerance=0.99)


@pytest.fixture(scope="module")
def moods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with toy_server(tmp_path_factory.mktemp("repository"), "moods", "narrow", "slow", "running", "voices") as server:
        yield server


@pytest.fixture(params=["grpc", pytest.param("http", marks=pytest.mark.slow)])
def target(request: pytest.FixtureRequest, moods: TritonServer) -> Target:
    return target_of(moods, request.param)


def target_of(server: TritonServer, protocol: str = "grpc", model: str = "moods") -> Target:
    endpoint = Endpoint.parse(f"{protocol}://{server.options.address(protocol)}")
    return Target(endpoint=endpoint, model=model, sample_rate=RATE)


def commands(*rows: tuple[int, float, float], references: Sequence[str | None] = ()) -> Workload:
    """Waveforms of so many samples with these first two samples."""
    waveforms = []
    for num_samples, delay_s, mood in rows:
        waveforms.append(np.zeros(num_samples, np.float32))
        waveforms[-1][:2] = delay_s, mood
    return Workload(seconds="made", sample_rate=RATE, waveforms=waveforms, references=references)


def good(utterances: int = 4, delay_s: float = 0.0) -> Workload:
    rows = [(800 * (index + 1), delay_s, 0.0) for index in range(utterances)]
    return commands(*rows, references=[str(each[0]) for each in rows])


def options(server: TritonServer | None = None, **changes: object) -> LoadOptions:
    metrics = f"http://{server.options.address('metrics')}/metrics" if server else None
    plain = {"windows": BRIEF, "tick_s": 0.1, "timeout_s": 30.0, "drain_s": 0.2, "metrics_url": metrics}
    return LoadOptions(**{**plain, **changes})  # type: ignore[arg-type]


def test_a_closed_loop_measures_what_a_calculation_says(target: Target, moods: TritonServer):
    found = measure_closed(target, good(4, 0.02), 2, options(moods))
    assert (found.model, found.protocol, found.loop, found.load) == ("moods", target.endpoint.protocol, "closed", 2)
    assert found.latency is not None
    assert found.errors == {}
    # Two instances sleep 20 ms for each request: 100 requests a second at best, and none faster than 20 ms.
    assert 20 < found.latency.p50_ms < 2000
    assert 0.5 < found.throughput <= 102
    assert found.utterances == found.requests == found.latency.count
    # Little's law: requests in flight = throughput * mean latency
    assert found.throughput * found.latency.mean_ms / 1000 == pytest.approx(2, rel=0.15)
    assert found.audio_s / found.utterances == pytest.approx(0.25, rel=0.2)  # 0.1 to 0.4 s, in turn
    assert (found.wer, found.wer_words) == (0, found.utterances)
    # Whether three windows agree is for the machine to say.
    assert [note for note in found.notes if not note.startswith("not stable")] == []


def test_the_server_side_and_padding_come_from_the_server_itself(target: Target, moods: TritonServer):
    # The server's statistics and its metrics are read one after the other: where a machine pauses between them, the
    # page counts many more answers, as another server's would.
    tries = (measure_closed(target, good(2), 2, options(moods, batch_size=2)) for _ in range(10))
    found = next(each for each in tries if not any("of another server" in note for note in each.notes))
    server = found.server
    assert server is not None
    # Looks at the server's counters come a moment after a window's end.
    assert server.requests == pytest.approx(found.requests, rel=0.3, abs=20)
    assert server.failures == 0
    assert found.utterances == 2 * found.requests
    assert server.mean_batch >= 2
    assert server.compute_infer_ms > 0
    # 800 and 1600 samples in each request: a quarter of it is padding
    assert server.padding_waste == pytest.approx(0.25, abs=0.01)  # the counters are read one after the other
    assert found.batch_size == 2


def test_embeddings_are_measured_as_texts_are_and_compared_with_each_other(target: Target, moods: TritonServer):
    voices = replace(target, model="voices", output="EMBEDDINGS")
    # The first is fine, the second changes its mind from one direction to the opposite one, the third has no direction.
    found = measure_closed(voices, commands((800, 0.0, 0.0), (800, 0.0, 2.0), (800, 0.0, 1.0)), 2, options(moods))
    assert (found.output, found.wer) == ("EMBEDDINGS", None)
    assert found.latency is not None
    assert found.utterances == found.latency.count == found.requests - found.failed
    assert list(found.errors) == ["not an embedding: it has numbers that are not finite"]
    assert 0 < found.failed < found.requests
    assert found.least_cosine == pytest.approx(-1.0)
    assert found.different_embeddings == 1
    assert "1 of 2 recordings got embeddings that are not alike: cosines down to -1.0000" in found.notes


def test_an_open_loop_keeps_its_rate_and_tells_how_late_it_was(target: Target, moods: TritonServer):
    found = measure_open(target, good(), 50.0, "constant", options(moods))
    assert found.loop == "constant"
    assert found.requests / found.wall_s == pytest.approx(50, rel=0.2)
    assert found.sent_late is not None
    assert found.sent_late.count == found.requests
    assert found.wer == 0


def test_poisson_arrivals_share_their_rate_among_processes(moods: TritonServer):
    found = measure_open(target_of(moods), good(), 60.0, "poisson", options(moods, processes=2))
    assert found.client_processes == 2
    assert found.requests / found.wall_s == pytest.approx(60, rel=0.5)
    assert found.errors == {}


def test_several_processes_share_concurrency_and_audio(moods: TritonServer):
    found = measure_closed(target_of(moods), good(4, 0.01), 3, options(moods, processes=2))
    assert found.client_processes == 2
    assert found.latency is not None
    assert found.throughput * found.latency.mean_ms / 1000 == pytest.approx(3, rel=0.2)
    assert found.wer == 0
    assert 0 < found.client_cpu < 2
    assert found.client_ms > 0


def test_latency_in_an_open_loop_counts_from_when_a_request_was_due(moods: TritonServer):
    # One server, 40 requests a second; every 40th stops it for half a second, wherever in the pool that one lies.
    rate, period, nap_s, least_s = 40.0, 40, 0.5, 0.002
    naps = [nap_s if number == 7 else least_s for number in range(period)]
    plan = WindowPlan(warmup_s=0.5, window_s=2.0, min_requests=1, max_windows=1, stable_windows=1)
    audio = commands(*[(800, each, 0.0) for each in naps])
    found = measure_open(target_of(moods, model="slow"), audio, rate, "constant", options(windows=plan))
    assert found.latency is not None
    # An independent calculation: requests come at k / rate and are served one after the other.
    free, waited = 0.0, []
    for number in range(10 * period):
        due = number / rate
        free = max(free, due) + naps[number % period]
        waited.append(1000 * (free - due))
    # Half of each second is spent behind the nap. A generator that waits for answers sees one long latency in 40. On a
    # slow machine the server falls behind a little more with each second; two are measured.
    for percent, shown in ((50, found.latency.p50_ms), (90, found.latency.p90_ms), (95, found.latency.p95_ms)):
        assert shown > np.percentile(waited, percent) - 30
    assert found.latency.p90_ms < np.percentile(waited, 90) + 1000
    assert np.percentile(waited, 90) > 350


@pytest.mark.slow
def test_a_server_that_cannot_keep_up_ends_the_open_loop_by_itself(
    moods: TritonServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tritone.loadtest.requests.offline.BACKLOG_S", 0.5)
    plan = WindowPlan(warmup_s=1.0, window_s=60.0, max_window_s=60.0)
    started = time.monotonic()
    found = measure_open(target_of(moods), good(4, 0.05), 200.0, "poisson", options(windows=plan))
    assert time.monotonic() - started < 30
    assert not found.stable
    assert found.notes[0].startswith("the server cannot keep up with 200 requests/s: 100 waited for their answer")
    # They have no latency, but they must not be forgotten either.
    assert found.errors == {"no answer: still waiting when sending was stopped": 100}


def test_failures_are_counted_by_kind_and_do_not_make_it_faster(target: Target):
    # The messages differ in a number of samples; it is one kind.
    rows = [(800, 0.01, 0.0), (900, 0.0, ERROR), (1000, 0.01, 0.0), (1100, 0.0, ERROR)]
    found = measure_closed(target, commands(*rows), 2, options())
    (kind,) = found.errors
    assert kind.startswith("server error")
    assert "row of N samples failed" in kind
    assert found.failed / found.requests == pytest.approx(0.5, abs=0.15)
    assert found.utterances == found.requests - found.failed
    assert found.latency is not None
    assert found.latency.count == found.utterances
    assert found.latency.p50_ms > 10


@pytest.mark.slow
def test_a_lying_server_has_the_word_error_rate_of_its_lies(moods: TritonServer):
    rows = [(800, 0.0, 0.0), (900, 0.0, LIE)]
    found = measure_closed(target_of(moods), commands(*rows, references=["800", "900"]), 1, options())
    # "lie 17" for "900" is a substitution and an insertion: half of the answers have two errors in a word.
    assert found.wer == pytest.approx(1.0, rel=0.05)
    assert found.different_texts == 1
    assert any("1 of 2 recordings got more than one text" in note for note in found.notes)


def test_an_answer_with_too_few_texts_is_an_error_and_no_utterance(moods: TritonServer):
    found = measure_closed(target_of(moods), commands((800, 0.0, SHORT)), 1, options())
    assert found.utterances == 0
    assert found.latency is None
    assert found.failed == found.requests
    assert not found.stable
    assert "no request succeeded" in found.notes[0]


@pytest.mark.slow
def test_a_stalled_request_is_an_error_though_others_are_answered(moods: TritonServer):
    # One request of the warm-up takes one of the two instances for longer than all is measured; the other goes on.
    rows = [(800, 5.0, 0.0), *[(900, 0.005, 0.0)] * 999]
    seed = next(seed for seed in count() if list(np.random.default_rng([seed, 0]).permutation(len(rows))).index(0) == 9)
    plan = WindowPlan(warmup_s=0.5, window_s=0.3, max_window_s=0.5, min_requests=1, max_windows=3, tolerance=0.99)
    found = measure_closed(target_of(moods), commands(*rows), 12, options(windows=plan, seed=seed))
    assert found.utterances > 0
    # Requests that shared a batch of at most 8 with it wait as long.
    (stalled,) = found.errors.items()
    assert stalled[0] == "no answer: in flight during the whole measurement"
    assert 1 <= stalled[1] <= 8


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_timeout_a_refusal_and_a_busy_server_are_different_errors(moods: TritonServer, protocol: str):
    target = target_of(moods, protocol)
    slow = commands((800, 1.0, 0.0)).waveforms
    assert ask(target, slow, timeout_s=0.2).error == "timeout: no answer within 0.2 s"
    refused = Target(endpoint=Endpoint.parse(f"{protocol}://127.0.0.1:1"), model="moods", sample_rate=RATE)
    assert str(ask(refused, slow).error).startswith("no connection: ")
    unknown = ask(target_of(moods, protocol, "nobody"), slow).error
    assert str(unknown).startswith("refused: ")
    assert "nobody" in str(unknown)
    full = measure_closed(target_of(moods, protocol, "narrow"), commands((800, 0.05, 0.0)), 8, options())
    assert any(kind.startswith("busy: ") for kind in full.errors)


def test_a_sender_answers_everything_when_it_is_closed(target: Target):
    replies: SimpleQueue[Reply] = SimpleQueue()
    sender = open_sender(target.endpoint)
    body = encode(target, commands((800, 1.0, 0.0)).waveforms)
    for _ in range(3):
        sender.send(body, 30, replies.put)
    sender.close()
    assert replies.qsize() == 3
    sender.send(body, 30, replies.put)
    sender.close()
    assert {str(replies.get_nowait().error) for _ in range(4)} == {
        "cancelled: the connection was closed before the answer came"
    }


@pytest.mark.slow
def test_a_server_that_is_killed_ends_the_measurement_with_its_errors(tmp_path: Path):
    with toy_server(tmp_path, "moods") as server:
        windows: list[Tick] = []

        def kill_once(window: Tick) -> None:
            if not windows:
                os.kill(server.pid, signal.SIGKILL)
            windows.append(window)

        plan = WindowPlan(warmup_s=0.1, window_s=0.5, max_window_s=1.0, min_requests=1, max_windows=99, tolerance=1e-9)
        started = time.monotonic()
        found = measure_closed(target_of(server), good(2, 0.01), 2, options(windows=plan), on_window=kill_once)
    assert time.monotonic() - started < 60
    assert any(kind.startswith("no connection") for kind in found.errors)
    assert found.server is None
    # Slots whose connection was refused rest: not thousands of errors a second.
    assert found.failed < 200


@pytest.mark.slow
def test_somebody_else_who_uses_the_model_is_noted(moods: TritonServer):
    target = target_of(moods)
    stop = threading.Event()

    def disturb() -> None:
        sender, replies = open_sender(target.endpoint), SimpleQueue[Reply]()
        body = encode(target, good(1).waveforms)
        while not stop.is_set():
            sender.send(body, 30, replies.put)
            replies.get()
        sender.close()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        found = measure_closed(target, good(2, 0.02), 1, options())
    finally:
        stop.set()
        thread.join()
    assert any("somebody else used the model too" in note for note in found.notes)


def test_ctrl_c_leaves_what_was_measured_and_no_process(moods: TritonServer):
    plan = WindowPlan(warmup_s=0.1, window_s=0.3, min_requests=1, max_windows=999, tolerance=1e-9)
    windows: list[Tick] = []

    def interrupt(window: Tick) -> None:
        windows.append(window)
        if len(windows) == 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        measure_closed(target_of(moods), good(), 2, options(windows=plan), on_window=interrupt)
    found = stopped.value.measurement
    assert isinstance(found, Measurement)
    assert found.requests == sum(window.requests for window in windows[-3:])
    assert not found.stable
    assert "interrupted after 4 windows" in found.notes
    workers = [" ".join(each.cmdline()) for each in psutil.Process().children()]
    assert not [line for line in workers if "tritone.loadtest.processes.worker" in line]


@pytest.mark.slow
def test_ctrl_c_before_anything_was_measured_leaves_no_measurement(moods: TritonServer):
    code = (
        "from test_load_generator import *\n"
        "import sys\n"
        "target = Target(endpoint=Endpoint.parse(sys.argv[1]), model='moods', sample_rate=RATE)\n"
        "plan = WindowPlan(warmup_s=600)\n"
        "print('begun', flush=True)\n"
        "try:\n"
        "    measure_closed(target, good(), 1, options(windows=plan))\n"
        "except Interrupted as stopped:\n"
        "    print(stopped.measurement, flush=True)\n"
    )
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tests / "support", tests / "loadtest")))}
    url = f"grpc://{moods.grpc_address}"
    command = [sys.executable, "-c", code, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        children = until(psutil.Process(process.pid).children)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "None\n"
        assert process.wait(30) == 0
    # The last of them may end after their parent, and is then for the system to bury.
    assert not psutil.wait_procs(children, timeout=60)[1]


def test_a_load_that_does_not_fit_its_model_is_refused(moods: TritonServer):
    with Client(moods.grpc_address) as client:
        stream = Target.of(client.endpoint, client.model("running", kind="streaming"))
    with pytest.raises(ValueError, match="is for streams"):
        measure_closed(stream, good(), 1)
    with pytest.raises(ValueError, match="8000 Hz, model 'moods' wants 16000 Hz"):
        measure_closed(Target(endpoint=stream.endpoint, model="moods", sample_rate=16000), good(), 1)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="concurrency must be at least 1"):
            measure_closed(target_of(moods), good(), wrong)
    with pytest.raises(ValueError, match="rate must be"):
        measure_open(target_of(moods), good(), 0.0)


def ask(target: Target, waveforms: Sequence[np.ndarray], timeout_s: float = 30.0) -> Reply:
    replies: SimpleQueue[Reply] = SimpleQueue()
    sender = open_sender(target.endpoint)
    try:
        sender.send(encode(target, waveforms[:1]), timeout_s, replies.put)
        return replies.get(timeout=60)
    finally:
        sender.close()
