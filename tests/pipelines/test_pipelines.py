"""The pipelines on the toy model: order, batches, cutting, slots."""

import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toy
from effort import examples
from tritone.bundle import Bundle
from tritone.errors import AudioError, BundleError, ServerBusyError, StreamError
from tritone.pipelines import OfflinePipeline, Step, StreamingPipeline, Transcript, open_offline, open_streaming
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.graphs.samples import FLOAT, PCM, WaitingSamples
from tritone.search.options import SearchOptions

TEXTS = ["hello world", "a", "", "zz top 99", "see you", "12 1 1 222", "x" * 40]


@pytest.fixture(scope="module")
def offline(toy_bundle: Path) -> OfflinePipeline:
    return open_offline(Bundle.open(toy_bundle), placement=Placement(threads=1))


@pytest.fixture(scope="module")
def streaming(toy_bundle: Path) -> StreamingPipeline:
    return open_streaming(Bundle.open(toy_bundle), placement=Placement(threads=1), capacity=8, max_batch=3)


def stream_in_chunks(pipeline: StreamingPipeline, waveform: np.ndarray, size: int) -> list[Transcript]:
    slot = pipeline.open()
    starts = range(0, max(len(waveform), 1), size)
    return [pipeline.advance([Step(slot, waveform[s : s + size], s == starts[-1])])[0] for s in starts]


class TestOffline:
    def test_results_come_in_the_order_of_the_input(self, offline: OfflinePipeline) -> None:
        waveforms = [toy.toy_waveform(text, 1 + index % 3) for index, text in enumerate(TEXTS)]
        assert [result.text for result in offline.recognize(waveforms)] == TEXTS
        assert [result.text for result in offline.recognize(waveforms[::-1])] == TEXTS[::-1]

    def test_a_transcript_has_tokens_and_words_in_seconds(self, offline: OfflinePipeline) -> None:
        (result,) = offline.recognize([toy.toy_waveform("ab c", frames_per_token=2)])
        assert [(span.text, span.start_s, span.end_s) for span in result.tokens] == [
            ("a", 0.0, 0.08),
            ("b", 0.08, 0.16),
            ("▁", 0.16, 0.24),
            ("c", 0.24, result.audio_s),  # nothing follows
        ]
        assert [(span.text, span.start_s, span.end_s) for span in result.words] == [
            ("ab", 0.0, 0.16),
            ("c", 0.24, result.audio_s),
        ]
        assert [span.confidence for span in result.words] == pytest.approx([toy.CONFIDENCE] * 2)
        assert result.confidence == pytest.approx(toy.CONFIDENCE)
        assert result.audio_s == (8 * toy.FRAME + toy.CONTEXT) / toy.SAMPLE_RATE
        assert result.is_final

    @pytest.mark.parametrize("num_samples", [1, toy.MIN_SAMPLES - 1, toy.MIN_SAMPLES, 16000])
    def test_what_is_too_short_or_silent_gives_empty_text(self, offline: OfflinePipeline, num_samples: int) -> None:
        (result,) = offline.recognize([np.zeros(num_samples, np.float32)])
        assert (result.text, result.tokens, result.words, result.confidence) == ("", (), (), None)
        assert result.audio_s == num_samples / toy.SAMPLE_RATE

    def test_16_bit_audio_gives_the_transcripts_of_the_floats_that_it_stands_for(
        self, offline: OfflinePipeline
    ) -> None:
        numbers = [(toy.toy_waveform(text) * 32767).astype(np.int16) for text in ("ab c", "hello", "")]
        wide = [(each / 32768).astype(np.float32) for each in numbers]
        expected = offline.recognize(wide)
        assert [each.text for each in expected] == ["ab c", "hello", ""]
        assert offline.recognize(numbers) == expected
        assert offline.recognize([numbers[0], *wide[1:]]) == expected  # mixed in one block

    def test_samples_that_no_audio_has_are_the_error_of_their_own_utterance(self, offline: OfflinePipeline) -> None:
        bad = toy.toy_waveform("bad")
        bad[1000] = np.nan
        good, *errors = offline.run([toy.toy_waveform("ab c"), bad, np.full(3, np.inf, np.float32), bad * 1e9])
        assert isinstance(good, Transcript)
        assert good.text == "ab c"
        assert [type(each) for each in errors] == [AudioError] * 3
        assert str(errors[0]).startswith("sample 1000 (0.062 s) is nan")

    def test_nothing_in_nothing_out(self, offline: OfflinePipeline) -> None:
        assert offline.recognize([]) == []

    def test_two_hundred_utterances_do_not_depend_on_batch_or_order(self, toy_bundle: Path) -> None:
        rng = np.random.default_rng(5)
        waveforms = [toy.frames_waveform(rng.integers(0, 39, rng.integers(0, 60)).tolist()) for _ in range(200)]
        bundle = Bundle.open(toy_bundle)
        alone = [
            open_alone.recognize([w])[0]
            for open_alone in [open_offline(bundle, placement=Placement(threads=1))]
            for w in waveforms
        ]
        order = rng.permutation(200)
        for limits in (BatchLimits(max_waste=0.9), BatchLimits(max_batch=7), BatchLimits.for_device("cpu")):
            pipeline = open_offline(bundle, placement=Placement(threads=1), limits=limits)
            together = pipeline.recognize([waveforms[index] for index in order])
            assert together == [alone[index] for index in order]

    def test_the_graph_sees_the_planned_batches_padded_with_zeros(
        self, offline: OfflinePipeline, monkeypatch: Any
    ) -> None:
        calls: list[dict[str, np.ndarray]] = []
        compute = offline.runner.compute

        def spy(inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> dict[str, np.ndarray]:
            calls.append(dict(inputs))
            return compute(inputs, outputs)

        monkeypatch.setattr(offline.runner, "compute", spy)
        monkeypatch.setattr(offline.runner, "limits", BatchLimits(max_waste=0.5, steps_per_octave=1))
        offline.recognize([np.ones(1000, np.float32), np.ones(1500, np.float32), np.ones(10, np.float32)])
        (call,) = calls
        assert call["num_samples"].tolist() == [1500, 1000]
        assert call["waveform"].shape == (2, 2048)
        assert call["waveform"].sum(axis=1).tolist() == [1500, 1000]

    def test_warming_up_runs_up_to_the_given_length(self, offline: OfflinePipeline) -> None:
        offline.warm_up(max_audio_s=2)

    def test_a_bundle_without_the_role_is_refused(self, toy_bundle: Path, tmp_path: Path) -> None:
        bundle = Bundle.open(toy.write_toy_bundle(tmp_path / "b", streaming=False))
        with pytest.raises(BundleError, match="Export the checkpoint with --streaming"):
            open_streaming(bundle)

    def test_a_bundle_whose_graph_vanished_after_opening_is_an_error(self, toy_bundle: Path, tmp_path: Path) -> None:
        bundle = Bundle.open(shutil.copytree(toy_bundle, tmp_path / "b"))
        (tmp_path / "b" / "encoder.onnx").unlink()
        with pytest.raises(BundleError, match=r"encoder\.onnx is missing"):
            open_offline(bundle)


class TestStreaming:
    def test_partial_results_hold_the_text_so_far(self, streaming: StreamingPipeline) -> None:
        # A window of 4 frames needs 2720 samples, the next one 2560 more.
        results = stream_in_chunks(streaming, toy.toy_waveform("abcdefghij"), toy.SHIFT)
        assert [result.text for result in results] == ["", "abcd", "abcdefghij"]
        assert [result.is_final for result in results] == [False, False, True]
        assert [result.audio_s for result in results] == [0.16, 0.32, 0.41]

    @settings(max_examples=examples(60))
    @given(st.data())
    def test_any_cutting_gives_the_offline_result(
        self, offline: OfflinePipeline, streaming: StreamingPipeline, data: st.DataObject
    ) -> None:
        frames = data.draw(st.lists(st.integers(0, 4), max_size=14))
        waveform = toy.frames_waveform(frames)
        waveform = waveform[: len(waveform) - data.draw(st.integers(0, 200))]
        cuts = sorted(data.draw(st.lists(st.integers(0, len(waveform)), max_size=8)))
        slot = streaming.open()
        for start, end in zip([0, *cuts], [*cuts, len(waveform)], strict=True):
            (result,) = streaming.advance([Step(slot, waveform[start:end], final=end == len(waveform))])
            if result.is_final:
                break
        assert [result] == offline.recognize([waveform])
        assert streaming.num_open == 0

    def test_single_samples_give_the_same_as_all_at_once(
        self, offline: OfflinePipeline, streaming: StreamingPipeline
    ) -> None:
        waveform = toy.toy_waveform("abc", frames_per_token=2)
        assert stream_in_chunks(streaming, waveform, 1)[-1] == offline.recognize([waveform])[0]
        assert stream_in_chunks(streaming, waveform, 10**6) == offline.recognize([waveform])

    def test_interleaved_streams_keep_their_states(self, streaming: StreamingPipeline) -> None:
        rng = np.random.default_rng(1)
        texts = {}
        waiting = [("".join(rng.choice(list("abcxyz019"), rng.integers(1, 40)))) for _ in range(40)]
        running: dict[int, tuple[str, np.ndarray]] = {}
        while waiting or running:
            while waiting and len(running) < streaming.capacity:
                text = waiting.pop()
                running[streaming.open()] = (text, toy.toy_waveform(text))
            chosen = [slot for slot in running if rng.random() < 0.6]
            steps = []
            for slot in chosen:
                text, waveform = running[slot]
                size = int(rng.integers(0, 6000))
                steps.append(Step(slot, waveform[:size], final=size >= len(waveform)))
                running[slot] = (text, waveform[size:])
            for step, result in zip(steps, streaming.advance(steps), strict=True):
                if step.final:
                    text, _ = running.pop(step.slot)
                    texts[text] = result.text
        assert len(texts) == 40
        assert all(said == heard for said, heard in texts.items())
        assert streaming.num_open == 0

    def test_one_call_catches_up_on_many_windows_of_several_streams(self, streaming: StreamingPipeline) -> None:
        slots = [streaming.open() for _ in range(5)]
        texts = ["a" * length for length in (1, 30, 7, 2, 15)]
        steps = [Step(slot, toy.toy_waveform(text), final=True) for slot, text in zip(slots, texts, strict=True)]
        assert [result.text for result in streaming.advance(steps)] == texts

    def test_a_slot_is_clean_for_the_next_stream(self, toy_bundle: Path) -> None:
        pipeline = open_streaming(Bundle.open(toy_bundle), placement=Placement(threads=1), capacity=1)
        for text in ("hello", "hello", "a"):
            assert pipeline.open() == 0
            assert pipeline.advance([Step(0, toy.toy_waveform(text), final=True)])[0].text == text
        pipeline.open()
        pipeline.advance([Step(0, toy.toy_waveform("half of someth"))])
        pipeline.close(0)
        assert pipeline.open() == 0
        assert pipeline.advance([Step(0, toy.toy_waveform("ing else"), final=True)])[0].text == "ing else"

    def test_a_full_pipeline_is_busy_until_a_stream_ends(self, toy_bundle: Path) -> None:
        pipeline = open_streaming(Bundle.open(toy_bundle), placement=Placement(threads=1), capacity=2)
        first, _ = pipeline.open(), pipeline.open()
        with pytest.raises(ServerBusyError, match="all 2 stream slots are taken"):
            pipeline.open()
        pipeline.advance([Step(first, np.zeros(0, np.float32), final=True)])
        assert pipeline.open() == first

    def test_an_unknown_slot_changes_nothing_for_its_neighbours(self, streaming: StreamingPipeline) -> None:
        slot = streaming.open()
        chunk = toy.toy_waveform("abcd")
        with pytest.raises(StreamError, match="no open stream in slot 77"):
            streaming.advance([Step(slot, chunk), Step(77, chunk)])
        with pytest.raises(ValueError, match="one step per slot"):
            streaming.advance([Step(slot, chunk), Step(slot, chunk)])
        assert streaming.advance([Step(slot, chunk, final=True)])[0].text == "abcd"
        with pytest.raises(StreamError, match=f"no open stream in slot {slot}"):
            streaming.close(slot)

    def test_a_failing_graph_leaves_the_audio_for_another_try(
        self, streaming: StreamingPipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("out of memory")

        slot = streaming.open()
        with monkeypatch.context() as patch:
            patch.setattr(streaming._slots, "_graph", fail)
            with pytest.raises(RuntimeError, match="out of memory"):
                streaming.advance([Step(slot, toy.toy_waveform("abcd"))])
        assert streaming.advance([Step(slot, np.zeros(0, np.float32), final=True)])[0].text == "abcd"

    @pytest.mark.slow
    def test_a_long_stream_holds_no_audio_back(self, streaming: StreamingPipeline) -> None:
        slot = streaming.open()
        minute = toy.toy_waveform("abcdefghij" * 150)[: 60 * toy.SAMPLE_RATE]
        for _ in range(10):
            for start in range(0, len(minute), 16000):
                streaming.advance([Step(slot, minute[start : start + 16000], details=False)])
        waiting = streaming._waiting
        assert waiting.count[slot] < toy.WINDOW
        assert (waiting._kept, waiting._new[slot]) == ({}, None)
        rows, width = waiting._rows[FLOAT].shape
        assert (rows <= streaming.capacity, width) == (True, toy.WINDOW)
        streaming.close(slot)

    def test_without_details_a_transcript_is_its_text_and_the_same_until_that_changes(
        self, streaming: StreamingPipeline
    ) -> None:
        said = [toy.TOKENS.index(token) for token in "ab▁cd"]
        wave, slot = toy.frames_waveform(said + 16 * [toy.TOKENS.index("<blank>")]), streaming.open()
        told = [streaming.advance([Step(slot, chunk, details=False)])[0] for chunk in np.array_split(wave, 12)]
        assert told[-1] == Transcript("ab cd", is_final=False)
        assert [a is b for a, b in pairwise(told)] == [a.text == b.text for a, b in pairwise(told)]
        (full,) = streaming.advance([Step(slot, wave[:0])])
        assert [span.text for span in full.words] == ["ab", "cd"], "details may be asked for at any step"
        assert streaming.advance([Step(slot, wave[:0], final=True, details=False)]) == [Transcript("ab cd")]

    def test_warming_up_leaves_all_slots_free(self, streaming: StreamingPipeline) -> None:
        streaming.warm_up()
        assert streaming.num_open == 0

    def test_sizes_that_make_no_sense_are_refused(self, toy_bundle: Path) -> None:
        with pytest.raises(ValueError, match="capacity and max_batch must be at least 1"):
            open_streaming(Bundle.open(toy_bundle), capacity=0)


WINDOW, SHIFT = 500, 400


def test_nothing_in_floats_after_16_bit_samples_leaves_them_as_they_are_when_a_graph_fails() -> None:
    slots, samples = np.array([0]), np.arange(1, WINDOW + 1, dtype=np.int16)
    waiting = WaitingSamples(1, WINDOW)
    waiting.open(0, 0)
    for chunk, silence in ((samples, 0), (np.zeros(0, np.float32), 60)):
        waiting.add(slots, [chunk], np.array([silence]))
        waiting.settle(slots)  # no step was taken: the graph failed
    block = np.zeros((1, WINDOW), np.float32)
    waiting.add(slots, [np.zeros(0, np.float32)], np.array([0]))
    waiting.fill(slots, block)
    np.testing.assert_array_equal(block[0], samples / np.float32(32768))


@settings(max_examples=examples(100))
@given(st.data())
def test_waiting_samples_are_those_that_came_and_are_given_out_window_by_window(data: st.DataObject) -> None:
    """Two streams, of which each chunk is of either type; now and then a graph fails, and nothing is consumed."""
    slots = np.array([2, 0])
    waiting, numbers = WaitingSamples(3, WINDOW), np.random.default_rng(0)
    expected, is_pcm = {}, {}
    for slot in slots.tolist():
        silence = data.draw(st.sampled_from([0, 70]))
        waiting.open(slot, silence)
        expected[slot], is_pcm[slot] = np.zeros(silence, np.float32), True
    for _ in range(data.draw(st.integers(1, 8))):
        chosen = slots[: data.draw(st.integers(1, 2))]
        chunks: list[Any] = []
        silences = []
        for slot in chosen.tolist():
            kind = data.draw(st.sampled_from([FLOAT, PCM]))
            chunk = numbers.integers(-(2**15), 2**15, data.draw(st.integers(0, 1800))).astype(np.int16)
            wide = (chunk / 32768).astype(np.float32)
            chunks.append(chunk if kind == PCM else wide)
            is_pcm[slot] &= kind == PCM or not len(chunk)
            silences.append(data.draw(st.sampled_from([0, 0, 0, 60])))
            expected[slot] = np.concatenate((expected[slot], wide, np.zeros(silences[-1], np.float32)))
        waiting.add(chosen, chunks, np.array(silences))
        fails = data.draw(st.booleans())
        while not fails and len(ready := chosen[waiting.count[chosen] >= WINDOW]):
            kind = PCM if waiting.are_pcm(ready) and data.draw(st.booleans()) else FLOAT
            block = np.full((len(ready), WINDOW), 99, kind)
            assert waiting.fill(ready, block).tolist() == [WINDOW] * len(ready)
            for slot, row in zip(ready.tolist(), block, strict=True):
                np.testing.assert_array_equal(row / (32768 if kind == PCM else 1), expected[slot][:WINDOW])
                expected[slot] = expected[slot][SHIFT:]
            waiting.drop(ready, SHIFT)
            if data.draw(st.booleans()):
                waiting.settle(ready[waiting.count[ready] < WINDOW])
        waiting.settle(chosen)
        for chunk in chunks:
            chunk[:] = 1  # memory of a request, which is somebody else's now
        assert waiting.count[chosen].tolist() == [len(expected[slot]) for slot in chosen.tolist()]
    rest = np.full((2, WINDOW), 99, np.float32)
    waiting.add(slots, [np.zeros(0, np.float32)] * 2, np.zeros(2, np.int64))
    for slot, row, count in zip(slots.tolist(), rest, waiting.fill(slots, rest).tolist(), strict=True):
        assert count == min(len(expected[slot]), WINDOW)
        np.testing.assert_array_equal(row[:count], expected[slot][:count])
        assert not row[count:].any()
    assert waiting._is_pcm[slots].tolist() == [is_pcm[slot] for slot in slots.tolist()]


def test_what_a_gpu_reduces_and_keeps_gives_the_same_texts_and_times(
    toy_bundle_of_both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here on the CPU: only the greedy tokens and the best tokens of each frame leave the graph."""
    from tritone.runtime.torch.graph import TorchGraph

    bundle = Bundle.open(toy_bundle_of_both)
    waveforms = [toy.toy_waveform(text, 1 + index % 3) for index, text in enumerate(TEXTS)]
    ways = [SearchOptions(), SearchOptions(mode="prefix-beam", beam=3), SearchOptions(mode="prefix-beam", nbest=2)]
    options = [ways[index % len(ways)] for index in range(len(waveforms))]
    placement = Placement(threads=1, runtime="torch")
    expected = open_offline(bundle, placement=placement).recognize(waveforms, options)
    monkeypatch.setattr(TorchGraph, "is_on_gpu", True)
    offline, streaming = open_offline(bundle, placement=placement), open_streaming(bundle, placement=placement)
    assert offline.searching.outputs(ways) == ("num_frames", "greedy_block", "top_tokens_10")
    for found, wanted in zip(offline.recognize(waveforms, options), expected, strict=True):
        assert found.text == wanted.text
        assert [(each.text, each.start_s, each.end_s) for each in found.tokens] == [
            (each.text, each.start_s, each.end_s) for each in wanted.tokens
        ]
    slots = [streaming.open(each) for each in options]
    finals = streaming.advance([Step(slot, each, True) for slot, each in zip(slots, waveforms, strict=True)])
    assert [each.text for each in finals] == TEXTS
