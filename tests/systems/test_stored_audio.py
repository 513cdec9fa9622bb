"""Recordings in an S3 on loopback: lists, folders and single files of them, each failing alone."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from object_server import Fault, ObjectServer, Stored
from toy_speaker import SAMPLE_RATE, toy_embedding, toy_voice, write_toy_speaker
from tritone.cli.main import app
from tritone.errors import AudioError, InputError
from tritone.speakers.archive import read_vectors
from tritone.systems.stored_audio import audio_inputs, recordings_in


@pytest.fixture(scope="module")
def toy_speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_speaker(tmp_path_factory.mktemp("speaker") / "toy")


@pytest.fixture
def voices(objects: ObjectServer) -> dict[str, np.ndarray]:
    found = {}
    for number, name in enumerate(("a/2.wav", "a/1.flac", "3.wav")):
        found[name] = toy_voice([1, number, 2], samples=1600 + 700 * number, seed=number)
        file = io.BytesIO()
        soundfile.write(file, found[name], SAMPLE_RATE, format=Path(name).suffix[1:].upper(), subtype="PCM_16")
        objects.objects[f"bucket/corpus/{name}"] = Stored(file.getvalue())
        found[name] = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32")[0]
    objects.objects["bucket/corpus/a/notes.txt"] = Stored(b"no audio")
    objects.objects["bucket/corpus/.hidden/4.wav"] = Stored(b"no audio either")
    return found


def embed(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["embed", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr


def test_a_folder_is_embedded_under_its_names(voices: dict[str, np.ndarray], tmp_path: Path, toy_speaker: Path):
    code, err = embed("--model", toy_speaker, "--data-dir", "s3://bucket/corpus", "--output", tmp_path / "o")
    assert code == 0, err
    vectors = read_vectors(tmp_path / "o" / "xvector.scp")
    assert list(vectors.keys) == ["3.wav", "a/1.flac", "a/2.wav"]
    for key, row in zip(vectors.keys, vectors.matrix, strict=True):
        np.testing.assert_allclose(row, toy_embedding(voices[key]), atol=1e-6)


def test_what_cannot_be_fetched_fails_alone(
    voices: dict[str, np.ndarray], objects: ObjectServer, tmp_path: Path, toy_speaker: Path
):
    objects.faults.append(Fault("GET", "a/2.wav", "forbid"))
    here = tmp_path / "here.wav"
    soundfile.write(here, voices["3.wav"], SAMPLE_RATE, subtype="PCM_16")
    names = ("3.wav", "a/2.wav", "absent.wav")
    lines = [f"u{number} s3://bucket/corpus/{name}\n" for number, name in enumerate(names)]
    (tmp_path / "wav.scp").write_text("".join([*lines, "here here.wav\n"]), encoding="utf-8")
    out = tmp_path / "out"
    code, _ = embed("--model", toy_speaker, "--wavscp", tmp_path / "wav.scp", "--output", out)
    vectors = read_vectors(out / "xvector.scp")
    assert (code, list(vectors.keys)) == (1, ["u0", "here"])
    np.testing.assert_array_equal(vectors.matrix[0], vectors.matrix[1])
    failures = {
        each["id"]: each for each in map(json.loads, (out / "failures.jsonl").read_text(encoding="utf-8").splitlines())
    }
    assert failures["u1"]["path"] == "s3://bucket/corpus/a/2.wav"
    assert "no permission" in failures["u1"]["error"]
    assert failures["u2"]["error"] == "cannot read s3://bucket/corpus/absent.wav: there is no such file"


def test_files_and_folders_are_transcribed(voices: dict[str, np.ndarray], toy_bundle: Path):
    paths = ("s3://bucket/corpus/a", "s3://bucket/corpus/3.wav")
    result = CliRunner().invoke(app, ["transcribe", "--model", str(toy_bundle), "--json", *paths])
    assert result.exit_code == 0, result.stderr
    assert [json.loads(line)["path"] for line in result.stdout.splitlines()] == [
        *("s3://bucket/corpus/a/1.flac", "s3://bucket/corpus/a/2.wav", "s3://bucket/corpus/3.wav")
    ]


def test_a_folder_without_audio_and_an_address_of_nothing(objects: ObjectServer):
    objects.objects["bucket/texts/a.txt"] = Stored(b"text")
    with pytest.raises(AudioError, match="no audio in the folder s3://bucket/texts"):
        recordings_in("s3://bucket/texts")
    ((plain, empty),) = [tuple(audio_inputs(["a.wav", "s3://"]))]
    assert plain == "a.wav"
    with pytest.raises(InputError, match="names no bucket"):
        empty.fetch()
