"""`tritone.load`: recognition in process."""

import gc
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile

import toy
import tritone
from toy_transducer import write_toy_transducer
from tritone.audio import resample
from tritone.errors import AudioError, BundleError, InputError, StreamError
from tritone.pipelines import Step

NOTHING_HEAVY = """
import sys, tritone
heavy = {"numpy", "onnxruntime", "pydantic", "soundfile", "torch", "tritonclient"} & set(sys.modules)
assert not heavy, heavy
assert tritone.__version__
"""


@pytest.fixture(scope="module")
def recognizer(toy_bundle: Path) -> tritone.Recognizer:
    return tritone.load(toy_bundle, threads=1)


def test_files_and_arrays_are_transcribed_together(recognizer: tritone.Recognizer, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", toy.toy_waveform("from a file"), toy.SAMPLE_RATE)
    results = recognizer.transcribe(
        [
            tmp_path / "a.flac",
            toy.toy_waveform("from an array"),
            str(tmp_path / "a.flac"),
            toy.toy_waveform("x").astype(float),
        ]
    )
    assert [result.text for result in results] == ["from a file", "from an array", "from a file", "x"]


def test_arrays_at_another_rate_are_resampled(recognizer: tritone.Recognizer) -> None:
    waveform = resample(toy.toy_waveform("forty eight"), toy.SAMPLE_RATE, 48000)
    assert recognizer.transcribe([waveform], sample_rate=48000)[0].text == "forty eight"


def test_an_input_that_fails_keeps_its_error_and_the_others_their_text(
    recognizer: tritone.Recognizer, tmp_path: Path
) -> None:
    good = toy.toy_waveform("ok")
    results = recognizer.transcribe([tmp_path / "none.wav", good, np.array([0, 0, 0, np.nan]), np.zeros(0), good])
    assert [result.ok for result in results] == [False, True, False, False, True]
    assert [results[1].text, results[4].text] == ["ok", "ok"]
    assert results[0].transcript is None
    for result, complaint in (
        (results[0], r"cannot read .*none\.wav"),
        (results[2], r"input 2: sample 3 .* is nan"),
        (results[3], "input 3: empty audio"),
    ):
        with pytest.raises(AudioError, match=complaint):
            _ = result.words


def test_a_result_has_the_attributes_of_its_transcript(recognizer: tritone.Recognizer) -> None:
    (result,) = recognizer.transcribe([toy.toy_waveform("to be")])
    transcript = result.get()
    for name in ("text", "tokens", "words", "confidence", "audio_s", "is_final", "alternatives", "segment", "ended"):
        assert getattr(result, name) == getattr(transcript, name)
    assert (result.whole_text, result.to_dict()) == ("to be", transcript.to_dict())
    with pytest.raises(AttributeError, match="no attribute 'txt'"):
        _ = result.txt


def test_options_have_the_names_that_the_client_has(recognizer: tritone.Recognizer) -> None:
    waveform = toy.toy_waveform("to be")
    (plain,) = recognizer.transcribe([waveform], details=False, concurrency=1)
    assert (plain.text, plain.words) == ("to be", ())
    (two,) = recognizer.transcribe([waveform], search={"search": "prefix-beam", "nbest": "2", "hotwords": {"a": 1}})
    assert (two.text, len(two.alternatives)) == ("to be", 2)
    with pytest.raises(InputError, match="unknown request parameter 'bean'"):
        recognizer.transcribe([waveform], search={"bean": 3})
    with pytest.raises(ValueError, match="at least 1, got 0"):
        recognizer.transcribe([waveform], concurrency=0)


def test_an_iterator_takes_inputs_without_end_and_yields_results_batch_by_batch(recognizer: tritone.Recognizer) -> None:
    def endless() -> Iterator[np.ndarray]:
        while True:
            yield toy.toy_waveform("ok")

    results = recognizer.transcribe_iter(endless(), concurrency=2)
    assert [next(results).text for _ in range(5)] == ["ok"] * 5
    results.close()


def test_what_the_model_says_of_every_frame_can_be_looked_at(recognizer: tritone.Recognizer, tmp_path: Path) -> None:
    scores = recognizer.log_probs(toy.toy_waveform("to be"))
    assert [token for token in scores.best if token != scores.tokens[scores.blank]] == ["t", "o", "▁", "b", "e"]
    assert scores.log_probs.shape == (len(scores.start_s), len(toy.TOKENS))
    np.testing.assert_allclose(scores.log_probs.max(axis=1), np.log(toy.CONFIDENCE), rtol=1e-6)
    (transcript,) = recognizer.transcribe([toy.toy_waveform("to be")])
    begins = {frame: start for frame, start in zip(scores.best, scores.start_s, strict=True) if frame in "tob▁e"}
    assert [begins[span.text] for span in transcript.tokens] == [span.start_s for span in transcript.tokens]
    soundfile.write(tmp_path / "a.flac", toy.toy_waveform("x"), toy.SAMPLE_RATE)
    assert "x" in recognizer.log_probs(tmp_path / "a.flac").best
    assert recognizer.log_probs(np.zeros(100, np.float32)).log_probs.shape == (0, len(toy.TOKENS))
    with pytest.raises(AudioError, match="empty audio"):
        recognizer.log_probs(np.zeros(0, np.float32))


def test_a_transducer_has_nothing_to_say_of_single_frames(tmp_path: Path) -> None:
    recognizer = tritone.load(write_toy_transducer(tmp_path / "transducer"), threads=1)
    with pytest.raises(InputError, match="kind transducer has no probabilities of single frames"):
        recognizer.log_probs(np.zeros(16000, np.float32))


def test_a_single_input_has_its_result_or_raises(recognizer: tritone.Recognizer, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", toy.toy_waveform("one"), toy.SAMPLE_RATE)
    for single in (str(tmp_path / "a.flac"), tmp_path / "a.flac", toy.toy_waveform("one")):
        assert recognizer.transcribe(single).text == "one"
    with pytest.raises(AudioError, match=r"cannot read .*none\.wav"):
        recognizer.transcribe(tmp_path / "none.wav")


@pytest.mark.parametrize("rate", [0, -16000, 999, 10**9])
def test_a_senseless_sample_rate_is_refused_and_never_taken_for_the_models(
    recognizer: tritone.Recognizer, rate: int
) -> None:
    for start in (lambda: recognizer.stream(rate), lambda: recognizer.transcribe([np.zeros(9)], sample_rate=rate)):
        with pytest.raises(ValueError, match=f"1000-768000 Hz, got {rate}"):
            start()
    assert recognizer.streaming.num_open == 0


def test_a_chunk_of_absurd_level_is_refused_before_it_can_spoil_the_stream(recognizer: tritone.Recognizer) -> None:
    first, second = np.array_split(toy.toy_waveform("carry on"), 2)
    with recognizer.stream() as stream:
        stream.accept(first)
        with pytest.raises(AudioError, match="samples reach 1e"):
            stream.accept(np.full(5000, 1e38, np.float32))
        stream.accept(second)
        assert stream.finish().text == "carry on"


def test_audio_over_the_limit_is_refused(toy_bundle: Path, tmp_path: Path) -> None:
    recognizer = tritone.load(toy_bundle, threads=1, max_audio_s=0.5)
    waveform = np.zeros(8001, np.float32)
    soundfile.write(tmp_path / "a.wav", waveform, toy.SAMPLE_RATE)
    for source in (waveform, tmp_path / "a.wav"):
        with pytest.raises(AudioError, match=r"the limit is 0\.5 s"):
            recognizer.transcribe(source)


def test_more_audio_than_is_held_at_once_comes_back_in_order(
    recognizer: tritone.Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritone.pipelines.sources.MAX_BATCH_S", 1.0)
    texts = [f"number {index}" for index in range(30)]
    assert [r.text for r in recognizer.transcribe([toy.toy_waveform(text) for text in texts])] == texts


@pytest.mark.parametrize("rate", [16000, 48000])
def test_a_stream_gives_partial_results_and_the_offline_text(recognizer: tritone.Recognizer, rate: int) -> None:
    waveform = resample(toy.toy_waveform("one two three"), toy.SAMPLE_RATE, rate)
    with recognizer.stream(rate) as stream:
        partials = [stream.accept(chunk) for chunk in np.array_split(waveform, 17)]
        final = stream.finish()
    assert final.text == "one two three"
    assert final.is_final
    assert not any(partial.is_final for partial in partials)
    assert all(final.text.startswith(partial.text) for partial in partials)
    assert any(partial.text for partial in partials)


def test_a_stream_survives_a_bad_chunk(recognizer: tritone.Recognizer) -> None:
    first, second = np.array_split(toy.toy_waveform("carry on"), 2)
    stream = recognizer.stream()
    stream.accept(first)
    with pytest.raises(AudioError, match="is inf"):
        stream.accept([0.0, np.inf])
    stream.accept(np.zeros(0, np.float32))
    stream.accept(second)
    assert stream.finish().text == "carry on"


def test_an_ended_stream_takes_nothing_more(recognizer: tritone.Recognizer) -> None:
    stream = recognizer.stream()
    assert stream.finish().text == ""
    for late in (stream.finish, lambda: stream.accept(np.zeros(10, np.float32))):
        with pytest.raises(StreamError, match="has ended"):
            late()
    stream.close()


def test_streams_give_their_slots_back_however_they_end(recognizer: tritone.Recognizer) -> None:
    recognizer.stream().finish()
    recognizer.stream().close()
    with recognizer.stream():
        assert recognizer.streaming.num_open == 1
    assert recognizer.streaming.num_open == 0
    recognizer.stream()
    gc.collect()
    with recognizer.stream():  # finds the slot of the dropped one
        assert recognizer.streaming.num_open == 1
    assert recognizer.streaming.num_open == 0


def test_a_stream_collected_by_a_thread_of_a_running_step_does_not_stop_the_step(
    toy_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognizer = tritone.load(toy_bundle, threads=2)
    pipeline = recognizer.streaming
    graph = pipeline._slots._graph  # type: ignore[attr-defined]

    def run_and_collect(inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        gc.collect()
        return graph(inputs, outputs)

    monkeypatch.setattr(pipeline._slots, "_graph", run_and_collect)
    dropped = recognizer.stream()
    dropped.itself = dropped  # type: ignore[attr-defined]  # a cycle, as a kept exception makes it
    slots = [pipeline.open() for _ in range(8)]
    del dropped
    done = pipeline.advance([Step(slot, toy.toy_waveform("abcd"), final=True) for slot in slots])
    assert [transcript.text for transcript in done] == ["abcd"] * 8
    recognizer.stream().close()
    assert pipeline.num_open == 0


def test_a_missing_bundle_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"there is no .*nothing\. Give a folder or file of a model"):
        tritone.load(tmp_path / "nothing")


def test_a_bundle_without_streaming_still_transcribes(tmp_path: Path) -> None:
    recognizer = tritone.load(toy.write_toy_bundle(tmp_path / "b", streaming=False), threads=1)
    assert recognizer.transcribe([toy.toy_waveform("yes")])[0].text == "yes"
    with pytest.raises(BundleError, match="with --streaming"):
        recognizer.stream()


@pytest.mark.parametrize(
    ("front", "verb"),
    [("Recognizer", "transcribe"), ("Transcriber", "transcribe"), ("Embedder", "embed"), ("Detector", "detect")],
)
def test_each_kind_has_its_verb_by_the_name_of_all(front: str, verb: str) -> None:
    found = getattr(tritone, front)
    assert (found.run, found.run_iter) == (getattr(found, verb), getattr(found, f"{verb}_iter"))


def test_importing_tritone_loads_nothing_heavy() -> None:
    subprocess.run([sys.executable, "-c", NOTHING_HEAVY], check=True, timeout=60)


def test_everything_promised_can_be_imported() -> None:
    assert [name for name in tritone.__all__ if getattr(tritone, name) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tritone.nonsense
