"""Streams by the clock against a real Triton and a model whose delays and defects are commanded by the audio itself."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from serving import RawClient, left
from tritone.client import Endpoint
from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.requests.offline import Interrupted
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.streams.measure import measure_streams, play_streams
from tritone.loadtest.streams.pacing import Column, Kind
from tritone.loadtest.streams.run import has
from tritone.loadtest.workload.workload import Workload
from tritone.server import TritonServer, free_ports
from waiting import until
from wire_toys import toy_server

RATE = 8000
CHUNK = 320  # samples, 40 ms
GOOD, ERROR, LIE, SILENCE, TWICE = 0.0, 1.0, 2.0, 3.0, 4.0
# Any three windows agree: what is tested here is not how calm the machine is.
BRIEF = WindowPlan(warmup_s=0.1, window_s=0.3, max_window_s=1.0, min_requests=4, max_windows=3, tolerance=0.99)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with toy_server(tmp_path_factory.mktemp("repository"), "spoken", "arrivals") as server:
        yield server


def target_of(server: TritonServer, protocol: str = "grpc", model: str = "spoken", rate: int = RATE) -> Target:
    endpoint = Endpoint.parse(f"{protocol}://{server.options.address(protocol)}")
    return Target(endpoint=endpoint, model=model, sample_rate=rate, streaming=True)


def streams(*rows: tuple[int, float, float], scored: bool = True) -> Workload:
    """Recordings of so many samples, whose first two samples are these commands; references are what is right."""
    waveforms = []
    for count, delay_s, mood in rows:
        waveforms.append(np.zeros(count, np.float32))
        waveforms[-1][:2] = delay_s, mood
    references = [str(count) for count, _, _ in rows] if scored else ()
    return Workload(seconds="made", sample_rate=RATE, waveforms=waveforms, references=references)


def options(server: TritonServer | None = None, **changes: object) -> LoadOptions:
    metrics = f"http://{server.options.address('metrics')}/metrics" if server else None
    plain = {"chunk_ms": 40.0, "start_spread_s": 0.3, "windows": BRIEF, "timeout_s": 20.0, "metrics_url": metrics}
    return LoadOptions(**{**plain, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("protocol", "processes"), [pytest.param("grpc", 1, marks=pytest.mark.slow), ("http", 2)])
def test_streams_are_played_in_real_time_and_measured(spoken: TritonServer, protocol: str, processes: int):
    audio = streams((5 * CHUNK, 0.001, GOOD), (3 * CHUNK + 100, 0.001, GOOD))
    found = measure_streams(target_of(spoken, protocol), audio, 4, options(spoken, processes=processes))
    streaming = found.streaming
    assert streaming is not None
    assert streaming.chunk is not None
    assert streaming.final is not None
    assert streaming.first_partial is not None
    assert (found.errors, found.wer, found.different_texts) == ({}, 0.0, 0)
    assert (found.loop, found.load, found.protocol, found.client_processes) == ("streaming", 4, protocol, processes)
    # Four microphones give four seconds of audio a second, less the time that a stream waits for its final text.
    assert 0.5 < found.rtfx <= 4.2
    assert found.utterances > 8
    assert streaming.first_partial.p50_ms > 80  # the text comes with the second chunk
    assert streaming.chunk.p50_ms > 1  # as long as the model sleeps
    assert streaming.chunk.count + streaming.final.count == found.requests
    assert streaming.final.count == found.utterances
    assert found.server is not None
    assert found.server.failures == 0
    assert 0 < found.client_cpu < processes


@pytest.mark.slow
def test_by_the_servers_own_clock_chunks_come_when_they_were_spoken_and_a_pause_does_not_shift_those_after(
    spoken: TritonServer,
):
    # A busy machine holds chunks up, too. What adds up by itself does so in each of these runs.
    for attempts_left in reversed(range(5)):
        try:
            return _chunks_come_when_they_were_spoken(spoken)
        except AssertionError:
            if not attempts_left:
                raise


def _chunks_come_when_they_were_spoken(spoken: TritonServer) -> None:
    audio = streams((30 * CHUNK, 0.0, GOOD), (30 * CHUNK, 0.3, GOOD), scored=False)
    plan = replace(BRIEF, warmup_s=0.0, window_s=0.95)
    run = play_streams(target_of(spoken, model="arrivals"), audio, 1, options(windows=plan, start_spread_s=0.0))
    seen, finals = set(), run.rows[has(run.rows, Kind.FINAL)]
    for recording, text in run.texts:
        arrivals = np.array(list(map(float, text.split())))
        spoken_s = 0.04 * np.arange(1, 31)
        # Whatever holds a chunk up makes it late, never early: the earliest of all tells when the stream began.
        begin = (arrivals - spoken_s).min()
        late_s = arrivals - spoken_s - begin
        assert np.median(late_s[20:]) < 0.02  # nothing adds up
        if recording == 1:
            # The eleventh chunk takes 0.3 s: the twelfth waits 0.26 s beyond its time, the next 0.22 s, ...
            assert late_s[11:15] == pytest.approx([0.26, 0.22, 0.18, 0.14], abs=0.05)
        else:
            assert np.median(late_s) < 0.02
        # What we say of it ourselves. A stream that ended after the measured time has no row.
        for row in finals[abs(finals[:, Column.BEGIN] - begin) < 0.1]:
            assert 0 <= arrivals[-1] - row[Column.DUE] < 0.1
            seen.add(recording)
    assert seen == {0, 1}


def test_failing_chunks_end_their_streams_and_others_go_on(spoken: TritonServer):
    audio = streams((6 * CHUNK, 0.0, ERROR), (4 * CHUNK, 0.0, GOOD))
    found = measure_streams(target_of(spoken), audio, 3, options(spoken))
    ((message, times),) = found.errors.items()
    assert "chunk N failed" in message
    assert times > 2
    assert found.wer == 0.0  # of the streams that ended well
    assert found.streaming is not None
    assert found.streaming.in_time < 1
    assert not any("somebody else" in note for note in found.notes)  # ends of failed streams are ours too


@pytest.mark.slow
def test_lies_and_silence_are_told(spoken: TritonServer):
    liar = measure_streams(target_of(spoken), streams((4 * CHUNK, 0.0, LIE)), 2, options(spoken))
    assert liar.wer is not None
    assert liar.wer >= 1
    assert any("more than one text" in note for note in liar.notes)
    silent = measure_streams(target_of(spoken), streams((4 * CHUNK, 0.0, SILENCE), scored=False), 2, options(spoken))
    assert silent.streaming is not None
    assert silent.streaming.first_partial is None
    assert silent.streaming.textless == silent.utterances > 0
    assert "every text was empty" in silent.notes


@pytest.mark.slow
def test_two_texts_for_one_chunk_are_an_error(spoken: TritonServer):
    found = measure_streams(target_of(spoken), streams((4 * CHUNK, 0.0, TWICE)), 2, options(spoken))
    assert list(found.errors) == ["not a transcript: 2 texts for one chunk"]


@pytest.mark.slow
def test_a_server_that_is_too_slow_is_told_by_latency_and_not_by_errors(spoken: TritonServer):
    # Four streams of 40 ms chunks need one chunk every 10 ms, the model takes 20.
    audio = streams((50 * CHUNK, 0.02, GOOD), scored=False)
    strict = replace(BRIEF, tolerance=0.1)  # latency grows from window to window
    found = measure_streams(target_of(spoken), audio, 4, options(spoken, drain_s=0.5, windows=strict))
    assert found.errors == {}
    assert found.streaming is not None
    assert found.streaming.chunk is not None
    assert found.streaming.in_time < 0.5
    assert found.streaming.held_back > 0.5
    assert found.streaming.chunk.max_ms > 300
    assert not found.stable
    assert not any("somebody else" in note for note in found.notes)  # late answers are ours, whenever they were due


@pytest.mark.slow
def test_a_stalled_server_ends_the_run_with_what_was_seen(spoken: TritonServer):
    audio = streams((10 * CHUNK, 0.0, GOOD), (10 * CHUNK, 4.0, GOOD), scored=False)
    plan = WindowPlan(warmup_s=0.2, window_s=0.5, max_windows=1000, tolerance=0.001)
    found = measure_streams(target_of(spoken), audio, 4, options(timeout_s=0.7, windows=plan, drain_s=0.5))
    assert any(message.startswith("timeout") for message in found.errors)
    assert "the server gave no good answer for 0.7 s, so the run ended early" in found.notes
    assert not found.stable


@pytest.mark.slow
def test_no_server_at_all_is_an_error_of_every_stream():
    (port,) = free_ports(1)
    nobody = Target(endpoint=Endpoint.parse(f"grpc://127.0.0.1:{port}"), model="x", sample_rate=RATE, streaming=True)
    found = measure_streams(nobody, streams((4 * CHUNK, 0.0, GOOD)), 2, options(timeout_s=0.5))
    assert found.failed == found.requests > 0
    assert all(message.startswith(("no connection", "timeout")) for message in found.errors)
    assert found.streaming is not None
    answered = 0 if found.latency is None else found.latency.count - found.streaming.unanswered
    assert answered == 0, "a chunk on its way when the run ended counts as late as it is then"
    assert "the server gave no statistics of its own" in found.notes


@pytest.mark.slow
def test_streams_beyond_the_slots_are_refused_and_counted_and_no_slot_stays_taken(server: TritonServer, raw: RawClient):
    target = target_of(server, model="toy-chunks", rate=raw_rate(raw, "toy-chunks"))
    waveform = np.random.default_rng(0).uniform(-0.5, 0.5, target.sample_rate).astype(np.float32)
    audio = Workload(seconds="1", sample_rate=target.sample_rate, waveforms=[waveform])
    chosen = options(server, chunk_ms=100.0)
    many = measure_streams(target, audio, 6, chosen)
    assert any("streams of this model instance are taken" in message for message in many.errors)
    few = measure_streams(target, audio, 4, chosen)
    assert few.errors == {}
    assert few.notes == [note for note in few.notes if "warm-up" not in note]


def raw_rate(raw: RawClient, model: str) -> int:
    config = raw.grpc.get_model_config(model, as_json=True)["config"]
    return int(config["parameters"]["sample_rate"]["string_value"])


def test_ctrl_c_ends_the_streams_and_carries_what_was_measured(spoken: TritonServer):
    plan = WindowPlan(warmup_s=0.2, window_s=0.3, min_requests=1, max_windows=1000, tolerance=0.001)
    windows = []

    def interrupt(window: object) -> None:
        windows.append(window)
        if len(windows) == 2:  # three that happen to be alike would be the end
            os.kill(os.getpid(), signal.SIGINT)

    before = set(psutil.Process().children())
    with pytest.raises(Interrupted) as stopped:
        measure_streams(
            target_of(spoken), streams((4 * CHUNK, 0.0, GOOD)), 3, options(windows=plan), on_window=interrupt
        )
    found = stopped.value.measurement
    assert isinstance(found, Measurement)
    assert found.utterances > 0
    assert found.wall_s >= 0.6
    assert (found.errors, found.stable) == ({}, False)
    assert any(note.startswith("interrupted after") for note in found.notes)
    assert set(psutil.Process().children()) == before


@pytest.mark.slow
def test_ctrl_c_before_anything_was_measured_leaves_no_measurement_and_no_process(spoken: TritonServer):
    code = (
        "import sys\n"
        "from test_stream_load_served import *\n"
        "target = Target(endpoint=Endpoint.parse(sys.argv[1]), model='spoken', sample_rate=RATE, streaming=True)\n"
        "print('begun', flush=True)\n"
        "try:\n"
        "    measure_streams(target, streams((4 * CHUNK, 0.0, GOOD)), 1, options(start_spread_s=600))\n"
        "except Interrupted as stopped:\n"
        "    print(stopped.measurement, flush=True)\n"
    )
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tests / "support", tests / "loadtest")))}
    command = [sys.executable, "-c", code, f"grpc://{spoken.grpc_address}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        children = until(psutil.Process(process.pid).children)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "None\n"
        assert process.wait(30) == 0
    assert left(children) == []


@pytest.mark.slow
def test_what_was_seen_can_be_had_in_full(spoken: TritonServer):
    run = play_streams(target_of(spoken), streams((3 * CHUNK, 0.0, GOOD)), 2, options(spoken))
    assert set(run.texts) == {(0, str(3 * CHUNK))}
    assert run.wall_s == pytest.approx(0.9)
    assert len(run.rows) == pytest.approx(2 * 0.9 / 0.04, rel=0.3)
