"""The heartbeat in a process of its own: what it survives, and what ends it."""

import signal
import subprocess
import sys
import time

import psutil

START = "import time; from tritone.backend import heartbeat; heartbeat.start({limits}); batch = heartbeat.batch(); "
ENTER = "batch.__enter__(); print('begun', flush=True); "


def begun(code: str, limits: str = "") -> "subprocess.Popen[str]":
    """A process in the midst of its first batch, which executes the code."""
    code = START.format(limits=limits) + ENTER + code
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def ended(process: "subprocess.Popen[str]") -> int:
    with process:
        return process.wait(60)


def test_a_process_that_was_stopped_does_not_execute_another_instruction() -> None:
    process = begun("time.sleep(300)")
    paused = psutil.Process(process.pid)
    paused.suspend()
    assert ended(process) == -signal.SIGKILL, "the kernel kills it while it is stopped"


def test_a_batch_beyond_its_limit_ends_the_process() -> None:
    assert ended(begun("time.sleep(300)", "0.2")) == -signal.SIGKILL


def test_work_that_holds_the_lock_of_the_interpreter_is_no_pause() -> None:
    # On a machine that gives the process no processor for half a second it is one: what it never survives would fail.
    code = "import ctypes; ctypes.PyDLL(None).usleep(999_999); batch.__exit__(None, None, None)"
    assert any(ended(begun(code)) == 0 for _ in range(3))


def test_batches_one_after_the_other_may_take_longer_together_than_one() -> None:
    again = "batch.__exit__(None, None, None); batch = heartbeat.batch(); batch.__enter__(); time.sleep(0.5); "
    code = again * 3
    assert any(ended(begun(code, "1.2")) == 0 for _ in range(3))


def test_processes_of_models_do_not_load_what_they_do_not_need() -> None:
    """numba takes 0.9 s and 50 MB, torch 2 s and 300 MB of every process of a model."""
    code = (
        "import sys, types; sys.modules['triton_python_backend_utils'] = types.SimpleNamespace(); "
        "from tritone.backend import heartbeat, offline, streaming, embedding, generic; heartbeat.start(); "
        "import tritone.kinds.ctc.kind, tritone.kinds.embedding.kind; "
        "print({'numba', 'torch', 'onnx', 'scipy', 'matplotlib', 'rich', 'typer'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=120)
    assert done.stdout == "set()\n", done.stderr


def test_a_pause_before_the_first_batch_is_forgiven() -> None:
    code = "from tritone.backend import heartbeat; heartbeat.start(); print('begun', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    paused = psutil.Process(process.pid)
    paused.suspend()
    time.sleep(0.8)
    paused.resume()
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


IDLE = "batch.__exit__(None, None, None); time.sleep(0.5); print('idle', flush=True); input(); "
AGAIN = "batch = heartbeat.batch(); batch.__enter__(); print('again', flush=True)"


def paused_while_idle(code: str, limits: str) -> tuple[int, str]:
    """Exit code and output of a process that was stopped when it had been idle for half a second, and then went on."""
    process = begun(IDLE + code, limits)
    assert process.stdout is not None
    assert process.stdout.readline() in ("idle\n", "")
    psutil.Process(process.pid).suspend()
    time.sleep(0.8)
    psutil.Process(process.pid).resume()
    out, _ = process.communicate("\n", timeout=60)
    return process.returncode, out


def test_a_pause_of_a_process_that_has_been_idle_is_forgiven_and_batches_after_it_are_guarded_again() -> None:
    limits = "600, 0.1, 0"
    assert any(paused_while_idle(AGAIN, limits) == (0, "again\n") for _ in range(3))
    assert any(paused_while_idle(AGAIN + "; time.sleep(1)", "0.2, 0.1, 0") == (-9, "again\n") for _ in range(3))


def test_a_batch_that_may_have_come_while_the_process_stood_still_ends_it() -> None:
    assert paused_while_idle(AGAIN, "600, 0.1, 600") == (-signal.SIGKILL, "")


def test_a_process_that_has_just_answered_does_not_survive_a_pause() -> None:
    assert paused_while_idle(AGAIN, "600, 600, 0") == (-signal.SIGKILL, "")
