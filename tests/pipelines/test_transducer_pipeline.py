"""Pipelines of transducers, on a toy whose answers are known by hand: see `toy_transducer`."""

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tritone
from effort import examples
from toy import FRAME, SAMPLE_RATE, TOKENS, toy_waveform
from toy_transducer import (
    CHUNK,
    CONFIDENCE,
    DELAY,
    HEARD,
    NEVER,
    SHIFT,
    SIZE,
    START,
    transducer_waveform,
    write_toy_transducer,
)
from tritone.bundle import Bundle
from tritone.errors import BundleError, InputError
from tritone.kinds import compile_search, kind_named
from tritone.pipelines import OfflinePipeline, Step, StreamingPipeline, open_offline, open_streaming
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.searching.readings import MAX_LINGER_S
from tritone.pipelines.searching.transducer import GraphNetwork, TransducerSearching
from tritone.search.endpoint import EndpointRules
from tritone.search.options import PARAMETERS, SearchOptions

MODES = ("greedy", "modified-beam", "fast-beam")
WAYS = {mode: SearchOptions(mode=mode) for mode in MODES}
FRAME_S = FRAME / SAMPLE_RATE
# What frames ask for, and what is said.
SAID = {
    "hello": "hello",
    "see you": "see you",
    "k?": "kl",
    "k???": "klmn",
    "qa?": "qa9",
    "z?": "za",
    "a~b": "ab",
    "---": "",
    "hi---you": "hiyou",
    "the end of a longer text of many words": "the end of a longer text of many words",
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(write_toy_transducer(tmp_path_factory.mktemp("toy") / "transducer"))


@pytest.fixture(scope="module")
def offline(bundle: Bundle) -> OfflinePipeline:
    return open_offline(bundle, placement=Placement(threads=1), limits=BatchLimits(max_waste=0.99))


@pytest.fixture(scope="module")
def streaming(bundle: Bundle) -> StreamingPipeline:
    return open_streaming(bundle, placement=Placement(threads=1), capacity=16, max_batch=3)


def play(pipeline: StreamingPipeline, text: str, size: int = 700, options: SearchOptions | None = None):
    """All transcripts of a stream that comes in pieces of `size` samples."""
    audio, slot = transducer_waveform(text), pipeline.open(options)
    starts = range(0, max(1, len(audio)), size)
    return [pipeline.advance([Step(slot, audio[s : s + size], s == starts[-1])])[0] for s in starts]


@pytest.mark.parametrize("mode", MODES)
def test_offline_a_ragged_batch_says_of_each_what_it_says_alone(offline: OfflinePipeline, mode: str) -> None:
    """Short ones end long before the last one does, and stand before and after it."""
    offline.work.take()
    found = offline.recognize([transducer_waveform(text) for text in SAID], [WAYS[mode]] * len(SAID))
    assert [each.text for each in found] == list(SAID.values())
    assert offline.work.take().calls == 1


@pytest.mark.parametrize("mode", MODES)
def test_calls_one_after_another_are_searched_together_and_say_the_same(bundle: Bundle, mode: str) -> None:
    """The joiner is called for all utterances at once; how many calls of the encoder they take makes no difference."""
    pipeline = open_offline(bundle, placement=Placement(threads=1), limits=BatchLimits(max_batch=1))
    searching, audio = pipeline.searching, [transducer_waveform(text) for text in SAID]
    assert isinstance(searching, TransducerSearching)
    assert searching.waits_for_all
    network = searching._cache.network
    join, calls = network.join, {True: 0, False: 0}

    def counted(encoder_out: Any, predictor_out: Any) -> Any:
        calls[searching.waits_for_all] += 1
        return join(encoder_out, predictor_out)

    network.join = counted  # type: ignore[method-assign]
    for waits in calls:
        searching.waits_for_all = waits
        found = pipeline.recognize(audio, [WAYS[mode]] * len(SAID))
        assert [each.text for each in found] == list(SAID.values())
    assert pipeline.work.take().calls == 2 * len(SAID)
    assert calls[True] < 0.8 * calls[False]


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_says_the_same_to_its_last_word(streaming: StreamingPipeline, mode: str) -> None:
    """Its last frames are told only because it is flushed at its end."""
    for text, said in SAID.items():
        assert play(streaming, text, options=WAYS[mode])[-1].text == said
    audio = transducer_waveform("abcdefg")
    slot = streaming.open(WAYS[mode])
    (before,) = streaming.advance([Step(slot, audio)])
    assert before.text == "ab"  # of one step, four frames, of which two are before the audio
    (after,) = streaming.advance([Step(slot, audio[:0], final=True)])
    assert (after.text, after.is_final) == ("abcdefg", True)


def test_the_first_context_is_that_of_the_manifest_and_of_fast_beam_blanks_as_upstream(
    offline: OfflinePipeline, streaming: StreamingPipeline
) -> None:
    """With "no token" in front the predictor expects `s`, after blanks alone `a`."""
    assert START == (-1, 0)
    first = {"greedy": "s", "modified-beam": "s", "fast-beam": "a"}
    found = offline.recognize([transducer_waveform("?")] * 3, list(WAYS.values()))
    assert {mode: each.text for mode, each in zip(WAYS, found, strict=True)} == first
    assert {mode: play(streaming, "?", options=way)[-1].text for mode, way in WAYS.items()} == first


def test_tokens_have_the_time_and_probability_of_the_frame_that_said_them(
    offline: OfflinePipeline, streaming: StreamingPipeline
) -> None:
    for way in WAYS.values():
        (found,) = offline.recognize([transducer_waveform("-ab--c")], [way])
        assert [(each.text, each.start_s, each.end_s) for each in found.tokens] == [
            ("a", pytest.approx(1 * FRAME_S), pytest.approx(2 * FRAME_S)),
            ("b", pytest.approx(2 * FRAME_S), pytest.approx(5 * FRAME_S)),  # until the next one
            ("c", pytest.approx(5 * FRAME_S), pytest.approx(min(6 * FRAME_S + MAX_LINGER_S, found.audio_s))),
        ]
        assert [each.confidence for each in found.tokens] == pytest.approx([CONFIDENCE] * 3, abs=1e-4)
        late = play(streaming, "-ab--c---", options=way)[-1]
        assert [each.start_s for each in late.tokens] == pytest.approx([(f + DELAY) * FRAME_S for f in (1, 2, 5)])


@pytest.mark.parametrize("mode", MODES)
def test_what_is_silent_or_too_short_says_nothing(
    offline: OfflinePipeline, streaming: StreamingPipeline, mode: str
) -> None:
    for length in (0, 1, 399):
        audio = np.full(length, 0.25, np.float32)
        (found,) = offline.recognize([audio], [WAYS[mode]])
        slot = streaming.open(WAYS[mode])
        (streamed,) = streaming.advance([Step(slot, audio, final=True)])
        assert [found.text, streamed.text] == ["", ""]
        assert found.audio_s == streamed.audio_s == length / SAMPLE_RATE


@pytest.mark.parametrize("missing", [0, 1, FRAME - HEARD - 1, FRAME - HEARD, FRAME - HEARD + 1, FRAME - 1])
def test_the_last_frame_counts_if_its_start_is_there(
    offline: OfflinePipeline, streaming: StreamingPipeline, missing: int
) -> None:
    audio = transducer_waveform("hello")
    audio = audio[: len(audio) - missing]
    said = "hello" if missing <= FRAME - HEARD else "hell"
    (found,) = offline.recognize([audio])
    slot = streaming.open()
    (streamed,) = streaming.advance([Step(slot, audio, final=True)])
    assert [found.text, streamed.text] == [said, said]


def test_every_row_of_a_batch_is_searched_as_its_request_asks(
    offline: OfflinePipeline, streaming: StreamingPipeline
) -> None:
    ways = {
        SearchOptions(): "ak",
        SearchOptions(blank_penalty=2.0): "aek",  # of a doubtful frame
        SearchOptions(max_symbols=2): "aakk",  # a frame says the same again
        SearchOptions(mode="modified-beam"): "ak",
        SearchOptions(mode="modified-beam", beam=8, hotwords=(("aek", 4.0),)): "aek",
        SearchOptions(mode="modified-beam", blank_penalty=2.0): "aek",
        SearchOptions(mode="fast-beam", max_states=8, max_contexts=3): "ak",
        SearchOptions(mode="fast-beam", blank_penalty=2.0): "aek",
        SearchOptions(mode="fast-beam", hotwords=(("aek", 4.0),)): "aek",
        SearchOptions(timestamps=False): "ak",
    }
    found = offline.recognize([transducer_waveform("a~k")] * len(ways), list(ways))
    assert [each.text for each in found] == list(ways.values())
    assert [bool(each.tokens) for each in found] == [way.timestamps for way in ways]
    slots = [streaming.open(way) for way in ways]
    streamed = streaming.advance([Step(slot, transducer_waveform("a~k"), final=True) for slot in slots])
    assert [each.text for each in streamed] == list(ways.values())


def test_a_frame_may_say_several_tokens_and_the_predictor_hears_each(offline: OfflinePipeline) -> None:
    (found,) = offline.recognize([transducer_waveform("k?-")], [SearchOptions(max_symbols=3)])
    assert found.text == "kkklmn"


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_alternatives_have_the_scores_of_the_logits_over_the_temperature(
    offline: OfflinePipeline, temperature: float
) -> None:
    logits = np.array([0.0, -1.0] + [NEVER] * (SIZE - 2)) / temperature
    nothing, e, unk = logits[:3] - np.log(np.exp(logits).sum())
    either = np.logaddexp(nothing, unk)  # an unknown token is none; fast beam search takes the better of the two
    modified = SearchOptions(mode="modified-beam", nbest=2, temperature=temperature)
    fast = SearchOptions(mode="fast-beam", nbest=2, temperature=temperature)
    for way, scores in ((modified, (either / 2, e / 3)), (fast, (nothing, e))):
        (found,) = offline.recognize([transducer_waveform("~")], [way])
        assert [each.text for each in found.alternatives] == ["", "e"]
        # modified beam search ranks by the mean over tokens, those of the first context included
        assert [each.score for each in found.alternatives] == pytest.approx(scores, abs=1e-5)


@settings(max_examples=examples(25))
@given(data=st.data())
def test_streams_do_not_depend_on_cuts_or_company(streaming: StreamingPipeline, data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.sampled_from(list(SAID)), min_size=1, max_size=8))
    ways = data.draw(st.lists(st.sampled_from(MODES), min_size=len(texts), max_size=len(texts)))
    queues = []
    for text in texts:
        audio = transducer_waveform(text)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(audio)), max_size=5)))
        queues.append([audio[a:b] for a, b in itertools.pairwise([0, *cuts, len(audio)])])
    slots = [streaming.open(WAYS[way]) for way in ways]
    finals: dict[int, str] = {}
    try:
        while waiting := [index for index, queue in enumerate(queues) if queue]:
            chosen = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
            steps = [Step(slots[index], queues[index].pop(0), not queues[index]) for index in chosen]
            for index, step, told in zip(chosen, steps, streaming.advance(steps), strict=True):
                if step.final:
                    finals[index] = told.text
    finally:  # the next example needs them
        for index in set(range(len(slots))) - set(finals):
            streaming.close(slots[index])
    assert [finals[index] for index in range(len(texts))] == [SAID[text] for text in texts]


def test_a_slot_that_is_used_again_knows_nothing_of_the_stream_before(bundle: Bundle) -> None:
    """Given up in the middle, without an end."""
    pipeline = open_streaming(bundle, placement=Placement(threads=1), capacity=1)
    for way in WAYS.values():
        slot = pipeline.open(way)
        pipeline.advance([Step(slot, transducer_waveform("quick brown"))])
        pipeline.close(slot)
        assert play(pipeline, "k?", options=way)[-1].text == "kl"
        assert pipeline.num_open == 0


@pytest.mark.parametrize("mode", MODES)
def test_endpoints_cut_a_stream_into_segments_that_begin_anew(bundle: Bundle, mode: str) -> None:
    rules = EndpointRules(silence_after_speech_s=4 * FRAME_S, silence_s=100, max_segment_s=100)
    pipeline = open_streaming(bundle, placement=Placement(threads=1), endpoints=rules)
    told = play(pipeline, "hi" + "-" * 10 + "k???" + "-" * 8 + "?", options=WAYS[mode])
    first = "a" if mode == "fast-beam" else "s"
    segments = [*itertools.chain.from_iterable(each.ended for each in told), told[-1]]
    assert [each.text for each in segments] == ["hi", "klmn", first]  # the predictor has forgotten the `n`
    assert [each.segment for each in segments] == [0, 1, 2]
    assert told[-1].whole_text == f"hi klmn {first}"
    frames = [2, 3, 14, 15, 16, 17, 28]  # where they are in the audio, counted with the delay
    assert [token.start_s for each in segments for token in each.tokens] == pytest.approx(
        [min(frame * FRAME_S, told[-1].audio_s) for frame in frames]
    )


def test_a_stream_is_cut_as_its_graph_was_exported_and_in_no_other_way(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match=r"exported for chunk_size 4 and left_chunks 0 alone, but 8 and 0 .*export"):
        open_streaming(bundle, chunk_size=2 * CHUNK)
    with pytest.raises(BundleError, match="4 and -1 were asked for"):
        tritone.load(bundle.path, left_chunks=-1).stream()
    assert open_streaming(bundle, chunk_size=CHUNK, left_chunks=0).geometry.shift_samples == SHIFT


REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "rescoring": ({"search": "rescoring"}, "kind transducer, which searches with greedy, modified-beam, fast-beam"),
    "prefix beam": ({"search": "prefix-beam"}, "kind transducer"),
    "hotwords of greedy": ({"hotwords": "e:5"}, "hotwords has no effect with search greedy; .*modified-beam"),
    "states of modified": ({"search": "modified-beam", "max_states": 4}, "max_states has no effect .*search=fast-beam"),
    "temperature of greedy": ({"temperature": 2}, "temperature has no effect .*search=modified-beam or fast-beam"),
    "symbols of a beam": ({"search": "fast-beam", "max_symbols": 2}, "max_symbols .*search=greedy"),
    "weights of CTC": ({"search": "modified-beam", "ctc_weight": 0.5}, "ctc_weight .*search=rescoring"),
    "no temperature": ({"search": "modified-beam", "temperature": 0}, "temperature must be"),
    "no symbols": ({"max_symbols": 0}, "max_symbols must be 1 to 10, got 0"),
    "too many symbols": ({"max_symbols": 11}, "max_symbols must be 1 to 10"),
    "too many contexts": ({"search": "fast-beam", "max_contexts": 65}, "max_contexts must be 1 to 64"),
    "a number in words": ({"search": "fast-beam", "max_contexts": "many"}, "max_contexts: expected a number"),
    "no language model": ({"search": "fast-beam", "lm_weight": 0.5}, "no language model"),
    "no such token": ({"search": "modified-beam", "hotwords": "Ä:5"}, "Ä"),
}


@pytest.mark.parametrize(("asked", "told"), REFUSED.values(), ids=REFUSED)
def test_what_a_transducer_cannot_do_is_refused_before_anything_is_computed(
    offline: OfflinePipeline, streaming: StreamingPipeline, asked: Mapping[str, Any], told: str
) -> None:
    for searching in (offline.searching, streaming.searching):
        with pytest.raises(InputError, match=told):
            searching.check(searching.options.changed(asked))


def test_beams_are_as_usual_for_the_search_unless_asked_for() -> None:
    modified, fast = SearchOptions(mode="modified-beam", beam=9), SearchOptions(mode="fast-beam", nbest=30)
    for options, asked, beam, nbest in (
        (SearchOptions(), {"search": "modified-beam"}, 4, 1),
        (SearchOptions(), {"search": "fast-beam"}, 20, 1),
        (SearchOptions(), {"search": "modified-beam", "nbest": 6}, 6, 6),
        (SearchOptions(mode="prefix-beam", beam=7, nbest=3), {"beam": 0}, 10, 3),
        (modified, {"timestamps": False}, 9, 1),
        (modified, {"search": "prefix-beam"}, 9, 1),
        (modified, {"search": "fast-beam"}, 20, 1),  # whose beam is no number of hypotheses
        (fast, {"beam": 5}, 5, 30),
        (fast, {"search": "modified-beam"}, 30, 30),
        (fast, {"search": "modified-beam", "beam": 8}, 8, 8),
        (fast, {"nbest": 40}, 20, 40),
    ):
        changed = options.changed(asked)
        assert (changed.beam, changed.nbest) == (beam, nbest), (options, asked)


def test_greedy_search_on_a_gpu_makes_fewer_and_larger_calls_and_says_the_same(bundle: Bundle) -> None:
    calls: dict[str, list[int]] = {"cpu": [], "cuda:0": []}
    found = []
    for device, rows in calls.items():
        network = GraphNetwork(bundle)  # on the CPU in any case
        join = network.join

        def counted(encoder_out: Any, predictor_out: Any, rows: list[int] = rows, join: Any = join) -> Any:
            rows.append(len(encoder_out))
            return join(encoder_out, predictor_out)

        network.join = counted  # type: ignore[method-assign]
        searching = TransducerSearching(bundle, network, device=device)
        frames = np.full((2, 90, SIZE + 1), NEVER, np.float32)
        frames[:, :, 0] = 0.0
        frames[:, 29::30, 5] = 1.0
        results = {"encoder_out": frames, "num_frames": np.array([90, 60])}
        found.append(searching.search(results, [searching.options] * 2))
    assert found[0] == found[1]
    assert [len(each.tokens) for (each,) in found[0]] == [3, 2]
    assert len(calls["cuda:0"]) < len(calls["cpu"])
    assert max(calls["cuda:0"]) > max(calls["cpu"])


def test_what_a_ctc_model_cannot_do_is_refused(toy_bundle: Path) -> None:
    searching = open_offline(Bundle.open(toy_bundle), placement=Placement(threads=1)).searching
    for asked in ({"search": "modified-beam"}, {"search": "fast-beam"}):
        with pytest.raises(InputError, match="kind ctc, which searches with greedy, prefix-beam, rescoring"):
            searching.check(searching.options.changed(asked))
    with pytest.raises(InputError, match="blank_penalty is for models of kind transducer, and this one is of kind ctc"):
        searching.check(searching.options.changed({"blank_penalty": 1.0}))
    with pytest.raises(InputError, match="max_symbols is for models of kind transducer"):
        tritone.load(toy_bundle, max_symbols=3).transcribe([toy_waveform("a")])
    with pytest.raises(BundleError, match="kind ctc"):
        tritone.load(toy_bundle, search="fast-beam").transcribe([toy_waveform("a")])


def test_load_has_all_options_of_the_search(bundle: Bundle) -> None:
    assert tritone.load(bundle.path).offline.searching.options.mode == PARAMETERS["search"].default
    asked = {"blank_penalty": 2, "max_states": 9, "max_contexts": 3, "temperature": 1.5}
    recognizer = tritone.load(bundle.path, search="fast-beam", **asked)
    searched = replace(SearchOptions(mode="fast-beam"), **asked, lm_weight=0.0, max_symbols=1)
    assert recognizer.offline.searching.options == searched
    assert recognizer.transcribe([transducer_waveform("a~k")])[0].text == "aek"
    assert tritone.load(bundle.path, max_symbols=2).transcribe([transducer_waveform("a")])[0].text == "aa"


def test_with_a_language_model_fast_beam_says_its_words_alone_and_modified_beam_weighs_them(
    bundle: Bundle, tmp_path: Path
) -> None:
    words = {"aek": -1.0, "k": -3.0, "<unk>": -1.0, "<s>": -99.0, "</s>": -1.0}
    unigrams = [f"{log_prob}\t{word}" for word, log_prob in words.items()]
    lm = tmp_path / "words.arpa"
    lm.write_text(
        "\n".join(["\\data\\", f"ngram 1={len(words)}", "", "\\1-grams:", *unigrams, "", "\\end\\", ""]),
        encoding="utf-8",
    )
    said = {}
    for mode in ("modified-beam", "fast-beam"):
        for weight in (0.0, 0.01, 0.3):
            recognizer = tritone.load(bundle.path, search=mode, lm=lm, lm_unit="word", lm_weight=weight)
            found = recognizer.transcribe([transducer_waveform("a~k"), transducer_waveform("aek k")])
            with recognizer.stream() as stream:
                stream.accept(transducer_waveform("a~k"))
                assert stream.finish().text == found[0].text
            said[mode, weight] = [each.text for each in found]
    assert said["modified-beam", 0.0] == said["fast-beam", 0.0] == ["ak", "aek k"]
    assert said["modified-beam", 0.01] == ["ak", "aek k"]
    assert said["modified-beam", 0.3] == ["aek", "aek k"]
    assert said["fast-beam", 0.01] == said["fast-beam", 0.3] == ["aek", "aek k"]


@pytest.mark.parametrize("mode", MODES)
def test_a_pipeline_that_warms_up_has_everything_compiled(bundle: Bundle, mode: str) -> None:
    settings = SearchSettings(options=WAYS[mode])
    open_offline(bundle, placement=Placement(threads=1), search=settings).warm_up()
    pipeline = open_streaming(bundle, placement=Placement(threads=1), search=settings, capacity=2)
    pipeline.warm_up()
    assert pipeline.num_open == 0
    compile_search("transducer", mode)
    assert kind_named("transducer").compiler(mode)


def test_a_bundle_that_lacks_a_part_is_told_when_it_is_opened(bundle: Bundle, tmp_path: Path) -> None:
    for role in ("predictor", "joiner"):
        path = shutil.copytree(bundle.path, tmp_path / role)
        (path / f"{role}.onnx").unlink()
        with pytest.raises(BundleError, match=f"{role}.onnx"):
            tritone.load(path)


def test_the_toy_has_no_letter_that_asks(bundle: Bundle) -> None:
    """The tests above count on it: what frames ask for and what tokens are do not overlap."""
    assert [TOKENS[token] for token in (1, SIZE - 1)] == ["<unk>", "<sos/eos>"]
    assert bundle.manifest.vocabulary.unk_id == 1
