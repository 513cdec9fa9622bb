"""`tritone serve` as a process: starts, tells, ends, and leaves nothing behind."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile

from serving import Ask, RawClient, Refusal, Serve, descendants, left, lines_until, ports, quiet_options, regions
from toy import SAMPLE_RATE, toy_waveform
from toy_speaker import write_toy_speaker
from tritone.errors import ServerSetupError, ServerUnreachableError
from tritone.installing import pip_install
from tritone.repository import build_repository
from tritone.server import TritonServer, free_ports
from tritone.server.installation import Installation
from tritone.server.process import UNNOTICED_S, EndedChildren

WAIT_S = 60


@pytest.fixture
def repository(toy_bundle: Path, tmp_path: Path) -> Path:
    build_repository([toy_bundle], tmp_path / "repo", modes="offline")
    return tmp_path / "repo"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_server_cleanly_and_no_child_is_left(
    serve: Serve, repository: Path, number: signal.Signals
) -> None:
    options = quiet_options()
    process = serve(repository, *ports(options))
    table = "".join(lines_until(process, "^Serving on"))
    assert re.search(r"toy +1 +offline +READY", table)
    assert RawClient(f"127.0.0.1:{options.grpc_port}").ask(Ask(model="toy", wav=toy_waveform("up"))) == "up"
    children = descendants(process.pid)
    assert {"tritonserver", "triton_python_b"} <= {child.name()[:15] for child in children}
    assert len(regions(process.pid)) == 1
    process.send_signal(number)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    assert left(children) == []
    assert regions(process.pid) == set()


def test_with_control_open_a_model_is_unloaded_and_loaded_again_as_its_files_are_then(
    serve: Serve, repository: Path
) -> None:
    options = quiet_options()
    process = serve(repository, *ports(options), "--open", "control")
    assert re.search(r"toy +1 +offline +READY", "".join(lines_until(process, "^Serving on")))
    raw = RawClient(f"127.0.0.1:{options.grpc_port}")
    ask = Ask(model="toy", wav=np.zeros(13 * SAMPLE_RATE, np.float32))
    assert raw.ask(ask) == ""
    raw.grpc.unload_model("toy")
    assert isinstance(raw.ask(ask), Refusal)
    config = repository / "toy" / "config.pbtxt"
    longest = 'key: "max_audio_s"\n  value {\n    string_value: "'
    before = config.read_text(encoding="utf-8")
    assert longest in before
    config.write_text(before.replace(f"{longest}120.0", f"{longest}12.0"), encoding="utf-8")
    raw.grpc.load_model("toy")
    refusal = raw.ask(ask)
    assert isinstance(refusal, Refusal)
    assert "limit is 12 s" in refusal.message


def test_under_nohup_a_closed_terminal_does_not_end_the_server_and_sigterm_does(serve: Serve, repository: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # children inherit it, which is all that nohup does
    try:
        options = quiet_options()
        process = serve(repository, *ports(options), "--drain-s", 0)  # nothing is in flight
        lines_until(process, "^Serving on")
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    assert RawClient(f"127.0.0.1:{options.grpc_port}").ask(Ask(model="toy", wav=toy_waveform("up"))) == "up"
    children = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    assert left(children) == []
    assert regions(process.pid) == set()


def test_a_repository_may_lie_anywhere(toy_bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / 'it\'s my "models"; touch $HOME & ü'
    build_repository([toy_bundle], place, modes="offline")
    with TritonServer(place, quiet_options()) as server:
        assert RawClient(server.grpc_address).ask(Ask(model="toy", wav=toy_waveform("found"))) == "found"
    assert [path.name for path in place.iterdir()] == ["toy"]


def test_an_impatient_ctrl_c_while_the_server_stops_leaves_nothing_behind(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_interrupted(timeout_s: float | None = None) -> int:
        raise KeyboardInterrupt

    before = regions(os.getpid())
    server = TritonServer(repository, quiet_options())
    server.start()
    children = [child for child in descendants(os.getpid()) if child.pid == server.pid]
    children += descendants(server.pid)
    monkeypatch.setattr(server, "wait", be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert len(children) >= 2
    assert left(children) == []
    assert regions(os.getpid()) == before


def test_a_server_that_died_cannot_list_its_models_and_says_so(repository: Path) -> None:
    with TritonServer(repository, quiet_options()) as server:
        os.kill(server.pid, signal.SIGKILL)
        assert server.wait() == 128 + signal.SIGKILL
        with pytest.raises(ServerUnreachableError, match="does not list its models"):
            server.models()


@pytest.mark.slow
@pytest.mark.parametrize("models", ["toy", "toy and other", "speaker"])
def test_the_line_of_curl_that_is_printed_works(serve: Serve, toy_bundle: Path, tmp_path: Path, models: str) -> None:
    what = write_toy_speaker(tmp_path / "speaker") if models == "speaker" else toy_bundle
    if models == "toy and other":
        what = tmp_path / "repo"
        build_repository([toy_bundle, toy_bundle], what, modes="offline", names=["toy", "other"])
    soundfile.write(tmp_path / "up.wav", toy_waveform("up"), SAMPLE_RATE)
    (port,) = free_ports(1)
    process = serve(what, *ports(quiet_options()), "--gateway", "--gateway-port", str(port))
    line = lines_until(process, "^curl ")[-1].replace("YOUR.wav", str(tmp_path / "up.wav"))
    answer = subprocess.run([*line.split(), "-s"], capture_output=True, encoding="utf-8", check=True).stdout
    assert ('"data":[]' if models == "speaker" else '"text":"up"') in answer
    assert ("-F model=" in line) is (models == "toy and other")


@pytest.mark.slow
def test_a_gateway_without_its_packages_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    code = "import sys; sys.modules['starlette'] = None; from tritone.cli.main import app; app()"
    command = [sys.executable, "-c", code, "serve", str(tmp_path), "--gateway"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: the gateway needs packages that are not installed (starlette.types): {pip_install('gateway')}\n"
    )


@pytest.mark.slow
def test_a_signal_during_the_start_leaves_no_child(serve: Serve, repository: Path) -> None:
    process = serve(repository, *ports(quiet_options()), "--log-level", "info")
    assert process.stderr is not None
    next(line for line in process.stderr if "loading: toy" in line)
    children = descendants(process.pid)
    assert "tritonserver" in {child.name() for child in children}
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert left(children) == []
    assert regions(process.pid) == set()


def test_a_start_whose_process_of_a_model_cannot_come_up_ends_soon_with_the_words_of_the_log(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: Installation, folder: Path) -> dict[str, str]:
        return {**self.environment(), "PATH": "/nowhere"}  # Triton finds no bash there

    monkeypatch.setattr(Installation, "start_environment", lost)
    monkeypatch.setattr("tritone.server.process.UNNOTICED_S", 0.5)
    server = TritonServer(repository, quiet_options())
    before, children = regions(os.getpid()), descendants(os.getpid())
    with pytest.raises(ServerSetupError, match="process of a model ended with code 1") as caught:
        server.start()
    assert "Failed to run python backend stub. Errno = 2" in str(caught.value)
    assert left([each for each in descendants(os.getpid()) if each not in children]) == []
    assert regions(os.getpid()) == before


def test_only_what_stays_ended_for_long_counts_as_unnoticed() -> None:
    now = 0.0
    with subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) as process:
        child = psutil.Process(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays as what a parent has not asked about
        ended = EndedChildren(lambda: [child, psutil.Process()], lambda: now)
        found = []
        for now in (1.0, 1.1, UNNOTICED_S, 1.1 + UNNOTICED_S):  # noqa: B007
            found.append(ended.unnoticed())
    assert found == [None, None, None, "was killed by signal 9"]


class ClosedPipe(io.StringIO):
    """A log that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_the_server_outlives_the_reader_of_its_log(repository: Path) -> None:
    with TritonServer(repository, quiet_options(log_level="info"), log=ClosedPipe()) as server:
        assert RawClient(server.grpc_address).ask(Ask(model="toy", wav=toy_waveform("still here"))) == "still here"
    assert any("Started GRPCInferenceService" in line for line in server.tail)


@pytest.mark.slow
def test_without_restart_the_end_of_triton_ends_serve_with_its_code(serve: Serve, repository: Path) -> None:
    process = serve(repository, *ports(quiet_options()), "--no-restart")
    lines_until(process, "^Serving on")
    children = descendants(process.pid)
    next(child for child in children if child.name() == "tritonserver").kill()
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + signal.SIGKILL
    assert left(children) == []
    assert regions(process.pid) == set()


def test_a_model_that_does_not_load_is_named_with_its_reason(serve: Serve, repository: Path) -> None:
    (repository / "toy" / "1" / "bundle" / "weights.bin").unlink()
    process = serve(repository, *ports(quiet_options()))
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    told = errors[errors.index("error: tritonserver ended") :]
    assert re.search(r"models did not load:\n  toy: .*weights\.bin is missing\. Copy the whole bundle", told), told
    assert "Traceback" not in told


def test_a_taken_port_is_told_before_anything_starts(server: TritonServer, repository: Path) -> None:
    (free,) = free_ports(1)
    taken = quiet_options(http_port=free, grpc_port=server.options.grpc_port)
    with pytest.raises(
        ServerSetupError, match=rf"grpc port: .*is taken by pid {server.pid} \(tritonserver\).*--grpc-port"
    ):
        TritonServer(repository, taken).start()


def test_what_is_no_model_is_explained(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("words", encoding="utf-8")
    process = serve(tmp_path, *ports(quiet_options()))
    output, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, output) == (1, "")
    assert f"{tmp_path} holds no model. It has notes.txt; needed is a bundle" in errors


def test_a_start_that_takes_too_long_is_given_up_without_leftovers(repository: Path) -> None:
    server = TritonServer(repository, quiet_options(start_timeout_s=0.001))
    before, children = regions(os.getpid()), descendants(os.getpid())
    with pytest.raises(ServerSetupError, match=r"not ready after 0\.001 s"):
        server.start()
    assert left([each for each in descendants(os.getpid()) if each not in children]) == []
    assert regions(os.getpid()) == before


def test_a_start_in_which_a_model_was_lost_for_want_of_a_core_is_made_again(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = io.StringIO()
    server = TritonServer(repository, quiet_options(), log=log)
    wait, stalls = server._await_ready, [(True, 0.0), (False, 1e9), (False, 0.0)]

    def await_ready() -> None:
        wait()
        server._stood_still, load = stalls.pop(0)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
        raise ServerSetupError("Stub process 'toy_0_0' is not healthy.")

    monkeypatch.setattr(server, "_await_ready", await_ready)
    with pytest.raises(ServerSetupError, match="not healthy"):  # where there is time for all it is an error at once
        server.start()
    assert (stalls, log.getvalue().count("server is started again")) == ([], 2)
    monkeypatch.undo()
    with server:  # stopped by its failure, it may be started again
        assert RawClient(server.grpc_address).ask(Ask(model="toy", wav=toy_waveform("up"))) == "up"
        assert not server.has_crashed
        os.kill(server.pid, signal.SIGKILL)
        server.wait(WAIT_S)
        assert server.has_crashed
    assert not server.has_crashed
