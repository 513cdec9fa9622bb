"""Embeddings of whole utterances and of windows: what can be worked out by hand, and what cannot be embedded."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from serving import backend_module
from toy_speaker import DIM, MIN_SAMPLES, SAMPLE_RATE, toy_embedding, toy_voice, write_toy_speaker
from tritone.backend.settings import Settings
from tritone.bundle import Bundle
from tritone.errors import AudioError, BundleError, InputError
from tritone.kinds import kind_of
from tritone.pipelines import EmbeddingPipeline, EmbedOptions, open_offline, open_streaming
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.stages import AcousticPipeline, FeaturePipeline
from tritone.runtime.graph import Array

EXACT = 1e-5  # of means over up to some 10,000 float32 numbers of at most 1


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(write_toy_speaker(tmp_path_factory.mktemp("speaker") / "bundle"))


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Of a model that hears padding."""
    return Bundle.open(write_toy_speaker(tmp_path_factory.mktemp("equal") / "bundle", equal_lengths=True))


@pytest.fixture(scope="module")
def pipeline(bundle: Bundle) -> EmbeddingPipeline:
    return EmbeddingPipeline(bundle, placement=Placement(threads=1))


def voices(lengths: Sequence[int]) -> list[Array]:
    rng = np.random.default_rng(len(lengths))
    return [toy_voice(rng.random(DIM) + 0.01, length, seed) for seed, length in enumerate(lengths)]


def calls_of(pipeline: EmbeddingPipeline, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Array]]:
    calls: list[Mapping[str, Array]] = []
    compute = pipeline.runner.compute

    def spy(inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        calls.append({name: array.copy() for name, array in inputs.items()})
        return compute(inputs, outputs)

    monkeypatch.setattr(pipeline.runner, "compute", spy)
    return calls


def test_utterances_of_one_length_are_not_padded_on_a_cpu(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = EmbeddingPipeline(bundle, placement=Placement(threads=1))
    calls = calls_of(pipeline, monkeypatch)
    pipeline.embed(voices([MIN_SAMPLES + 77] * 3))
    pipeline.embed(voices([5 * MIN_SAMPLES]), [EmbedOptions(window_s=2.5 * MIN_SAMPLES / SAMPLE_RATE)])
    assert calls
    for call in calls:
        assert call["num_samples"].tolist() == [call["waveform"].shape[1]] * len(call["waveform"])


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(MIN_SAMPLES, 4 * MIN_SAMPLES), max_size=12),
    limits=st.sampled_from([BatchLimits(max_waste=0.9), BatchLimits(max_batch=3), BatchLimits.for_device("cpu")]),
    hears_padding=st.booleans(),
)
def test_an_embedding_depends_on_nothing_but_its_own_audio(
    bundle: Bundle, equal: Bundle, lengths: list[int], limits: BatchLimits, hears_padding: bool
) -> None:
    waves = voices(lengths)
    found = EmbeddingPipeline(equal if hears_padding else bundle, placement=Placement(threads=1), limits=limits).embed(
        waves
    )
    assert (found.shape, found.dtype) == ((len(waves), DIM), np.float32)
    for row, wave in zip(found, waves, strict=True):
        np.testing.assert_allclose(row, toy_embedding(wave), atol=EXACT)


def test_only_equal_lengths_share_a_call_where_padding_is_heard(equal: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = EmbeddingPipeline(equal, placement=Placement(threads=1), limits=BatchLimits(max_waste=0.9))
    calls = calls_of(pipeline, monkeypatch)
    pipeline.embed(voices([1000, 1001, 1000, 3000]))
    assert sorted(call["waveform"].shape for call in calls) == [(1, 1001), (1, 3000), (2, 1000)]


def windows_by_hand(wave: Array, window: int, shift: int) -> list[Array]:
    """Every window that fits, and one more at the end if that is not the end of the audio."""
    if len(wave) <= window:
        return [wave]
    starts = [start for start in range(0, len(wave), shift) if start + window <= len(wave)]
    if starts[-1] + window < len(wave):
        starts.append(len(wave) - window)
    return [wave[start : start + window] for start in starts]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    length=st.integers(MIN_SAMPLES, 9000),
    window=st.integers(MIN_SAMPLES, 4000),
    part=st.floats(1 / 20, 1),
)
def test_windows_end_with_the_audio_and_count_alike(
    pipeline: EmbeddingPipeline, length: int, window: int, part: float
) -> None:
    shift = max(-(-window // 20), int(part * window))
    options = EmbedOptions(window_s=window / SAMPLE_RATE, shift_s=shift / SAMPLE_RATE)
    (wave,) = voices([length])
    by_hand = np.mean([toy_embedding(each) for each in windows_by_hand(wave, window, shift)], axis=0)
    (found,) = pipeline.embed([wave], [options])
    np.testing.assert_allclose(found, by_hand, atol=EXACT)


def test_a_mean_of_windows_is_not_the_embedding_of_the_whole(pipeline: EmbeddingPipeline) -> None:
    wave = np.concatenate([np.full(1600, 1 / 8), np.full(800, 2 / 8)]).astype(np.float32)
    whole, cut = pipeline.embed([wave, wave], [None, EmbedOptions(window_s=0.1)])
    np.testing.assert_allclose(whole[1:3], [2 / 3, 1 / 3], atol=EXACT)
    # Windows 0 to 1600 and 800 to 2400: the last one was moved back.
    np.testing.assert_allclose(cut[1:3], [(1 + 1 / 2) / 2, (0 + 1 / 2) / 2], atol=EXACT)


def test_windows_of_several_utterances_share_a_call(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = EmbeddingPipeline(bundle, placement=Placement(threads=1), options=EmbedOptions(window_s=0.1))
    calls = calls_of(pipeline, monkeypatch)
    waves = voices([4000, 1600, 8000])
    pipeline.embed(waves)
    (call,) = calls
    assert call["waveform"].shape == (3 + 1 + 5, 1600)
    assert pipeline.work.take().audio_s == pytest.approx(0.9)


class TestWhatCannotBeEmbedded:
    def test_too_short_audio_is_told_in_seconds_and_leaves_the_others_alone(self, pipeline: EmbeddingPipeline) -> None:
        waves = voices([MIN_SAMPLES, MIN_SAMPLES - 1, 2000])
        first, second, third = pipeline.run(waves)
        assert isinstance(second, AudioError)
        assert re.search(r"is 0\.050 s long \(799 samples.*needs at least 0\.050 s \(800 samples\)", str(second))
        np.testing.assert_allclose(first, toy_embedding(waves[0]), atol=EXACT)  # type: ignore[arg-type]
        np.testing.assert_allclose(third, toy_embedding(waves[2]), atol=EXACT)  # type: ignore[arg-type]
        with pytest.raises(AudioError, match="input 1: the audio is"):
            pipeline.embed(waves)

    def test_what_is_not_finite_is_the_error_of_its_own_utterance(
        self, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipeline = EmbeddingPipeline(bundle, placement=Placement(threads=1))
        compute = pipeline.runner.compute

        def nan_of_silence(inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
            found = compute(inputs, outputs)["embeddings"]
            return {"embeddings": np.where(inputs["waveform"].any(axis=1)[:, None], found, np.nan)}

        monkeypatch.setattr(pipeline.runner, "compute", nan_of_silence)
        voice = toy_voice([0, 1], 1600)
        found = pipeline.run([voice, np.zeros(1600, np.float32), voice], [None, None, EmbedOptions(window_s=0.05)])
        assert isinstance(found[1], AudioError)
        assert "not finite" in str(found[1])
        for row in (found[0], found[2]):
            np.testing.assert_allclose(row, toy_embedding(voice), atol=EXACT)  # type: ignore[arg-type]

    def test_nothing_is_no_embeddings(self, pipeline: EmbeddingPipeline) -> None:
        assert pipeline.embed([]).shape == (0, DIM)

    def test_as_many_options_as_waveforms(self, pipeline: EmbeddingPipeline) -> None:
        with pytest.raises(ValueError, match="2 waveforms need as many options, got 1"):
            pipeline.embed(voices([1000, 1000]), [None])


class TestOptions:
    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"window_s": -1}, "window_s must be 0 or more seconds, got -1"),
            ({"window_s": float("nan")}, "window_s must be 0 or more seconds, got nan"),
            ({"shift_s": 1}, "no windows to shift"),
            ({"window_s": 2, "shift_s": 0.09}, r"0\.1 to 2 s, .*got 0\.09"),
            ({"window_s": 2, "shift_s": 2.1}, r"0\.1 to 2 s, .*got 2\.1"),
        ],
    )
    def test_out_of_range(self, values: dict[str, float], said: str) -> None:
        with pytest.raises(InputError, match=said):
            EmbedOptions(**values)

    def test_a_request_changes_some_of_them(self) -> None:
        usual = EmbedOptions(window_s=2, shift_s=1)
        assert usual.changed({}) == usual
        assert usual.changed({"shift_s": "0.5"}) == EmbedOptions(window_s=2, shift_s=0.5)
        assert usual.changed({"window_s": 0}) == EmbedOptions()
        assert usual.changed({"window_s": 8}) == EmbedOptions(window_s=8)
        for wrong, said in (
            ({"beam": 3}, "unknown request parameter 'beam'; known are window_s, shift_s"),
            ({"window_s": "long"}, "request parameter window_s: expected a number"),
            ({"window_s": True}, "request parameter window_s: expected a number"),
        ):
            with pytest.raises(InputError, match=said):
                usual.changed(wrong)

    def test_windows_below_what_the_model_needs_are_refused(self, bundle: Bundle, pipeline: EmbeddingPipeline) -> None:
        short = EmbedOptions(window_s=0.049)
        with pytest.raises(InputError, match=r"window_s is 0\.049, but this model needs at least 0\.050 s"):
            pipeline.embed(voices([5000]), [short])
        with pytest.raises(InputError, match=r"needs at least 0\.050 s"):
            EmbeddingPipeline(bundle, placement=Placement(threads=1), options=short)


class TestKinds:
    def test_a_model_that_writes_text_makes_no_embeddings(self, toy_bundle: Path) -> None:
        with pytest.raises(BundleError, match="is of kind 'ctc': it writes text"):
            EmbeddingPipeline(Bundle.open(toy_bundle))

    @pytest.mark.parametrize("open_text", [open_offline, open_streaming])
    def test_a_speaker_model_writes_no_text(self, bundle: Bundle, open_text: object) -> None:
        with pytest.raises(BundleError, match=r"is a speaker model: .*tritone\.load"):
            open_text(bundle)  # type: ignore[operator]

    def test_silence_after_utterances_would_be_heard(self, bundle: Bundle) -> None:
        encoder = bundle.manifest.encoder.model_copy(update={"tail_samples": 100})
        manifest = bundle.manifest.model_copy(update={"audio_encoder": encoder})
        with pytest.raises(BundleError, match="tail_samples 100"):
            EmbeddingPipeline(Bundle(bundle.path, manifest))


class TestStages:
    """What stages of an ensemble refuse, since nobody after them would."""

    def test_an_embedding_that_is_not_finite_is_the_error_of_its_request(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        staged = Bundle.open(write_toy_speaker(tmp_path / "staged", stages=True))
        pipeline = AcousticPipeline(staged, ["embeddings"], placement=Placement(threads=1))
        good, bad = (
            {
                "features": np.full((1, 9, staged.manifest.features.num_mel_bins), value, np.float32),
                "num_samples": count,
            }
            for value, count in ((1, np.array([1600])), (0, np.array([1600])))
        )
        compute = pipeline.runner.compute

        def nan_of_nothing(inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
            found = compute(inputs, outputs)["embeddings"]
            return {"embeddings": np.where(inputs["features"].any(axis=(1, 2))[:, None], found, np.nan)}

        monkeypatch.setattr(pipeline.runner, "compute", nan_of_nothing)
        first, second, third = pipeline.run([good, bad, good])
        assert first["embeddings"].tolist() == third["embeddings"].tolist()  # type: ignore[index]
        assert type(second).__name__ == "AudioError"
        assert "not finite" in str(second)

    def test_rows_of_different_lengths_are_refused_where_padding_is_heard(self, tmp_path: Path) -> None:
        block = np.zeros((2, 2000), np.float32)

        def request(*lens: int) -> Any:
            tensors = {"WAV": block, "WAV_LENS": np.array([lens], np.int32).T}
            inputs = [
                SimpleNamespace(name=lambda name=name: name, as_numpy=lambda value=value: value)
                for name, value in tensors.items()
            ]
            return SimpleNamespace(inputs=lambda: inputs, parameters=lambda: "")

        with backend_module("features") as features:
            for equal_lengths in (False, True):
                path = write_toy_speaker(tmp_path / str(equal_lengths), stages=True, equal_lengths=equal_lengths)
                model = features.TritonPythonModel()
                model._pipeline = FeaturePipeline(Bundle.open(path), max_audio_s=10.0, placement=Placement(threads=1))
                model._settings = Settings(sample_rate=SAMPLE_RATE, max_audio_s=10.0)
                model._kind = kind_of(Bundle.open(path))
                assert [len(row) for row in model.parse(request(2000, 2000))] == [2000, 2000]
                if equal_lengths:
                    with pytest.raises(InputError, match="must be of one length"):
                        model.parse(request(2000, 1000))
                else:
                    assert [len(row) for row in model.parse(request(2000, 1000))] == [2000, 1000]


def test_warming_up_goes_no_further_than_a_window(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = EmbeddingPipeline(bundle, placement=Placement(threads=1), options=EmbedOptions(window_s=2))
    calls = calls_of(pipeline, monkeypatch)
    pipeline.warm_up()
    assert max(call["waveform"].shape[1] for call in calls) == 32000
    assert pipeline.work.take().calls == 0
