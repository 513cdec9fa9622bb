"""Searches that are compiled beside a model: marks, turns, the child that compiles, and what requests are told."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fresh import in_fresh_process
from toy_transducer import write_toy_transducer
from tritone.bundle.bundle import Bundle
from tritone.client.retries import with_attempts
from tritone.errors import OperatorError, ServerBusyError, hinted_s
from tritone.pipelines import ahead as module
from tritone.pipelines import open_offline
from tritone.pipelines.ahead import Ahead, compile_all
from tritone.result import Result
from tritone.search.compiled import kept as kept_module
from tritone.search.compiled.kept import Kept
from tritone.search.options import SearchOptions
from waiting import until

TIMEOUT_S = 60
BEAM = SearchOptions(mode="prefix-beam")
ONE = {"prefix-beam": "prefix-beam"}
MARK = "from tritone.pipelines.ahead import Kept; Kept(Path(sys.argv[3])).mark(f'{sys.argv[1]}.{sys.argv[2]}', [here])"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Marks of an empty cache."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    found = Kept.here()
    assert found is not None
    assert found.folder == tmp_path / "cache"
    return found


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What this process compiles or loads, which it does not do in fact."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(module, "compile_search", lambda *asked: found.append(asked))
    return found


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Have another program compile. It says in a file what it was started for; `here` is that file."""

    def replace(code: str) -> Path:
        said = tmp_path / "said"
        start = f"import os, sys; from pathlib import Path; here = Path({str(said)!r})\n"
        start += "with here.open('a', encoding='utf-8') as file: file.write(sys.argv[2] + '\\n')\n"
        program = [sys.executable, "-c", start + code]
        monkeypatch.setattr(module, "python_command", lambda _, *arguments: [*program, *map(str, arguments)])
        return said

    return replace


def begun(codes: dict[str, str] = ONE, **how: Any) -> tuple[Ahead, list[str]]:
    told: list[str] = []
    return Ahead("ctc", codes, warn=told.append, **how), told


def busy(ahead: Ahead, options: SearchOptions = BEAM) -> ServerBusyError:
    with pytest.raises(ServerBusyError) as caught:
        ahead.need(options)
    return caught.value


# --- marks


def test_a_mark_holds_until_a_file_of_the_cache_is_changed_or_gone(kept: Kept, tmp_path: Path) -> None:
    code = tmp_path / "advance.nbc"
    assert not kept.has("ctc.prefix-beam")
    for spoil in (code.unlink, lambda: code.write_bytes(b"another"), lambda: os.utime(code, (1, 1))):
        code.write_bytes(b"code")
        kept.mark("ctc.prefix-beam", [code])
        assert kept.has("ctc.prefix-beam")
        assert not kept.has("transducer.greedy")
        spoil()
        assert not kept.has("ctc.prefix-beam")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "7", '{"/nowhere": [1, 2]}'])
def test_what_is_no_whole_mark_marks_nothing(kept: Kept, content: str) -> None:
    kept._mark("ctc.prefix-beam").write_text(content, encoding="utf-8")
    assert not kept.has("ctc.prefix-beam")


@pytest.mark.parametrize("changed", ["numba", "cpu", "sources", "settings"])
def test_a_mark_is_of_a_numba_a_cpu_a_state_of_the_sources_and_settings(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    code = tmp_path / "advance.nbc"
    code.write_bytes(b"code")
    kept.mark("ctc.prefix-beam", [code])
    if changed == "numba":
        monkeypatch.setattr(kept_module, "version", lambda package: "99.0")
    elif changed == "cpu":
        monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "m68k")
    elif changed == "sources":
        monkeypatch.setattr(kept_module, "sources_stamp", lambda: "another")
    else:
        monkeypatch.setenv("NUMBA_OPT", "1")
    kept_module._machine.cache_clear()
    try:
        assert not kept.has("ctc.prefix-beam")
    finally:
        kept_module._machine.cache_clear()


def test_half_a_mark_is_never_left(kept: Kept, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kept.mark("ctc.prefix-beam", [tmp_path / "nowhere"])
    assert list(kept.folder.iterdir()) == []


def test_marks_are_where_the_cache_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(file / "below"))  # also for root no folder can be there
    monkeypatch.setattr(kept_module, "SOURCES", file)
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "own"))
    found = Kept.here()
    assert found is not None
    assert found.folder == tmp_path / "own" / "search"
    monkeypatch.setenv("TRITONE_CACHE", str(file))
    assert Kept.here() is None


def test_a_turn_is_one_process_s_and_ends_with_it(kept: Kept) -> None:
    code = f"""
from pathlib import Path
from tritone.search.compiled.kept import Kept
with Kept(Path({str(kept.folder)!r})).turn() as mine:
    print(mine, flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        with kept.turn() as mine:
            assert not mine
        other.kill()
    with kept.turn() as mine:
        assert mine


# --- compiling, by another program


def test_requests_are_told_when_to_come_again_until_the_child_is_done(
    kept: Kept, child: Callable[[str], Path], loaded: list[tuple[str, str]], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    said = child(f"open({str(gate)!r}).close(); {MARK}")
    ahead, told = begun()
    error = busy(ahead)
    assert "prefix-beam search is being compiled" in str(error)
    assert error.retry_after_s is not None
    assert 10 < error.retry_after_s <= 15
    assert hinted_s(str(error)) == round(error.retry_after_s)
    ahead.need(SearchOptions())  # greedy search needs nothing
    assert loaded == []
    gate.write_bytes(b"")  # opens once the child reads
    ahead.wait(TIMEOUT_S)
    ahead.need(BEAM)
    ahead.need(BEAM)
    assert loaded == [("ctc", "prefix-beam")]
    assert said.read_text(encoding="utf-8") == "prefix-beam\n"
    assert len(told) == 1
    assert "in the background" in told[0]
    again, nothing = begun()  # another model, later
    again.need(BEAM)
    assert nothing == []
    ahead.close()


def test_a_hint_counts_what_is_compiled_before(kept: Kept, child: Callable[[str], Path]) -> None:
    child("import time; time.sleep(600)")
    ahead, _ = begun({mode: mode for mode in ("greedy", "modified-beam", "fast-beam")})
    hints = [busy(ahead, SearchOptions(mode=mode)).retry_after_s for mode in ("greedy", "modified-beam", "fast-beam")]  # type: ignore[arg-type]
    assert hints == pytest.approx([15, 30, 45], abs=5)
    ahead._since -= 1000  # a machine that is slow
    assert busy(ahead, SearchOptions(mode="greedy")).retry_after_s == module.LEAST_S
    ahead.close()


def test_models_that_start_together_compile_once(kept: Kept, child: Callable[[str], Path], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    said = child(f"open({str(gate)!r}).close(); {MARK}")
    several = [begun()[0] for _ in range(3)]
    for each in several:
        busy(each)
    gate.write_bytes(b"")
    for each in several:
        each.wait(TIMEOUT_S)
        assert each.failed == {}
    assert said.read_text(encoding="utf-8") == "prefix-beam\n"


def test_code_that_was_not_found_in_the_cache_by_a_second_child_was_not_kept(
    kept: Kept, child: Callable[[str], Path], loaded: list[tuple[str, str]]
) -> None:
    said = child(f"sys.stderr.write('no space left'); sys.exit({module.COMPILED})")
    ahead, told = begun()
    ahead.wait(TIMEOUT_S)
    assert said.read_text(encoding="utf-8") == "prefix-beam\n" * 2
    assert ahead.failed == {"prefix-beam": "it was not kept\nno space left"}
    ahead.need(BEAM)  # as before: everybody waits, and nobody is refused for ever
    assert loaded == [("ctc", "prefix-beam")]
    assert "could not be compiled in the background: it was not kept" in told[1]
    assert "in the model's own process" in told[2]


def test_a_child_that_fails_says_why(kept: Kept, loaded: list[tuple[str, str]]) -> None:
    ahead = Ahead("nonesuch", ONE)
    ahead.wait(TIMEOUT_S)
    reason = ahead.failed["prefix-beam"]
    assert reason.startswith("exit code 1\n")
    assert reason.endswith("KeyError: 'nonesuch'")


def test_compiling_all_raises_what_could_not_be_compiled(kept: Kept, child: Callable[[str], Path]) -> None:
    child("sys.exit('there is no memory')")
    with pytest.raises(OperatorError, match="prefix-beam search: exit code 1\nthere is no memory"):
        compile_all("ctc")


def test_a_child_has_a_time_limit(
    kept: Kept, child: Callable[[str], Path], loaded: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.3)
    child("import time; time.sleep(600)")
    ahead, _ = begun()
    ahead.wait(TIMEOUT_S)
    assert ahead.failed == {"prefix-beam": "it was ended by signal 9"}


def test_closing_ends_and_reaps_the_child(kept: Kept, child: Callable[[str], Path], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    child(f"open({str(gate)!r}, 'w').close(); import time; time.sleep(600)")
    ahead, told = begun()
    gate.read_bytes()  # it runs
    process = until(lambda: ahead._child)
    ahead.close()
    assert process.returncode == -signal.SIGKILL
    assert not any(thread.name == "tritone-ahead" and thread.is_alive() for thread in threading.enumerate())
    assert len(told) == 1
    assert "is being compiled" in str(busy(ahead))  # which starts nothing new
    assert ahead._child is None


def test_without_a_folder_all_is_compiled_before_the_model_is_ready(
    monkeypatch: pytest.MonkeyPatch, loaded: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(Kept, "here", lambda: None)
    ahead, told = begun()
    assert loaded == [("ctc", "prefix-beam")]
    assert "no folder can be written" in told[0]
    assert "NUMBA_CACHE_DIR" in told[0]
    ahead.need(BEAM)
    assert loaded == [("ctc", "prefix-beam")]


def test_searches_that_run_no_compiled_code_need_none(kept: Kept, child: Callable[[str], Path]) -> None:
    child("import time; time.sleep(600)")
    ahead, _ = begun(compiled=lambda options: options.beam > 20)
    ahead.need(SearchOptions(mode="prefix-beam", beam=4))
    busy(ahead, SearchOptions(mode="prefix-beam", beam=40))
    ahead.close()


# --- hints


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("is being compiled. Try again in 15 s", 15.0),
        ("full; try it again in 2.5 s. The stream was not opened.", 2.5),
        ("Try again in 2 steps", None),
        ("Try again in 99999999999 s", None),
        ("try again later", None),
    ],
)
def test_a_hint_is_read_from_a_message(message: str, seconds: float | None) -> None:
    assert hinted_s(message) == seconds


def test_an_error_that_is_told_with_more_words_keeps_its_hint() -> None:
    error = ServerBusyError("full")
    error.retry_after_s = 7.0
    with pytest.raises(ServerBusyError, match=r"a\.wav: full") as caught:
        Result[int](index=0, source="a.wav", error=error).get()
    assert caught.value.retry_after_s == 7.0
    assert with_attempts(error, 3).retry_after_s == 7.0  # type: ignore[attr-defined]


def test_what_runs_on_a_device_needs_no_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searching = open_offline(Bundle.open(write_toy_transducer(tmp_path / "joined"))).searching
    beam, greedy = SearchOptions(mode="modified-beam", lm_weight=0.0), SearchOptions()
    hot = replace(beam, hotwords=(("a", 1.0),))
    assert all(searching.runs_compiled(each, in_steps=steps) for each in (beam, greedy, hot) for steps in (False, True))
    monkeypatch.setattr(searching, "_device", object())
    needed = [
        [searching.runs_compiled(each, in_steps=steps) for each in (greedy, beam, hot)] for steps in (False, True)
    ]
    assert needed == [[False, False, True], [False, True, True]]
    assert searching.runs_compiled(SearchOptions(mode="fast-beam"), in_steps=False)


# --- compiling in fact


def test_a_child_ends_with_the_process_that_it_compiles_for(kept: Kept) -> None:
    code = """
import time
from tritone.pipelines.ahead import Ahead
ahead = Ahead("ctc", {"prefix-beam": "prefix-beam"})
while ahead._child is None:
    time.sleep(0.01)
print(ahead._child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        watched = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([watched], [], [], TIMEOUT_S)[0], "it still runs"
    finally:
        os.close(watched)


def test_modes_with_the_same_code_are_compiled_once() -> None:
    kinds = {kind: module._codes(module.kind_named(kind)) for kind in ("ctc", "transducer", "whisper")}
    assert kinds["ctc"] == {"prefix-beam": "prefix-beam", "rescoring": "prefix-beam"}
    assert kinds["transducer"] == {mode: mode for mode in ("greedy", "modified-beam", "fast-beam")}
    assert kinds["whisper"] == {}


def test_what_is_compiled_ahead_is_all_that_requests_need(searches_compiled: None) -> None:
    assert in_fresh_process(_compiled_by_requests) == []


def _compiled_by_requests() -> list[str]:
    """Search in many ways, and name what was not in the cache."""
    from tritone.search.compiled.compiler import not_from_cache
    from tritone.search.ctc.prefix_beam import PrefixBeam, prefix_beam_search, top_tokens
    from tritone.search.scoring.expanded import expanded
    from tritone.search.scoring.scorer import Scorer
    from tritone.search.transducer.batch import advance_beams
    from tritone.search.transducer.compiling import _EvenNetwork
    from tritone.search.transducer.device_beam import DeviceBeam
    from tritone.search.transducer.fast_beam import FastBeam
    from tritone.search.transducer.greedy import GreedyState, advance_greedy
    from tritone.search.transducer.modified_beam import ModifiedBeam
    from tritone.search.transducer.predictor import PredictorCache

    words = (("a", 1.5), ("a a", -2.0))
    scorer = Scorer.build(("", "a", " "), lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=words)
    log_probs = np.log(np.full((2, 40, 3), 1 / 3, np.float32))
    for some in (None, scorer, [scorer, None]):
        prefix_beam_search(log_probs, np.array([40, 30]), blank_id=0, beam=3, nbest=2, scorer=some, threads=2)
    cache = PredictorCache(_EvenNetwork())
    frames, counts = np.zeros((2, 30, 1), np.float32), np.array([30, 25])
    for _ in range(3):
        advance_greedy([GreedyState(cache, max_symbols=2), GreedyState(cache)], frames, counts)
    for each in (None, scorer):
        stream = PrefixBeam(beam=3, blank_id=0, history=4, scorer=each)
        for _ in range(20):
            stream.advance(*top_tokens(log_probs[0], 3))
            stream.take_settled()
        stream.hypotheses(2, final=True)
        for beams in (
            [ModifiedBeam(cache, beam=3, scorer=each, history=4, temperature=t) for t in (1.0, 2.0)],
            [FastBeam(cache, max_states=8, max_contexts=4, nbest=3, scorer=each, history=4) for _ in range(2)],
        ):
            for _ in range(5):
                advance_beams(beams, frames, counts)  # type: ignore[arg-type]
            for beam in beams:
                beam.take_settled()
                beam.hypotheses(3, final=True)
    assert scorer is not None
    expanded(scorer, (0,))
    on_device = DeviceBeam(SearchOptions(mode="modified-beam", beam=3), history=4)
    for _ in range(20):
        found = np.tile(np.array([[[0, 1, 1 << 8]], [[1, 1, 2]], [[0, 0, 0]]], np.int32), (1, 3, 1))
        on_device.follow(np.zeros((3, 3)), np.arange(3), found, on_device.ready(3))
        on_device.take_settled()
    on_device.hypotheses(3, final=True)
    return not_from_cache()


def test_a_model_that_searches_in_no_way_has_nothing_to_compile() -> None:
    assert Ahead.of(SimpleNamespace(searching=None)) is None
    assert Ahead.of(object()) is None


def test_compiling_all_again_finds_all(searches_compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "python_command", lambda *_: pytest.fail("a child was started"))
    compile_all("ctc")
    compile_all("transducer")
