"""Streams by the clock, in a simulation: when chunks are sent, what counts as late, and whose fault it is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation import LOST, RATE, TARGET, Later, Request, Simulation
from tritone.errors import InputError
from tritone.loadtest.findings.result import Measurement, Report
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.senders.wire import Reply
from tritone.loadtest.streams.measure import share_out, start_spread_s, stream_window_s
from tritone.loadtest.streams.pacing import Column, Kind, Player
from tritone.loadtest.streams.run import StreamRun
from tritone.loadtest.workload.script import Script
from tritone.loadtest.workload.workload import Workload
from tritone.report.stamp import Stamp

BEGIN = 100.0  # where the simulation's clock starts


def recording(milliseconds: int, value: float = 0.25) -> np.ndarray:
    return np.full(milliseconds, value, dtype=np.float32)


def play(
    simulation: Simulation,
    recordings: list[np.ndarray],
    *,
    seconds: float,
    starts: tuple[float, ...] = (0.0,),
    chunk_s: float = 0.1,
    timeout_s: float = 3.0,
    drain_s: float = 2.0,
) -> Player:
    """Play streams that begin at `starts` for some seconds."""
    script = Script(TARGET, recordings, chunk_s=chunk_s, order=range(len(recordings)))
    options = LoadOptions(chunk_ms=1000 * chunk_s, timeout_s=timeout_s, drain_s=drain_s)
    player = Player(script, simulation, options, clock=simulation, rng=np.random.default_rng(0))
    player.play([BEGIN + start for start in starts], lambda now: BEGIN + seconds)
    return player


def column(player: Player, name: Column) -> list[float]:
    """One column of the log; times count from the begin."""
    values = player.log.rows()[:, name]
    is_time = name in (Column.BEGIN, Column.DUE, Column.READY, Column.SENT, Column.RECEIVED)
    return [round(value - (BEGIN if is_time else 0), 6) for value in values]


def after(seconds: float, text: str = "") -> Simulation:
    return Simulation(lambda request: Later(seconds, text))


def test_a_chunk_is_sent_when_its_last_sample_has_been_spoken():
    simulation = after(0.01)
    play(simulation, [recording(350)], seconds=0.36)
    sent = simulation.of(0)
    assert [round(each.sent - BEGIN, 6) for each in sent] == [0.1, 0.2, 0.3, 0.35]
    assert [len(each.samples) for each in sent] == [100, 100, 100, 50]
    assert [(each.start, each.end) for each in sent] == [(True, False), (False, False), (False, False), (False, True)]


def test_the_chunks_of_a_stream_are_its_recording():
    tone = np.arange(250, dtype=np.float32) / 1000
    simulation = after(0.01)
    play(simulation, [tone], seconds=0.26)
    np.testing.assert_array_equal(np.concatenate([each.samples for each in simulation.of(0)]), tone)


def test_a_recording_shorter_than_a_chunk_is_one_request_that_starts_and_ends():
    simulation = after(0.0)
    play(simulation, [recording(30)], seconds=0.04)
    (only,) = simulation.of(0)
    assert (only.start, only.end, round(only.sent - BEGIN, 6)) == (True, True, 0.03)


def test_pace_does_not_drift_over_thousands_of_chunks():
    simulation = after(0.001)
    player = play(simulation, [recording(200_000)], seconds=200)
    due = np.array(column(player, Column.DUE))
    np.testing.assert_allclose(due, 0.1 * np.arange(1, len(due) + 1), atol=1e-6)
    np.testing.assert_allclose(column(player, Column.SENT), due, atol=1e-6)
    assert len(due) == 1999  # what is due at the very end is not played any more


def test_latency_counts_from_when_a_chunk_was_due_though_it_waited_for_the_answer_before():
    first = {"slow": True}

    def once_slow(request: Request) -> Later:
        return Later(0.25 if first.pop("slow", False) else 0.01)

    player = play(Simulation(once_slow), [recording(500)], seconds=0.45)
    assert column(player, Column.DUE) == [0.1, 0.2, 0.3, 0.4]
    # The answer to the first is there at 0.35, so the second and third are late, one after the other.
    assert column(player, Column.SENT) == [0.1, 0.35, 0.36, 0.4]
    assert column(player, Column.RECEIVED) == [0.35, 0.36, 0.37, 0.41]
    assert column(player, Column.READY) == column(player, Column.SENT)  # the server's fault, not the generator's


def test_what_the_generator_itself_is_late_with_is_told_apart():
    simulation = Simulation(lambda request: Later(0.0), send_s=lambda request: 0.03)
    player = play(simulation, [recording(500)] * 3, seconds=0.45, starts=(0, 0, 0))
    late = np.array(column(player, Column.SENT)) - np.array(column(player, Column.READY))
    # Three chunks are due at once and each takes 30 ms to hand over.
    np.testing.assert_allclose(sorted(set(np.round(late, 6))), [0.03, 0.06, 0.09])


def test_a_stream_that_ends_is_followed_by_another_in_its_seat():
    simulation = after(0.02, "x")
    player = play(simulation, [recording(200), recording(300)], seconds=1.0)
    begins = [begin for begin, kind in zip(column(player, Column.BEGIN), kinds(player), strict=True) if kind & 1]
    assert begins == [0.0, 0.22, 0.54]  # each begins when the final answer of the one before is there
    assert [len(simulation.of(index)) for index in range(3)] == [2, 3, 2]
    assert player.log.texts == {(0, "x"): 2, (1, "x"): 1}


def kinds(player: Player) -> list[int]:
    return [int(kind) for kind in player.log.rows()[:, Column.KIND]]


def test_the_first_text_of_a_stream_is_marked_and_a_stream_without_text_too():
    said: dict[int, int] = {}

    def from_third_chunk(request: Request) -> Later:
        said[request.stream] = said.get(request.stream, 0) + 1
        return Later(0.01, "" if said[request.stream] < 3 or request.samples[0] < 0 else "hello")

    player = play(Simulation(from_third_chunk), [recording(450), recording(250, -0.1)], seconds=0.8)
    first, final, textless = Kind.FIRST_TEXT, Kind.FINAL, Kind.TEXTLESS
    assert kinds(player) == [0, 0, first, 0, final, 0, 0, final | textless]


def test_white_space_is_no_text():
    player = play(after(0.0, " \n"), [recording(100)], seconds=0.11)
    assert kinds(player) == [Kind.FINAL | Kind.TEXTLESS]


def test_a_refused_stream_is_counted_ended_and_replaced():
    def refuse_second(request: Request) -> Later:
        refused = len([each for each in simulation.requests if not each.end]) == 2
        return Later(0.01, error="busy: no slot" if refused else None)

    simulation = Simulation(refuse_second)
    player = play(simulation, [recording(400)], seconds=0.8)
    assert player.log.messages == ["busy: no slot"]
    assert [error for error in column(player, Column.ERROR) if error >= 0] == [0]
    goodbye = simulation.of(0)[-1]
    assert (goodbye.start, goodbye.end, len(goodbye.samples)) == (False, True, 0)
    assert round(goodbye.sent - BEGIN, 6) == 0.21
    begin = column(player, Column.BEGIN)[2]
    assert 0.21 <= begin <= 0.31  # within a chunk, so that streams that failed together do not go on in step
    assert simulation.of(1)[0].start


def test_an_answer_that_never_comes_is_given_up_and_the_stream_replaced():
    def lose_first(request: Request) -> Later | None:
        return LOST if len(simulation.requests) == 1 else Later(0.01)

    simulation = Simulation(lose_first)
    # A second stream keeps the server alive.
    player = play(simulation, [recording(600)], seconds=6, starts=(0, 0.05), timeout_s=3)
    assert player.log.messages == ["lost: neither an answer nor an error within 3 s"]
    assert player.log.notes == []
    lost = player.log.rows()[column(player, Column.ERROR).index(0)]
    assert 3 <= lost[Column.RECEIVED] - lost[Column.SENT] <= 4.2


def test_chunks_that_came_due_behind_a_failed_one_are_not_forgotten():
    def fail_first(request: Request) -> Later:
        is_first = len(simulation.requests) == 1
        return Later(0.35, error="refused") if is_first else Later(0.01)

    simulation = Simulation(fail_first)
    player = play(simulation, [recording(1000)], seconds=0.46)
    assert column(player, Column.DUE)[:4] == [0.1, 0.2, 0.3, 0.4]
    assert kinds(player)[:4] == [0, Kind.UNSENT, Kind.UNSENT, Kind.UNSENT]
    assert column(player, Column.RECEIVED)[:4] == [0.45] * 4


def test_a_late_answer_to_what_was_given_up_changes_nothing():
    def far_too_late(request: Request) -> Later | None:
        return LOST if request.end else Later(0.01)

    simulation = Simulation(far_too_late)
    inbox = []
    send = simulation.send

    def keep(body, timeout_s, done):
        inbox.append(done)
        send(body, timeout_s, done)

    simulation.send = keep  # type: ignore[method-assign]
    player = play(simulation, [recording(100)], seconds=10, timeout_s=1, drain_s=0.5)
    before = player.log.rows()
    inbox[0](Reply(texts=("late",), received=simulation.now()))
    np.testing.assert_array_equal(player.log.rows(), before)


def test_a_stalled_server_ends_the_run_with_what_was_seen():
    def stall_at_one(request: Request) -> Later | None:
        return Later(0.01, "ok") if request.sent < BEGIN + 1 else LOST

    simulation = Simulation(stall_at_one)
    player = play(simulation, [recording(5000)], seconds=3600, starts=(0, 0.03, 0.07), timeout_s=3)
    assert player.log.notes == ["the server gave no good answer for 3 s, so the run ended early"]
    assert simulation.now() < BEGIN + 15
    assert sum(error < 0 for error in column(player, Column.ERROR)) >= 27  # the chunks of the first second


def test_a_server_that_refuses_everything_ends_the_run_after_the_time_limit():
    simulation = Simulation(lambda request: Later(0.0, error="refused: unknown model"))
    player = play(simulation, [recording(500)], seconds=3600, timeout_s=3)
    assert player.log.messages == ["refused: unknown model"]
    assert simulation.now() < BEGIN + 5


def test_failures_beside_good_answers_do_not_end_the_run():
    def odd_streams_fail(request: Request) -> Later:
        return Later(0.01, error="busy" if request.stream % 2 else None)

    player = play(Simulation(odd_streams_fail), [recording(300)], seconds=20, starts=(0, 0.01), timeout_s=1)
    assert player.log.notes == []
    assert max(column(player, Column.RECEIVED)) > 19.5


def test_chunks_due_before_the_end_are_waited_for_and_then_streams_are_ended():
    simulation = after(0.5)
    player = play(simulation, [recording(5000)], seconds=0.35, chunk_s=0.1)
    assert column(player, Column.DUE) == [0.1, 0.2, 0.3]
    assert column(player, Column.RECEIVED) == [0.6, 1.1, 1.6]
    last = simulation.of(0)[-1]
    assert (last.end, len(last.samples)) == (True, 0)
    assert player.log.texts == {}  # cut short, so its text means nothing


def test_what_is_not_answered_in_the_drain_counts_as_late_as_it_is_by_then():
    player = play(after(10), [recording(5000)], seconds=0.35, timeout_s=60, drain_s=2)
    assert column(player, Column.DUE) == [0.1, 0.2, 0.3]
    assert kinds(player) == [Kind.OPEN] * 3
    np.testing.assert_allclose(column(player, Column.RECEIVED), 2.35, atol=0.11)  # a look at the plan late, at most


def test_streams_that_never_sent_anything_need_no_end():
    simulation = after(0.0)
    play(simulation, [recording(500)], seconds=0.5, starts=(0, 0.45))
    assert len({request.stream for request in simulation.requests}) == 1


def test_two_texts_for_one_chunk_are_an_error():
    player = play(Simulation(lambda request: Later(0.0, texts=("a", "b"))), [recording(100)], seconds=0.11)
    assert player.log.messages == ["not a transcript: 2 texts for one chunk"]


def test_a_recording_without_samples_is_refused():
    with pytest.raises(ValueError, match="recording 1 has no samples"):
        Script(TARGET, [recording(5), recording(0)], chunk_s=0.1, order=[0, 1])


def test_chunks_are_the_same_whether_kept_or_encoded_again():
    audio = [np.arange(n, dtype=np.float32) for n in (250, 70)]
    kept = Script(TARGET, audio, chunk_s=0.1, order=[0, 1])
    anew = Script(TARGET, audio, chunk_s=0.1, order=[0, 1], room_bytes=0)
    kept.warm(2)
    anew.warm(2)
    for index, chunk in ((0, 0), (0, 2), (1, 0)):
        assert kept.body(index, chunk) == anew.body(index, chunk)
    assert kept.body(0, 1) is kept.body(0, 1)
    assert anew.body(0, 1) is not anew.body(0, 1)


@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=4),
    starts=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    latencies=st.lists(st.floats(0, 0.6), min_size=1, max_size=7),
)
def test_whatever_the_server_does_chunks_come_in_order_one_at_a_time_and_never_early(lengths, starts, latencies):
    answered: dict[int, float] = {}

    def answer(request: Request) -> Later:
        assert request.sent >= answered.get(request.stream, 0.0)
        latency = latencies[len(simulation.requests) % len(latencies)]
        answered[request.stream] = request.sent + latency
        return Later(latency, "x")

    simulation = Simulation(answer)
    player = play(simulation, [recording(each) for each in lengths], seconds=3, starts=tuple(starts), drain_s=60)
    rows = player.log.rows()
    _, due, ready, sent, received = (rows[:, name] for name in list(Column)[:5])
    assert (due <= ready).all()
    assert (ready <= sent).all()
    assert (sent <= received).all()
    assert (due < BEGIN + 3).all()
    spoken = sum(len(request.samples) for request in simulation.requests) / RATE
    assert rows[:, Column.AUDIO_S].sum() == pytest.approx(spoken)


# --- Figures --------------------------------------------------------------------------------------------------------


def measure(
    simulation: Simulation,
    recordings: list[np.ndarray],
    *,
    seconds: float,
    starts: tuple[float, ...] = (0.0,),
    references: tuple[str | None, ...] = (),
    windows: int = 3,
    chunk_s: float = 0.1,
    **pace: float,
) -> Measurement:
    """The figures of a simulation in which all of the time is measured, in windows of equal length."""
    player = play(simulation, recordings, seconds=seconds, starts=starts, chunk_s=chunk_s, **pace)
    rows = player.log.rows()
    run = StreamRun(
        target=TARGET,
        workload=Workload(seconds="toy", sample_rate=RATE, waveforms=recordings, references=references),
        streams=len(starts),
        options=LoadOptions(chunk_ms=1000 * chunk_s, windows=WindowPlan(stable_windows=3)),
        processes=1,
        begin=BEGIN,
        end=BEGIN + seconds,
        rows=rows,
        messages=player.log.messages,
        texts=player.log.texts,
        windows=[BEGIN + seconds * (number + 1) / windows for number in range(windows)],
        cpu_s=0.1 * seconds,
    )
    return run.measurement()


def test_every_latency_has_its_own_name_and_beginning():
    said: dict[int, int] = {}

    def answer(request: Request) -> Later:
        chunk = said[request.stream] = said.get(request.stream, 0) + 1
        return Later(0.05 if request.end else 0.02, "yes" if chunk >= 3 else "")

    found = measure(Simulation(answer), [recording(450)], seconds=0.46)
    streaming = found.streaming
    assert streaming is not None
    assert streaming.chunk is not None
    assert streaming.final is not None
    assert streaming.first_partial is not None
    assert streaming.first_partial_chunk is not None
    assert (streaming.chunk.count, streaming.chunk.p50_ms) == (4, pytest.approx(20))
    assert (streaming.final.count, streaming.final.p50_ms) == (1, pytest.approx(50))
    # The third chunk, spoken at 300 ms, gave the first text 20 ms later.
    assert (streaming.first_partial.count, streaming.first_partial.p50_ms) == (1, pytest.approx(320))
    assert streaming.first_partial_chunk.p50_ms == pytest.approx(20)
    assert found.latency is not None
    assert (found.requests, found.utterances, found.audio_s) == (5, 1, pytest.approx(0.45))
    assert (found.latency.count, streaming.textless, streaming.in_time, streaming.held_back) == (5, 0, 1.0, 0.0)


def test_streams_without_text_are_counted_and_have_no_first_partial():
    found = measure(after(0.01), [recording(200)], seconds=0.9)
    assert found.streaming is not None
    assert found.streaming.first_partial is None
    assert found.streaming.textless == found.utterances == 4
    assert "4 of 4 streams ended without any text" in found.notes


def test_a_server_that_falls_behind_is_told_by_every_figure():
    found = measure(after(0.15, "x"), [recording(60_000)], seconds=6)
    assert found.streaming is not None
    assert found.streaming.chunk is not None
    # The server needs 150 ms for what comes every 100, and is given 2 s more at the end. By 8.05 s it has answered 53
    # chunks; the next was due at 5.3 s and still waits.
    assert found.streaming.chunk.max_ms == pytest.approx(8050 - 5300, abs=100)
    assert found.streaming.in_time < 0.01
    assert found.streaming.held_back > 0.95
    assert found.streaming.unanswered > 0
    assert not found.stable
    assert not found.has_drifted  # the generator is not to blame


def test_a_generator_that_is_late_by_itself_is_told_and_makes_the_figures_unstable():
    simulation = Simulation(lambda request: Later(0.001, "x"), send_s=lambda request: 0.012)
    found = measure(simulation, [recording(500)], seconds=6)
    assert found.has_drifted
    assert not found.stable
    assert any("the generator sent chunks late by itself: p99 12.0 ms" in note for note in found.notes)
    assert found.streaming is not None
    assert found.streaming.drift_ms == pytest.approx(12)


def test_a_rare_pause_of_the_generator_is_shown_but_spoils_nothing():
    pauses = {150: 0.05}
    simulation = Simulation(
        lambda request: Later(0.001, "x"), send_s=lambda request: pauses.pop(len(simulation.requests), 0.0)
    )
    found = measure(simulation, [recording(500)], seconds=30)
    assert found.streaming is not None
    assert found.streaming.drift_ms == pytest.approx(50)
    assert not found.has_drifted
    assert found.stable


@pytest.mark.parametrize(("chunk_ms", "limit_ms"), [(20, 2), (100, 5), (640, 10)])
def test_what_counts_as_drift_depends_on_the_chunk(chunk_ms: int, limit_ms: float):
    for late_ms, drifted in ((0.9 * limit_ms, False), (1.1 * limit_ms, True)):
        cost = late_ms / 1000
        simulation = Simulation(lambda request: Later(0.0, "x"), send_s=lambda request, cost=cost: cost)  # type: ignore[misc]
        found = measure(simulation, [recording(5 * chunk_ms)], seconds=30 * chunk_ms / 1000, chunk_s=chunk_ms / 1000)
        assert found.has_drifted is drifted


def test_wrong_texts_show_as_word_errors_of_the_same_run():
    said = iter(["one two"] * 2 + ["one two three"] * 2 + [""] * 2)
    found = measure(
        Simulation(lambda request: Later(0.01, next(said))),
        [recording(200)],
        seconds=0.63,
        references=("one two three",),
    )
    assert (found.wer, found.wer_words) == (pytest.approx((1 + 0 + 3) / 9), 9)


def test_streams_of_the_same_recording_that_differ_are_noted_without_references():
    said = iter(["one", "one", "two", "two", "one", "one"])
    found = measure(Simulation(lambda request: Later(0.01, next(said))), [recording(200)], seconds=0.63)
    assert found.wer is None
    assert found.different_texts == 1
    assert any("more than one text" in note for note in found.notes)


def test_failed_chunks_are_errors_and_not_in_time_but_have_no_latency():
    def refuse_every_third(request: Request) -> Later:
        return Later(0.0, error="refused" if len(simulation.requests) % 3 == 0 else None)

    simulation = Simulation(refuse_every_third)
    found = measure(simulation, [recording(10_000)], seconds=10)
    assert found.latency is not None
    assert found.streaming is not None
    assert found.errors == {"refused": found.failed}
    assert found.requests == found.latency.count + found.failed
    assert found.streaming.in_time == pytest.approx(found.latency.count / found.requests)


def test_the_same_every_window_is_stable():
    found = measure(after(0.02, "x"), [recording(1000)], seconds=6, starts=(0, 0.01, 0.05))
    assert found.stable
    assert found.notes == []
    assert (found.load, found.loop, found.windows, found.wall_s) == (3, "streaming", 3, pytest.approx(6))
    assert found.client_cpu == pytest.approx(0.1)


def test_a_run_in_which_nothing_was_due_has_no_figures():
    found = measure(after(0.0), [recording(1000)], seconds=0.05)
    assert (found.requests, found.latency, found.stable) == (0, None, False)
    assert found.notes[-1] == "no stream ended in the measured time, so there is no final text to check"


# --- Sharing out ----------------------------------------------------------------------------------------------------


def workload(*milliseconds: int) -> Workload:
    return Workload(seconds="toy", sample_rate=RATE, waveforms=[recording(each) for each in milliseconds])


@given(streams=st.integers(1, 40), processes=st.integers(1, 8), utterances=st.integers(1, 20))
def test_processes_share_streams_and_utterances_and_leave_none_out(streams, processes, utterances):
    options = LoadOptions(chunk_ms=100, start_spread_s=4.0, processes=processes)
    jobs = share_out(TARGET, workload(*range(100, 100 + utterances)), streams, options)
    assert len(jobs) == min(processes, streams)
    starts = sorted(start for job in jobs for start in job.starts)
    # One in each of so many equal parts of the spread.
    assert [int(start / 4.0 * streams) for start in starts] == list(range(streams))
    assert {number for job in jobs for number, _ in job.utterances} >= set(
        range(utterances if utterances >= len(jobs) else 1)
    )
    for job in jobs:
        assert sorted(job.order) == list(range(len(job.utterances)))
        assert all(len(waveform) == 100 + number for number, waveform in job.utterances)


def test_starts_are_spread_over_an_utterance_as_a_rule():
    options = LoadOptions(chunk_ms=100)
    assert start_spread_s(options, workload(3000, 5000)) == 4.0
    assert start_spread_s(options, workload(50)) == 0.5  # five chunks
    assert start_spread_s(options, workload(60_000)) == 10.0


def test_a_window_is_long_enough_for_its_requests():
    options = LoadOptions(chunk_ms=500, windows=WindowPlan(window_s=3, min_requests=50, max_window_s=15))
    assert [stream_window_s(options, streams) for streams in (1, 5, 1000)] == [15, 5, 3]


def test_empty_recordings_are_left_out():
    (job,) = share_out(TARGET, workload(300, 0, 200), 1, LoadOptions(chunk_ms=100))
    assert sorted(number for number, _ in job.utterances) == [0, 2]


def test_audio_that_cannot_be_streamed_is_refused():
    with pytest.raises(InputError, match="none of the recordings has any samples"):
        share_out(TARGET, workload(0, 0), 1, LoadOptions())


def test_a_model_of_whole_utterances_takes_no_streams():
    with pytest.raises(InputError, match="takes whole utterances"):
        share_out(replace(TARGET, streaming=False), workload(100), 1, LoadOptions())


def test_figures_of_streams_survive_being_written_and_read(tmp_path: Path):
    found = measure(after(0.02, "x"), [recording(500)], seconds=6)
    Report(stamp=Stamp.here(), measurements=[found]).save(tmp_path / "report.json")
    (read,) = Report.read(tmp_path / "report.json").measurements
    assert (read.streaming, read.sent_late, read.has_drifted) == (found.streaming, found.sent_late, False)


@pytest.mark.slow
def test_thousands_of_chunks_leave_nothing_behind_in_the_player():
    causes = (f"{left}{right}" for left in "abcdefghijklmnopqrstuvwxyz" * 99 for right in "abcdefghijklmnopqrstuvwxyz")

    def behaviour(request: Request) -> Later:
        fails = len(request.samples) < 100  # the second chunk of the second recording
        return Later(0.01, "same", error=next(causes) if fails else None)

    simulation = Simulation(behaviour)
    script = Script(TARGET, [recording(500), recording(150)], chunk_s=0.1, order=range(2))
    player = Player(script, simulation, LoadOptions(chunk_ms=100, timeout_s=3.0), clock=simulation)
    most_rows = 0

    def plan(now: float) -> float:
        nonlocal most_rows
        most_rows = max(most_rows, len(player.log.take_rows()))  # as a worker does, twice a second
        return BEGIN + 1000

    player.play([BEGIN, BEGIN + 0.03, BEGIN + 0.06], plan)
    assert len(simulation.requests) > 20_000
    held = {name: len(value) for name, value in vars(player).items() if hasattr(value, "__len__")}
    assert held["_deadlines"] <= 3 * 4.1 / 0.1 + 3  # those of the last seconds
    assert {name: count for name, count in held.items() if name != "_deadlines" and count > 3} == {}
    assert most_rows < 20
    assert len(player.log.messages) == 101
    assert len(player.log.texts) == 1
    assert len(vars(script)["_bodies"]) == 7
