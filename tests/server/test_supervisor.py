"""A served model that pauses, dies or ends: nobody gets another's text, and what is lost is told and comes back."""

import io
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from select import select
from types import SimpleNamespace

import psutil
import pytest

from serving import Ask, RawClient, Refusal, Serve, descendants, lines_until, ports, quiet_options
from toy import toy_waveform
from tritone.repository import ModelOptions, build_repository
from tritone.server import ServerOptions, TritonServer, supervisor
from tritone.server.control import Control
from tritone.server.watch import Failures, ModelWatch
from waiting import until

WAIT_S = 60
REFUSED = ("NOT_FOUND", "UNAVAILABLE", "CANCELLED")  # the last two by a connection that ends
WORDS = ("up", "down", "left", "right")


@pytest.fixture(scope="module")
def repository(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("supervised")
    options = ModelOptions(queue_delay_ms=0, max_batch_size=4, stream_idle_timeout_s=600)
    build_repository([toy_bundle], folder, options=options)
    return folder


class Load:
    """Clients that ask for a word each, again and again; what is not the word they spoke is counted as wrong."""

    def __init__(self, address: str) -> None:
        self.right = self.wrong = 0
        self.refused: list[Refusal] = []
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(address, word)) for word in WORDS]
        for thread in self._threads:
            thread.start()

    def _ask(self, address: str, word: str) -> None:
        client = RawClient(address)
        while not self._ended.is_set():
            answer = client.ask(Ask(model="toy", wav=toy_waveform(word)))
            with self._changed:
                if isinstance(answer, Refusal):
                    self.refused.append(answer)
                else:
                    self.right += answer == word
                    self.wrong += answer != word
                self._changed.notify_all()
            if isinstance(answer, Refusal):
                self._ended.wait(0.02)  # whoever asks without a pause takes the cores from the model that is loaded

    def until(self, condition: Callable[["Load"], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), WAIT_S), (self.right, self.wrong, self.refused[-1:])

    def more(self, count: int = 8) -> None:
        """Wait until as many requests more were answered."""
        before = self.right
        self.until(lambda load: load.right >= before + count)

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def load() -> Iterator[Callable[[str], Load]]:
    started: list[Load] = []

    def start(address: str) -> Load:
        started.append(Load(address))
        return started[-1]

    yield start
    for each in started:
        each.end()


def model_process(server: int, model: str = "toy") -> psutil.Process:
    """The living process of a model below process `server`."""
    for child in psutil.Process(server).children(recursive=True):
        alive = child.name().startswith("triton_python_b") and child.status() != psutil.STATUS_ZOMBIE
        if alive and child.cmdline()[1].split("/")[-3] == model:
            return child
    raise AssertionError(f"{model} has no process")


def iter_until(lines: Iterable[str], words: str) -> list[str]:
    """The lines up to the one that has these words."""
    found: list[str] = []
    for line in lines:
        found.append(line)
        if words in line:
            return found
    raise AssertionError(f"{words!r} never came: {found}")


def address_of(options: ServerOptions) -> str:
    return f"127.0.0.1:{options.grpc_port}"


def test_a_server_that_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes are all there, and none of them answers."""
    monkeypatch.setattr(supervisor, "LOOK_S", 0.01)
    monkeypatch.setattr(supervisor, "ASK_S", 0.01)
    monkeypatch.setattr(supervisor, "SILENT_S", 0.1)
    answers = iter([True, True])

    class Frozen(SimpleNamespace):
        killed = False

        def wait(self, timeout_s: float | None = None) -> int:
            if not self.killed:
                time.sleep(timeout_s or 0)
                raise TimeoutError
            return 137

        def kill(self) -> None:
            self.killed = True

    frozen = Frozen(children=list, control=SimpleNamespace(is_live=lambda: next(answers, False), models=list))
    log = io.StringIO()
    watching = supervisor.Supervisor("repository", ServerOptions(), log=log)
    assert watching._watch(frozen) == 137  # type: ignore[arg-type]
    assert next(answers, None) is None
    assert "the server has not answered for 0.1 s; it is ended" in log.getvalue()


@pytest.mark.slow
def test_a_model_that_pauses_gives_nobody_another_s_text_and_is_served_again(
    serve: Serve,
    repository: Path,
    load: Callable[[str], Load],
) -> None:
    options = quiet_options()
    process = serve(repository, *ports(options))
    lines_until(process, "^Open to")
    clients = load(address_of(options))
    clients.more()
    paused = model_process(process.pid)
    ended = os.pidfd_open(paused.pid)
    paused.suspend()
    assert select([ended], [], [], WAIT_S)[0]  # the system ends it where it stands; else it would go on, a batch late
    os.close(ended)
    clients.until(lambda load: bool(load.refused))
    clients.more()
    assert clients.wrong == 0
    assert model_process(process.pid).pid != paused.pid
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert re.search(rf"'toy' lost its process {paused.pid}.*'toy' is ready again", errors, re.DOTALL)


@pytest.mark.slow
def test_a_model_without_its_process_is_not_ready_until_it_is_loaded_again(repository: Path) -> None:
    said: list[str] = []
    with TritonServer(repository, quiet_options()) as server:
        watch = ModelWatch(server, said.append)

        def seen() -> int:
            watch.look()
            return len(said)

        assert seen() == 0
        model_process(server.pid).kill()
        until(lambda: seen() == 1)
        assert said[0].startswith("model 'toy' lost its process")
        raw = RawClient(server.grpc_address)
        until(lambda: not raw.grpc.is_model_ready("toy"))
        assert not raw.grpc.is_server_ready()
        assert isinstance(raw.ask(Ask(model="toy", wav=toy_waveform("up"))), Refusal)
        until(lambda: seen() == 2)
        assert "is ready again" in said[1]
        assert raw.ask(Ask(model="toy", wav=toy_waveform("up"))) == "up"
        assert not watch.hopeless


@pytest.mark.slow
def test_a_model_that_somebody_unloads_is_not_taken_for_lost(repository: Path) -> None:
    said: list[str] = []
    with TritonServer(repository, quiet_options()) as server:
        watch = ModelWatch(server, said.append)
        server.control.unload("toy")
        states = {}
        while states.get("toy") != "UNAVAILABLE":
            watch.look()
            states = {each["name"]: each.get("state") for each in server.control.models()}
        watch.look()
        server.control.load("toy", WAIT_S)
        watch.look()
        assert said == []


@pytest.mark.slow
def test_a_signal_under_load_loses_nothing_in_flight(
    serve: Serve,
    repository: Path,
    load: Callable[[str], Load],
) -> None:
    options = quiet_options()
    process = serve(repository, *ports(options))
    lines_until(process, "^Open to")
    raw = RawClient(address_of(options))
    stream = {"model": "toy-streaming", "wav": toy_waveform("up"), "stream": 5}
    assert not isinstance(raw.ask(Ask(**stream, start=True)), Refusal)
    clients = load(address_of(options))
    clients.more()
    process.send_signal(signal.SIGTERM)
    clients.until(lambda load: bool(load.refused))
    assert not raw.grpc.is_server_ready()
    assert isinstance(raw.ask(Ask(**stream | {"stream": 6}, start=True)), Refusal)
    assert not isinstance(raw.ask(Ask(**stream)), Refusal)
    assert not isinstance(raw.ask(Ask(**stream, end=True)), Refusal)
    _, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, clients.wrong) == (0, 0)
    # Requests are refused by name until the server is gone; none that was taken was lost.
    assert {each.status for each in clients.refused} <= {f"StatusCode.{name}" for name in REFUSED}
    assert "not everything" not in errors


def test_a_server_that_died_is_started_again(serve: Serve, repository: Path) -> None:
    options = quiet_options()
    process = serve(repository, *ports(options))
    lines_until(process, "^Open to")
    next(child for child in descendants(process.pid) if child.name() == "tritonserver").kill()
    assert process.stderr is not None
    assert "exit code 137; it is started again" in "".join(iter_until(process.stderr, "is ready again"))
    assert RawClient(address_of(options)).ask(Ask(model="toy", wav=toy_waveform("up"))) == "up"


@pytest.mark.slow
def test_a_second_signal_ends_the_server_at_once(serve: Serve, repository: Path) -> None:
    options = quiet_options(drain_s=600)
    process = serve(repository, *ports(options), "--drain-s", 600)
    lines_until(process, "^Open to")
    raw = RawClient(address_of(options))
    assert not isinstance(raw.ask(Ask(model="toy-streaming", wav=toy_waveform("up"), stream=5, start=True)), Refusal)
    assert process.stderr is not None
    process.send_signal(signal.SIGTERM)
    iter_until(process.stderr, "ending:")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + signal.SIGKILL


@pytest.fixture(scope="module")
def locked(repository: Path) -> Iterator[TritonServer]:
    with TritonServer(repository, quiet_options(open="trace")) as server:
        yield server


def test_management_asks_for_the_key_unless_it_is_opened(locked: TritonServer) -> None:
    assert {each["name"] for each in locked.models()} == {"toy", "toy-streaming"}
    options = locked.options
    stranger = Control(ServerOptions(**{name: getattr(options, name) for name in ("http_port", "grpc_port")}))
    for path, status in (("/v2/systemsharedmemory/status", 403), ("/v2/logging", 403), ("/v2/trace/setting", 200)):
        assert stranger._ask("GET", path)[0] == status
    assert stranger._ask("POST", "/v2/repository/index", "{}")[0] == 403
    arguments = Path(f"/proc/{locked.pid}/cmdline").read_text(encoding="utf-8")
    assert "tritone-key=***" in arguments
    assert options.key not in arguments
    assert RawClient(locked.grpc_address).ask(Ask(model="toy", wav=toy_waveform("up"))) == "up"


def test_regions_of_shared_memory_are_the_user_s_own(locked: TritonServer) -> None:
    regions = list(Path("/dev/shm").glob(f"{locked._region_prefix}*"))
    assert len(regions) == 2
    assert {path.stat().st_mode & 0o777 for path in regions} == {0o600}


def test_failures_in_a_row_wait_longer_and_longer_and_then_give_up():
    now = 0.0
    failures = Failures(clock=lambda: now)
    pauses = []
    while not failures.too_many:
        failures.add()
        pauses.append(failures.pause_s)
        now += 100  # a start that fails may take as long as it likes
    assert pauses == [0, 1, 2, 4, 8, 16]
    failures.ready()
    now += 100
    failures.add()
    assert (failures.count, failures.pause_s) == (1, 0)


def test_a_log_that_floods_is_cut_and_says_by_how_much():
    from tritone.server.process import LineLimit

    now = 0.0
    limit = LineLimit(most=3, clock=lambda: now)
    passed = [line for number in range(10) for line in limit.passed(f"{number}\n")]
    assert passed == ["0\n", "1\n", "2\n"]
    now = 1.5
    assert list(limit.passed("next\n")) == ["(7 more lines were left out)\n", "next\n"]
