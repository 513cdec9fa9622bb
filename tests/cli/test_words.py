"""Words of a command line: paths with a scheme, and options given twice; and paths with a scheme in the library."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

import tritone
from tritone.audio.files import find_audio, read_audio
from tritone.bundle.bundle import Bundle, BundleWriter
from tritone.cli.main import app
from tritone.corpus.dataset import read_utterances
from tritone.errors import AudioError, BundleError, InputError
from tritone.paths import local
from tritone.repository import build_repository
from tritone.speakers.store import SpeakerStore

AWAY = "s3://bucket/folder"


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.stdout, " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "demo-asr", "--output", "ftp://host/folder"],
        ["build", "demo-asr", "--output=ftp://host/folder"],
        ["build", "ftp://host/bundle", "--output", "repository"],
        ["build", "demo-asr", "--output", "repository", "--lm", AWAY],
        ["serve", "ftp://host/repository"],
        ["engine", "demo-asr", "--output", AWAY],
        ["export", "wenet", "--checkpoint", AWAY, "--output", "bundle"],
        ["export", "icefall", "--checkpoint", "a.pt", "--tokens", "t", "--output", AWAY],
        ["transcribe", "--wavscp", AWAY, "--model", "demo-asr"],
        ["transcribe", "https://host/a.wav", "--model", "demo-asr"],
        ["transcribe", "a.wav", "--model", "ftp://host/bundle"],
        ["transcribe", "--manifest", f"a.json,{AWAY}", "--model", "demo-asr"],
        ["evaluate", "--wavscp", AWAY, "--trans", "text", "--url", "grpc://localhost:1"],
        ["embed", "--wavscp", "wav.scp", "--model", "demo-speaker", "--output", AWAY],
        ["score", "--trials", AWAY, "--embeddings", "x.scp"],
        ["enroll", "anna", "a.wav", "--store", "gs://bucket/voices"],
        ["verify", "a.wav", AWAY],
        ["bench", "sweep", "demo-asr", "--report", AWAY],
    ],
)
def test_a_path_with_a_scheme_is_refused_where_no_bundle_or_repository_may_be(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Give a path on this machine for other files" in err.replace("- ", "-")
    assert list(tmp_path.iterdir()) == []


def test_addresses_of_servers_stay_addresses():
    code, _, err = run("transcribe", "absent.wav", "--url", "ftp://host")
    assert code == 2
    assert "unknown scheme 'ftp'" in err
    code, _, err = run("transcribe", "absent.wav", "--url", "http://127.0.0.1:1")
    assert (code, "tritone serve" in err) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [["--url", "http://127.0.0.1:1"], ["--cors", "https://app.example"], ["--traces", "http://127.0.0.1:1"]],
)
def test_the_gateway_takes_addresses(arguments: list[str]):
    code, out, err = run("gateway", "--new-key", "anna", *arguments)
    assert (code, "sha256" in out) == (0, True), err


@pytest.mark.parametrize("arguments", [["--wavscp", "a", "--wavscp", "b"], ["--wavscp=a", "--wavscp", "a"]])
def test_an_option_that_takes_one_value_is_refused_the_second_time(arguments: list[str]):
    code, _, err = run("evaluate", "--model", "demo-asr", "--trans", "t", *arguments)
    assert code == 2
    assert "--wavscp is given twice, but takes one value" in err


def test_commands_of_families_are_checked_as_all_others():
    code, _, err = run("export", "wenet", "--checkpoint", "a", "--checkpoint", "b")
    assert (code, "Invalid value for --checkpoint: --checkpoint is given twice" in err) == (2, True), err
    code, _, err = run("export", "wenet", "--checkpoint", AWAY)
    assert (code, f"Invalid value for --checkpoint: {AWAY}" in err) == (2, True), err


def test_the_library_refuses_paths_with_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_bundle: Path):
    monkeypatch.chdir(tmp_path)
    for call, error in (
        (lambda: Bundle.open("ftp://host/bundle"), BundleError),
        (lambda: tritone.load(Path("ftp://host/bundle")), BundleError),  # pathlib makes ftp:/ of it
        (lambda: BundleWriter(AWAY), BundleError),
        (lambda: build_repository([toy_bundle], AWAY), InputError),
        (lambda: read_audio(AWAY, 16000), AudioError),
        (lambda: find_audio(Path(AWAY)), AudioError),
        (lambda: read_utterances(wavscp=Path(AWAY), need_text=False), InputError),
        (lambda: SpeakerStore(AWAY), InputError),
    ):
        with pytest.raises(error, match=r"a path with the scheme (s3|ftp):// is not supported here"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_may_be_called_like_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    soundfile.write("s3:/a.wav", np.zeros(100), 16000)
    assert len(read_audio("s3:/a.wav", 16000)) == 100
    assert local("a:b/c") == Path("a:b/c")
