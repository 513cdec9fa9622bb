"""`tritone bench` against the toy bundle, which says what `toy_waveform` spells, with tiny windows."""

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from serving import alive, descendants, left
from toy import SAMPLE_RATE, toy_waveform, write_toy_bundle
from tritone.cli.main import app
from tritone.loadtest.findings.result import Report
from tritone.loadtest.plans.generator import find_target
from tritone.loadtest.plans.serving import Served
from tritone.server import TritonServer

ASR = ("--model", "toy")  # the server has a speaker model, too
ONCE = ("--warmup-s", 0.1, "--measure-s", 0.2, "--processes", 1, "--max-windows", 1)
QUICK = (*ONCE[:-1], 2)  # not where load comes by the clock: with so few requests each window takes five times as long
COMMAND = (sys.executable, "-c", "from tritone.cli.main import app; app()", "bench")


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def unframed(text: str) -> str:
    """An error message without the frame and the line breaks that it may have."""
    return " ".join(text.replace("│", "").split())


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of recordings that the toy bundle transcribes without an error."""
    folder = tmp_path_factory.mktemp("speech")
    lines = []
    for number, text in enumerate(("hello world", "seven 7", "tritone")):
        soundfile.write(folder / f"{number}.wav", toy_waveform(text), SAMPLE_RATE, subtype="FLOAT")
        lines.append(json.dumps({"audio_filepath": f"{number}.wav", "text": text}))
    (folder / "manifest.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "manifest.jsonl"


@pytest.fixture(scope="module")
def measured(served_toy: TritonServer, speech: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report on 1 and 2 requests in flight."""
    folder = tmp_path_factory.mktemp("reports") / "measured"
    code, out, err = run(
        "--url", served_toy.grpc_address, *ASR, "--manifest", speech, "--concurrency", "1:2", *QUICK, "--output", folder
    )
    assert (code, "utt/s" in out) == (0, True), err
    return folder


def changed(report: Path, folder: Path, **changes: object) -> Path:
    """A copy of a report with other values in all its measurements."""
    before = Report.read(report)
    found = [replace(each, **changes) for each in before.measurements]  # type: ignore[arg-type]
    folder.mkdir(exist_ok=True)
    replace(before, measurements=found).save(folder / "report.json")
    return folder / "report.json"


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        ((), "int16"),
        pytest.param(("--no-pcm", "--shared-memory", "none"), "float32", marks=pytest.mark.slow),
        pytest.param(("--shared-memory", "system"), "int16 in system memory", marks=pytest.mark.slow),
    ],
)
def test_how_samples_travel_is_the_callers_choice_and_a_condition_of_the_report(
    served_toy: TritonServer,
    speech: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    samples: str,
):
    monkeypatch.setenv("TRITONE_KEY", served_toy.options.key)
    file = tmp_path / "report.json"
    code, out, err = run(
        *("--url", served_toy.grpc_address, *ASR, "--manifest", speech, "--concurrency", 2, *QUICK, "--report", file),
        *options,
    )
    assert code == 0, err
    (found,) = Report.read(file).measurements
    assert (found.samples, found.wer, found.failed) == (samples, 0, 0)
    assert (samples in out) == (samples != "float32")  # which goes without saying


def test_a_run_writes_its_figures_in_every_form_and_checks_the_texts_that_it_timed(measured: Path):
    report = Report.read(measured / "report.json")
    assert report.complete
    assert [each.load for each in report.measurements] == [1, 2]
    for each in report.measurements:
        assert (each.model, each.protocol, each.loop, each.failed) == ("toy", "grpc", "closed", 0)
        assert (each.wer, each.throughput > 0, each.wer_words > 0) == (0.0, True, True)
    with (measured / "report.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [float(row["throughput"]) for row in rows] == [each.throughput for each in report.measurements]
    assert {"report.html", "report.md", "plots"} <= {path.name for path in measured.iterdir()}
    assert list((measured / "plots").glob("*.png"))


def test_requests_come_at_a_rate_over_http_with_labels(served_toy: TritonServer, tmp_path: Path):
    code, out, err = run(
        *(
            "--url",
            served_toy.http_address,
            *ASR,
            "--protocol",
            "http",
            "--rate",
            "20",
            "--arrivals",
            "constant",
            *ONCE,
        ),
        *("--seconds", "0.5", "--label", "runtime=toy", "--report", tmp_path / "r.json", "--csv", tmp_path / "r.csv"),
    )
    assert code == 0, err
    (only,) = Report.read(tmp_path / "r.json").measurements
    assert (only.protocol, only.loop, only.load, only.seconds) == ("http", "constant", 20.0, "0.5")
    assert only.labels == {"runtime": "toy"}
    assert "requests/s" in out
    assert "runtime" in (tmp_path / "r.csv").read_text(encoding="utf-8")


def test_streams_are_measured_in_real_time(served_toy: TritonServer, speech: Path, tmp_path: Path):
    code, out, err = run(
        *("--url", served_toy.grpc_address, "--streaming", "--streams", "2", "--chunk-ms", 100, *ONCE),
        *("--manifest", speech, "--report", tmp_path / "r.json"),
    )
    assert code == 0, err
    (only,) = Report.read(tmp_path / "r.json").measurements
    assert (only.model, only.loop, only.load) == ("toy-streaming", "streaming", 2)
    assert only.streaming is not None
    assert only.streaming.chunk_ms == 100
    assert "first" in out


@pytest.mark.slow
def test_a_search_tells_the_largest_load_within_the_limit(served_toy: TritonServer, tmp_path: Path):
    code, _, err = run(
        *(
            "--url",
            served_toy.grpc_address,
            *ASR,
            "--seconds",
            "0.5",
            "--concurrency",
            1,
            "--ramp",
            "--max-load",
            2,
            *QUICK,
        ),
        *("--latency-limit-ms", 60_000, "--report", tmp_path / "r.json"),
    )
    assert code == 0, err
    report = Report.read(tmp_path / "r.json")
    assert {each.load for each in report.measurements} == {1, 2}
    assert any("p95 <= 60000 ms: 2 is the largest load that did" in note for note in report.notes)


@pytest.mark.slow
def test_no_higher_load_is_tried_once_the_limit_is_passed(served_toy: TritonServer, tmp_path: Path):
    code, _, err = run(
        *("--url", served_toy.grpc_address, *ASR, "--seconds", "0.5", "--concurrency", "1,2,3", *QUICK),
        *("--latency-limit-ms", 0.001, "--report", tmp_path / "r.json"),
    )
    assert code == 0, err
    report = Report.read(tmp_path / "r.json")
    assert [each.load for each in report.measurements] == [1]
    assert "2 higher loads were not tried" in err
    assert "2 higher loads were not tried" in report.notes[0]


def test_failed_requests_fail_the_command_and_are_told_with_their_reason(wire_server: TritonServer, tmp_path: Path):
    soundfile.write(tmp_path / "low.wav", np.full(800, -0.9), 8000, subtype="FLOAT")
    code, out, err = run(
        *("--url", wire_server.grpc_address, "--model", "count", "--audio", tmp_path / "low.wav"),
        *("--concurrency", "1", *QUICK),
    )
    assert code == 1
    assert "the first sample is too low" in out
    assert "requests failed" in err.splitlines()[-1]
    assert "the first sample is too low" in err.splitlines()[-1]


def test_wrong_texts_fail_the_command_however_fast_they_come(served_toy: TritonServer, speech: Path, tmp_path: Path):
    lies = tmp_path / "lies.jsonl"
    lies.write_text(
        json.dumps({"audio_filepath": str(speech.parent / "0.wav"), "text": "goodbye world"}) + "\n", encoding="utf-8"
    )
    options = ("--url", served_toy.grpc_address, *ASR, "--manifest", lies, "--concurrency", 1, *QUICK)
    code, out, err = run(*options, "--max-wer", 49)
    assert code == 1
    assert "50.00" in out
    assert "the texts are wrong: WER up to 50.00 %" in err.splitlines()[-1]
    assert run(*options, "--max-wer", 50)[0] == 0


def test_nobody_at_the_address_is_one_line_and_exit_code_1():
    code, out, err = run("--url", "localhost:1", "--concurrency", 1)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "say what to measure: --url"),
        (["--seconds", "2"], "one of them is needed"),
        (["--url", "x", "--build", "instances=2"], "--build goes with --model"),
        (["--url", "x", "--concurrency", "4:1"], "ends (1) before it starts (4)"),
        (["--url", "x", "--concurrency", "1", "--rate", "1"], "three kinds of load"),
        (["--url", "x", "--rate", "0"], "a rate must be above 0"),
        (["--url", "x", "--arrivals", "poisson"], "--arrivals goes with --rate"),
        (["--url", "x", "--streams", "4"], "--streams and --chunk-ms go with --streaming"),
        (["--url", "x", "--streaming", "--batch-size", "2"], "--batch-size is for whole utterances"),
        (["--url", "x", "--ramp"], "--ramp needs --latency-limit-ms"),
        (["--url", "x", "--ramp", "--latency-limit-ms", "5", "--seconds", "1,2"], "one kind of audio"),
        (["--url", "x", "--max-load", "5"], "--max-load goes with --ramp"),
        (["--url", "x", "--latency-limit-ms", "-1"], "must be above 0 ms"),
        (["--url", "x", "--seconds", "0"], "a length must be above 0"),
        (["--url", "x", "--lengths", "gamma:1,2"], "unknown distribution 'gamma'"),
        (["--url", "x", "--max-wer", "5"], "--max-wer needs references"),
        (["--url", "x", "--trans", "t"], "--trans goes with --wavscp"),
        (["--url", "x", "--audio", "a.wav", "--manifest", "m"], "both name files"),
        (["--url", "x", "--audio", "a.wav", "--data-dir", "d"], "--audio takes folders"),
        (["--url", "x", "--measure-s", "0"], "window_s must be above 0"),
        (["--url", "x", "--stability", "0"], "tolerance must be between 0 and 1"),
        (["--url", "x", "--label", "fast"], "'fast' is not NAME=VALUE"),
        (["--url", "x", "--report", "no/such/folder/r.json"], "there is no folder"),
        (["--url", "x", "--csv", "/"], "/ is a folder; name a file"),
        (["--url", "x", "--output", "/dev/null"], "the folder /dev/null cannot be made"),
        (["--url", "x", "--concurrency", "0"], "--concurrency: '0' holds 0"),
        (["--url", "x", "--shared-memory", "disk"], "shared_memory must be 'system', 'cuda' or 'cuda:N', got 'disk'"),
        (["--url", "ftp://x"], "unknown scheme 'ftp'"),
        (["--model", "x", "--build", "colour=red"], "no option 'colour' of `tritone build`"),
        (["--url", "x", "compare", "a", "b"], "--url does not go with `compare`"),
        (["sweep", "x", "--latency-limit-ms", "5"], "say what to vary"),
        (["sweep", "demo-asr", "--instances", "1,2"], "give the loads to measure, or a latency limit"),
        (["sweep", "x", "--instances", "0", "--concurrency", "1"], "instances must be a number above 0"),
        (["sweep", "x", "--vary", "colour=red", "--concurrency", "1"], "no option 'colour'"),
        (["sweep", "x", "--vary", "layout=ensemble", "--streaming", "--streams", "1"], "layout=ensemble is for whole"),
        (["--model", "x", "--build", "layout=split"], "layout must be fused or ensemble, got 'split'"),
        (["sweep", "x", "--where", "nowhere", "--concurrency", "1"], "served, process or both, got 'nowhere'"),
        (["sweep", "x", "--where", "process", "--streaming", "--streams", "1"], "--where is for whole utterances"),
        (["sweep", "x", "--batching", "lazy", "--concurrency", "1"], "static, dynamic or both, got 'lazy'"),
        (["sweep", "x", "--instances", "1", "--concurrency", "1", "--resume"], "--resume needs --output or --report"),
        (["compare", "a", "b", "--max-slowdown", "much"], "a percentage from 0 to below 100"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(options: Sequence[str], complaint: str):
    code, out, err = run(*options)
    assert (code, out) == (2, "")
    assert complaint in unframed(err)


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_a_report_on_the_points_that_are_done(served_toy: TritonServer, tmp_path: Path):
    command = [*COMMAND, "--url", served_toy.grpc_address, *ASR, "--seconds", "0.5", "--concurrency", "1:50"]
    command += [*map(str, QUICK), "--output", str(tmp_path / "partial")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("[1/50]") and "utterances/s" in line:
                break
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert err.splitlines()[-1].startswith("interrupted, at point ")
    assert "Traceback" not in err
    report = Report.read(tmp_path / "partial" / "report.json")
    assert not report.complete
    assert report.measurements[0].load == 1
    assert 1 <= len(report.measurements) < 50
    assert any(note.startswith("interrupted") for note in report.notes)
    assert "utt/s" in out
    assert (tmp_path / "partial" / "report.html").is_file()


@pytest.mark.slow
def test_a_bundle_is_served_for_the_time_and_a_terminated_command_leaves_no_server(toy_bundle: Path, tmp_path: Path):
    command = [*COMMAND, "--model", str(toy_bundle), "--build", "max-batch-size=4", "--seconds", "0.5"]
    command += ["--concurrency", "1:50", *map(str, QUICK), "--report", str(tmp_path / "r.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("[1/50]") and "utterances/s" in line:
                break
        below = descendants(running.pid)
        assert any("tritonserver" in each.name() for each in alive(below))
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert left(below) == []
    report = Report.read(tmp_path / "r.json")
    assert report.measurements[0].labels == {"max batch": "4"}
    # the model's own counters were found on the server's own port
    assert report.measurements[0].server is not None
    assert report.measurements[0].server.audio_s is not None


@pytest.mark.slow
def test_a_sweep_ranks_its_settings_prints_the_command_and_can_be_gone_on_with(toy_bundle: Path, tmp_path: Path):
    options = ["sweep", toy_bundle, "--concurrency", "2", "--seconds", "0.5", *QUICK, "--output", tmp_path / "s"]
    code, out, err = run(*options, "--max-batch-size", "1", "--queue-delay-ms", "0,50")
    assert code == 0, err
    assert out.splitlines()[-1].startswith(f"tritone build {toy_bundle} --output REPO --mode offline")
    assert "setting 1 of 1: max batch size 1, queue delay 0 ms" in err
    code, _, err = run(*options, "--max-batch-size", "1,4", "--queue-delay-ms", "0", "--resume")
    assert code == 0, err
    assert "setting 2 of 2: max batch size 4, queue delay 0 ms" in err
    assert "setting 1 of" not in err
    report = Report.read(tmp_path / "s" / "report.json")
    assert [each.labels["max batch"] for each in report.measurements] == ["1", "4"]
    code, _, err = run(*options, "--max-batch-size", "1,4", "--queue-delay-ms", "0", "--resume", "--protocol", "http")
    assert (code, "cannot be gone on with" in err) == (1, True)


@pytest.mark.slow
def test_a_sweep_serves_an_ensemble_where_its_layout_is_varied(tmp_path: Path):
    bundle = write_toy_bundle(tmp_path / "staged", streaming=False, stages=True)
    code, out, err = run(
        *("sweep", bundle, "--vary", "layout=ensemble", "--build", "acoustic=python", "--build", "queue-delay-ms=20"),
        *("--concurrency", 4, "--seconds", "0.5", *QUICK, "--report", tmp_path / "r.json"),
    )
    assert code == 0, err
    assert "setting 1 of 1: layout ensemble" in err
    assert "--layout ensemble --acoustic python" in out.splitlines()[-1]
    (only,) = Report.read(tmp_path / "r.json").measurements
    assert only.labels == {"layout": "ensemble"}
    assert only.server is not None
    assert only.server.mean_batch > 1
    assert only.server.queue_ms > 0


@pytest.mark.slow
def test_a_sweep_in_which_nothing_keeps_the_limit_fails(
    toy_bundle: Path, served_toy: TritonServer, monkeypatch: pytest.MonkeyPatch
):
    metrics = f"http://{served_toy.options.address('metrics')}/metrics"
    running = Served(
        grpc_address=served_toy.grpc_address, http_address=served_toy.http_address, metrics_url=metrics
    )  # how it is served does not matter here
    monkeypatch.setattr("tritone.loadtest.plans.trials.serve_bundle", lambda *_, **__: nullcontext(running))
    # nor that another model is served there
    monkeypatch.setattr(
        "tritone.loadtest.plans.trials.find_target", lambda client, _, **kind: find_target(client, "toy", **kind)
    )
    code, out, err = run(
        *("sweep", toy_bundle, "--concurrency", 1, "--seconds", 0.5, *QUICK),
        *("--instances", 1, "--latency-limit-ms", 0.001),
    )
    assert code == 1
    assert "nothing kept the limit" in out
    assert err.splitlines()[-1] == "error: no setting kept the limit"


def test_a_comparison_is_a_gate_when_it_is_given_a_limit(measured: Path, tmp_path: Path):
    before = measured / "report.json"
    utterances = Report.read(before).measurements[0].utterances
    slow = changed(before, tmp_path / "slow", utterances=utterances // 10)
    code, out, err = run("compare", before, slow)
    assert (code, "throughput" in out) == (0, True), err
    code, _, err = run("compare", before, slow, "--max-slowdown", "20%", "--html", tmp_path / "c.html")
    assert code == 1
    assert "throughput -" in err.splitlines()[-1]
    assert "<html" in (tmp_path / "c.html").read_text(encoding="utf-8")
    assert run("compare", before, measured, "--max-slowdown", "0")[0] == 0


def test_input_files_for_perf_analyzer_are_written_and_told(speech: Path, tmp_path: Path):
    code, out, err = run(
        *("input", "--manifest", speech, "--output", tmp_path, "--chunk-ms", 100),
    )
    assert code == 0, err
    offline = json.loads((tmp_path / "offline_input.json").read_text(encoding="utf-8"))
    assert len(offline["data"]) == 3
    assert {"WAV", "WAV_LENS"} == set(offline["data"][0])
    assert (
        len(json.loads((tmp_path / "online_input.json").read_text(encoding="utf-8"))["data"][0]) > 1
    )  # chunks of a stream
    assert [line.split("\t")[0] for line in out.splitlines()] == [
        str(tmp_path / name) for name in ("offline_input.json", "online_input.json")
    ]


def test_input_files_are_made_of_a_folder_or_of_several_manifests(speech: Path, tmp_path: Path):
    folder = speech.parent
    rows = speech.read_text(encoding="utf-8").splitlines()
    (tmp_path / "one.json").write_text(rows[0], encoding="utf-8")
    (tmp_path / "rest.json").write_text("\n".join(rows[1:]), encoding="utf-8")
    seen = set()
    for number, given in enumerate(
        (
            ("--audio", folder),
            ("--data-dir", folder),
            ("--manifest", f"{tmp_path}/one.json,{tmp_path}/rest.json", "--data-dir", folder),
            ("--manifest", tmp_path / "one.json", "--manifest", tmp_path / "rest.json", "--data-dir", folder),
        )
    ):
        code, out, err = run("input", *given, "--mode", "offline", "--output", tmp_path / str(number))
        assert code == 0, err
        seen.add(out.split("\t", 1)[1])
    assert len(seen) == 1
    assert f"{len(rows)} utterances" in seen.pop()


def test_a_file_that_is_no_report_is_told_by_name(tmp_path: Path):
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    code, out, err = run("compare", tmp_path / "x.json", tmp_path / "x.json")
    assert (code, out) == (1, "")
    assert "x.json is not a report of `tritone bench`" in err
