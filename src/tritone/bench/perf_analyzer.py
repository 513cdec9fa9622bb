"""Driving NVIDIA's perf_analyzer, which measures the same points as our own generator.

    Target, PerfInput, Point  ->  perf_analyzer in a process of its own  ->  its CSV and its output  ->  Measurement

What its figures mean: docs/perf-analyzer.md. It gives up at the first error that a server answers, and so does a
measurement with it.
"""

import csv
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from tritone.bench.perf_input import PerfInput
from tritone.bench.plan import Point
from tritone.errors import InputError, OperatorError, ServerSetupError, ServerUnreachableError, TritoneError
from tritone.loadtest.findings.result import Latency, Measurement, ServerSide
from tritone.loadtest.findings.statistics import ServerWatch
from tritone.loadtest.options import WindowPlan
from tritone.loadtest.senders.wire import Target, error_kind
from tritone.server.installation import find_installation

PROGRAM = "perf_analyzer"
PERCENTILE = 95  # that must agree among windows; our own generator looks at the same one
UNSTABLE = 2  # its exit code when windows do not agree
NO_LIMIT_PERCENT = 1_000_000  # by which windows may differ where every result is wanted
FEWEST_WINDOWS = 3  # that it compares
READ_BYTES_PER_S = 2e6  # of an input file, on a slow machine
START_S = 30.0
STOP_S = 5.0
NOT_FOUND = re.compile(r"^\s*(\S+\.so\S*) => not found", re.MULTILINE)
HOW_TO_GET = (
    "It is in NVIDIA's container nvcr.io/nvidia/tritonserver:<yy.mm>-py3-sdk, and in the wheel of tritonclient 2.34.0 "
    "(`pip download --no-deps tritonclient==2.34.0 --only-binary :all: --platform manylinux1_x86_64`, then unzip: "
    "tritonclient-2.34.0.data/data/bin/perf_analyzer). See docs/perf-analyzer.md."
)

COUNT = re.compile(r"^\s*Request count: (\d+)", re.MULTILINE)
SEQUENCES = re.compile(r"^\s*Sequence count: (\d+)", re.MULTILINE)
PASS = re.compile(r"^\s*Pass \[\d+\]", re.MULTILINE)
DELAYED = re.compile(r"^.*requests were delayed.*$", re.MULTILINE)
LOAD_BEGAN = re.compile(r"^Request (?:concurrency|Rate): ", re.MULTILINE)
SERVER = re.compile(r"^\s*Successful request count: (\d+)", re.MULTILINE)
NO_CONNECTION = re.compile(r"connect|resolve|timed? ?out", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PerfAnalyzer:
    """Measures points with perf_analyzer."""

    target: Target
    inputs: PerfInput
    binary: Path | None = None  # the program; None looks for it on PATH
    seconds: str = "files"  # what audio `inputs` holds, as text
    windows: WindowPlan = field(default_factory=WindowPlan)  # of which it compares three; it has no warm-up
    timeout_s: float = 60.0  # in which the server must answer
    metrics_url: str | None = None  # as of `ServerWatch`

    def measure(self, point: Point) -> Measurement:
        """Measure one point.

        Where the windows never agree, a few more are measured and reported as unstable. What the server answers with an
        error, or never, ends the measurement and is its only error.

        Raises:
            InputError: perf_analyzer cannot do this point, or the server does not know the model.
            ServerUnreachableError: there is no answer.
            OperatorError: perf_analyzer is missing, or failed before it sent anything.
        """
        self._check(point)
        program = find_perf_analyzer(self.binary)
        with (
            tempfile.TemporaryDirectory(prefix="tritone-perf-") as folder,
            ServerWatch(self.target, self.metrics_url) as watch,
        ):
            report = Path(folder) / "report.csv"
            environment = environment_of(program, Path(folder), self.target)
            before = watch.look()
            found = self._run([str(program), *self._arguments(point, report)], environment)
            notes = []
            if is_unstable := found.code == UNSTABLE and not found.given_up:
                notes.append(f"{self.windows.max_windows} windows did not agree; these are {FEWEST_WINDOWS} others")
                found = self._run([str(program), *self._arguments(point, report, any_result=True)], environment)
            if found.code and not LOAD_BEGAN.search(found.output):
                raise self._explain(found)
            after = watch.look()
            server = before.until(after) if before and after else None
            notes += [match[0].strip() for match in DELAYED.finditer(found.errors)]
            blank = self._blank(point, server, notes)
            if found.code:
                return self._failure(blank, found)
            return self._success(blank, found, report.read_text(encoding="utf-8"), stable=not is_unstable)

    def _check(self, point: Point) -> None:
        if self.target.streaming != self.inputs.streaming:
            kinds = {True: "streams", False: "whole utterances"}
            raise InputError(
                f"model '{self.target.model}' takes {kinds[self.target.streaming]}, {self.inputs.path} holds "
                f"{kinds[self.inputs.streaming]}; write the other input file"
            )
        if point.loop == "streaming":
            raise InputError(
                "perf_analyzer does not pace streams in real time. Use Tritone's own generator, or a closed loop, in "
                "which each stream sends its next chunk as soon as the last one is answered."
            )
        if self.target.streaming and point.loop != "closed":
            raise InputError(
                "perf_analyzer mixes up the order of a stream's chunks when it sends at a rate; use a closed loop"
            )
        if point.batch_size > 1 and not self.inputs.uniform:
            raise InputError(
                f"perf_analyzer joins requests of one shape only, and {self.inputs.path} holds several; use batch size "
                "1, or utterances of one length"
            )

    def _arguments(self, point: Point, report: Path, *, any_result: bool = False) -> list[str]:
        endpoint, windows = self.target.endpoint, self.windows
        scheme = "https://" if endpoint.tls and endpoint.protocol == "http" else ""
        tolerance = windows.tolerance
        # It compares the largest with the smallest of three windows, our own generator each of them with their mean.
        percent = NO_LIMIT_PERCENT if any_result else round(100 * ((1 + tolerance) / (1 - tolerance) - 1))
        if point.loop == "closed":
            load = ["--concurrency-range", f"{point.load:.0f}"]
        else:
            # Without --async a slow answer would hold up the next request.
            load = ["--request-rate-range", f"{point.load:g}", "--request-distribution", point.loop, "--async"]
        return [
            *("-m", self.target.model, "-u", f"{scheme}{endpoint.address}", "-i", endpoint.protocol),
            *(["--ssl-grpc-use-ssl", "true"] if endpoint.tls and endpoint.protocol == "grpc" else []),
            *("--input-data", str(self.inputs.path), "-b", str(point.batch_size), *load),
            *("-p", f"{1000 * windows.window_s:.0f}", "-r", str(FEWEST_WINDOWS if any_result else windows.max_windows)),
            *("-s", str(percent), "--percentile", str(PERCENTILE), "-v", "--verbose-csv", "-f", str(report)),
        ]

    def _run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> "_Ended":
        size = self.inputs.path.stat().st_size
        # It writes a line after every window; one without a single answer can last as long as the answer takes.
        patience_s = 2 * self.windows.window_s + self.timeout_s
        return _listen(arguments, environment, START_S + size / READ_BYTES_PER_S + patience_s, patience_s)

    def _success(self, blank: Measurement, found: "_Ended", report: str, *, stable: bool) -> Measurement:
        figures = read_report(report)
        requests = int(_one(COUNT, found.output))
        utterances = int(_one(SEQUENCES, found.output)) if self.inputs.streaming else requests * blank.batch_size
        latency = Latency(
            count=requests,
            mean_ms=sum(figures[part] for part in PARTS) / 1000,
            p50_ms=figures["p50 latency"] / 1000,
            p90_ms=figures["p90 latency"] / 1000,
            p95_ms=figures["p95 latency"] / 1000,
            p99_ms=figures["p99 latency"] / 1000,
            max_ms=None,
        )
        server = blank.server
        if server is not None:
            # Its own figures are of the windows that count; batches and padding are of the whole run.
            server = replace(
                server,
                requests=int(_one(SERVER, found.output)),
                queue_ms=figures["Server Queue"] / 1000,
                compute_input_ms=figures["Server Compute Input"] / 1000,
                compute_infer_ms=figures["Server Compute Infer"] / 1000,
                compute_output_ms=figures["Server Compute Output"] / 1000,
            )
        return replace(
            blank,
            wall_s=requests * blank.batch_size / figures["Inferences/Second"],
            requests=requests,
            utterances=utterances,
            audio_s=utterances * self._utterance_s(blank.server),
            latency=latency,
            client_ms=(figures["Client Send"] + figures["Client Recv"]) / 1000,
            client_cpu=found.cores,
            windows=min(len(PASS.findall(found.output)), FEWEST_WINDOWS),
            stable=stable,
            server=server,
        )

    def _utterance_s(self, server: ServerSide | None) -> float:
        """Mean audio of the utterances that it sent, in seconds; it does not send all of a file equally often."""
        if not self.inputs.uniform and not self.inputs.streaming and server is not None and server.audio_s:
            return server.audio_s / max(1, sum(size * count for size, count in server.batches.items()))
        return self.inputs.utterance_s

    def _failure(self, blank: Measurement, found: "_Ended") -> Measurement:
        server = blank.server
        note = f"it ended at the first error, after {server.requests} requests that were answered" if server else ""
        return replace(
            blank,
            wall_s=found.wall_s,
            requests=1,
            errors={error_kind("perf_analyzer gave up", found.reason): 1},
            stable=False,
            notes=tuple(filter(None, [*blank.notes, note])),
        )

    def _blank(self, point: Point, server: ServerSide | None, notes: Sequence[str]) -> Measurement:
        return Measurement(
            model=self.target.model,
            protocol=self.target.endpoint.protocol,
            loop=point.loop,
            load=point.load,
            batch_size=point.batch_size,
            seconds=self.seconds,
            samples=self.target.samples,
            wall_s=0.0,
            requests=0,
            utterances=0,
            audio_s=0.0,
            latency=None,
            server=server,
            output=self.target.output,
            notes=tuple(notes),
            labels={"tool": PROGRAM},
        )

    def _explain(self, found: "_Ended") -> TritoneError:
        reason = found.reason
        text = f"perf_analyzer: {self.target.endpoint}: {reason}"
        if "unknown model" in reason:
            return InputError(text)
        if NO_CONNECTION.search(reason):
            return ServerUnreachableError(f"{text}. Is a server running there?")
        return OperatorError(f"{text} (exit code {found.code})")


PARTS = (  # of the mean latency, one after the other
    *("Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Server Compute Infer"),
    *("Server Compute Output", "Client Recv"),
)
COLUMNS = ("Inferences/Second", *PARTS, "p50 latency", "p90 latency", "p95 latency", "p99 latency")


def find_perf_analyzer(path: Path | None = None) -> Path:
    """Find the program: at `path` if given, else on PATH.

    Raises:
        OperatorError: it is not there; the message says where to get it.
    """
    if path is not None:
        if not path.is_file():
            raise OperatorError(f"{path} is not a file; give the path of the program perf_analyzer. {HOW_TO_GET}")
        if not os.access(path, os.X_OK):
            raise OperatorError(f"{path} may not be executed: chmod +x {path}")
        return path.resolve()
    found = shutil.which(PROGRAM)
    if found is None:
        raise OperatorError(f"no perf_analyzer on PATH. {HOW_TO_GET}")
    return Path(found)


def environment_of(binary: Path, folder: Path, target: Target | None = None) -> dict[str, str]:
    """The environment in which perf_analyzer starts.

    Two libraries that it needs are rarely installed, libb64 and CUDA's libcudart. The wheel nvidia-pytriton carries
    both under names of its own; where they are missing, links of the right names are made.

    Args:
        binary: the program.
        folder: where links to libraries may be made.
        target: what is measured; on this machine it is reached without a proxy.

    Raises:
        OperatorError: a library is missing and not found anywhere.
    """
    environment = dict(os.environ)
    if target is not None and target.endpoint.is_loopback:
        environment = {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}
    if not (missing := _missing_libraries(binary, environment)):
        return environment
    places = _wheel_libraries()
    links = folder / "lib"
    links.mkdir(exist_ok=True)
    for name in missing:
        stem, _, rest = name.partition(".so")
        for place in places:
            if candidates := sorted(place.glob(f"{stem}-*.so{rest}*")):
                with suppress(FileExistsError):
                    (links / name).symlink_to(candidates[0])
    known = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([str(links), *map(str, places), *([known] if known else [])])
    if missing := _missing_libraries(binary, environment):
        packages = "libb64 is in Debian's and Ubuntu's libb64-0d, libcudart in NVIDIA's CUDA runtime"
        raise OperatorError(f"{binary} needs {', '.join(missing)}, which are not installed; {packages}.")
    return environment


def read_report(text: str) -> dict[str, float]:
    """Read the CSV of one point: figures by the names of their columns, times in microseconds.

    Raises:
        OperatorError: it has no such row; a version of perf_analyzer that is not known here wrote it.
    """
    rows = list(csv.DictReader(text.splitlines()))
    try:
        (row,) = rows
        return {name: float(row[name]) for name in COLUMNS}
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorError(
            f"perf_analyzer's report is not one that Tritone can read ({error!r}); it begins: {text[:200]!r}"
        ) from error


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """What the program wrote and how it ended."""

    code: int
    output: str
    errors: str
    wall_s: float
    cores: float  # CPU time per second while it made load
    given_up: str = ""  # why it was ended from here

    @property
    def reason(self) -> str:
        """Why it failed, in its own words if it has any."""
        lines = [line.strip().removeprefix("error: ") for line in self.errors.splitlines() if line.strip()]
        # The first line says what it was doing; a thread's error says what happened.
        causes = [line.partition(" had error: ")[2] for line in lines if " had error: " in line]
        return self.given_up or next(iter([*causes, *lines]), f"it ended with exit code {self.code} and no word")


def _listen(arguments: Sequence[str], environment: Mapping[str, str], start_s: float, patience_s: float) -> _Ended:
    """Run the program to its end; give it up when it writes nothing for `patience_s`, at first `start_s`."""
    begin = time.perf_counter()
    output: list[str] = []
    given_up = ""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with _process(arguments, environment, errors.fileno()) as process:
            deadline = time.monotonic() + start_s
            cpu: list[tuple[float, float]] = []  # when, and how much it had used; since it began to make load

            def read() -> None:
                nonlocal deadline
                assert process.stdout is not None
                with process.stdout as lines:
                    for line in lines:
                        output.append(line)
                        deadline = time.monotonic() + patience_s

            reader = threading.Thread(target=read, name="perf-analyzer-output", daemon=True)
            reader.start()
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                    break
                if any(map(LOAD_BEGAN.match, output)):
                    with suppress(psutil.Error):  # it has ended meanwhile
                        cpu.append((time.perf_counter(), _cpu_s(process.pid)))
                if time.monotonic() > deadline:
                    given_up = f"no answer and no word for {patience_s:g} s; it was ended"
                    break
        reader.join()
        errors.seek(0)
        return _Ended(
            code=process.returncode or (1 if given_up else 0),
            output="".join(output),
            errors=errors.read(),
            wall_s=time.perf_counter() - begin,
            cores=(cpu[-1][1] - cpu[0][1]) / (cpu[-1][0] - cpu[0][0]) if len(cpu) > 1 else 0.0,
            given_up=given_up,
        )


@contextmanager
def _process(
    arguments: Sequence[str], environment: Mapping[str, str], errors: int
) -> Iterator["subprocess.Popen[str]"]:
    """The program, which does not outlive the `with` statement, whatever ends that."""
    process = subprocess.Popen(
        arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C is ours to pass on
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _missing_libraries(binary: Path, environment: Mapping[str, str]) -> list[str]:
    # What `ldd` does; the loader itself lists what it finds and does not start the program.
    listing = environment | {"LD_TRACE_LOADED_OBJECTS": "1"}  # type: ignore[operator]
    try:
        done = subprocess.run(
            [str(binary)], env=listing, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except OSError as error:
        raise OperatorError(f"cannot start {binary}: {error.strerror}. Is it made for this machine?") from error
    return list(dict.fromkeys(NOT_FOUND.findall(done.stdout)))


def _wheel_libraries() -> tuple[Path, ...]:
    try:
        return find_installation().library_folders
    except ServerSetupError:
        return ()


def _one(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    if match is None:
        raise OperatorError(f"perf_analyzer did not say {pattern.pattern!r}; its output begins: {text[:200]!r}")
    return match[1]
