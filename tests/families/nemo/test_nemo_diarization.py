"""Nemotron-3-Diarization: parity with transformers itself, recordings and streams, alone and together, and refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tritone
from families.diarization_models import CONFIG, MODES, PROCESSOR, RATE, SPEAKERS, Upstream, write
from tritone.activity import SpeechActivity
from tritone.audio import Waveform, read_audio
from tritone.corpus.clips import read_clips
from tritone.errors import AudioError, BundleError, ExportError, InputError
from tritone.families.export.report import ExportReport
from tritone.families.known import recognise
from tritone.families.nemo.diarization import SIZES
from tritone.families.nemo.diarization_export import parse_config
from tritone.families.nemo.export import export_nemo
from tritone.kinds.diarization.model import SpeakerDetector
from tritone.kinds.diarization.part import DiarizationPart
from tritone.kinds.diarization.pipeline import SIZES as FED
from tritone.kinds.diarization.pipeline import DiarizationStreams
from tritone.pipelines.detector import Detector
from tritone.pipelines.streams import Step

ALLOWED = 2e-4
CHUNK = 14 * 8 * 160  # samples of a step of whole recordings
LENGTHS = (160, 999, CHUNK, CHUNK + 161, CHUNK * 18 // 14, CHUNK + 3 * 1280 + 700, 330_000)


@pytest.fixture
def report(diarization_report: ExportReport) -> ExportReport:
    return diarization_report


@pytest.fixture
def folder(diarization_report: ExportReport) -> Path:
    return diarization_report.bundle.path.with_name("theirs")


@pytest.fixture(scope="module")
def model(diarization_bundle: Path) -> SpeakerDetector:
    return tritone.load_as(SpeakerDetector, diarization_bundle)


@pytest.fixture(scope="module")
def speech() -> Waveform:
    return np.concatenate([read_audio(clip.path, RATE) for clip in read_clips()])[: LENGTHS[-1]]


@pytest.fixture
def upstream(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    pytest.importorskip("transformers.models.nemotron3_diarization")
    return Upstream(folder, monkeypatch)


def probabilities(answer: SpeechActivity) -> np.ndarray:
    assert answer.probabilities is not None
    return answer.probabilities


def test_recordings_in_company_have_the_probabilities_and_turns_that_transformers_gives_each_alone(
    model: SpeakerDetector, upstream: Upstream, speech: Waveform
) -> None:
    recordings = [speech[:length] for length in LENGTHS]
    worst, talking = 0.0, 0
    for waveform, result in zip(recordings, model.diarize(recordings), strict=True):
        found, theirs = result.get(), upstream.of_recording(waveform)
        assert probabilities(found).shape == theirs.shape == (len(waveform) // 160, SPEAKERS)
        worst = max(worst, float(np.abs(probabilities(found) - theirs).max()))
        logits = torch.logit(torch.from_numpy(theirs))[None]
        [turns] = upstream.processor.extract_speaker_dict(logits)
        assert sorted(
            (each.speaker, round(each.start_s, 2), round(each.end_s, 2)) for each in found.segments
        ) == sorted((f"speaker{each['Speaker'] + 1}", each["Start"], each["End"]) for each in turns)
        talking = max(talking, int((theirs > 0.5).sum(axis=1).max()))
    assert worst <= ALLOWED
    assert talking > 1  # there is overlap
    alone = model.diarize(recordings[-2])
    again = model.diarize([recordings[-1], recordings[-2]])[1]
    assert alone.segments == again.segments


@pytest.mark.parametrize(("mode", "chunk_size"), [(mode, chunk) for mode, (chunk, _) in MODES.items()])
def test_streams_however_they_are_cut_have_what_transformers_gives_step_by_step(
    report: ExportReport, upstream: Upstream, speech: Waveform, mode: str, chunk_size: int
) -> None:
    model = tritone.load_as(SpeakerDetector, report.bundle.path, chunk_size=chunk_size)
    ahead = dict(MODES.values())[chunk_size]  # type: ignore[arg-type]
    window = (chunk_size + ahead) * 1280 + 40
    for length in (3000, window, window + 3 * chunk_size * 1280, 160_000):
        waveform, random = speech[:length], np.random.default_rng(length)
        theirs = upstream.of_stream(waveform, mode)
        steps, ended, position = [], [], 0
        with model.stream() as stream:
            while position < length:
                size = int(random.integers(1, 9000))
                answer = stream.accept(waveform[position : position + size])
                position = min(position + size, length)
                assert answer.audio_s == position / RATE
                # A step is answered as soon as what it hears has come.
                known = max(0, (position - 40 - ahead * 1280) // (chunk_size * 1280)) * chunk_size * 0.08
                assert answer.known_s == pytest.approx(min(known, answer.audio_s))
                steps.append(probabilities(answer))
                ended += answer.segments
            last = stream.finish()
        found = np.concatenate([*steps, probabilities(last)])
        assert np.abs(found - np.concatenate(theirs)).max() <= ALLOWED
        assert last.speaking == ()
        assert last.known_s == length / RATE
        with model.stream() as stream:
            whole = [*stream.accept(waveform).segments, *stream.finish().segments]
        assert sorted([*ended, *last.segments], key=repr) == sorted(whole, key=repr)


def test_streams_of_different_ages_share_calls(report: ExportReport, speech: Waveform) -> None:
    streams = DiarizationStreams(report.bundle, capacity=3, max_batch=3)
    slots, found = [streams.open() for _ in range(3)], [[], [], []]
    starts = (0, 5, 11)  # when each begins
    pieces = [speech[at : at + 16000] for at in range(0, 12 * 16000, 16000)]
    for now in range(len(pieces) + max(starts)):
        steps = [
            (index, Step(slots[index], pieces[now - start], final=now - start == len(pieces) - 1))
            for index, start in enumerate(starts)
            if 0 <= now - start < len(pieces)
        ]
        for (index, _), answer in zip(steps, streams.advance([step for _, step in steps]), strict=True):
            found[index].append(probabilities(answer))
    first, *others = (np.concatenate(each) for each in found)
    assert all(np.abs(first - each).max() < 1e-5 for each in others)


def test_turns_are_made_as_requests_ask(model: SpeakerDetector, speech: Waveform) -> None:
    usual, calm = (
        model.diarize(speech, options=options) for options in (None, {"min_pause_s": 0.5, "min_turn_s": 1.0})
    )
    assert len(calm.segments) < len(usual.segments)
    assert min(each.duration_s for each in calm.segments) >= 1.0
    assert SpeechActivity.from_dict(json.loads(json.dumps(calm.get().to_dict()))) == calm.get()
    with pytest.raises(InputError, match="threshold"):
        model.diarize(speech, options={"threshold": 0.3})
    with pytest.raises(ValueError, match=r"offset \(0.5\) must not be above onset \(0.3\)"):
        model.diarize(speech, options={"onset": 0.3})


def test_what_is_no_speech_has_results_and_errors_of_its_own(model: SpeakerDetector, speech: Waveform) -> None:
    found = model.diarize([np.zeros(100, np.float32), np.full(9000, np.nan, np.float32), speech])
    assert [result.ok for result in found] == [True, False, True]
    assert found[0].get() == SpeechActivity((), 100 / RATE, 0.01, known_s=100 / RATE)
    assert isinstance(found[1].error, AudioError)
    with model.stream() as stream:
        assert stream.finish().segments == ()


def test_the_bundle_is_of_a_kind_of_its_own(report: ExportReport, folder: Path) -> None:
    manifest = report.bundle.manifest
    assert (manifest.kind, [each.role for each in manifest.artifacts]) == ("diarization", ["streaming_encoder"] * 2)
    assert [each.chunk_size for each in manifest.part(DiarizationPart).streams] == [9, 6, 3]
    assert SIZES == FED
    with pytest.raises(
        BundleError, match="tells speakers apart: it says who speaks when and detects no voice activity"
    ):
        tritone.load_as(Detector, report.bundle.path)
    with pytest.raises(BundleError, match="whole recordings alone; those of streams have 9, 6, 3"):
        DiarizationStreams(report.bundle, chunk_size=14)
    with pytest.raises(BundleError, match="chunk_size 5"):
        DiarizationStreams(report.bundle, chunk_size=5)
    known = recognise(folder)
    assert (known.family, known.what) == ("nemo", "a model of transformers, nemotron3_diarization")


def test_int8_is_compared_by_who_talks(report: ExportReport) -> None:
    drift = report.drifts["streaming_encoder.int8.onnx"]
    assert 0 < drift.moved < 0.05
    assert "whether a speaker talks" in str(drift)


@pytest.mark.slow
def test_a_program_of_torch_says_the_same(
    folder: Path, tmp_path: Path, model: SpeakerDetector, speech: Waveform
) -> None:
    made = export_nemo(archive=folder, output=tmp_path / "torch", runtimes=("torch",), chunk_size=3)
    other = tritone.load_as(SpeakerDetector, made.bundle.path).diarize(speech).get()
    assert np.abs(probabilities(model.diarize(speech).get()) - probabilities(other)).max() < 1e-4
    assert made.bundle.manifest.streaming is not None
    assert made.bundle.manifest.streaming.chunk_size == 3


@pytest.mark.slow
def test_a_folder_is_prepared_where_a_model_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speech: Waveform
) -> None:
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "cache"))
    model = tritone.load_as(SpeakerDetector, folder)
    assert {each.precision for each in model.bundle.manifest.artifacts} == {"fp32", "int8"}
    assert model.max_speakers == SPEAKERS
    assert model.diarize(speech).segments


def changed(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of JSON with another value at a path of keys."""
    found = json.loads(json.dumps(content))
    *parts, last = path.split(".")
    held = found
    for part in parts:
        held = held[part]
    held[last] = value
    return dict(found)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("audio_config.num_key_value_heads", 2, "num_key_value_heads is 2, but the rest of the config says 4"),
        ("head_config.audio_hidden_size", 64, "audio_hidden_size is 64, but the rest of the config says 32"),
        ("streaming_config.num_speakers", 8, "num_speakers is 8, but the rest of the config says 4"),
        ("streaming_config.speaker_cache_length", 7, "4 speakers with 1 frames of silence each need 8 at least"),
        ("streaming_config.strong_boost_rate", -1, "strong_boost_rate is -1, expected more than 0"),
        ("audio_config.hidden_size", 34, "hidden_size"),
        ("audio_config.hidden_act", "mish", "hidden_act is 'mish'"),
        ("audio_config.rope_parameters.rope_type", "yarn", "rope_type is 'yarn'"),
        ("audio_config.rope_parameters.partial_rotary_factor", 0.1, "partial_rotary_factor is 0.1"),
        ("audio_config.experts", 4, "unknown experts"),
        ("chunk_left_context", 2, "chunk_left_context is 2; only 0 can be exported"),
        ("chunk_right_context", 14, "should be smaller than chunk_length"),
        ("chunk_length", 2**40, "chunk_length is 1099511627776, expected"),
    ],
)
def test_a_config_that_would_compute_something_else_is_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        parse_config(changed(CONFIG, path, value), PROCESSOR, PROCESSOR["feature_extractor"])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("streaming_mode", "instant", "streaming_mode is 'instant', which is none of low_latency"),
        ("streaming_modes", {"low_latency": [9]}, "expected two numbers for each name"),
        ("streaming_modes", {"low_latency": [14, 4]}, "fewer than those of whole recordings"),
    ],
)
def test_steps_of_streams_that_cannot_be_are_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        parse_config(CONFIG, changed(PROCESSOR, path, value), PROCESSOR["feature_extractor"])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"head": "ctc"}, "--head is for models"), ({"stages": True}, "--stages is for"), ({"chunk_size": 4}, "9, 6, 3")],
)
def test_options_of_recognisers_are_refused(
    folder: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        export_nemo(archive=folder, output=tmp_path / "no", **options)


def damage(change: Callable[[dict[str, torch.Tensor]], Any], tmp_path: Path) -> Path:
    folder = write(tmp_path / "damaged")
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")
    return folder


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = damage(lambda state: state.pop("silence_embeds"), tmp_path)
    with pytest.raises(ExportError, match=r"missing silence_embeds \(32,\)"):
        export_nemo(archive=folder, output=tmp_path / "no")
