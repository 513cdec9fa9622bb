"""The pure parts of `benchmarks/endurance`: what counts as wrong, told, recovered, lost, and as a clear error."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.endurance.deployment import MODELS, role_of
from benchmarks.endurance.faults import QUIET_S, choose_victim, recovered_at
from benchmarks.endurance.files import MOST_MIB, Run, verdict_of
from benchmarks.endurance.gauges import shared_bytes
from benchmarks.endurance.hostile import Reply, body
from benchmarks.endurance.load import RIGHT, Outcome, pieces
from benchmarks.endurance.page import largest_roles
from benchmarks.endurance.served import drain_row
from benchmarks.endurance.truth import Expected, Task

from tritone.transcript import Span, Transcript

STUB = "/tmp/b/python/triton_python_backend_stub"


def outcome(model: str, sent: float, answered: float, verdict: str = RIGHT) -> Outcome:
    return Outcome(model=model, protocol="grpc", sent=sent, answered=answered, verdict=verdict)


def test_another_text_or_another_time_of_a_word_is_wrong_and_a_rounded_time_is_not() -> None:
    expected = Expected(text="one two", words=(("one", 0.1, 0.2), ("two", 0.3, 0.4)))

    def answer(text: str, start_s: float) -> Transcript:
        return Transcript(text=text, words=(Span("one", start_s, 0.2, 1.0), Span("two", 0.3, 0.4, 1.0)))

    assert expected.fault_of(answer("one two", 0.1004)) is None
    assert "expected 'one two', got 'one'" in str(expected.fault_of(answer("one", 0.1)))
    assert "'one' at 0.100" in str(expected.fault_of(answer("one two", 0.14)))
    assert Expected(text="one two").fault_of(Transcript(text="one two")) is None, "no details were asked for"


def test_an_embedding_of_another_voice_is_wrong() -> None:
    vector = np.array([3.0, 4.0], np.float32)
    assert Expected(embedding=vector).fault_of(vector * np.float32(1.001)) is None
    assert "off by 0.4" in str(Expected(embedding=vector).fault_of(np.array([3.0, 2.0], np.float32)))


def test_a_server_has_recovered_when_all_models_answer_right_after_the_last_error() -> None:
    ended, error = 10.0, 12.0
    before = [outcome(model, 9.0, 11.0) for model in MODELS] + [outcome(MODELS[0], 10.0, error, "RetryError")]
    after = [outcome(model, 12.1, 13.0 + index) for index, model in enumerate(MODELS)]
    assert recovered_at(before, ended, 99.0) is None, "right answers before the last error do not count"
    assert recovered_at(before + after[:-1], ended, 99.0) is None, "one model has not answered"
    assert recovered_at(before + after, ended, error + QUIET_S - 0.1) is None, "it is too early to tell"
    assert recovered_at(before + after, ended, 99.0) == 13.0 + len(MODELS) - 1


def test_a_drain_loses_what_was_under_way_and_not_what_came_later() -> None:
    signalled = 100.0
    found = [
        outcome("a", 99.0, 101.0),
        outcome("a", 99.0, 101.0, "ServerUnreachableError"),
        outcome("a", 98.0, 99.0, "ServerTimeoutError"),
        outcome("a", 100.5, 100.6, "ServerBusyError"),
        outcome("a", 100.5, 100.6, "OperatorError"),
    ]
    row = drain_row(0, found, signalled, 0, 1.5)
    assert (row["in flight"], row["lost"], row["later refused"], row["unclear"]) == (2, 1, 1, 1)


@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        (Run(code=1, seconds=2.0, mib=90.0, output="error: a.flac says 0 Hz"), "clear"),
        (Run(code=1, seconds=2.0, mib=90.0, output="Traceback (most recent call last):\nerror"), "traceback"),
        (Run(code=0, seconds=2.0, mib=90.0, output=""), "no error"),
        (Run(code=99, seconds=2.0, mib=90.0, output=""), "exit code 99"),
        (Run(code=1, seconds=2.0, mib=90.0, output=""), "no error message"),
        (Run(code=1, seconds=11.0, mib=90.0, output="error"), "took 11 s"),
        (Run(code=None, seconds=25.0, mib=90.0, output=""), "took 25 s and went on"),
        (Run(code=1, seconds=2.0, mib=MOST_MIB + 1, output="error"), "took 1025 MiB"),
    ],
)
def test_a_clear_error_is_quick_small_and_no_traceback(run: Run, verdict: str) -> None:
    assert verdict_of(run) == verdict


def test_a_good_file_may_last_but_not_grow() -> None:
    assert verdict_of(Run(code=None, seconds=25.0, mib=300.0, output=""), may_last=True) == "clear"
    assert verdict_of(Run(code=None, seconds=25.0, mib=3000.0, output=""), may_last=True) == "took 3000 MiB"


def test_processes_are_known_by_their_command_lines() -> None:
    repository = Path("/r")
    assert role_of([STUB, "/r/demo-asr/1/model.py", "region"], repository) == "model demo-asr"
    assert role_of(["/x/bin/tritonserver", "--model-repository=/r"], repository) == "tritonserver"
    assert role_of(["sh", "-c", f"exec {STUB} /r/demo-asr/1/model.py"], repository) == "shell of demo-asr"


def test_only_regions_of_the_server_under_attack_are_counted(tmp_path: Path) -> None:
    (tmp_path / "tritone_7_ab").write_bytes(b"x" * 8192)
    (tmp_path / "tritone_77_ab").write_bytes(b"x" * 8192)
    assert shared_bytes(7, tmp_path) == 8192


def test_pieces_of_a_stream_are_the_whole_of_it() -> None:
    task = Task(model="m", waveform=np.arange(50_000, dtype=np.float32), expected=Expected())
    assert np.array_equal(np.concatenate(list(pieces(task, np.random.default_rng(0)))), task.waveform)


def test_victims_of_pauses_are_models_by_name_or_the_kind_itself() -> None:
    rng = np.random.default_rng(0)
    assert {choose_victim(rng, ["model"]) for _ in range(200)} == {f"model {name}" for name in MODELS}
    assert choose_victim(rng, ["all"]) == "all"


def test_a_hostile_body_keeps_its_broken_bytes_and_an_error_with_a_path_leaks() -> None:
    assert b'"parameters": {"search": "\xff"}}' in body(np.zeros((1, 2), np.float32), '{"search": "\xff"}')
    assert Reply(False, 'error\n  File "/x/model.py", line 3').leaks
    assert not Reply(False, "beam must be 1 to 128, got 1000").leaks


def test_plots_show_the_largest_processes() -> None:
    samples = [{"own": {"a": 1.0, "b": 5.0}}, {"own": {"a": 9.0, "c": 2.0}}]
    assert largest_roles(samples, most=2) == ["a", "b"]
