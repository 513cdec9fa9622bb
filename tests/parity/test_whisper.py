"""Whisper against transformers' `generate`, token by token, on a small random model: features, text, times."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from families.whisper_models import CONTEXT, IDS, SUPPRESS, random_model, speech, write_folder, write_openai
from tritone.bundle.bundle import Bundle
from tritone.families.whisper.export import export_whisper
from tritone.families.whisper.features import LogMel
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.pipeline import WhisperPipeline

if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration

TIMES = IDS["<|notimestamps|>"] + 1
MAX_TOKENS = 24
# Nothing is tried again or left out, so that both sides decode each window once.
PLAIN = DecodingOptions(
    language="de",
    temperature=(0.0,),
    no_speech_threshold=None,
    previous_text=False,
    max_tokens=MAX_TOKENS,
)
Segments = list[tuple[float, float, list[int]]]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    import transformers

    threads, verbosity = torch.get_num_threads(), transformers.logging.get_verbosity()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(verbosity)


@pytest.fixture(scope="module")
def model() -> "WhisperForConditionalGeneration":
    return random_model()


@pytest.fixture(scope="module")
def bundle(model: "WhisperForConditionalGeneration", tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("whisper")
    report = export_whisper(checkpoint=write_folder(folder / "model", model), output=folder / "bundle")
    assert max(report.differences.values()) < 1e-3
    return report.bundle


@pytest.fixture(scope="module")
def pipeline(bundle: Bundle) -> WhisperPipeline:
    return WhisperPipeline(bundle, placement=Placement(threads=1))


def features_of(waveform: np.ndarray) -> torch.Tensor:
    """What transformers makes of a recording that silence follows, (1, bins, frames), as many frames as it has."""
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=CONTEXT // 50)
    followed = np.concatenate([waveform, np.zeros(16000, np.float32)])
    found = extractor(followed, sampling_rate=16000, truncation=False, padding="longest", return_tensors="np")
    return torch.from_numpy(found.input_features[:, :, : len(waveform) // 160])


def generated(model: "WhisperForConditionalGeneration", waveform: np.ndarray, **options: Any) -> Segments:
    options = {"task": "transcribe", "language": "de", "max_new_tokens": MAX_TOKENS} | options
    found = model.generate(features_of(waveform), return_segments=True, return_dict_in_generate=False, **options)
    segments = []
    for each in found["segments"][0]:
        tokens = each["tokens"].tolist()
        if len(tokens) > 2 and tokens[-2] >= TIMES and tokens[-1] >= TIMES:
            tokens = tokens[:-1]  # the start of a segment that was cut off
        start, end = (min(float(each[name]), len(waveform) / 16000) for name in ("start", "end"))
        segments.append((start, end, tokens))  # upstream's may end after the recording
    return segments


def ours(pipeline: WhisperPipeline, *waveforms: np.ndarray, **options: Any) -> list[Segments]:
    chosen = replace(PLAIN, **options)
    found = pipeline.transcribe(waveforms, [chosen] * len(waveforms))
    return [[(each.start_s, each.end_s, list(each.tokens)) for each in transcript.segments] for transcript in found]


def same(found: Segments, expected: Segments) -> bool:
    if [tokens for *_, tokens in found] != [tokens for *_, tokens in expected]:
        return False
    return np.allclose([each[:2] for each in found], [each[:2] for each in expected], atol=1e-6)


@pytest.mark.parametrize("bins", [80, 128])
def test_log_mel_features_are_those_of_transformers(bins: int) -> None:
    from transformers import WhisperFeatureExtractor

    waveform = speech(2.345)
    extractor = WhisperFeatureExtractor(feature_size=bins, chunk_length=4)
    expected = extractor(waveform, sampling_rate=16000, return_tensors="np").input_features[0].T
    padded = torch.zeros(2, 64000)
    padded[0, : len(waveform)] = torch.from_numpy(waveform)
    padded[1] = 7.0  # another row, and what lies behind it, must not matter
    found, num_frames = LogMel(bins)(padded, torch.tensor([len(waveform), 300]))
    assert num_frames.tolist() == [234, 1]
    np.testing.assert_allclose(found[0, :400], expected, atol=2e-5)  # transformers computes in float64


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("timestamps", [False, True])
def test_windows_have_the_tokens_of_generate(
    model: "WhisperForConditionalGeneration", pipeline: WhisperPipeline, timestamps: bool, beam: int
) -> None:
    waveforms = [speech(seconds, seed) for seed, seconds in enumerate([1.0, 0.4, 0.78, 1.0])]
    # Neither side forbids times where none are asked for; a random model would write them all the same.
    suppress = [*SUPPRESS, *([] if timestamps else range(TIMES, TIMES + CONTEXT + 1))]
    asked = {"return_timestamps": timestamps, "num_beams": beam, "suppress_tokens": suppress}
    expected = [generated(model, each, **asked) for each in waveforms]
    assert len({tuple(tokens) for each in expected for *_, tokens in each}) > 3, "the model hears nothing"
    options = {"timestamps": timestamps, "beam": beam, "suppress": tuple(suppress)}
    for found, wanted in zip(ours(pipeline, *waveforms, **options), expected, strict=True):
        assert same(found, wanted)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"num_beams": 2}, marks=pytest.mark.slow), {"condition_on_prev_tokens": True}]
)
def test_long_recordings_have_the_segments_of_generate(
    model: "WhisperForConditionalGeneration", pipeline: WhisperPipeline, options: dict[str, Any]
) -> None:
    waveforms = [speech(3.3, 5), speech(2.1, 6)]
    previous, beam = bool(options.get("condition_on_prev_tokens")), options.get("num_beams", 1)
    limit = {"max_new_tokens": 24, "temperature": 0.0}
    expected = [generated(model, each, return_timestamps=True, **options, **limit) for each in waveforms]
    assert all(len(each) > 3 for each in expected)
    for found, wanted in zip(ours(pipeline, *waveforms, previous_text=previous, beam=beam), expected, strict=True):
        assert same(found, wanted)


def test_languages_are_those_that_transformers_detects(
    model: "WhisperForConditionalGeneration", pipeline: WhisperPipeline
) -> None:
    waveforms = [speech(1.0, seed) for seed in range(6)]
    ids = model.detect_language(torch.cat([features_of(each) for each in waveforms]))
    codes = {id: code for code, id in pipeline.special.languages.items()}
    expected = [codes[id] for id in ids.tolist()]
    assert len(set(expected)) > 1
    found = pipeline.transcribe(waveforms, [replace(PLAIN, language="")] * len(waveforms))
    assert [each.language for each in found] == expected
    [alone] = pipeline.transcribe(waveforms[:1], [replace(PLAIN, language=expected[0])])
    # In company sums may be rounded otherwise.
    for one, theirs in zip(found[0].segments, alone.segments, strict=True):
        place = one.text, one.start_s, one.end_s, one.tokens
        assert place == (theirs.text, theirs.start_s, theirs.end_s, theirs.tokens)
        assert one.avg_log_prob == pytest.approx(theirs.avg_log_prob, abs=1e-4)
        assert one.no_speech_prob == pytest.approx(theirs.no_speech_prob, abs=1e-5)


def test_a_prompt_stands_before_the_text_as_in_generate(
    model: "WhisperForConditionalGeneration", pipeline: WhisperPipeline
) -> None:
    waveform, prompt = speech(1.0, 2), "the and is in"
    ids = [IDS["<|startofprev|>"], *pipeline.bpe.encode(f" {prompt}")]
    expected = generated(model, waveform, prompt_ids=torch.tensor(ids), return_timestamps=True)
    [found] = ours(pipeline, waveform, prompt=prompt)
    assert same(found, expected)
    assert not same(found, ours(pipeline, waveform)[0])


def test_the_translation_of_another_task_has_the_tokens_of_generate(
    model: "WhisperForConditionalGeneration", pipeline: WhisperPipeline
) -> None:
    waveform = speech(1.0, 3)
    assert same(
        ours(pipeline, waveform, task="translate")[0],
        generated(model, waveform, task="translate", return_timestamps=True),
    )


def test_a_batch_gives_each_recording_what_it_gives_alone(pipeline: WhisperPipeline) -> None:
    waveforms = [speech(seconds, seed) for seed, seconds in enumerate([2.9, 0.3, 1.7, 0.005, 1.0, 3.4, 0.9, 2.2, 0.6])]
    options = [
        replace(PLAIN, previous_text=True),
        replace(PLAIN, language="", beam=2),
        replace(PLAIN, temperature=(0.6, 1.0), log_prob_threshold=-0.5, best_of=2, previous_text=True),
        PLAIN,
        replace(PLAIN, prompt="and the", timestamps=False),
        replace(PLAIN, beam=2, previous_text=True),
        replace(PLAIN, temperature=(0.0, 0.4), seed=3, compression_ratio_threshold=0.5),
        replace(PLAIN, max_tokens=3),
        replace(PLAIN, suppress=(1, 2, 3)),
    ]
    together = pipeline.transcribe(waveforms, options)
    alone = [pipeline.transcribe([each], [chosen])[0] for each, chosen in zip(waveforms, options, strict=True)]
    for found, expected in zip(together, alone, strict=True):
        assert [each.tokens for each in found.segments] == [each.tokens for each in expected.segments]
        assert (found.text, found.language) == (expected.text, expected.language)
        assert (found.confidence is None) == (expected.confidence is None)
        assert found.confidence is None or found.confidence == pytest.approx(expected.confidence, rel=1e-4)
    assert together[3].text == ""
    assert together[3].segments == ()


@pytest.mark.slow
def test_a_checkpoint_of_openai_gives_the_same_text(
    model: "WhisperForConditionalGeneration", pipeline: WhisperPipeline, tmp_path: Path
) -> None:
    checkpoint, tokens = write_openai(tmp_path / "openai", model)
    report = export_whisper(checkpoint=checkpoint, tokens=tokens, output=tmp_path / "bundle")
    theirs = WhisperPipeline(report.bundle, placement=Placement(threads=1))
    assert theirs.bundle.vocabulary.tokens == pipeline.bundle.vocabulary.tokens
    assert theirs.special.languages == pipeline.special.languages
    # OpenAI's limit of the first time, and what it never writes, are others; here both sides have the same.
    limit = pipeline.special.max_initial_timestamp
    special = theirs.special.model_copy(update={"max_initial_timestamp": limit})
    theirs.model = replace(theirs.model, special=special)
    waveform, suppress = speech(2.4, 8), tuple(SUPPRESS)
    assert same(ours(theirs, waveform, suppress=suppress)[0], ours(pipeline, waveform)[0])


def test_words_stand_in_the_text_in_order_and_within_the_recording(pipeline: WhisperPipeline) -> None:
    waveform = speech(2.7, 9)
    [found] = pipeline.transcribe([waveform], [replace(PLAIN, word_times=True)])
    plain = pipeline.transcribe([waveform], [PLAIN])[0].segments
    assert [
        replace(each, start_s=0.0, end_s=0.0) for each in found.segments
    ] == [  # with words they start and end there
        replace(each, start_s=0.0, end_s=0.0) for each in plain
    ]
    assert len(found.words) >= 3
    joined = "".join(each.text for each in found.words)
    assert joined.replace(" ", "") == "".join(found.text.split(" "))
    times = [time for each in found.words for time in (each.start_s, each.end_s)]
    assert all(0 <= each.start_s <= each.end_s <= 2.72 for each in found.words)
    assert times
    assert all(0 <= each.confidence <= 1 for each in found.words)
