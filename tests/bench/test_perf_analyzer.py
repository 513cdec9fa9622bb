"""Driving perf_analyzer: a stand-in that writes what the real one (2.34) was seen to write, in all its moods."""

import json
import os
import stat
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from tritone.bench.perf_analyzer import PerfAnalyzer, environment_of, find_perf_analyzer, read_report
from tritone.bench.perf_input import PerfInput
from tritone.bench.plan import Point
from tritone.client.endpoint import Endpoint
from tritone.errors import InputError, OperatorError, ServerUnreachableError
from tritone.loadtest.options import WindowPlan
from tritone.loadtest.senders.wire import Target

CLOSED = Point(loop="closed", load=4)
CSV = """\
Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency,\
request/response,response wait,
4,43.3297,17,7048,7771,124,75852,467,7,52553,161672,221532,555688,24,90561,
"""
OUTPUT = """\
 Successfully read data for 1 stream/streams with 4 step/steps.
*** Measurement Settings ***
  Batch size: 1

Request concurrency: 4
  Pass [1] throughput: 64.9578 infer/sec. p95 latency: 59092 usec
  Pass [2] throughput: 32.3594 infer/sec. p95 latency: 98291 usec
  Pass [3] throughput: 33.7973 infer/sec. p95 latency: 141998 usec
  Client:
    Request count: 162
    Sequence count: 51 (14.1453 seq/sec)
    Throughput: 43.3297 infer/sec
    p95 latency: 221532 usec
  Server:
    Inference count: 165
    Execution count: 50
    Successful request count: 165
"""
BEGAN = "print('Request concurrency: 4', flush=True)\n"
UNSTABLE = (
    BEGAN + "print('Failed to obtain stable measurement within 3 measurement windows.', file=sys.stderr)\nsys.exit(2)\n"
)
SUCCESS = f"open(argument('-f'), 'w').write({CSV!r})\nprint({OUTPUT!r})\n"
DEFECT = BEGAN + (
    "print('Failed to retrieve results from inference request.', file=sys.stderr)\n"
    "print('Thread [3] had error: the model broke after 17 requests', file=sys.stderr)\nsys.exit(99)\n"
)


def program(folder: Path, code: str) -> Path:
    """A perf_analyzer that runs `code` and writes down its arguments in `calls`."""
    path = folder / "perf_analyzer"
    head = f"""\
        #!{sys.executable}
        import json, sys, time
        def argument(name): return sys.argv[sys.argv.index(name) + 1]
        with open({str(folder / "calls")!r}, "a") as calls: calls.write(json.dumps(sys.argv[1:]) + "\\n")
    """
    path.write_text(textwrap.dedent(head) + code, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text(encoding="utf-8").splitlines()]


def tool(folder: Path, code: str, *, url: str = "localhost:1", **more: object) -> PerfAnalyzer:
    streaming = bool(more.pop("streaming", False))
    uniform = bool(more.pop("uniform", True))
    path = folder / "input.json"
    path.write_text("{}", encoding="utf-8")
    inputs = PerfInput(path=path, streaming=streaming, utterances=4, requests=8, audio_s=20.0, uniform=uniform)
    target = Target(endpoint=Endpoint.parse(url), model="demo", sample_rate=16000, streaming=streaming)
    windows = WindowPlan(window_s=0.5, max_windows=4)
    return PerfAnalyzer(
        target=target, inputs=inputs, binary=program(folder, code), windows=windows, seconds="5", **more
    )  # type: ignore[arg-type]


def test_figures_come_from_its_report_and_its_words(tmp_path: Path) -> None:
    found = tool(tmp_path, SUCCESS).measure(CLOSED)
    assert (found.model, found.protocol, found.loop, found.load, found.seconds) == ("demo", "grpc", "closed", 4, "5")
    assert (found.requests, found.utterances, found.failed, found.stable, found.windows) == (162, 162, 0, True, 3)
    assert found.throughput == pytest.approx(43.3297)
    assert found.rtfx == pytest.approx(43.3297 * 5)
    assert found.latency is not None
    assert (found.latency.p50_ms, found.latency.p95_ms, found.latency.p99_ms) == (52.553, 221.532, 555.688)
    assert found.latency.mean_ms == pytest.approx(91.288, abs=0.005)  # the tool itself said 91288 usec
    assert found.latency.max_ms is None
    assert found.client_ms == pytest.approx(0.024)
    assert found.labels == {"tool": "perf_analyzer"}


def test_utterances_of_streams_are_its_sequences_and_requests_are_chunks(tmp_path: Path) -> None:
    found = tool(tmp_path, SUCCESS, streaming=True).measure(CLOSED)
    assert (found.requests, found.utterances, found.audio_s) == (162, 51, 51 * 5.0)
    assert found.throughput == pytest.approx(51 / (162 / 43.3297))


def test_utterances_of_a_batch_count_each(tmp_path: Path) -> None:
    found = tool(tmp_path, SUCCESS).measure(Point(loop="closed", load=4, batch_size=2))
    assert (found.requests, found.utterances) == (162, 324)
    assert found.throughput == pytest.approx(43.3297)


def test_its_arguments_say_what_was_asked_for(tmp_path: Path) -> None:
    points = [CLOSED, Point(loop="poisson", load=12.5, batch_size=3)]
    perf = tool(tmp_path, SUCCESS)
    for point in points:
        perf.measure(point)
    first, second = (dict(zip(each[::2], each[1::2], strict=False)) for each in calls(tmp_path))
    assert (first["-m"], first["-u"], first["-i"]) == ("demo", "localhost:1", "grpc")
    assert (first["--concurrency-range"], first["-b"], first["-p"], first["-r"]) == ("4", "1", "500", "4")
    assert first["--input-data"] == str(tmp_path / "input.json")
    # windows within 10 % of their mean differ by at most 1.1 / 0.9
    assert first["-s"] == "22"
    assert first["--percentile"] == "95"
    assert (second["--request-rate-range"], second["--request-distribution"], second["-b"]) == ("12.5", "poisson", "3")
    assert ["--async" in each for each in calls(tmp_path)] == [False, True]


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("grpcs://host:9", ["-u", "host:9", "-i", "grpc", "--ssl-grpc-use-ssl", "true"]),
        ("https://host:9", ["-u", "https://host:9", "-i", "http", "--input-data"]),
        ("http://host:9/prefix", ["-u", "host:9/prefix", "-i", "http", "--input-data"]),
    ],
)
def test_addresses_are_told_in_its_own_way(tmp_path: Path, url: str, arguments: list[str]) -> None:
    command = tool(tmp_path, SUCCESS, url=url)._arguments(CLOSED, tmp_path / "r.csv")
    place = command.index("-u")
    assert command[place : place + len(arguments)] == arguments


def test_unstable_windows_are_measured_once_more_and_told_as_such(tmp_path: Path) -> None:
    code = f"if int(argument('-s')) < 1000:\n{textwrap.indent(UNSTABLE, '    ')}\n{SUCCESS}"
    found = tool(tmp_path, code).measure(CLOSED)
    assert not found.stable
    assert found.requests == 162
    assert found.notes == ("4 windows did not agree; these are 3 others",)


def test_an_error_of_the_model_is_the_result_not_an_exception(tmp_path: Path) -> None:
    found = tool(tmp_path, DEFECT).measure(CLOSED)
    assert found.errors == {"perf_analyzer gave up: the model broke after N requests": 1}
    assert (found.failed, found.requests, found.utterances, found.latency, found.stable) == (1, 1, 0, None, False)
    assert found.wall_s > 0


def test_a_server_that_never_answers_does_not_hold_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritone.bench.perf_analyzer.START_S", 0.0)
    found = tool(tmp_path, BEGAN + "time.sleep(600)\n", timeout_s=0.5).measure(CLOSED)
    (error,) = found.errors
    assert "no answer and no word for" in error
    assert found.latency is None


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        (
            "error: failed to get model metadata: Request for unknown model: 'x' is not found",
            InputError,
            "unknown model",
        ),
        (
            "error: failed to get model metadata: failed to connect to all addresses",
            ServerUnreachableError,
            "Is a server",
        ),
        ("error: HTTP client failed: Couldn't resolve host name", ServerUnreachableError, "resolve"),
        ("error: unable to find float data in json", OperatorError, "float data.*exit code 99"),
        ("", OperatorError, "no word"),
    ],
)
def test_what_went_wrong_before_the_load_is_an_error(
    tmp_path: Path, words: str, kind: type[Exception], told: str
) -> None:
    code = f"print({words!r}, file=sys.stderr)\nsys.exit(99)\n"
    with pytest.raises(kind, match=told):
        tool(tmp_path, code).measure(CLOSED)


@pytest.mark.parametrize(
    ("options", "point", "told"),
    [
        ({}, Point(loop="streaming", load=4), "does not pace streams"),
        ({"streaming": True}, Point(loop="constant", load=4), "order of a stream's chunks"),
        ({"uniform": False}, Point(loop="closed", load=4, batch_size=2), "one shape only"),
    ],
)
def test_what_it_cannot_do_is_told_before_anything_is_sent(
    tmp_path: Path, options: dict[str, bool], point: Point, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        tool(tmp_path, SUCCESS, **options).measure(point)
    assert not (tmp_path / "calls").exists()


def test_the_input_must_be_of_the_models_kind(tmp_path: Path) -> None:
    perf = tool(tmp_path, SUCCESS, streaming=True)
    offline = Target(endpoint=perf.target.endpoint, model="demo", sample_rate=16000)
    with pytest.raises(InputError, match=r"'demo' takes whole utterances, .* holds streams"):
        PerfAnalyzer(target=offline, inputs=perf.inputs, binary=perf.binary).measure(CLOSED)


def test_a_missing_program_is_told_with_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OperatorError, match=r"no perf_analyzer on PATH.*py3-sdk.*tritonclient==2\.34\.0"):
        find_perf_analyzer()
    with pytest.raises(OperatorError, match="is not a file"):
        find_perf_analyzer(tmp_path / "perf_analyzer")
    plain = tmp_path / "plain"
    plain.write_text("", encoding="utf-8")
    with pytest.raises(OperatorError, match=r"chmod \+x"):
        find_perf_analyzer(plain)
    found = program(tmp_path, "")
    assert find_perf_analyzer() == found


def test_a_program_for_another_machine_is_told(tmp_path: Path) -> None:
    alien = tmp_path / "perf_analyzer"
    alien.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(64))
    alien.chmod(0o755)
    with pytest.raises(OperatorError, match=r"cannot start .* made for this machine"):
        environment_of(alien, tmp_path)


def needs(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs need a library that the loader finds only where LD_LIBRARY_PATH says."""

    def missing(binary: Path, environment: Mapping[str, str]) -> list[str]:
        folders = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        return [] if any((Path(folder) / library).is_file() for folder in folders if folder) else [library]

    monkeypatch.setattr("tritone.bench.perf_analyzer._missing_libraries", missing)


def test_a_library_that_is_nowhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("libnowhere.so.3", monkeypatch)
    with pytest.raises(OperatorError, match=r"needs libnowhere\.so\.3, which are not installed"):
        environment_of(program(tmp_path, ""), tmp_path)


def test_libraries_that_the_servers_wheel_carries_are_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "wheel"
    wheel.mkdir()
    (wheel / "libcudart-09529672.so.12.6.77").write_text("the library", encoding="utf-8")
    (wheel / "libcudartless-09529672.so.12.6.77").write_text("another one", encoding="utf-8")
    monkeypatch.setattr("tritone.bench.perf_analyzer._wheel_libraries", lambda: (wheel,))
    needs("libcudart.so.12", monkeypatch)
    environment = environment_of(program(tmp_path, ""), tmp_path)
    first = Path(environment["LD_LIBRARY_PATH"].split(os.pathsep)[0])
    assert (first / "libcudart.so.12").read_text(encoding="utf-8") == "the library"


def test_a_proxy_is_not_asked_for_the_way_to_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    perf = tool(tmp_path, SUCCESS)
    assert "http_proxy" not in environment_of(tmp_path / "perf_analyzer", tmp_path, perf.target)
    assert "http_proxy" in environment_of(tmp_path / "perf_analyzer", tmp_path)


def test_a_report_that_nobody_knows_is_shown() -> None:
    with pytest.raises(OperatorError, match="begins: 'Load,Speed"):
        read_report("Load,Speed\n1,2\n")
    with pytest.raises(OperatorError, match="not one that Tritone can read"):
        read_report("")
