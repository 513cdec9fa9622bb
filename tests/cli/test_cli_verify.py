"""`tritone verify`, `enroll` and `identify` with the toy speaker model, whose embeddings are known."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from toy_speaker import SAMPLE_RATE, toy_voice, write_toy_speaker
from tritone.cli.main import app
from tritone.cli.shared import speaker_options
from tritone.errors import InputError
from tritone.result import EmbeddingResult

VOICES = {"one": [3, 4], "other": [4, 3], "third": [0, 0, 1], "mixed": [1, 1]}  # shares of the toy's levels
COSINE = 24 / 25  # of (3, 4) and (4, 3)


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, " ".join(result.stderr.replace("│", " ").split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings, a bundle without a threshold, and one with."""
    folder = tmp_path_factory.mktemp("voices")
    for name, parts in VOICES.items():
        soundfile.write(folder / f"{name}.wav", toy_voice(parts), SAMPLE_RATE, subtype="FLOAT")
    soundfile.write(folder / "short.wav", np.zeros(10), SAMPLE_RATE)
    write_toy_speaker(folder / "plain")
    write_toy_speaker(folder / "judge", name="judge")
    manifest = folder / "judge" / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    content["embedding"]["threshold"] = 0.9
    manifest.write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_two_voices_are_compared_with_the_threshold_of_the_bundle(folder: Path) -> None:
    code, out, err = run("verify", folder / "one.wav", folder / "other.wav", "--model", folder / "judge")
    assert (code, out) == (0, f"similarity {COSINE:.4f}: same speaker\n")
    assert err.startswith("threshold 0.9, of judge")
    assert err.endswith("see its model card")
    code, out, _ = run("verify", folder / "one.wav", folder / "third.wav", "--model", folder / "judge")
    assert (code, out) == (0, "similarity 0.0000: different speakers\n")


def test_without_a_threshold_the_answer_is_open(folder: Path) -> None:
    given = ("verify", folder / "one.wav", folder / "other.wav", "--model", folder / "plain")
    code, out, err = run(*given)
    assert (code, out) == (0, f"similarity {COSINE:.4f}\n")
    assert "no threshold is known for this model" in err
    code, out, err = run(*given, "--threshold", "0.97")
    assert (code, out, err) == (
        *(0, f"similarity {COSINE:.4f}: different speakers\n"),
        "threshold 0.97, given by --threshold",
    )
    assert run(*given, "--exit-code")[0] == 2


def test_check_makes_the_answer_the_exit_code_and_json_an_object(folder: Path) -> None:
    given = ("verify", folder / "one.wav", folder / "other.wav", "--model", folder / "judge", "--exit-code", "--json")
    code, out, _ = run(*given)
    found = json.loads(out)
    assert (code, found["same"], found["threshold"], found["model"]) == (0, True, 0.9, "judge")
    assert found["similarity"] == pytest.approx(COSINE, abs=1e-4)
    assert run(*given, "--threshold", "0.97")[0] == 1


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        (["{0}/one.wav", "{0}/none.wav", "--model", "{0}/plain"], 1, "none.wav"),
        (["{0}/one.wav", "{0}/short.wav", "--model", "{0}/plain"], 1, "short.wav"),
        (["{0}/one.wav", "{0}/one.wav", "--model", "demo-asr"], 1, "makes no embeddings"),
        (["{0}/one.wav", "{0}/one.wav", "--device", "cpu", "--url", "y"], 2, "--device goes with a model that runs"),
        (["{0}/one.wav", "{0}/one.wav", "--protocol", "grpc"], 2, "--protocol goes with --url"),
        (["{0}/one.wav", "{0}/one.wav", "--model", "nowhere"], 1, "there is no nowhere"),
        (["{0}/one.wav", "{0}/one.wav", "--model", "{0}/plain", "--device", "tpu"], 2, "tpu"),
    ],
)
def test_what_cannot_be_compared_is_told(options: list[str], code: int, complaint: str, folder: Path) -> None:
    found, out, err = run("verify", *(each.format(folder) for each in options))
    assert (found, out) == (code, "")
    assert complaint in err


def test_speakers_are_enrolled_found_listed_and_forgotten(folder: Path, tmp_path: Path) -> None:
    store, bundle = ("--store", tmp_path / "store"), ("--model", folder / "judge")
    assert run("enroll", "anna", folder / "one.wav", folder / "other.wav", *store, *bundle) == (
        *(0, ""),
        "anna is enrolled with 2 recordings",
    )
    assert run("enroll", "ben", folder / "third.wav", *store, *bundle)[2] == "ben is enrolled with 1 recording"
    code, out, err = run("identify", folder / "mixed.wav", *store, *bundle)
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(("anna", "ben"))]
    assert rows == [["anna", "1.0000", "yes"], ["ben", "0.0000", "no"]]
    assert err.startswith("threshold 0.9, of judge")
    code, out, _ = run("identify", folder / "one.wav", folder / "third.wav", *store, *bundle, "--json", "--top", "1")
    first, second = map(json.loads, out.splitlines())
    assert first["candidates"] == [
        {"speaker": "anna", "similarity": pytest.approx(7 / 50**0.5, abs=1e-4), "same": True}
    ]
    assert second["candidates"][0]["speaker"] == "ben"
    assert run("enroll", "--list", *store) == (0, "anna\t2\nben\t1\n", "2 speakers, embedded by judge")
    backup = tmp_path / "backup"
    assert run("enroll", "--backup", backup, *store) == (0, "", f"2 speakers copied to {backup}")
    assert run("enroll", "--remove", "ben", *store) == (0, "", "ben is forgotten")
    assert run("enroll", "--list", *store)[1] == "anna\t2\n"
    code, _, err = run("enroll", "--restore", backup, *store)
    assert (code, "ben would come back. --anew replaces them" in err) == (1, True)
    restored = (0, "", "2 speakers restored, 1 were there before")
    assert run("enroll", "--restore", backup, "--anew", *store) == restored
    assert run("enroll", "--restore", backup, "--list", *store)[0] == 2


def test_a_store_takes_no_voices_of_another_model(folder: Path, tmp_path: Path) -> None:
    store = ("--store", tmp_path / "store")
    assert run("enroll", "anna", folder / "one.wav", *store, "--model", folder / "judge")[0] == 0
    for command in (("enroll", "ben"), ("identify",)):
        code, out, err = run(*command, folder / "one.wav", *store, "--model", folder / "plain")
        assert (code, out) == (1, "")
        assert "holds embeddings of judge (" in err
        assert "these are of speaker (" in err


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        (["enroll"], 2, "--store"),
        (["enroll", "--store", "{0}"], 2, "give NAME and recordings, or one of --list"),
        (["enroll", "anna", "--list", "--store", "{0}"], 2, "give NAME and recordings"),
        (["enroll", "anna", "--store", "{0}"], 2, "give recordings of anna"),
        (["enroll", "--list", "--store", "{0}"], 1, "is no store of speakers"),
        (["identify", "x.wav", "--store", "{0}"], 1, "is no store of speakers"),
        (["enroll", " ", "x.wav", "--store", "{0}"], 1, "cannot be a speaker's name"),
    ],
)
def test_wrong_use_of_a_store_is_told(options: list[str], code: int, complaint: str, tmp_path: Path) -> None:
    found, out, err = run(*(each.format(tmp_path) for each in options))
    assert (found, out) == (code, "")
    assert complaint in err


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_an_embedding_without_a_direction_is_like_nothing(value: float) -> None:
    class Foreign:
        def run(self, paths: Iterable[str]) -> Iterator[EmbeddingResult]:
            for index, path in enumerate(paths):
                yield EmbeddingResult(index=index, source=path, value=np.full(3, value, np.float32))

    with pytest.raises(InputError, match=r"a\.wav: its embedding is zero or not finite"):
        speaker_options._vectors(Foreign(), [Path("a.wav")])  # type: ignore[arg-type]
