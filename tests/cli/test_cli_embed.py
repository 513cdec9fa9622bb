"""`tritone embed` with the toy speaker, in this process and served, and with a server that goes away."""

import json
import os
import re
import signal
from pathlib import Path

import kaldiio
import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from toy_speaker import SAMPLE_RATE, toy_embedding, toy_voice
from tritone.cli.main import app
from tritone.server import TritonServer, free_ports
from tritone.speakers.archive_writer import ArchiveWriter


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["embed", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def voices(tmp_path: Path) -> dict[str, np.ndarray]:
    """Recordings by their ids, listed in `wav.scp`."""
    found = {}
    (tmp_path / "a folder").mkdir()
    for number in range(6):
        found[f"说话人{number}"] = toy_voice([1, number, 2], samples=1600 + 700 * (number * 3 % 7), seed=number)
        soundfile.write(tmp_path / f"a folder/{number}.wav", found[f"说话人{number}"], SAMPLE_RATE, subtype="FLOAT")
    lines = [f"{name} a folder/{number}.wav\n" for number, name in enumerate(found)]
    (tmp_path / "wav.scp").write_text("".join(lines), encoding="utf-8")
    return found


def check(out: Path, voices: dict[str, np.ndarray]) -> None:
    found = kaldiio.load_scp(str(out / "xvector.scp"))
    assert list(found) == list(voices)
    for name, waveform in voices.items():
        np.testing.assert_allclose(found[name], toy_embedding(waveform), atol=1e-6)


@pytest.mark.parametrize("who", ["bundle", "grpc", "http"])
def test_a_list_of_recordings_becomes_archives(
    who: str, voices: dict[str, np.ndarray], tmp_path: Path, toy_speaker: Path, served_toy: TritonServer
):
    out = tmp_path / "out"
    urls = {"grpc": served_toy.grpc_address, "http": f"http://{served_toy.http_address}"}
    by = ["--url", urls[who]] if who in urls else ["--model", toy_speaker]
    code, stdout, err = run("--wavscp", tmp_path / "wav.scp", "--output", out, "--shard-size", 4, *by)
    assert (code, stdout) == (0, "")
    assert re.fullmatch(
        rf"embedded 6 of 6: [0-9.]+ utterances/s, \d+ s of audio/s\n{out}/xvector.scp lists them\n", err
    )
    check(out, voices)
    assert sorted(path.name for path in out.glob("*_*")) == [
        *("xvector_000.ark", "xvector_000.scp", "xvector_001.ark", "xvector_001.scp")
    ]


def test_windows_are_those_of_the_model_in_this_process_and_served(
    voices: dict[str, np.ndarray], tmp_path: Path, toy_speaker: Path, served_toy: TritonServer
):
    windows = ["--wavscp", tmp_path / "wav.scp", "--window-s", "0.1", "--shift-s", "0.05"]
    assert run(*windows, "--output", tmp_path / "here", "--model", toy_speaker)[0] == 0
    assert run(*windows, "--output", tmp_path / "served", "--url", served_toy.grpc_address)[0] == 0
    here, served = (kaldiio.load_scp(str(tmp_path / name / "xvector.scp")) for name in ("here", "served"))
    for name, waveform in voices.items():
        np.testing.assert_allclose(here[name], served[name], atol=1e-6)
        assert len(waveform) == 1600 or np.abs(here[name] - toy_embedding(waveform)).max() > 1e-4


def test_a_cut_archive_is_gone_on_with(voices: dict[str, np.ndarray], tmp_path: Path, toy_speaker: Path):
    arguments = ["--wavscp", tmp_path / "wav.scp", "--output", tmp_path / "out", "--model", toy_speaker]
    assert run(*arguments)[0] == 0
    ark = tmp_path / "out" / "xvector_000.ark"
    ark.write_bytes(ark.read_bytes()[:-5])
    code, _, err = run(*arguments)
    assert code == 0
    assert "ended in the middle of an entry" in err
    assert "embedded 1 of 6, 5 were there" in err
    check(tmp_path / "out", voices)
    code, _, err = run(*arguments, "--window-s", "1")
    assert code == 1
    assert "window_s was not given and is '1'" in err
    assert run(*arguments, "--window-s", "1", "--force")[0] == 0


@pytest.mark.parametrize("who", ["bundle", "server"])
def test_bad_recordings_are_listed_and_the_exit_code_is_one(
    who: str, voices: dict[str, np.ndarray], tmp_path: Path, toy_speaker: Path, served_toy: TritonServer
):
    soundfile.write(tmp_path / "short.wav", np.zeros(10), SAMPLE_RATE)
    with (tmp_path / "wav.scp").open("a", encoding="utf-8") as file:
        file.write("gone /nowhere/a b.wav\nshort short.wav\n")
    out = tmp_path / "out"
    by = ["--url", served_toy.grpc_address] if who == "server" else ["--model", toy_speaker]
    code, _, err = run("--wavscp", tmp_path / "wav.scp", "--output", out, *by)
    assert code == 1
    assert f"error: 2 of 8 recordings failed, see {out}/failures.jsonl; the first is " in err
    failures = {
        line["id"]: line for line in map(json.loads, (out / "failures.jsonl").read_text(encoding="utf-8").splitlines())
    }
    assert failures["gone"]["path"] == "/nowhere/a b.wav"
    assert "No such file" in failures["gone"]["error"]
    assert "needs at least 0.050 s" in failures["short"]["error"]
    check(out, voices)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("a cat a.wav |", "Commands are never run"),
        ("a |cat a.wav", "Commands are never run"),
        ("a\n", "'a' has no path"),
        ("a feats.ark:12", "is in a Kaldi archive"),
        ("a x.wav\na y.wav", "'a' was listed in line 1 already"),
        ("nul\0 x.wav", "character that cannot be seen"),
        ("a\u3000b x.wav", "character that cannot be seen"),
        ("x" * 5000 + " x.wav", "an id has 1 to 4096 bytes"),
    ],
)
def test_a_list_that_cannot_be_is_refused_and_nothing_is_made(
    line: str, complaint: str, tmp_path: Path, toy_speaker: Path
):
    (tmp_path / "wav.scp").write_text(line, encoding="utf-8")
    out = tmp_path / "out"
    code, _, err = run("--wavscp", tmp_path / "wav.scp", "--output", out, "--model", toy_speaker)
    assert code == 1
    assert complaint in err
    assert not out.exists()


def test_the_path_of_a_line_may_have_spaces_and_all_else(tmp_path: Path, toy_speaker: Path):
    waveform = toy_voice([1, 2, 3])
    soundfile.write(tmp_path / "a b c.wav", waveform, SAMPLE_RATE, subtype="FLOAT")
    (tmp_path / "wav.scp").write_text("id\ta b c.wav\r\n", encoding="utf-8")  # three fields, as it were
    assert run(*("--wavscp", tmp_path / "wav.scp", "--output", tmp_path / "deep/out", "--model", toy_speaker))[0] == 0
    check(tmp_path / "deep/out", {"id": waveform})


def test_files_are_called_as_they_are_and_one_that_is_not_there_is_a_failure(tmp_path: Path, toy_speaker: Path):
    waveform = toy_voice([1, 2, 3])
    soundfile.write(tmp_path / "a.wav", waveform, SAMPLE_RATE, subtype="FLOAT")
    code, _, err = run(tmp_path / "a.wav", tmp_path / "b.wav", "--output", tmp_path / "out", "--model", toy_speaker)
    assert (code, "1 of 2 recordings failed" in err) == (1, True)
    check(tmp_path / "out", {"a": waveform})


def test_folders_and_manifests_name_recordings_too(tmp_path: Path, toy_speaker: Path):
    waveform = toy_voice([1, 2, 3])
    (tmp_path / "data").mkdir()
    soundfile.write(tmp_path / "data" / "a.wav", waveform, SAMPLE_RATE, subtype="FLOAT")
    (tmp_path / "list.json").write_text('{"audio_filepath": "data/a.wav", "id": "anna"}', encoding="utf-8")
    by = ["--model", toy_speaker]
    assert run("--data-dir", tmp_path / "data", "--output", tmp_path / "one", *by)[0] == 0
    check(tmp_path / "one", {"a.wav": waveform})
    assert run("--manifest", tmp_path / "list.json", "--output", tmp_path / "two", *by)[0] == 0
    check(tmp_path / "two", {"anna": waveform})


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "one of them is needed"),
        (["--url", "localhost:1", "--device", "cpu"], "--device goes with a model that runs here"),
        (["--model", "x", "--model", "y"], "--model is given twice"),
        (["--model", "x"], "name what to embed"),
        (["--model", "x", "a.wav", "--wavscp", "b"], "stand in place of files"),
        (["--model", "x", "--wavscp", "a", "--manifest", "b"], "either --wavscp or --manifest"),
        (["--url", "ftp://x", "--wavscp", __file__], "unknown scheme"),
    ],
)
def test_wrong_usage_is_said(arguments: list[str], complaint: str, tmp_path: Path):
    (tmp_path / "wav.scp").write_text("a a.wav", encoding="utf-8")
    if arguments and arguments[-1] == __file__:
        arguments = [*arguments[:-1], str(tmp_path / "wav.scp")]
    code, _, err = run("--output", tmp_path / "out", *arguments)
    assert code == 2
    assert complaint in " ".join(err.replace("│", " ").split())


def test_a_server_that_is_not_there_and_a_model_that_only_writes_are_said(
    voices: dict[str, np.ndarray], tmp_path: Path, served_toy: TritonServer, toy_bundle: Path
):
    (port,) = free_ports(1)
    arguments = ["--wavscp", tmp_path / "wav.scp", "--output", tmp_path / "out"]
    code, _, err = run(*arguments, "--url", f"localhost:{port}")
    assert code == 1
    assert "Is a server running there?" in err
    code, _, err = run(*arguments, "--url", served_toy.grpc_address, "--model", "toy")
    assert code == 1
    assert "model 'toy' is not for embeddings but offline. Ready models for embeddings: speaker" in err
    code, _, err = run(*arguments, "--model", toy_bundle)
    assert code == 1
    assert "makes no embeddings" in err
    assert not (tmp_path / "out" / "embed.json").exists()  # which would keep the right model from it


def test_ctrl_c_keeps_what_is_done_and_exits_with_130(
    voices: dict[str, np.ndarray], tmp_path: Path, toy_speaker: Path, monkeypatch: pytest.MonkeyPatch
):
    real, out = ArchiveWriter.add, tmp_path / "out"

    def add(self: ArchiveWriter, key: str, vector: np.ndarray) -> None:
        real(self, key, vector)
        if len(self) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ArchiveWriter, "add", add)
    arguments = ["--wavscp", tmp_path / "wav.scp", "--output", out, "--model", toy_speaker]
    code, _, err = run(*arguments)
    assert code == 130
    assert "embedded 1 of 6" in err or "embedded 2 of 6" in err
    assert "interrupted. The same command continues with the rest." in err
    assert len(list(kaldiio.load_ark(str(out / "xvector_000.ark")))) == 2
    code, _, err = run(*arguments)
    assert code == 0
    assert "embedded 4 of 6, 2 were there" in err
    check(out, voices)
