"""`tritone evaluate` on the shipped bundle and clips, in this process and through a real Triton."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

import tritone
from toy import SAMPLE_RATE, toy_waveform
from tritone.cli.main import app
from tritone.cli.shared.evaluation_printer import EvaluationPrinter
from tritone.demo import SHIPPED_CLIPS, read_clips
from tritone.result import TranscriptResult
from tritone.server import TritonServer
from tritone.systems.bundled import BundleSystem
from tritone.transcript import Transcript
from wire_toys import toy_server

SAID = {"hello": "hello world", "seven": "seven 7", "tri": "tritone"}
REFERENCES = {"hello": "hello world", "seven": "seven 8", "tri": "tritone"}  # one word of five is wrong


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def result_of(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def toys(tmp_path: Path) -> list[str | Path]:
    """The options that name audio which the toy bundle transcribes to `SAID`."""
    for name, text in SAID.items():
        soundfile.write(tmp_path / f"{name}.wav", toy_waveform(text), SAMPLE_RATE, subtype="FLOAT")
    (tmp_path / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name in SAID), encoding="utf-8")
    (tmp_path / "text").write_text("".join(f"{name} {text}\n" for name, text in REFERENCES.items()), encoding="utf-8")
    return ["--wavscp", tmp_path / "wav.scp", "--trans", tmp_path / "text"]


@pytest.fixture
def clips(tmp_path: Path) -> list[str | Path]:
    """The options that name the shipped clips."""
    lines = [{"audio_filepath": clip.path.name, "text": clip.reference} for clip in read_clips()]
    (tmp_path / "clips.json").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return ["--manifest", tmp_path / "clips.json", "--data-dir", SHIPPED_CLIPS]


@pytest.mark.slow
def test_the_shipped_bundle_on_the_shipped_clips_has_the_error_rate_that_jiwer_counts(
    clips: list[str | Path], tmp_path: Path
):
    code, out, err = run("--model", "demo-asr", *clips, "--report", tmp_path / "r.json", "--html", tmp_path / "r.html")
    recordings = read_clips()
    heard = tritone.load("demo-asr").transcribe([clip.path for clip in recordings])
    wer = jiwer.wer([clip.reference for clip in recordings], [each.text for each in heard])
    assert code == 0, err
    assert f"{100 * wer:.2f} %" in out
    fields = result_of(tmp_path / "r.json")
    (system,) = fields["systems"]
    assert system["summary"]["wer"] == pytest.approx(wer)
    assert [each["hypothesis"] for each in system["utterances"]] == [each.text for each in heard]
    assert system["summary"]["concurrency"] == [32]
    assert fields["stamp"]["command"]
    assert (tmp_path / "r.html").read_text(encoding="utf-8").count("<audio") == len(recordings)


def test_the_terminal_shows_rates_confusions_and_the_worst_aligned(toy_bundle: Path, toys: list[str | Path]):
    code, out, err = run("--model", toy_bundle, *toys)
    assert code == 0
    assert "20.00 %" in out
    assert "1 error in 5 words: 1 S, 0 D, 0 I" in out
    assert "  ref  seven 8\n  hyp  seven 7\n" in out
    assert "3 of 3 WER 20.00 %" in err
    assert "toy" in out
    assert "  hyp " not in run("--model", toy_bundle, *toys, "--worst", "0")[1]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_served_model_makes_the_errors_of_its_bundle(
    toy_bundle: Path, served_toy: TritonServer, toys: list[str | Path], tmp_path: Path, streaming: bool, protocol: str
):
    address = served_toy.grpc_address if protocol == "grpc" else served_toy.http_address
    options = [*toys, *(["--streaming", "--chunk-ms", "50", "--concurrency", "2"] if streaming else [])]
    here = run("--model", toy_bundle, *options, "--report", tmp_path / "here.json")
    there = run("--url", address, "--protocol", protocol, *options, "--report", tmp_path / "there.json")
    assert (here[0], there[0]) == (0, 0), there[2]
    (ours,), (theirs,) = result_of(tmp_path / "here.json")["systems"], result_of(tmp_path / "there.json")["systems"]
    assert [each["alignment"] for each in ours["utterances"]] == [each["alignment"] for each in theirs["utterances"]]
    assert theirs["summary"]["wer"] == 0.2
    assert theirs["name"] == ("toy-streaming" if streaming else "toy")
    assert theirs["system"]["address"] == f"{protocol}://{address}"
    if streaming:
        # The same audio in the same chunks makes the same partial results.
        assert ours["summary"]["streaming"]["partials"] == theirs["summary"]["streaming"]["partials"] > 0
        assert ours["summary"]["streaming"]["unstable_ratio"] == theirs["summary"]["streaming"]["unstable_ratio"]
        assert theirs["system"]["chunk_ms"] == "50"


def test_several_systems_are_compared_with_the_first(
    toy_bundle: Path, served_toy: TritonServer, toys: list[str | Path], tmp_path: Path
):
    served = f"served=grpc://{served_toy.grpc_address}/toy"
    code, out, err = run(
        *("--compare", f"base={toy_bundle}", "--compare", f"stream={toy_bundle},mode=streaming", "--compare", served),
        *(*toys, "--max-wer-increase", "0", "--report", tmp_path / "r.json", "--html", tmp_path / "r.html"),
    )
    assert code == 0, err
    assert "Against the baseline" in out
    fields = result_of(tmp_path / "r.json")
    assert [each["name"] for each in fields["systems"]] == ["base", "stream", "served"]
    assert [each["words"] and each["words"]["delta"] for each in fields["comparison"]] == [None, 0.0, 0.0]
    assert {path.name for path in tmp_path.glob("*.jsonl")} == {
        f"r.{name}.journal.jsonl" for name in ("base", "stream", "served")
    }


def test_a_word_error_rate_beyond_the_limit_fails_the_command_and_names_who(
    toy_bundle: Path, toys: list[str | Path], tmp_path: Path
):
    assert run("--model", toy_bundle, *toys, "--report", tmp_path / "before.json")[0] == 0
    # "world" is now wrong as well: 2 of 5 words.
    soundfile.write(tmp_path / "hello.wav", toy_waveform("hello worl"), SAMPLE_RATE, subtype="FLOAT")
    gated = ["--compare", f"new={toy_bundle}", *toys, "--baseline", tmp_path / "before.json", "--max-wer-increase"]
    code, _, err = run(*gated, "19.9")
    assert code == 1
    assert "error: new: WER 40.00 % is 20.00 points above 20.00 % of toy (before.json); allowed are 19.9" in err
    assert run(*gated, "20")[0] == 0


def test_failed_utterances_fail_the_command_after_the_report(toy_bundle: Path, toys: list[str | Path], tmp_path: Path):
    (tmp_path / "seven.wav").write_bytes(b"no audio")
    code, out, err = run("--model", toy_bundle, *toys, "--html", tmp_path / "r.html")
    assert code == 1
    assert "error: toy: 1 of 3 utterances failed" in err
    assert "seven.wav is not audio that can be read" in " ".join(out.split())
    assert "40.00 %" in out  # two words of five are lost
    assert "not audio that can be read" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_folder_is_scored_by_the_texts_in_it_and_manifests_by_their_own(
    toy_bundle: Path, toys: list[str | Path], tmp_path: Path
):
    rows = [
        {"transcript": text, "files": [{"fname": f"{name}.wav", "speed": 1.0}], "original_duration": seconds}
        for seconds, (name, text) in enumerate(REFERENCES.items())
    ]
    (tmp_path / "one.json").write_text(json.dumps(rows[:1]), encoding="utf-8")
    (tmp_path / "rest.json").write_text(json.dumps(rows[1:]), encoding="utf-8")
    for name, text in REFERENCES.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    folder = ("--data-dir", tmp_path)
    both = ("--manifest", f"{tmp_path}/one.json,{tmp_path}/rest.json", *folder)
    scored = []
    for given in (folder, both, (*both, "--min-duration-s", 1, "--max-duration-s", 1)):
        code, _, err = run("--model", toy_bundle, *given, "--report", tmp_path / "r.json")
        assert code == 0, err
        (system,) = result_of(tmp_path / "r.json")["systems"]
        scored.append({(each["reference"], each["hypothesis"]) for each in system["utterances"]})
    assert scored[0] == scored[1] == {(text, SAID[name]) for name, text in REFERENCES.items()}
    assert scored[2] == {("seven 8", "seven 7")}


def test_a_server_that_fails_is_told_and_what_came_before_is_reported(
    toy_bundle: Path, toys: list[str | Path], tmp_path: Path
):
    options = ("--compare", f"base={toy_bundle}", "--compare", "gone=grpc://localhost:1/m", *toys)
    code, out, err = run(*options, "--report", tmp_path / "r.json")
    assert code == 1
    assert "error: grpc://localhost:1: " in err
    assert "20.00 %" in out
    assert [each["name"] for each in result_of(tmp_path / "r.json")["systems"]] == ["base"]
    code, out, err = run("--url", "localhost:1", *toys)
    assert (code, out) == (1, "")
    assert err.startswith("error: grpc://localhost:1: ")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--manifest", "m"], "or --compare NAME=WHAT, once for each system; one of them is needed"),
        (["--model", "b", "--protocol", "grpc", "--manifest", "m"], "--protocol goes with --url"),
        (["--url", "a", "--device", "cpu", "--manifest", "m"], "--device goes with a model that runs here"),
        (["--model", "b", "--realtime", "--manifest", "m"], "go with --streaming"),
        (["--compare", "b", "--beam", "3", "--manifest", "m"], "in --compare write NAME=WHAT,KEY=VALUE"),
        (["--compare", "b", "--device", "cuda", "--manifest", "m"], "in --compare write NAME=WHAT,KEY=VALUE"),
        (["--model", "b"], "give the recordings"),
        (["--model", "b", "--manifest", "m", "--wavscp", "w"], "give the recordings"),
        (["--model", "b", "--manifest", "m,,n"], "has an empty name"),
        (["--model", "b", "--manifest", "m,n", "--report", "n"], "n would be written over n"),
        (["--model", "b", "--manifest", "m", "--min-duration-s", "3", "--max-duration-s", "2"], "got 3 and 2 s"),
        (["--model", "b", "--data-dir", "d", "--max-duration-s", "2"], "only manifests state durations"),
        (["--model", "b", "--wavscp", "w"], "--wavscp needs --trans"),
        (["--model", "b", "--manifest", "m", "--resume"], "--resume needs --journal"),
        (["--model", "b", "--manifest", "m", "--report", "/nowhere/r.json"], "there is no folder /nowhere"),
        (["--model", "b", "--manifest", "m", "--html", "/"], "/ is a folder"),
        (["--model", "b", "--manifest", "m", "--report", "m"], "m would be written over m"),
        (["--model", "b", "--manifest", "m", "--report", "./r", "--html", "r"], "r would be written over r"),
        (["--model", "b", "--manifest", "m", "--baseline", "r", "--report", "r"], "r would be written over r"),
        (["--model", "b", "--manifest", "m", "--report", "/dev/stdout", "--resume"], "--resume needs --journal"),
        (["--model", "b", "--manifest", "m", "--confidence", "0.95"], "in percent"),
        (["--model", "b", "--manifest", "m", "--case", "title"], "--case"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage_of_evaluate(options: list[str], complaint: str):
    code, out, err = run(*options)
    assert (code, out) == (2, "")
    assert complaint in " ".join(err.replace("│", "").split())


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("toy=demo-asr,colour=4", "unknown colour; a bundle takes"),
        ("toy=demo-asr,threads=many", "threads must be a whole number"),
        ("toy=grpc://h:x/m", "port must be a number"),
    ],
)
def test_a_system_that_makes_no_sense_is_wrong_usage(toys: list[str | Path], spec: str, complaint: str):
    code, out, err = run("--compare", spec, *toys)
    assert (code, out) == (2, "")
    assert complaint in " ".join(err.replace("│", "").split())


@pytest.mark.parametrize("folder", [False, True])
def test_what_cannot_be_written_is_said_before_anything_is_recognised(
    toy_bundle: Path, toys: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool
):
    # Permissions mean nothing to root, which tests may run as.
    locked = tmp_path if folder else tmp_path / "r.json"
    if not folder:
        (tmp_path / "r.json").write_text("kept", encoding="utf-8")
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK or Path(path) != locked)
    code, out, err = run("--model", toy_bundle, *toys, "--report", tmp_path / "r.json")
    assert (code, out) == (2, "")
    assert "cannot be written" in " ".join(err.replace("│", "").split())
    assert "3 of 3" not in err


def test_other_references_than_the_baselines_are_found_before_anything_is_recognised(
    toy_bundle: Path, toys: list[str | Path], tmp_path: Path
):
    assert run("--model", toy_bundle, *toys, "--report", tmp_path / "before.json")[0] == 0
    (tmp_path / "text").write_text("hello hello\nseven seven 8\ntri tritone\n", encoding="utf-8")
    code, out, err = run("--model", toy_bundle, *toys, "--baseline", tmp_path / "before.json")
    assert (code, out) == (1, "")
    assert "error: hello: the reference is 'hello world' in" in err
    assert "3 of 3" not in err


def test_files_are_written_though_nobody_reads_the_table(
    toy_bundle: Path, toys: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def closed(*arguments: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(EvaluationPrinter, "show", closed)
    outputs = ["--report", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    CliRunner().invoke(app, ["evaluate", "--model", str(toy_bundle), *map(str, toys), *outputs])
    assert result_of(tmp_path / "r.json")["complete"]
    assert (tmp_path / "r.html").exists()


def test_chunks_of_no_length_are_wrong_usage(toy_bundle: Path, toys: list[str | Path]):
    code, _, err = run("--model", toy_bundle, *toys, "--streaming", "--chunk-ms", "inf")
    assert code == 2
    assert "chunk_ms must be at least 1" in " ".join(err.replace("│", "").split())


def test_sigterm_leaves_a_partial_report_as_ctrl_c_does(
    toy_bundle: Path, toys: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def end(
        self: BundleSystem, paths: Iterable[str], on_partial: object = None
    ) -> Generator[TranscriptResult, None, None]:
        yield TranscriptResult(index=0, source=next(iter(paths)), value=Transcript("hello world"), audio_s=1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(BundleSystem, "run", end)
    handler = signal.getsignal(signal.SIGTERM)
    code, out, err = run("--model", toy_bundle, *toys, "--report", tmp_path / "r.json")
    assert code == 130
    assert "not tried" in out
    assert "--resume goes on with the rest" in err
    summary = result_of(tmp_path / "r.json")["systems"][0]["summary"]
    assert (summary["complete"], summary["utterances"], summary["wer"]) == (False, 1, 0.0)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_limit_without_anything_to_hold_it_against_is_wrong_usage(toy_bundle: Path, toys: list[str | Path]):
    code, _, err = run("--model", toy_bundle, *toys, "--max-wer-increase", "1")
    assert code == 2
    assert "needs a baseline" in " ".join(err.replace("│", "").split())


def test_the_python_example_of_the_document_runs(
    toy_bundle: Path,
    toys: list[str | Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    document = (Path(__file__).parents[2] / "docs" / "models" / "evaluate.md").read_text(encoding="utf-8")
    example = document.partition("```py\n")[2].partition("```")[0].replace("demo-asr", str(toy_bundle))
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "evaluate.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.startswith("0.2 Interval(low=")


@pytest.mark.slow
def test_ctrl_c_leaves_a_partial_report_and_a_journal_to_go_on_with(tmp_path: Path, toys: list[str | Path]):
    # The toy server sleeps as long as the first sample says: the third file keeps it busy until the interrupt.
    for name, seconds in (("hello", 0), ("seven", 0), ("tri", 1.5)):
        soundfile.write(tmp_path / f"{name}.wav", np.full(16000, float(seconds)), 16000, subtype="FLOAT")
    (tmp_path / "text").write_text("hello done\nseven gone\ntri done\n", encoding="utf-8")
    outputs = ["--report", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    journal = tmp_path / "r.journal.jsonl"
    with toy_server(tmp_path / "repository", "slow") as server:
        options = ["--url", server.grpc_address, "--concurrency", "1", *map(str, toys), *outputs]
        command = [sys.executable, "-u", "-c", "from tritone.cli.main import app; app()", "evaluate", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as waiting:
            while not journal.exists() or journal.read_text(encoding="utf-8").count('"id"') < 2:
                assert waiting.poll() is None, waiting.communicate()
                time.sleep(0.02)
            waiting.send_signal(signal.SIGINT)
            out, err = waiting.communicate(timeout=30)
        assert waiting.returncode == 130, err
        assert "Traceback" not in err
        assert "not tried" in out
        summary = result_of(tmp_path / "r.json")["systems"][0]["summary"]
        assert (summary["complete"], summary["utterances"], summary["wer"]) == (False, 2, 0.5)
        assert "interrupted after 2 of 3" in (tmp_path / "r.html").read_text(encoding="utf-8")

        assert run(*options, "--resume", "--timeout-s", "0.2")[0] == 1  # the third file still takes 1.5 s
        again = result_of(tmp_path / "r.json")["systems"][0]["summary"]
        assert (again["complete"], again["utterances"], again["failures"], again["reused"]) == (True, 3, 1, 2)

        soundfile.write(tmp_path / "tri.wav", np.zeros(16000), 16000, subtype="FLOAT")
        code, _, err = run(*options, "--resume")
        assert code == 1
        assert "audio files have changed" in err
        assert run(*options)[0] == 0
        last = result_of(tmp_path / "r.json")["systems"][0]["summary"]
        assert (last["failures"], last["reused"], last["wer"]) == (0, 0, pytest.approx(1 / 3))
