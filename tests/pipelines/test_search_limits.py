"""What a search may cost, and what one that cannot be done does to others: nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import toy
from tritone.bundle import Bundle
from tritone.errors import InputError, OperatorError
from tritone.pipelines import open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.recognizer import Recognizer
from tritone.pipelines.searching import rescoring
from tritone.pipelines.searching.decoder_sizes import DecoderSize
from tritone.pipelines.searching.rescoring import Candidate, Rescorer
from tritone.search.hotwords import load_hotwords
from tritone.search.hypothesis import Hypothesis, Token
from tritone.search.options import SearchOptions

RESCORING = SearchOptions(mode="rescoring", beam=8, nbest=8)
BAD_HOTWORD = SearchOptions(mode="prefix-beam", hotwords=(("你好", 3.0),))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(toy.write_toy_bundle(tmp_path_factory.mktemp("toy") / "decoding", decoder=True))


def candidate(texts: list[str], frames: int) -> Candidate:
    """Hypotheses of these texts."""
    hypotheses = [
        Hypothesis([Token(toy.TOKENS.index(letter), 0, 1, 1.0) for letter in text], -float(place))
        for place, text in enumerate(texts)
    ]
    return Candidate(np.zeros((frames, 1), np.float32), hypotheses, RESCORING)


@pytest.mark.parametrize(("logits", "scores"), [(1, 2**25), (2**25, 1), (500, 2**25), (2**25, 90), (2000, 200)])
def test_many_or_long_hypotheses_are_rescored_in_parts_with_the_same_result(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, logits: int, scores: int
) -> None:
    candidates = [
        candidate(["abc", "b", "", "dddd", "bb"], frames=9),
        candidate([], frames=3),
        candidate(["c"], frames=4),
        candidate(["dc", "abcabc"], frames=12),
    ]
    rescorer = Rescorer(bundle, placement=Placement(threads=1))
    whole = rescorer(candidates)
    monkeypatch.setattr(rescoring, "MAX_LOGITS", logits)
    monkeypatch.setattr(rescoring, "MAX_SCORES", scores)
    calls = []
    graph = rescorer._graph

    def call(inputs, wanted):
        batch, n, length = inputs["hypotheses"].shape
        calls.append((batch * n, length + 1, inputs["encoder_out"].shape[1]))
        return graph(inputs, wanted)

    monkeypatch.setattr(rescorer, "_graph", call)
    assert rescorer(candidates) == whole
    assert len(calls) > 1
    for hypotheses, tokens, frames in calls:
        within = hypotheses * tokens * len(toy.TOKENS) <= logits and hypotheses * tokens * max(frames, tokens) <= scores
        assert within or hypotheses == 1


def test_on_a_gpu_calls_have_few_sizes_and_the_same_result(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = [
        candidate(["abc", "b", "", "dddd", "bb"], frames=9),
        candidate([], frames=3),
        candidate(["c"], frames=4),
        candidate(["dc", "abcabc" * 4], frames=12),
        candidate(["abcd"], frames=20),
    ]
    rescorer = Rescorer(bundle, placement=Placement(threads=1))
    expected = rescorer(candidates)
    graph, calls = rescorer._graph, []

    def call(inputs, wanted):
        calls.append(DecoderSize.of({name: each.shape for name, each in inputs.items()}))
        return graph(inputs, wanted)

    monkeypatch.setattr(rescorer, "_graph", call)
    monkeypatch.setattr(rescorer, "_is_on_gpu", True)
    assert rescorer(candidates) == expected
    assert calls == [DecoderSize(4, 32, 5, 32)]
    calls.clear()
    monkeypatch.setattr(rescorer, "_compiled", [DecoderSize(4, 64, 8, 32)])
    assert rescorer(candidates) == expected
    assert calls == [DecoderSize(4, 64, 8, 32)]


def test_a_graph_that_is_not_compiled_says_so(bundle: Bundle) -> None:
    with pytest.raises(OperatorError, match="decoders of runtime onnxruntime are not compiled; those of torch are"):
        Rescorer(bundle, placement=Placement(threads=1)).compile([], RESCORING, 1)


def test_a_stream_that_cannot_be_searched_as_asked_takes_no_slot(bundle: Bundle) -> None:
    pipeline = open_streaming(bundle, placement=Placement(threads=1), capacity=2)
    for _ in range(3):
        with pytest.raises(InputError, match="no token of this model writes '你'"):
            pipeline.open(BAD_HOTWORD)
    assert pipeline.num_open == 0
    assert {pipeline.open(), pipeline.open(RESCORING)} == {0, 1}


def test_options_are_refused_before_anything_is_computed(bundle: Bundle) -> None:
    pipeline = open_offline(bundle, placement=Placement(threads=1))
    with pytest.raises(InputError, match="cannot occur"):
        pipeline.searching.check(BAD_HOTWORD)
    with pytest.raises(InputError, match="no language model, so it cannot take word_bonus"):
        pipeline.searching.check(SearchOptions(mode="prefix-beam", word_bonus=1.0))


def test_a_decoder_that_cannot_be_opened_is_told_when_it_is_asked_for(tmp_path: Path) -> None:
    path = toy.write_toy_bundle(tmp_path / "toy", decoder=True)
    (path / "decoder.onnx").write_bytes(b"no graph")
    pipeline = open_streaming(Bundle.open(path), placement=Placement(threads=1), capacity=2)
    with pytest.raises(Exception, match="decoder"):
        pipeline.open(replace(RESCORING, beam=2, nbest=1))
    assert pipeline.num_open == 0


@pytest.mark.parametrize(
    ("reverse", "ctc", "left", "right", "log_probs", "expected"),
    [
        (0.0, 0.0, [-1.0, -2.0], [-np.inf, 0.0], [-np.inf, -1.0], [-1.0, -2.0]),
        (1.0, 0.0, [-np.inf, 0.0], [-1.0, -2.0], [-np.inf, -1.0], [-1.0, -2.0]),
        (0.5, 2.0, [-1.0, -2.0], [-1.0, -2.0], [-np.inf, -1.0], [-4.0, -np.inf]),
    ],
)
def test_a_weight_of_zero_leaves_out_scores_that_are_not_finite(
    bundle: Bundle, reverse: float, ctc: float, left: list, right: list, log_probs: list, expected: list
) -> None:
    options = replace(RESCORING, reverse_weight=reverse, ctc_weight=ctc)
    given = replace(
        candidate(["a", "b"], frames=2), hypotheses=[Hypothesis((), score) for score in log_probs], options=options
    )
    rescorer = Rescorer(bundle, placement=Placement(threads=1))
    scores = {"left_scores": np.array([left], np.float32), "right_scores": np.array([right], np.float32)}
    rescorer._graph = lambda _, wanted: [scores[name] for name in wanted]  # type: ignore[assignment]
    (ranked,) = rescorer([given])
    assert [each.score for each in ranked] == expected


def test_hotwords_with_weights_that_are_no_numbers_are_refused() -> None:
    assert load_hotwords({" anna ": np.float32(2), "bob": 1}) == (("anna", 2.0), ("bob", 1.0))
    for given in ({"anna": "high"}, {"anna": None}, {"anna": 10**400}, '{"anna": 1' + "0" * 400 + "}"):
        with pytest.raises(InputError, match="number"):
            load_hotwords(given)


def test_options_are_refused_before_files_are_read(bundle: Bundle) -> None:
    recognizer = Recognizer(bundle, placement=Placement(threads=1))
    with pytest.raises(InputError, match="cannot occur"):
        recognizer.transcribe(["there is no such file.wav"], search=BAD_HOTWORD)
