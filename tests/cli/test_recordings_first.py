"""Recordings are opened before a model is downloaded or exported for them, by every command that takes both."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner, Result

from tritone.cli.main import app
from tritone.cli.shared import recordings

NOWHERE = "no-such-model"  # which is looked for after the recordings, and then is an error, too


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in a folder with a recording, a text of its name's ending, and lists of them."""
    monkeypatch.chdir(tmp_path)
    soundfile.write("good.wav", np.random.default_rng(0).normal(scale=0.1, size=16000), 16000)
    Path("text.m4a").write_text("hello, I am a text\n" * 100, encoding="utf-8")
    Path("text.scp").write_text("a text.m4a\n", encoding="utf-8")
    Path("trans").write_text("a hello\n", encoding="utf-8")
    return lambda *command: CliRunner().invoke(app, [*command, "--model", NOWHERE])


COMMANDS = (
    ("transcribe", "text.m4a"),
    ("transcribe", "--wavscp", "text.scp"),
    ("embed", "text.m4a", "--output", "vectors"),
    ("diarize", "text.m4a"),
    ("segments", "text.m4a"),
    ("language", "text.m4a"),
    ("verify", "good.wav", "text.m4a"),
    ("enroll", "anna", "text.m4a", "--store", "voices"),
    ("evaluate", "--wavscp", "text.scp", "--trans", "trans"),
    ("bench", "--audio", "text.m4a"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_cannot_be_read_ends_a_command_before_its_model(
    run: Callable[..., Result], command: tuple[str, ...]
) -> None:
    result = run(*command)
    assert result.exit_code == 1
    assert "text.m4a is not audio that can be read" in result.output
    assert NOWHERE not in result.output
    Path("good.wav").rename("text.m4a")
    Path("good.wav").write_bytes(Path("text.m4a").read_bytes())
    assert NOWHERE in run(*command).output, "it is read, so that the model is looked for"


def test_a_recording_that_is_missing_ends_a_command_before_its_model(run: Callable[..., Result]) -> None:
    result = run("transcribe", "missing.wav")
    assert (result.exit_code, "cannot read 'missing.wav': No such file" in result.output) == (1, True)
    assert NOWHERE not in result.output


def test_of_several_recordings_what_cannot_be_read_is_said_at_once_and_the_others_go_on(
    run: Callable[..., Result],
) -> None:
    said = run("transcribe", "text.m4a", "good.wav").output
    assert 0 <= said.index("tritone: text.m4a is not audio") < said.index(f"there is no {NOWHERE}")


def test_long_lists_are_opened_for_a_moment_alone(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "CHECKED_S", 0.0)
    said = run("transcribe", "good.wav", "text.m4a").output
    assert "text.m4a" not in said
    assert f"there is no {NOWHERE}" in said


def test_nothing_is_opened_for_a_bundle(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "AudioBlocks", None)
    recordings.check_audio(["text.m4a"], "demo-asr")
    recordings.check_audio(["text.m4a"], None)
