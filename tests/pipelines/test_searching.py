"""How pipelines search: each row in its own way, rescoring, segments of streams."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toy
from effort import examples
from tritone.bundle import Bundle
from tritone.errors import BundleError, InputError
from tritone.pipelines import Step, Transcript, open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.streaming import MAX_RESCORED_S, StreamingPipeline
from tritone.search.endpoint import EndpointRules
from tritone.search.options import SearchOptions

BEAM = SearchOptions(mode="prefix-beam", beam=8, nbest=8)
RESCORING = SearchOptions(mode="rescoring", beam=8, nbest=8)
FRAME_S = toy.FRAME / toy.SAMPLE_RATE
LOG_HIT, LOG_MISS = np.log(toy.CONFIDENCE), np.log((1 - toy.CONFIDENCE) / (len(toy.TOKENS) - 1))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(toy.write_toy_bundle(tmp_path_factory.mktemp("toy") / "decoding", decoder=True))


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * toy.SAMPLE_RATE), np.float32)


def spoken(*parts: str | float) -> np.ndarray:
    """Audio of texts and, between them, pauses in seconds."""
    frames: list[int] = []
    for part in parts:
        if isinstance(part, str):
            for letter in part.replace(" ", "▁"):
                token = toy.TOKENS.index(letter)
                frames += [0, token] if frames and frames[-1] == token else [token]
        else:
            frames += [0] * round(part / FRAME_S)
    return toy.frames_waveform(frames)


def play(pipeline: StreamingPipeline, audio: np.ndarray, size: int, options: SearchOptions | None = None):
    """All transcripts of a stream that comes in pieces of `size` samples."""
    slot = pipeline.open(options)
    starts = range(0, len(audio), size)
    return [pipeline.advance([Step(slot, audio[s : s + size], s == starts[-1])])[0] for s in starts]


def final_score(text: str, log_prob: float, options: SearchOptions) -> float:
    """By hand: what the toy decoder makes of a hypothesis."""
    left = sum(toy.LEFT_POINTS.get(letter, 0.0) for letter in text) + toy.END_POINTS
    right = sum(toy.RIGHT_POINTS.get(letter, 0.0) for letter in text) + toy.END_POINTS
    reverse = 0.25 if options.reverse_weight is None else options.reverse_weight
    ctc = 0.5 if options.ctc_weight is None else options.ctc_weight
    return (1 - reverse) * left + reverse * right + ctc * log_prob


class TestOffline:
    def test_requests_that_search_in_different_ways_share_a_batch(self, bundle: Bundle) -> None:
        pipeline = open_offline(bundle, placement=Placement(threads=1))
        texts = ["hello world", "a", "see you", "12 1 1 222", "zz top"]
        waveforms = [toy.toy_waveform(text, 2) for text in texts]
        ways = [None, BEAM, replace(RESCORING, nbest=3), SearchOptions(), replace(BEAM, beam=3, nbest=1)]
        together = pipeline.recognize(waveforms, ways)
        alone = [pipeline.recognize([waveform], [way])[0] for waveform, way in zip(waveforms, ways, strict=True)]
        assert together == alone
        assert [len(each.alternatives) > 1 for each in together] == [False, True, True, False, False]
        assert len(together[2].alternatives) == 3
        assert [each.text for index, each in enumerate(together) if index != 2] == [texts[i] for i in (0, 1, 3, 4)]

    def test_alternatives_are_ranked_and_the_first_is_the_transcript(self, bundle: Bundle) -> None:
        (found,) = open_offline(bundle, placement=Placement(threads=1)).recognize([toy.toy_waveform("ab")], [BEAM])
        best = found.alternatives[0]
        assert (found.text, found.tokens, found.words) == (best.text, best.tokens, best.words)
        scores = [each.score for each in found.alternatives]
        assert scores == sorted(scores, reverse=True)
        texts = [each.text for each in found.alternatives]
        assert len(texts) == len(set(texts)) >= 6  # beside those of 8 prefixes that differ in spaces alone
        assert best.text == "ab"
        # Two frames: both letters alone give this text.
        assert best.score == pytest.approx(2 * LOG_HIT, abs=1e-5)
        assert [(span.text, span.start_s, span.end_s) for span in best.tokens] == [
            ("a", 0, 0.04),
            ("b", 0.04, found.audio_s),  # nothing follows
        ]

    @given(
        text=st.text("abcd", min_size=1, max_size=4),
        reverse=st.sampled_from([None, 0.0, 0.5, 1.0]),
        ctc=st.sampled_from([None, 0.0, 2.0]),
    )
    @settings(max_examples=examples(25), deadline=None)
    def test_rescoring_ranks_the_beam_by_the_weighted_scores(
        self, bundle: Bundle, text: str, reverse: float | None, ctc: float | None
    ) -> None:
        pipeline = open_offline(bundle, placement=Placement(threads=1))
        options = replace(RESCORING, reverse_weight=reverse, ctc_weight=ctc)
        waveform = toy.toy_waveform(text)
        (beam,) = pipeline.recognize([waveform], [BEAM])
        (found,) = pipeline.recognize([waveform], [options])
        expected = {each.text: final_score(each.text, each.score, options) for each in beam.alternatives}
        assert {each.text: each.score for each in found.alternatives} == pytest.approx(expected, abs=1e-4)
        scores = [each.score for each in found.alternatives]
        assert scores == sorted(scores, reverse=True)
        assert found.text == found.alternatives[0].text

    def test_rescoring_can_change_the_text(self, bundle: Bundle) -> None:
        pipeline = open_offline(
            bundle, placement=Placement(threads=1), search=SearchSettings(options=replace(RESCORING, nbest=1))
        )
        (found,) = pipeline.recognize([toy.toy_waveform("a")])
        assert (found.text, found.alternatives) == ("b", ())  # the decoder likes b more than the audio likes a

    def test_what_is_too_short_has_one_empty_alternative(self, bundle: Bundle) -> None:
        pipeline = open_offline(bundle, placement=Placement(threads=1))
        (found,) = pipeline.recognize([silence(0.01)], [RESCORING])
        assert [each.text for each in found.alternatives] == [""]

    def test_without_timestamps_only_the_text_and_its_confidence_are_told(self, bundle: Bundle) -> None:
        pipeline = open_offline(bundle, placement=Placement(threads=1))
        (found,) = pipeline.recognize([toy.toy_waveform("ab")], [replace(BEAM, nbest=2, timestamps=False)])
        assert (found.text, found.tokens, found.words) == ("ab", (), ())
        assert found.confidence == pytest.approx(toy.CONFIDENCE)
        assert all(not each.tokens and not each.words for each in found.alternatives)

    def test_hotwords_change_the_text(self, bundle: Bundle) -> None:
        pipeline = open_offline(bundle, placement=Placement(threads=1))
        waveform = toy.toy_waveform("ab")
        options = replace(BEAM, nbest=1, beam=40)
        assert pipeline.recognize([waveform], [options])[0].text == "ab"
        lured = pipeline.recognize([waveform], [replace(options, hotwords=(("ac", 20.0),))])
        assert lured[0].text == "ac"

    def test_options_that_the_model_cannot_serve_are_refused(self, toy_bundle: Path, bundle: Bundle) -> None:
        plain = open_offline(Bundle.open(toy_bundle), placement=Placement(threads=1))
        with pytest.raises(InputError, match="no attention decoder"):
            plain.recognize([silence(1)], [RESCORING])
        with pytest.raises(InputError, match="no language model"):
            plain.recognize([silence(1)], [replace(BEAM, lm_weight=0.3)])
        with pytest.raises(BundleError, match="no attention decoder"):
            open_offline(
                Bundle.open(toy_bundle), placement=Placement(threads=1), search=SearchSettings(options=RESCORING)
            )
        with pytest.raises(ValueError, match="2 waveforms need as many options, got 1"):
            plain.recognize([silence(1)] * 2, [BEAM])


class TestStreams:
    @pytest.mark.parametrize("options", [BEAM, RESCORING], ids=["prefix-beam", "rescoring"])
    @pytest.mark.parametrize("size", [37, 700, 5000, 10**6])
    def test_any_cutting_gives_the_offline_result(self, bundle: Bundle, options: SearchOptions, size: int) -> None:
        # Whole steps: the end of a stream runs what is left as a short one, and so does the offline graph.
        audio = toy.toy_waveform("ab cd", 3)
        (offline,) = open_offline(bundle, placement=Placement(threads=1)).recognize([audio], [options])
        *_, final = play(open_streaming(bundle, placement=Placement(threads=1), capacity=4), audio, size, options)
        assert final.text == offline.text
        assert final.is_final
        assert [each.text for each in final.alternatives] == [each.text for each in offline.alternatives]
        assert [each.score for each in final.alternatives] == pytest.approx(
            [each.score for each in offline.alternatives], abs=1e-4
        )
        assert final.tokens == offline.tokens

    def test_partials_come_from_the_beam_and_the_end_is_rescored(self, bundle: Bundle) -> None:
        pipeline = open_streaming(
            bundle, placement=Placement(threads=1), search=SearchSettings(options=replace(RESCORING, nbest=1))
        )
        *partials, final = play(pipeline, spoken("a", 1.0), toy.SHIFT)
        assert {each.text for each in partials} == {"", "a"}
        assert final.text == final_text_of(bundle, "a")
        assert not any(each.is_final for each in partials)

    def test_streams_of_different_options_share_their_steps(self, bundle: Bundle) -> None:
        pipeline = open_streaming(bundle, placement=Placement(threads=1), capacity=8, max_batch=3)
        ways = [None, BEAM, replace(RESCORING, nbest=2), replace(BEAM, beam=2, nbest=1)]
        audio = [toy.toy_waveform(text, 3) for text in ("hello", "see you", "abcd", "99 red")]
        slots = [pipeline.open(way) for way in ways]
        for start in range(0, max(map(len, audio)), 1000):
            steps = [Step(slot, each[start : start + 1000]) for slot, each in zip(slots, audio, strict=True)]
            pipeline.advance(steps)
        together = pipeline.advance([Step(slot, silence(0), final=True) for slot in slots])
        alone = [play(pipeline, each, 10**6, way)[-1] for each, way in zip(audio, ways, strict=True)]
        assert together == alone

    @pytest.mark.parametrize("mode", ["greedy", "prefix-beam"])
    def test_a_pause_ends_a_segment_and_the_stream_goes_on_with_the_next(self, bundle: Bundle, mode: str) -> None:
        rules = EndpointRules(silence_s=10.0, silence_after_speech_s=0.5, max_segment_s=60.0)
        options = SearchOptions(mode=mode)  # type: ignore[arg-type]
        pipeline = open_streaming(
            bundle, placement=Placement(threads=1), endpoints=rules, search=SearchSettings(options=options)
        )
        results = play(pipeline, spoken("one two", 1.0, "three", 1.0, "four"), toy.SHIFT)
        ended = [segment for each in results for segment in each.ended]
        assert [(each.segment, each.text, each.is_final) for each in ended] == [
            (0, "one two", True),
            (1, "three", True),
        ]
        last = results[-1]
        assert (last.segment, last.text, last.is_final, last.history) == (2, "four", True, "one two three")
        assert last.whole_text == "one two three four"
        # Times go on counting from the start of the stream.
        assert ended[1].words[0].start_s == pytest.approx(len("one two") * FRAME_S + 1.0)
        texts = [each.whole_text for each in results]
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))

    def test_one_long_chunk_ends_as_many_segments_as_many_short_ones(self, bundle: Bundle) -> None:
        rules = EndpointRules(silence_after_speech_s=0.3, silence_s=0.8, max_segment_s=1.5)
        pipeline = open_streaming(bundle, placement=Placement(threads=1), endpoints=rules)
        audio = spoken("a", 0.9, "bcdefgh", 0.9, "ij", 0.9)
        segments = {}
        for size in (toy.SHIFT // 3, toy.SHIFT, 10**6):
            results = play(pipeline, audio, size)
            found = [(each.segment, each.text) for result in results for each in result.ended]
            segments[size] = [*found, (results[-1].segment, results[-1].text)]
        assert segments[toy.SHIFT] == segments[10**6] == segments[toy.SHIFT // 3]
        assert [number for number, _ in segments[toy.SHIFT]] == list(range(len(segments[toy.SHIFT])))

    def test_silence_and_length_end_segments_too(self, bundle: Bundle) -> None:
        rules = EndpointRules(silence_s=0.6, silence_after_speech_s=9.0, max_segment_s=2.0)
        pipeline = open_streaming(bundle, placement=Placement(threads=1), endpoints=rules)
        quiet = [each for result in play(pipeline, silence(2.0), toy.SHIFT) for each in result.ended]
        assert len(quiet) >= 2
        assert not any(each.text for each in quiet)
        long = play(pipeline, spoken("abcdefghij" * 30), toy.SHIFT)
        assert sum(len(each.ended) for each in long) >= 2
        assert long[-1].whole_text.replace(" ", "") == "abcdefghij" * 30

    def test_every_ended_segment_is_rescored(self, bundle: Bundle) -> None:
        rules = EndpointRules(silence_s=9.0, silence_after_speech_s=0.4, max_segment_s=60.0)
        pipeline = open_streaming(bundle, placement=Placement(threads=1), endpoints=rules)
        results = play(pipeline, spoken("a", 1.0, "a", 0.2), toy.SHIFT, replace(RESCORING, nbest=1))
        ended = [each.text for result in results for each in result.ended]
        assert ended
        assert "b" in ended[0]
        assert "b" in results[-1].text

    @pytest.mark.slow
    def test_a_stream_to_be_rescored_never_keeps_more_than_its_limit(self, bundle: Bundle) -> None:
        pipeline = open_streaming(bundle, placement=Placement(threads=1))
        slot = pipeline.open(replace(RESCORING, beam=2, nbest=1))
        minute = silence(60.0)
        ended = [each for _ in range(5) for each in pipeline.advance([Step(slot, minute)])[0].ended]
        # In so much silence the beam finds a token that may be anywhere; then the limit is twice as long.
        assert 1 <= len(ended) <= 2
        assert ended[0].audio_s <= 2 * MAX_RESCORED_S + 60.0
        pipeline.close(slot)


def final_text_of(bundle: Bundle, text: str) -> str:
    options = replace(RESCORING, nbest=1)
    (found,) = open_offline(bundle, placement=Placement(threads=1)).recognize([spoken(text, 1.0)], [options])
    return found.text


def test_the_whole_text_of_a_transcript_is_its_history_and_its_own() -> None:
    assert Transcript("b c", history="a").whole_text == "a b c"
    assert Transcript("", history="a").whole_text == "a"
    assert Transcript("b").whole_text == "b"


@pytest.mark.parametrize(
    ("before", "after", "whole"),
    [
        ("", "a", "a"),
        ("a", "", "a"),
        ("one two", "three", "one two three"),
        ("你好", "世界", "你好世界"),
        ("你好", "ok", "你好 ok"),
    ],
)
def test_segments_are_joined_as_their_script_is_written(before: str, after: str, whole: str) -> None:
    assert Transcript(after, history=before).whole_text == whole
