"""Fixtures for all tests, and how a run is spread over workers.

    tests/<room>/     those of src/tritone/<room>; tensorrt/ is the name of NVIDIA's package, hence engines/
    tests/parity/     ours against arrays that upstream's own code made, which lie in golden/
    tests/e2e/        shipped models on real speech, and the notebook
    tests/examples/   the folders of examples/, whose commands are run
    tests/training/   recipes and the accuracy page, of training/ and benchmarks/
    tests/support/    what tests import by its bare name, for pytest has the folder on its path:
        toy, toy_speaker, toy_torch, toy_transducer     bundles whose answers can be told from their input
        wire_toys, wire_models/                         Triton models of arithmetic, without code of Tritone
        fronts, certificates                            a proxy that refuses and remembers; files of TLS
        loopback, object_server, hub_server             HTTP on loopback: S3 and a hub of models, which fail as told
        killers, proxied                                requests that end Triton; asking a proxy
        liars, serving                                  models that answer wrongly; a raw client, facts about servers
        served_toys                                     one real server of toys, shared by tests of several folders
        gateway_streams                                 live streams through the gateway, event by event
        sherpa_toys, pt2, tensorrt_builder, traces      what exporters and importers read and write
        simulation, load_reports, fresh                 a clock without real time; reports; a new process
        arpa_oracle, nemo_reference, silero             references that results are compared with
        format_readers                                  strict readers of subtitles and TextGrids
        pages                                           command lines of documents, and a reader who copies them
        shared, workers                                 results made once a run; which tests stay on one worker
        effort                                          how many examples a run tries
        waiting                                         until what another thread or process does is done
        switching/                                      how long a thread keeps the interpreter, for child processes
        stalls                                          repeats a test that failed while the machine stood still

`make test` leaves out what is marked `slow`, `make test-all` runs it too, and `make test-gpu` what is marked `gpu`.
"""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything loads OpenMP, for children too. Networks of a few thousand weights gain nothing from a second thread,
# and threads that wait for each other by spinning make tests many times slower where others use the machine as well.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# While torch traces it keeps the shape of each operator's result, so as not to compute it again. In networks of a layer
# or two hardly any is needed twice, and keeping them is a quarter of the time of an export.
os.environ.setdefault("TORCH_FAKE_TENSOR_DISPATCH_CACHE", "0")

import pytest

import effort
import stalls
import workers
from object_server import ObjectServer
from shared import Shared, shared_of
from toy import write_toy_bundle
from tritone.families.export.report import ExportReport
from tritone.families.silero.export import export_silero
from tritone.pipelines.ahead import compile_all
from tritone.server import TritonServer
from wire_toys import toy_server

pytest_plugins = ["served_toys"]  # fixtures

WARN = "PYTHONWARNDEFAULTENCODING"
SWITCH_INTERVAL = "TRITONE_TEST_SWITCH_INTERVAL"  # for sitecustomize.py in support/switching
TICKERS = pytest.StashKey[list["subprocess.Popen[bytes]"]]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)  # what a test draws does not hang on the tests before it
    if item.get_closest_marker("gpu") and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no GPU that torch can use")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return shared_of(tmp_path_factory)


@pytest.fixture(scope="session", autouse=True)
def _memory_is_not_measured() -> Iterator[None]:
    """Exports and builds of toys measure nothing: that would be a process for each, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tritone.pipelines.memory.measure", lambda bundle, index, **others: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _servers_survive_stalls() -> Iterator[None]:
    """A test that is repeated after a stall finds the models of its servers ready again."""
    start = TritonServer.start

    def started(self: TritonServer) -> None:
        start(self)
        stalls.STALLS.watch(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TritonServer, "start", started)
        yield


@pytest.fixture(scope="session")
def searches_compiled() -> None:
    """All searches are compiled: a server beside which one still is would refuse the requests that need it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tritone.pipelines.ahead.PRIORITY", 0)  # the other workers leave little to what gives way to them
        for kind in ("ctc", "transducer"):
            compile_all(kind)


@pytest.fixture(scope="session")
def toy_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy bundle with both roles; read-only by agreement."""
    return write_toy_bundle(tmp_path_factory.mktemp("bundles") / "toy")


@pytest.fixture(scope="session")
def toy_bundle_of_both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same bundle with graphs for both runtimes."""
    return write_toy_bundle(tmp_path_factory.mktemp("both") / "toy", runtimes=("onnxruntime", "torch"))


@pytest.fixture(scope="session")
def wire_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """Toy models that answer with arithmetic."""
    models = ("count", "running", "other", "scale", "speaker", "lone")
    with toy_server(tmp_path_factory.mktemp("repository"), *models) as server:
        yield server


@pytest.fixture(scope="session")
def either_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """Toy models that take float32 or 16-bit audio, and say which they got; beside one that knows float32 alone."""
    with toy_server(tmp_path_factory.mktemp("either"), "either", "either-chunks", "count", "scale") as server:
        yield server


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """An empty S3 on loopback, which the environment names, and a cache of this test."""
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "cache"))
    with ObjectServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def tiny_en_cache(shared: Shared) -> Path:
    """A cache of exports (`TRITONE_CACHE`) for this run, which has those of Whisper tiny.en that several tests need."""
    return shared.folder / "tiny-en-cache"


@pytest.fixture(scope="session")
def silero_bundle(shared: Shared) -> Path:
    """The detector of the installed package silero-vad for 16 kHz; read-only by agreement."""
    return shared("silero-16k", lambda folder: export_silero(output=folder / "vad").bundle.path)


@pytest.fixture(scope="session")
def diarization_report(shared: Shared) -> ExportReport:
    """Of a small random model that tells speakers apart, which lies beside its bundle; read-only by agreement."""
    from families import diarization_models

    return shared("diarization", diarization_models.export)


@pytest.fixture(scope="session")
def diarization_bundle(diarization_report: ExportReport) -> Path:
    return diarization_report.bundle.path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        action="append",
        metavar="DIR",
        help="folder with golden cases for tests/parity, searched at any depth; may be given several times. "
        "Default: tests/golden, and shared/golden beside the repository where it exists.",
    )
    parser.addoption(
        "--switch-interval",
        type=float,
        metavar="SECONDS",
        help="how long a thread of Python keeps the interpreter while others wait for it (Python's own is 0.005), in "
        "workers and in processes that tests start, too. With 1e-6 and with 1 threads meet in unusual orders.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=workers.rank)
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            stalls.repeat(item)


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # whoever starts the workers, or runs the tests itself
        session.config.stash[TICKERS] = stalls.start()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (tickers := session.config.stash.get(TICKERS, None)) is not None:
        stalls.stop(tickers)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return workers.make_scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Have Python warn in each worker about text that is read or written without an encoding, which fails a test.

    Only who starts a process can ask for that: without workers it is `python -X warn_default_encoding -m pytest`.
    """
    os.environ[WARN] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end: not to look through it for garbage saves seconds."""
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(50_000)  # Python looks after every 700 objects, and tests make many millions
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Say how much is tried, and give child processes the environment and the signals they have in a terminal.

    A shell starts background jobs with SIGINT ignored, and nohup does so with SIGHUP; children inherit that, and the
    tests that interrupt a command would wait for ever.
    """
    effort.choose(quick="not slow" in config.option.markexpr)
    if (interval := config.option.switch_interval) is not None:
        sys.setswitchinterval(interval)
        os.environ[SWITCH_INTERVAL] = str(interval)
        first, others = str(Path(__file__).parent / "support" / "switching"), os.environ.get("PYTHONPATH", "")
        if first not in others.split(os.pathsep):  # as in workers
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (first, others)))
    os.environ.pop(WARN, None)  # libraries that children import would fill their stderr
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
