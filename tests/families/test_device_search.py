"""Searches that a GPU would do: the same operators on the CPU find what the searches of the CPU find, in pipelines.

On a GPU the same tests compare it with the CPU.
"""

import string
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from families.conftest import babble, export
from families.icefall_models import CONFORMER, PREDICTOR, STREAMED, export_files, write_files
from toy import TOKENS
from toy_lstm import write_toy_lstm
from tritone.bundle.bundle import Bundle
from tritone.families.export.report import ExportReport
from tritone.families.icefall.model import IcefallConfig
from tritone.paths import CACHE
from tritone.pipelines import Step, open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.searching.ctc import GREEDY_BLOCK
from tritone.pipelines.searching.decoder_sizes import DecoderSize
from tritone.pipelines.searching.transducer import HELD_OUT, DeviceBeamSearch, ModifiedBeamSearch
from tritone.runtime.graph import Bucket
from tritone.runtime.torch.graph import TorchGraph
from tritone.search.device import bonuses
from tritone.search.options import SearchOptions
from tritone.search.transducer.device_beam import MAX_DEVICE_BEAM
from tritone.transcript import Transcript

LENGTHS = (9000, 20000, 1200, 15321, 30000, 500, 16000)
HOTWORDS = (("ab", 2.0),)
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-1 <unk>\n-1 <s>\n-1 </s>\n-1 ab\n\n\\end\\\n"
CTC = [
    SearchOptions(),
    SearchOptions(mode="prefix-beam", nbest=3),
    SearchOptions(mode="rescoring", beam=5, nbest=3),
    SearchOptions(mode="prefix-beam", beam=12, hotwords=HOTWORDS),
]
TRANSDUCER = [
    SearchOptions(),
    SearchOptions(blank_penalty=2.0, max_symbols=3),
    SearchOptions(mode="modified-beam", nbest=4),
    SearchOptions(mode="modified-beam", beam=6, blank_penalty=1.0, temperature=2.0),
    SearchOptions(mode="modified-beam", hotwords=HOTWORDS),
    SearchOptions(mode="fast-beam"),
]
STATEFUL = [
    SearchOptions(),
    SearchOptions(blank_penalty=2.0, max_symbols=1),
    SearchOptions(blank_penalty=-1.0, max_symbols=5),
    SearchOptions(mode="modified-beam", nbest=3),
    SearchOptions(mode="modified-beam", beam=6, blank_penalty=1.0, temperature=2.0, nbest=3),
    SearchOptions(mode="modified-beam", hotwords=HOTWORDS),
    SearchOptions(mode="modified-beam", beam=20, hotwords=HOTWORDS),  # wider than a device's
]
DEVICE = Placement(device="cuda" if torch.cuda.is_available() else "cpu", threads=1)


@pytest.fixture(scope="module")
def ctc(complete_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A CTC model with an attention decoder."""
    output = tmp_path_factory.mktemp("ctc") / "bundle"
    options: dict[str, Any] = {"runtimes": ("torch",), "force": True}
    return Bundle.open(export(complete_files, output, decoder=True, streaming=True, **options))


@pytest.fixture(scope="module")
def transducer(icefall_reports: Mapping[str, ExportReport]) -> Bundle:
    return icefall_reports["torch"].bundle


@pytest.fixture(scope="module")
def streamed_transducer(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("transducer")
    files = write_files(folder / "files", IcefallConfig(encoder=CONFORMER, predictor=PREDICTOR))
    return export_files(files, folder / "bundle", runtimes=("torch",), **STREAMED).bundle


@pytest.fixture(scope="module")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A TDT model, whose predictor is an LSTM."""
    return Bundle.open(write_toy_lstm(tmp_path_factory.mktemp("stateful") / "bundle", (0, 1, 2, 4)))


@pytest.fixture
def as_on_gpu() -> Iterator[None]:
    """Graphs on the CPU say that they are on a GPU; where there is one, nothing needs to."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(TorchGraph, "is_on_gpu", True)
        yield


def alike(found: Transcript, expected: Transcript) -> None:
    """The same tokens at the same times, with about the same scores."""
    assert found.text == expected.text
    assert [(each.text, each.start_s, each.end_s) for each in found.tokens] == [
        (each.text, each.start_s, each.end_s) for each in expected.tokens
    ]
    assert [each.confidence for each in found.tokens] == pytest.approx(
        [each.confidence for each in expected.tokens], abs=2e-3
    )
    assert [each.text for each in found.alternatives] == [each.text for each in expected.alternatives]
    assert [each.score for each in found.alternatives] == pytest.approx(
        [each.score for each in expected.alternatives], abs=2e-2
    )


def jobs(ways: list[SearchOptions]) -> tuple[list[Any], list[SearchOptions]]:
    """Every way with every length, mixed."""
    pairs = [(babble(length, seed=length), way) for length in LENGTHS for way in ways]
    return [waveform for waveform, _ in pairs], [way for _, way in pairs]


EXPORTS = pytest.mark.slow  # what the other tests have no use for is exported first


@pytest.mark.parametrize(
    ("model", "ways", "output"),
    [
        pytest.param("ctc", CTC, GREEDY_BLOCK, marks=EXPORTS),
        pytest.param("transducer", TRANSDUCER, HELD_OUT, marks=EXPORTS),
        ("stateful", STATEFUL, HELD_OUT),
    ],
)
def test_whole_utterances_are_searched_as_on_the_cpu(
    model: str, ways: list[SearchOptions], output: str, request: pytest.FixtureRequest
) -> None:
    bundle, (waveforms, options) = request.getfixturevalue(model), jobs(ways)
    expected = open_offline(bundle, placement=Placement(threads=1)).recognize(waveforms, options)
    assert sum(bool(each.text) for each in expected) > len(waveforms) // 2
    request.getfixturevalue("as_on_gpu")
    pipeline = open_offline(bundle, placement=DEVICE)
    assert output in pipeline.searching.outputs([SearchOptions()])
    for _ in range(3 if torch.cuda.is_available() else 1):  # launched operator by operator, then recorded
        for found, wanted in zip(pipeline.recognize(waveforms, options), expected, strict=True):
            alike(found, wanted)


@EXPORTS
def test_the_decoder_is_compiled_for_the_frames_of_the_network(
    ctc: Bundle, as_on_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[Any]] = {}
    monkeypatch.setattr(
        TorchGraph, "compile_shapes", lambda self, shapes, outputs, **_: asked.update({self.path.name: shapes})
    )
    search = SearchSettings(options=SearchOptions(mode="rescoring", beam=6))
    pipeline = open_offline(ctc, placement=DEVICE, search=search)
    pipeline.compile([Bucket(64, 32000), Bucket(16, 32000), Bucket(4, 16000)])
    (waveforms,), (decoded,) = ([asked[name] for name in asked if role in name] for role in ("encoder", "decoder"))
    assert [each["waveform"] for each in waveforms] == [(4, 16000), (64, 32000)]
    seen: list[Any] = []
    held = pipeline.runner.compute(pipeline.runner.filled([babble(30000, seed=1)], 32000).inputs, (HELD_OUT,))[HELD_OUT]
    assert [each["encoder_out"][:2] for each in decoded] == [(32, held.shape[1])] * len(decoded)
    assert [each["hypotheses"] for each in decoded] == [(32, 6, 15), (32, 6, 31)]  # 8 to 19 tokens in two seconds
    # What is compiled is called when the model starts, and then by its users.
    rescorer: Any = pipeline.searching._rescorer  # type: ignore[attr-defined]
    graph = rescorer._graph
    monkeypatch.setattr(rescorer, "_compiled", [DecoderSize.of(each) for each in decoded])
    monkeypatch.setattr(rescorer, "_graph", Watched(graph, seen))
    rescorer.warm_up(ctc.manifest.encoder.output_dim, search.options)
    assert seen[0] == (32, 6, 15)
    seen.clear()
    pipeline.recognize([babble(30000, seed=seed) for seed in range(24)])
    assert {shape[1] for shape in seen} == {6}


class Watched:
    """A graph whose calls are noted: the shapes of their hypotheses."""

    def __init__(self, graph: Any, seen: list[Any]) -> None:
        self._graph, self._seen = graph, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def __call__(self, inputs: Mapping[str, Any], outputs: Any) -> Any:
        self._seen.append(inputs["hypotheses"].shape)
        return self._graph(inputs, outputs)


@pytest.mark.parametrize(
    ("model", "ways"),
    [
        pytest.param("ctc", CTC, marks=EXPORTS),
        pytest.param("streamed_transducer", TRANSDUCER, marks=EXPORTS),
        ("stateful", STATEFUL),
    ],
)
def test_streams_are_searched_as_on_the_cpu(
    model: str, ways: list[SearchOptions], request: pytest.FixtureRequest
) -> None:
    bundle = request.getfixturevalue(model)
    expected = played(bundle, Placement(threads=1), ways)
    request.getfixturevalue("as_on_gpu")
    for found, wanted in zip(played(bundle, DEVICE, ways), expected, strict=True):
        alike(found, wanted)


def test_beams_that_a_device_has_no_place_for_are_searched_on_the_cpu(
    stateful: Bundle, as_on_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lm.arpa").write_text(ARPA, encoding="utf-8")
    search = SearchSettings(lm=tmp_path / "lm.arpa")
    searching: Any = open_offline(stateful, placement=DEVICE, search=search).searching
    beams = SearchOptions(mode="modified-beam", lm_weight=0.0)
    ways = {
        "alone": beams,
        "hotwords": replace(beams, hotwords=HOTWORDS),
        "many hotwords": replace(beams, hotwords=tuple((f"a{letter}", 1.0) for letter in string.ascii_lowercase)),
        "wide": replace(beams, beam=MAX_DEVICE_BEAM + 1),
        "language model": replace(beams, lm_weight=0.5),
    }
    nodes = {name: len(searching._scorer(ways[name]).automaton.trie.symbol) for name in ("hotwords", "many hotwords")}
    monkeypatch.setattr(bonuses, "LIST_ENTRIES", nodes["hotwords"] * len(TOKENS))
    held = {name for name, way in ways.items() if searching.outputs([searching.check(way)])[0] == HELD_OUT}
    assert held == {"alone", "hotwords"}
    assert {name for name, way in ways.items() if isinstance(searching.start(way), DeviceBeamSearch)} == held
    # All room for hotwords is taken.
    monkeypatch.setattr(bonuses, "MOST_ENTRIES", 2 * len(TOKENS))
    full: Any = open_offline(stateful, placement=DEVICE).searching
    assert isinstance(full.start(full.check(beams)), DeviceBeamSearch)
    assert isinstance(full.start(full.check(ways["hotwords"])), ModifiedBeamSearch)


def played(bundle: Bundle, placement: Placement, ways: list[SearchOptions]) -> list[Transcript]:
    """All transcripts of streams that advance together, partial and final."""
    pipeline = open_streaming(bundle, placement=placement)
    slots = [pipeline.open(way) for way in ways]
    audio = babble(40000, seed=3)
    found = []
    for start in range(0, len(audio), 10000):
        final = start + 10000 >= len(audio)
        found += pipeline.advance([Step(slot, audio[start : start + 10000], final) for slot in slots])
    return found


@pytest.mark.gpu
def test_predictors_with_a_state_are_compiled_and_find_the_same(
    stateful: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    waveforms, options = jobs([SearchOptions(), SearchOptions(mode="modified-beam")])
    expected = open_offline(stateful, placement=Placement(threads=1)).recognize(waveforms, options)
    pipeline = open_offline(stateful, placement=DEVICE)
    before = pipeline.recognize(waveforms, options)
    pipeline.searching.compile_steps(len(waveforms), lambda call: None)
    for found in (before, pipeline.recognize(waveforms, options), pipeline.recognize(waveforms, options)):
        for one, other in zip(found, expected, strict=True):
            alike(one, other)


@pytest.mark.parametrize(
    ("options", "each"), [(SearchOptions(), (1, 8)), (SearchOptions(mode="modified-beam"), (4, 4))]
)
def test_steps_of_predictors_with_a_state_are_compiled_for_all_rows_and_frames_or_hypotheses_at_once(
    options: SearchOptions, each: tuple[int, int], stateful: Bundle, as_on_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        TorchGraph, "compile_shapes", lambda graph, shapes, outputs, *, done: asked.append((*shapes, tuple(outputs)))
    )
    pipeline = open_offline(stateful, placement=DEVICE, search=SearchSettings(options=options))
    waveforms, asks = jobs([options])
    before = [each.text for each in pipeline.recognize(waveforms, asks)]
    pipeline.searching.compile([Bucket(1, 16000), Bucket(5, 9000)], lambda samples: {}, lambda call: None)
    (predictor, stepped), (joiner, joined) = asked
    rows, joins = (8 * count for count in each)
    assert {name: shape[0] for name, shape in predictor.items()} == dict.fromkeys(("context", "hidden", "cell"), rows)
    assert {name: shape[0] for name, shape in joiner.items()} == {"encoder_out": joins, "predictor_out": joins}
    assert (stepped, joined) == (("predictor_out", "next_hidden", "next_cell"), ("logits",))
    assert [each.text for each in pipeline.recognize(waveforms, asks)] == before
