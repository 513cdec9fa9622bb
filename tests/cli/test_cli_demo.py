"""`tritone demo` with the toy bundle, whose clips are spelt by `toy_waveform`."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import psutil
import pytest
import soundfile
from rich.console import Console
from typer.testing import CliRunner

from toy import SAMPLE_RATE, toy_waveform
from tritone.audio.files import read_audio
from tritone.bundle import shipped_bundles
from tritone.cli.main import app
from tritone.demo import Measured, Run, read_clips
from tritone.errors import OperatorError


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    folder = tmp_path / "clips"
    folder.mkdir()
    said = {"one": "hello world", "two": "seven seven", "three": "tritone"}
    for name, text in said.items():
        soundfile.write(folder / f"{name}.flac", toy_waveform(text), SAMPLE_RATE, subtype="PCM_24")
    references = said | {"two": "seven eleven seven"}
    records = [{"file": f"{name}.flac", "text": text, "voice": "toy"} for name, text in references.items()]
    (folder / "clips.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_the_demo_serves_transcribes_and_scores_every_clip_in_both_modes(toy_bundle: Path, clips: Path):
    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(app, ["demo", "--bundle", str(toy_bundle), "--clips", str(clips)])
    assert result.exit_code == 0, result.output
    assert signal.getsignal(signal.SIGTERM) == before
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    seen = [(row[0], row[2], row[3], row[4], row[5]) for row in rows]
    for mode in ("offline", "streaming"):
        assert ("one", mode, "hello world", "hello world", "0.0") in seen
        assert ("two", mode, "seven seven", "seven eleven seven", "33.3") in seen  # one deletion in three words
        assert ("three", mode, "tritone", "tritone", "0.0") in seen
    totals = [row for row in rows if row[0] == "all 3"]
    assert [(row[2], row[5]) for row in totals] == [("offline", "16.7"), ("streaming", "16.7")]  # 1 of 6 words
    assert "stopping Triton" in result.stderr


def test_a_terminal_of_80_columns_shows_the_texts_in_full(monkeypatch: pytest.MonkeyPatch, clips: Path):
    said = {"one": "hello world", "two": "seven eleven seven", "three": "tritone"}
    results = [
        Measured(clip=clip, mode=mode, text=said[clip.name], audio_s=1.0, latency_s=0.05, compute_s=0.05)
        for mode in ("offline", "streaming")
        for clip in read_clips(clips)
    ]
    monkeypatch.setattr("tritone.cli.demo.run_demo", lambda *_, **__: [Run("toy", results, 1.0)])
    monkeypatch.setattr("tritone.cli.demo.Console", partial(Console, force_terminal=True, color_system=None, width=80))
    result = CliRunner().invoke(app, ["demo", "--clips", str(clips)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.split()[:1] == ["one"]]
    assert [(row.count("hello world"), "0.050" in row) for row in rows] == [(2, True), (2, True)]


def test_a_clip_that_cannot_be_read_fails_the_demo_and_not_the_others(toy_bundle: Path, clips: Path):
    (clips / "one.flac").write_bytes(b"no audio")
    result = CliRunner().invoke(app, ["demo", "--bundle", str(toy_bundle), "--clips", str(clips)])
    assert result.exit_code == 1
    assert "2 of 6 transcriptions failed" in result.stderr
    assert result.stdout.count("seven eleven seven") == 2


def test_the_shipped_clips_are_speech_with_a_reference():
    clips = read_clips()
    assert len({clip.voice for clip in clips}) >= 3
    for clip in clips:
        assert clip.reference.split()
        assert 0.5 < len(read_audio(clip.path, 16000)) / 16000 < 30


@pytest.mark.skipif(not shipped_bundles(), reason="no bundles are in this checkout")
def test_the_shipped_models_recognise_the_shipped_clips_offline_and_streaming():
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    totals = {(row[0], row[2]): float(row[5]) for row in rows if row[3].startswith("word errors")}
    assert set(totals) == set(product(shipped_bundles(), ("offline", "streaming")))
    assert max(totals.values()) <= 10.0, f"word error rates in %: {totals}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_the_demo_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch, clips: Path, number: int):
    ended_with: list[BaseException] = []

    def interrupted(*_: object, **__: object) -> list[Run]:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt as signalled:  # what a server is stopped on
            ended_with.append(signalled)
            raise
        return []

    monkeypatch.setattr("tritone.cli.demo.run_demo", interrupted)
    assert CliRunner().invoke(app, ["demo", "--clips", str(clips)]).exit_code == 130
    assert len(ended_with) == 1


def test_an_interrupted_demo_leaves_no_server_behind(toy_bundle: Path, clips: Path):
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "demo", "--realtime"]
    with subprocess.Popen(
        [*command, "--bundle", str(toy_bundle), "--clips", str(clips)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if line.startswith(b"streaming"):
                break
        family = psutil.Process(demo.pid).children(recursive=True)
        assert "tritonserver" in {process.name() for process in family}
        os.kill(demo.pid, signal.SIGINT)
        _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert b"Traceback" not in err
    _, left = psutil.wait_procs(family, timeout=10)
    assert left == []


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        ('{"file": "a.flac", "text": "x"}\n', "clips.jsonl:1: expected"),
        ("\nnot json\n", "clips.jsonl:2: expected"),
        ('{"file": "absent.flac", "text": "x", "voice": "v"}\n', "names absent.flac, which is missing"),
        ("", "lists no clips"),
    ],
)
def test_a_damaged_index_is_named_with_its_line(tmp_path: Path, index: str, complaint: str):
    (tmp_path / "clips.jsonl").write_text(index)
    with pytest.raises(OperatorError, match=complaint):
        read_clips(tmp_path)


def test_a_folder_without_index_has_no_clips(tmp_path: Path):
    with pytest.raises(OperatorError, match=r"has no clips\.jsonl"):
        read_clips(tmp_path)
