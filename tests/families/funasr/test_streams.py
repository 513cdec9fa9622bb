"""Paraformers for streams from FunASR's folder: upstream's tokens step by step, however audio is cut; refusals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritone
from effort import runtimes
from families import funasr_models
from families.funasr import upstream
from serving import quiet_options
from tritone.bundle import Bundle
from tritone.bundle.vocabulary import Vocabulary
from tritone.client import Client
from tritone.errors import ExportError, InputError
from tritone.families.funasr.config import parse_config
from tritone.families.funasr.export import export_funasr
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.streaming import StreamingPipeline
from tritone.pipelines.streams import Step
from tritone.prepare.precision import choose
from tritone.repository import build_repository
from tritone.search.endpoint import EndpointRules
from tritone.search.options import SearchOptions
from tritone.server import TritonServer
from tritone.transcript import Transcript

GOLDEN = np.load(upstream.PATH)
SIGNALS = upstream.stream_signals()
TOKENS = funasr_models.PARAFORMER_TOKENS
SILENT = (0, 1, 2)


def exported(folder: Path, number: int, **options: Any) -> Bundle:
    """The bundle of one of upstream's sizes."""
    chunk, ahead, left, decoder_left, factor = upstream.STREAMS[number]
    model = funasr_models.write_paraformer(folder / "model", funasr_models.stream_content(factor))
    return export_funasr(
        folder=model,
        output=folder / "bundle",
        chunk_size=chunk,
        right_context=ahead,
        left_chunks=left,
        decoder_left_chunks=decoder_left,
        **options,
    ).bundle


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    """Of each size, checked and with a program of torch the first."""
    more: list[dict[str, Any]] = [{"runtimes": runtimes()}, {"check": False}, {"check": False}]
    return [exported(tmp_path_factory.mktemp("streams"), number, **options) for number, options in enumerate(more)]


def decoded(pipeline: StreamingPipeline, signals: Sequence[Any], pieces: Sequence[int]) -> list[Transcript]:
    """The final transcripts of streams side by side, each in pieces of so many samples."""
    slots = [pipeline.open() for _ in signals]
    places, final = [0] * len(signals), {}
    while len(final) < len(signals):
        steps, ending = [], []
        for index, (slot, signal, piece) in enumerate(zip(slots, signals, pieces, strict=True)):
            if index in final:
                continue
            start, places[index] = places[index], places[index] + piece
            if places[index] >= len(signal):
                ending.append(index)
            steps.append(Step(slot, signal[start : start + piece], final=places[index] >= len(signal)))
        answers = dict(zip((step.slot for step in steps), pipeline.advance(steps), strict=True))
        final |= {index: answers[slots[index]] for index in ending}
    return [final[index] for index in range(len(signals))]


@pytest.mark.parametrize("number", range(len(upstream.STREAMS)))
def test_tokens_and_probabilities_are_upstreams_however_audio_is_cut(bundles: list[Bundle], number: int) -> None:
    pipeline = StreamingPipeline(bundles[number])
    count = 0
    for pieces in ([700, 100000, 9600, 3333, 9599, 16000], [160000] * len(SIGNALS)):
        for index, found in enumerate(decoded(pipeline, SIGNALS, pieces)):
            expected = GOLDEN[f"stream_{number}_{index}"]
            ids = expected.argmax(axis=1)
            kept = ~np.isin(ids, SILENT)
            assert [token.text for token in found.tokens] == [TOKENS[id] for id in ids[kept]]
            np.testing.assert_allclose(
                [token.confidence for token in found.tokens], np.exp(expected.max(axis=1))[kept], atol=1e-4
            )
            assert found.text == Vocabulary(TOKENS, bundles[number].manifest.tokens).text(ids[kept].tolist())
            starts, ends = zip(*((token.start_s, token.end_s) for token in found.tokens), strict=True)
            assert sorted(starts) == list(starts)
            assert all(end <= start + 1e-9 for end, start in zip(ends, starts[1:], strict=False))
            assert ends[-1] <= len(SIGNALS[index]) / 16000 + 0.06
            count += len(found.tokens)
    assert count > 30


def test_partial_texts_grow_and_are_there_with_the_step_that_wrote_them(bundles: list[Bundle]) -> None:
    pipeline = StreamingPipeline(bundles[0])
    slot, counts, texts = pipeline.open(), GOLDEN["stream_counts_0_0"], [""]
    for place in range(6):
        [partial] = pipeline.advance([Step(slot, SIGNALS[0][place * 9600 : (place + 1) * 9600])])
        ids = GOLDEN["stream_0_0"][: counts[: place + 1].sum()].argmax(axis=1)
        assert [token.text for token in partial.tokens] == [TOKENS[id] for id in ids if id not in SILENT]
        assert not partial.is_final
        assert partial.text.startswith(texts[-1])
        texts.append(partial.text)
    assert len(set(texts)) > 4
    [final] = pipeline.advance([Step(slot, SIGNALS[0][57600:], final=True)])
    assert final.is_final
    assert final.text.startswith(texts[-1])


def assert_alike(pipeline: StreamingPipeline, expected: Sequence[Transcript], atol: float) -> None:
    for found, wanted in zip(decoded(pipeline, SIGNALS, [9600] * len(SIGNALS)), expected, strict=True):
        assert found.text == wanted.text
        found_ones, wanted_ones = ([token.confidence for token in each.tokens] for each in (found, wanted))
        np.testing.assert_allclose(found_ones, wanted_ones, atol=atol)


@pytest.mark.slow
def test_a_program_of_torch_writes_the_same(bundles: list[Bundle]) -> None:
    expected = decoded(StreamingPipeline(bundles[0]), SIGNALS, [9600] * len(SIGNALS))
    assert_alike(StreamingPipeline(bundles[0], placement=Placement(runtime="torch")), expected, 1e-4)


@pytest.mark.slow  # three exports
def test_halves_write_the_same_and_what_is_faster_is_timed_on_a_stream(bundles: list[Bundle], tmp_path: Path) -> None:
    bundle = exported(tmp_path, 0, runtimes=("torch", "onnxruntime"), precisions=("fp32", "fp16", "int8"), force=True)
    assert "a clip takes" in choose(bundle, None, 0.05).why
    expected = decoded(StreamingPipeline(bundles[0]), SIGNALS, [9600] * len(SIGNALS))
    for runtime in ("torch", "onnxruntime"):
        assert_alike(StreamingPipeline(bundle, placement=Placement(runtime=runtime, precision="fp16")), expected, 0.02)


def test_streams_too_short_for_a_frame_have_no_text_and_slots_are_clean(bundles: list[Bundle]) -> None:
    pipeline = StreamingPipeline(bundles[0], capacity=1)
    [expected] = decoded(pipeline, SIGNALS[4:5], [5000])
    for samples in (0, 399):
        assert decoded(pipeline, [SIGNALS[0][:samples]], [1000])[0].text == ""
    assert decoded(pipeline, SIGNALS[4:5], [19500]) == [expected]


def test_segments_of_a_stream_have_its_tokens_at_their_times(bundles: list[Bundle]) -> None:
    [expected] = decoded(StreamingPipeline(bundles[0]), SIGNALS[:1], [9600])
    pipeline = StreamingPipeline(bundles[0], endpoints=EndpointRules(max_segment_s=1.0))
    slot, ended = pipeline.open(), []
    for start in range(0, len(SIGNALS[0]), 4800):
        final = start + 4800 >= len(SIGNALS[0])
        [answer] = pipeline.advance([Step(slot, SIGNALS[0][start : start + 4800], final=final)])
        ended += answer.ended
    segments = [*ended, answer]
    assert len(segments) > 2
    found = [(token.text, token.start_s) for each in segments for token in each.tokens]
    assert [text for text, _ in found] == [token.text for token in expected.tokens]
    np.testing.assert_allclose([at for _, at in found], [token.start_s for token in expected.tokens], atol=0.061)


@pytest.mark.slow  # a server
def test_a_server_has_the_same_partial_and_final_texts(bundles: list[Bundle], tmp_path: Path) -> None:
    expected = decoded(StreamingPipeline(bundles[0]), SIGNALS, [9600] * len(SIGNALS))
    build_repository([bundles[0].path], tmp_path / "repository")
    with TritonServer(tmp_path / "repository", quiet_options()) as server, Client(server.grpc_address) as client:
        streams = [client.stream(chunk_ms=170 + 90 * index) for index in range(len(SIGNALS))]
        for stream, signal in zip(streams, SIGNALS, strict=True):
            stream.accept(signal[:30000])
        for stream, signal, wanted in zip(streams, SIGNALS, expected, strict=True):
            assert wanted.text.startswith(stream.accept(signal[30000:]).text)
            assert stream.finish().text == wanted.text


def test_a_bundle_of_streams_alone_is_loaded_and_searched_greedily(bundles: list[Bundle]) -> None:
    [expected] = decoded(StreamingPipeline(bundles[0]), SIGNALS[:1], [9600])
    with tritone.load(bundles[0].path).stream() as stream:
        stream.accept(SIGNALS[0])
        assert stream.finish().text == expected.text
    with pytest.raises(InputError, match="kind paraformer, which searches with greedy"):
        StreamingPipeline(bundles[0]).open(SearchOptions(mode="prefix-beam"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decoder_conf": {"sanm_shfit": 0}}, "must not look at tokens to come"),
        ({"decoder_conf": {"num_blocks": 3}}, "att_layer_num should be num_blocks"),
        ({"frontend_conf": {"lfr_n": 1}}, "lfr_m: 7 and lfr_n: 6, alone"),
        ({"frontend_conf": {"fs": 8000}}, "at 16000 Hz"),
        ({"encoder_conf": {"input_layer": "pe"}}, "input_layer is 'pe'"),
    ],
)
def test_settings_that_cannot_be_had_in_streams_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(funasr_models.stream_content(**changes))


def test_sizes_that_no_stream_can_have_are_refused(tmp_path: Path) -> None:
    model = funasr_models.write_paraformer(tmp_path / "model", funasr_models.stream_content())
    with pytest.raises(ExportError, match="right_context is 5 frames, more than chunk_size 4"):
        export_funasr(folder=model, output=tmp_path / "b", chunk_size=4, right_context=5)
    whole = funasr_models.write_paraformer(tmp_path / "whole")
    with pytest.raises(ExportError, match="left_chunks is of ParaformerStreaming, and this is Paraformer"):
        export_funasr(folder=whole, output=tmp_path / "b", left_chunks=4)
