"""`tritone demo` with the toy bundles; the clips are spelt by `toy_waveform`."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import soundfile
from rich.console import Console
from typer.testing import CliRunner

from toy import SAMPLE_RATE, toy_waveform
from toy_speaker import toy_embedding, write_toy_speaker
from tritone.audio.files import read_audio
from tritone.bundle import Bundle, shipped_bundles
from tritone.bundle.evaluation import read_evaluation
from tritone.cli.main import app
from tritone.demo import Clip, Measured, Run, Voice, VoiceRun, read_clips
from tritone.errors import BundleError, OperatorError

EVALUATION = {
    "measured_by": "python -m training.speaker.score",
    "sets": [
        {
            "name": "AN4 test",
            "trials": "an4/trials_test.txt",
            "targets": 780,
            "nontargets": 4000,
            "eer": {"value": 0.1234, "threshold": 0.4, "interval": [0.1, 0.2]},
        }
    ],
}


def unit(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    result: npt.NDArray[np.float32] = vector / np.linalg.norm(vector)
    return result


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    folder = tmp_path / "clips"
    folder.mkdir()
    said = {"one": "hello world", "two": "seven seven", "three": "tritone"}
    for name, text in said.items():
        soundfile.write(folder / f"{name}.flac", toy_waveform(text), SAMPLE_RATE, subtype="PCM_24")
    references = said | {"two": "seven eleven seven"}
    records = [{"file": f"{name}.flac", "text": text, "voice": "toy"} for name, text in references.items()]
    (folder / "clips.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return folder


def rows_of(output: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line]


def test_the_demo_serves_transcribes_and_scores_every_clip_in_both_modes(toy_bundle: Path, clips: Path, tmp_path: Path):
    before = signal.getsignal(signal.SIGTERM)
    # Served along: texts come first, and the speaker model hears the same clips.
    speaker = write_toy_speaker(tmp_path / "speaker")
    (speaker / "evaluation.json").write_text(json.dumps(EVALUATION), encoding="utf-8")
    result = CliRunner().invoke(
        app, ["demo", "--bundle", str(speaker), "--bundle", str(toy_bundle), "--clips", str(clips)]
    )
    assert result.exit_code == 0, result.output
    assert signal.getsignal(signal.SIGTERM) == before
    rows = rows_of(result.stdout.partition("Voices: ")[0])
    seen = [(row[0], row[2], row[3], row[4], row[5]) for row in rows]
    for mode in ("offline", "streaming"):
        assert ("one", mode, "hello world", "hello world", "0.0") in seen
        assert ("two", mode, "seven seven", "seven eleven seven", "33.3") in seen  # one deletion in three words
        assert ("three", mode, "tritone", "tritone", "0.0") in seen
    totals = [row for row in rows if row[0] == "all 3"]
    assert [(row[2], row[5]) for row in totals] == [("offline", "16.7"), ("streaming", "16.7")]  # 1 of 6 words
    assert "stopping Triton" in result.stderr

    rows = rows_of(result.stdout.partition("Voices: ")[2])
    halves = {
        name: [unit(toy_embedding(half)) for half in np.array_split(read_audio(clips / f"{name}.flac", SAMPLE_RATE), 2)]
        for name in ("one", "two", "three")
    }
    assert [(row[0], row[2]) for row in rows[:3]] == [
        (name, f"{first @ second:.2f}") for name, (first, second) in halves.items()
    ]
    # One voice in all clips: nobody is another speaker, and there is nothing to tell apart.
    assert [row[3:5] for row in rows[:3]] == [["", ""]] * 3
    assert rows[3][:3] == ["halves of these clips, now", "9", "0"]
    assert rows[3][4] == ""
    assert rows[4] == ["AN4 test", "780", "4,000", "", "12.3", "10.0 to 20.0"]
    assert "measured before, with `python -m training.speaker.score`" in " ".join(result.stdout.split())


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


@pytest.mark.slow
def test_a_clip_that_cannot_be_read_fails_the_demo_and_not_the_others(toy_bundle: Path, clips: Path, tmp_path: Path):
    (clips / "one.flac").write_bytes(b"no audio")
    speaker = write_toy_speaker(tmp_path / "speaker")
    result = CliRunner().invoke(
        app, ["demo", "--bundle", str(toy_bundle), "--bundle", str(speaker), "--clips", str(clips)]
    )
    assert result.exit_code == 1
    assert "2 of 6 transcriptions failed" in result.stderr
    assert "1 of 3 clips have no embeddings:\n  one: " in result.stderr
    assert result.stdout.count("seven eleven seven") == 2
    rows = rows_of(result.stdout.partition("Voices: ")[2])
    assert [row[2] == "failed" for row in rows[:3]] == [True, False, False]
    assert rows[3][:3] == ["halves of these clips, now", "4", "0"]


def voice(name: str, speaker: str, first: float, second: float) -> Voice:
    """A clip whose halves have the directions of these angles, in degrees."""
    angles = np.radians([first, second])
    halves = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return Voice(clip=Clip(Path(f"{name}.flac"), "", f"voice of {name}", speaker), halves=halves, audio_s=2.0)


def test_voices_of_one_speaker_are_targets_and_only_others_are_the_nearest_other():
    run = VoiceRun("m", [voice("a", "anna", 0, 10), voice("b", "anna", 5, 15), voice("c", "", 60, 90)])
    assert run.targets().tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    np.testing.assert_allclose(run.cosines()[0], np.cos(np.radians([10, 15, 90])), atol=1e-6)
    assert run.nearest_other(0) == (pytest.approx(np.cos(np.radians(50))), run.voices[2].clip)  # c's 60 and a's 10
    cosine, clip = run.nearest_other(2) or (0.0, None)
    assert (cosine, clip) == (pytest.approx(np.cos(np.radians(45))), run.voices[1].clip)
    # Five targets from 30 degrees down, four others from 45 up: a threshold parts them.
    assert run.eer() == 0.0
    mixed = VoiceRun("m", [*run.voices, voice("d", "", 0, 60)])
    assert 0.0 < (mixed.eer() or 0.0) < 1.0


def test_a_speaker_table_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch, clips: Path):
    run = VoiceRun("demo-speaker", [voice("clip-01", "", 0, 10), voice("clip-02", "", 60, 70)])
    monkeypatch.setattr("tritone.cli.demo.run_demo", lambda *_, **__: [run])
    monkeypatch.setattr("tritone.cli.demo.Console", partial(Console, force_terminal=True, color_system=None, width=80))
    result = CliRunner().invoke(app, ["demo", "--clips", str(clips)])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    (row,) = [line.split() for line in result.stdout.splitlines() if line.split()[:1] == ["clip-01"]]
    assert row == ["clip-01", "0.98", "0.64", "clip-02", "2.00", "0", "ms"]  # cosines of 10 and 50 degrees


def test_model_cards_tell_the_error_rates_that_the_demo_shows():
    status = (Path(__file__).parents[2] / "docs" / "status.md").read_text(encoding="utf-8")
    for path in shipped_bundles().values():
        evaluation = read_evaluation(path)
        card = (path / "README.md").read_text(encoding="utf-8")
        for each in evaluation.sets if evaluation else ():
            assert f"{each.targets:,} + {each.nontargets:,}" in card
            assert f" {100 * each.eer.value:.2f} " in card
            assert f" {100 * each.eer.value:.1f} % ({each.targets + each.nontargets:,} " in status


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "evaluation.json: the file: Invalid JSON"),
        ('{"measured_by": "x", "sets": []}', "evaluation.json: sets: "),
        (json.dumps(EVALUATION).replace("0.1234", "12.34"), r"sets\.0\.eer\.value: .*less than or equal to 1"),
        (" " * (1 << 20) + "{}", "is larger than 1048576 bytes"),
    ],
)
def test_a_damaged_evaluation_of_a_bundle_is_named(tmp_path: Path, text: str, complaint: str):
    assert read_evaluation(tmp_path) is None
    (tmp_path / "evaluation.json").write_text(text, encoding="utf-8")
    with pytest.raises(BundleError, match=complaint):
        read_evaluation(tmp_path)


def test_the_shipped_clips_are_speech_with_a_reference():
    clips = read_clips()
    assert len({clip.voice for clip in clips}) >= 3
    for clip in clips:
        assert clip.reference.split()
        assert 0.5 < len(read_audio(clip.path, 16000)) / 16000 < 30


@pytest.mark.slow
@pytest.mark.skipif(not shipped_bundles(), reason="no bundles are in this checkout")
def test_the_shipped_models_recognise_the_shipped_clips_offline_and_streaming():
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    shipped = {name: Bundle.open(name).manifest.kind for name in shipped_bundles()}
    rows = rows_of(result.stdout)
    totals = {(row[0], row[2]): float(row[5]) for row in rows if row[3].startswith("word errors")}
    writing = [name for name, kind in shipped.items() if kind != "embedding"]
    assert set(totals) == set(product(writing, ("offline", "streaming")))
    assert max(totals.values()) <= 10.0, f"word error rates in %: {totals}"
    rates = [row for row in rows if row[0].startswith("halves of these clips")]
    assert len(rates) == len(shipped) - len(writing)
    for row in rates:
        # Ten clips of nine speakers: the voice of one man is in two of them.
        assert row[1:3] == ["12", "88"]
        assert float(row[4]) <= 15.0, f"equal error rate in %: {row}"


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


@pytest.mark.slow
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
    (tmp_path / "clips.jsonl").write_text(index, encoding="utf-8")
    with pytest.raises(OperatorError, match=complaint):
        read_clips(tmp_path)


def test_a_folder_without_index_has_no_clips(tmp_path: Path):
    with pytest.raises(OperatorError, match=r"has no clips\.jsonl"):
        read_clips(tmp_path)
