"""Embeddings in process, from files and arrays."""

import math
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tritone
from toy_speaker import DIM, SAMPLE_RATE, toy_embedding, toy_voice, write_toy_speaker
from tritone.errors import AudioError, BundleError, InputError
from tritone.systems import open_system

EXACT = 1e-5


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_speaker(tmp_path_factory.mktemp("speaker") / "bundle")


@pytest.fixture(scope="module")
def embedder(bundle: Path) -> tritone.Embedder:
    return tritone.load(bundle, threads=1)


def test_files_and_arrays_are_embedded_in_their_order(embedder: tritone.Embedder, tmp_path: Path) -> None:
    waves = [toy_voice([1, 2, 3], 1600), toy_voice([5, 1], 2400), toy_voice([0, 0, 1], 900)]
    soundfile.write(tmp_path / "a.wav", waves[0], SAMPLE_RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "b.flac", waves[2], SAMPLE_RATE)
    found = embedder.embed([tmp_path / "a.wav", waves[1].astype(np.float64), str(tmp_path / "b.flac")])
    np.testing.assert_allclose(found, [toy_embedding(wave) for wave in waves], atol=EXACT)
    assert embedder.dim == DIM
    assert embedder.bundle.manifest.name == "speaker"
    assert embedder.embed([]).shape == (0, DIM)


def test_piles_of_audio_come_back_in_order(embedder: tritone.Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritone.pipelines.sources.MAX_BATCH_S", 0.2)
    waves = [toy_voice([1, number], 1000) for number in range(10)]
    np.testing.assert_allclose(embedder.embed(waves), [toy_embedding(wave) for wave in waves], atol=EXACT)
    with pytest.raises(AudioError, match=r"input 9: the audio is 0\.006 s"):
        embedder.embed([*waves[:9], waves[0][:100]])


def test_arrays_of_another_rate_are_resampled(embedder: tritone.Embedder) -> None:
    constant = np.full(48000, 3 / 8, np.float32)  # whose middle is the same at any rate
    (found,) = embedder.embed([constant], sample_rate=48000)
    assert found[3] > 0.99


def test_similarity_is_the_cosine(embedder: tritone.Embedder) -> None:
    one, other = toy_voice([0, 1, 0], 1600), toy_voice([0, 1, 1], 1600)
    assert embedder.similarity(one, one) == pytest.approx(1)
    assert embedder.similarity(one, other) == pytest.approx(1 / math.sqrt(2), abs=EXACT)
    assert embedder.similarity(one, toy_voice([1, 0], 1600)) == pytest.approx(0, abs=EXACT)
    with pytest.raises(AudioError, match="zero, and like nothing"):
        embedder.similarity(one, np.full(1600, -1, np.float32))


def test_windows_are_an_option_of_the_embedder_and_of_a_call(bundle: Path, embedder: tritone.Embedder) -> None:
    wave = np.concatenate([np.full(1600, 1 / 8), np.full(800, 2 / 8)]).astype(np.float32)
    windowed = tritone.load(bundle, threads=1, window_s=0.1)
    np.testing.assert_allclose(windowed.embed([wave])[0, 1:3], [0.75, 0.25], atol=EXACT)
    asked = embedder.embed([wave], options=tritone.EmbedOptions(window_s=0.1))
    np.testing.assert_array_equal(asked, windowed.embed([wave]))
    with pytest.raises(InputError, match="window_s must be 0 or more"):
        tritone.load(bundle, window_s=-1)
    with pytest.raises(InputError, match=r"needs at least 0\.050 s"):
        embedder.embed(["absent.wav"], options=tritone.EmbedOptions(window_s=0.01))


def test_bad_inputs_are_told_by_their_place(embedder: tritone.Embedder, bundle: Path, tmp_path: Path) -> None:
    wave = toy_voice([1], 1600)
    with pytest.raises(AudioError, match=r"input 1: .*is nan"):
        embedder.embed([wave, np.full(1600, np.nan, np.float32)])
    with pytest.raises(AudioError, match=r"cannot read .*absent\.wav"):
        embedder.embed([tmp_path / "absent.wav"])
    np.testing.assert_array_equal(embedder.embed(wave), embedder.embed([wave])[0])
    found = list(embedder.embed_iter(iter([wave, tmp_path / "absent.wav", wave]), concurrency=2))
    assert [(each.index, each.ok) for each in sorted(found, key=lambda each: each.index)] == [
        (0, True),
        (1, False),
        (2, True),
    ]
    with pytest.raises(AudioError, match=r"the limit is 0\.05 s"):
        tritone.load(bundle, threads=1, max_audio_s=0.05).embed([wave])


def test_each_way_of_loading_names_the_other(bundle: Path, toy_bundle: Path) -> None:
    assert isinstance(tritone.load(bundle), tritone.Embedder)
    with pytest.raises(BundleError, match=r"is a speaker model: .*tritone\.load"):
        open_system(str(bundle))
    with pytest.raises(BundleError, match=r"is a CTC model: .*tritone\.load,"):
        tritone.load_as(tritone.Embedder, toy_bundle)
    with pytest.raises(ValueError, match="runtime must be one of"):
        tritone.load(bundle, runtime="abacus")
