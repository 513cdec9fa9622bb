"""The classes for `map_batches` called as Ray Data calls them; with Ray itself they are tried in test_ray.py."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tritone
from toy_speaker import SAMPLE_RATE, toy_embedding, toy_voice, write_toy_speaker
from tritone.errors import InputError
from tritone.systems.ray_data import EmbedBatch, TranscribeBatch

VOICES = [toy_voice([1, number, 2], samples=1600 + 900 * number, seed=number) for number in range(3)]


@pytest.fixture(scope="module")
def embed(tmp_path_factory: pytest.TempPathFactory) -> EmbedBatch:
    return EmbedBatch(str(write_toy_speaker(tmp_path_factory.mktemp("speaker") / "toy")), threads=1)


def file_bytes(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()


def test_rows_of_paths_bytes_and_samples_have_the_same_embeddings(embed: EmbedBatch, tmp_path: Path):
    paths = [tmp_path / f"{number}.wav" for number in range(3)]
    for path, voice in zip(paths, VOICES, strict=True):
        path.write_bytes(file_bytes(voice))
    samples = np.empty(3, object)
    samples[:] = VOICES
    batches = [{"path": np.array(list(map(str, paths)))}, {"bytes": list(map(file_bytes, VOICES))}, {"audio": samples}]
    for batch in batches:
        found = embed(batch | {"speaker": np.array(["a", "b", "c"])})
        assert list(found["speaker"]) == ["a", "b", "c"]
        assert list(found["error"]) == ["", "", ""]
        np.testing.assert_allclose(found["audio_s"], [len(voice) / SAMPLE_RATE for voice in VOICES])
        assert found["embedding"].dtype == np.float32
        np.testing.assert_allclose(found["embedding"], [toy_embedding(voice) for voice in VOICES], atol=1e-6)


def test_samples_of_several_rates_stay_in_their_rows(embed: EmbedBatch):
    rates = np.array([SAMPLE_RATE, 8000, SAMPLE_RATE])
    found = embed({"audio": [VOICES[0], VOICES[1], VOICES[2]], "sample_rate": rates})
    np.testing.assert_allclose(found["audio_s"], [1600 / SAMPLE_RATE, 2500 / 8000, 3400 / SAMPLE_RATE])
    np.testing.assert_allclose(
        found["embedding"][[0, 2]], [toy_embedding(VOICES[0]), toy_embedding(VOICES[2])], atol=1e-6
    )


def test_a_row_that_fails_has_its_error_and_no_number(embed: EmbedBatch):
    found = embed({"bytes": [file_bytes(VOICES[0]), b"no audio"]})
    assert found["error"][0] == ""
    assert found["error"][1].startswith("row 1 is not audio that can be read")
    assert np.isfinite(found["embedding"][0]).all()
    assert np.isnan(found["embedding"][1]).all()


def test_texts_are_those_of_the_same_files_transcribed(toy_bundle: Path, tmp_path: Path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.random.default_rng(1).normal(0, 0.1, 9000), 16000)
    expected = tritone.load(toy_bundle).transcribe(path)
    found = TranscribeBatch(str(toy_bundle))({"path": [path, tmp_path / "absent.wav"]})
    assert list(found["text"]) == [expected.text, ""]
    sure = np.nan if expected.confidence is None else expected.confidence
    np.testing.assert_array_equal(found["confidence"], [sure, np.nan])
    assert "cannot read" in found["error"][1]


def test_a_batch_without_audio_is_refused(embed: EmbedBatch):
    with pytest.raises(InputError, match="needs one column of path, bytes, audio; this one has text"):
        embed({"text": ["a"]})
