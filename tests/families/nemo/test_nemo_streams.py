"""Cache-aware streams: equal to the offline network and to transformers' own steps, however the audio arrives."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tritone
from effort import examples
from families.conftest import babble
from families.hf_models import write_json
from families.nemo_models import LABELS, make_model, small_config, write_archive
from families.parakeet_models import LANGUAGES, export_streams, features_of, random_model, save
from shared import Shared
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, ExportError, InputError
from tritone.families.export.exportable import network_outputs
from tritone.families.export.precision import as_dtype, in_precision
from tritone.families.layers.log_mel import LogMel
from tritone.families.nemo import graphs, streaming
from tritone.families.nemo.config import parse_config
from tritone.families.nemo.export import export_nemo
from tritone.families.nemo.folder import read_folder
from tritone.families.nemo.graphs import OfflineGraph, StreamingGraph
from tritone.families.nemo.model import NemoModel
from tritone.families.nemo.streaming import contexts_of_streams
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.streaming import StreamingPipeline
from tritone.pipelines.streams import Step
from tritone.repository.config import STREAM_BYTES, ModelOptions
from tritone.search.options import SearchOptions

KINDS = ("nemotron_asr_streaming", "nemotron3_5_asr")
CHUNKS = (3, 1)  # of the random models: the contexts [6, 2] and [6, 0]
ALLOWED = 2e-4  # of numbers around 1 to 10, in float32
# Contexts of cache-aware models as NeMo's configs have them.
CAUSAL: dict[str, Any] = {
    "att_context_size": [[4, 1], [6, 2], [5, 0]],
    "att_context_style": "chunked_limited",
    "causal_downsampling": True,
    "conv_context_size": "causal",
}


@pytest.fixture(scope="session")
def folders(shared: Shared) -> Callable[[str], tuple[Path, Any]]:
    """A folder of each kind, and upstream's model of it."""

    def make(kind: str) -> tuple[Path, Any]:
        model = random_model(kind)
        return shared(f"streamed-{kind}", lambda folder: save(folder / "m", kind, model)), model

    return make


@pytest.fixture(scope="session")
def bundle(shared: Shared) -> Path:
    return shared("nemotron-streams", export_streams)


def causal_config(kind: str = "hybrid", **encoder: Any) -> dict[str, Any]:
    content = small_config(kind, **CAUSAL | encoder)
    content["preprocessor"]["normalize"] = "NA"
    return content


@pytest.fixture(scope="session")
def nemo() -> NemoModel:
    """A model of NeMo's with batch norm, no bias, two heads and subsampling by 4."""
    content = causal_config(use_bias=False, subsampling_factor=4, subsampling="striding", xscaling=True)
    reference = make_model(content)
    config = parse_config(content)
    return NemoModel.of(config, len(config.labels), reference.state_dict(), "test")


def graph_of(model: NemoModel, head: Any = "transducer", chunk: int | None = None) -> StreamingGraph:
    contexts = contexts_of_streams(model.config)
    made = StreamingGraph(model, LogMel(model.config.features), head, contexts, chunk or next(iter(contexts)))
    return made.eval().requires_grad_(False)


def windows(graph: StreamingGraph, waveforms: Sequence[np.ndarray], chunk: int) -> list[tuple[Tensor, Tensor]]:
    """The windows of streams that advance together until all are flushed, with the samples that each has of them."""
    window, shift = graph.window_for(chunk), graph.shift_for(chunk)
    longest = max(map(len, waveforms))
    found = []
    for start in range(0, longest + graph.flush_samples, shift):
        block, counts = torch.full((len(waveforms), window), 0.3), []
        for row, waveform in zip(block, waveforms, strict=True):
            piece = np.concatenate([np.zeros(graph.lead_samples, np.float32), waveform])[start : start + window]
            row[: len(piece)] = torch.from_numpy(piece)
            counts.append(len(piece))
        found.append((block, torch.tensor(counts)))
    return found


def streamed(
    graph: StreamingGraph, waveforms: Sequence[np.ndarray], chunk: int, language: Tensor | None = None
) -> list[Tensor]:
    """What streams that share every call give: of each its frames."""
    states = list(graph.zero_states(len(waveforms), graph.contexts[chunk]).values())
    frames: list[list[Tensor]] = [[] for _ in waveforms]
    for block, counts in windows(graph, waveforms, chunk):
        found = dict(
            zip(graph.outputs, graph(block, counts, *([] if language is None else [language]), *states), strict=True)
        )
        states = [found[f"next_{name}"] for name in graph.state_shapes]
        for row, count in enumerate(found["num_frames"].tolist()):
            frames[row].append(found[graph.compared[0]][row, : max(0, count)])
    return [torch.cat(each) for each in frames]


def whole(model: NemoModel, waveform: np.ndarray, chunk: int, head: Any, language: Tensor | None = None) -> Tensor:
    """What the offline graph of the same context says of an utterance alone."""
    graph = OfflineGraph(model, LogMel(model.config.features), head).eval()
    contexts, encoder = contexts_of_streams(model.config), graph.encoder.config
    graph.encoder.config = replace(encoder, contexts=((contexts[chunk], chunk - 1),))
    try:
        samples = torch.from_numpy(waveform)[None], torch.tensor([len(waveform)])
        found = dict(zip(graph.outputs, graph(*samples, language), strict=True))
    finally:
        graph.encoder.config = encoder
    result: Tensor = found[graph.compared[0]][0, : found["num_frames"][0]]
    return result


@settings(max_examples=examples(12))
@given(
    lengths=st.lists(st.integers(320, 30000), min_size=1, max_size=3),
    chunk=st.sampled_from((1, 2, 3)),
    head=st.sampled_from(("transducer", "ctc")),
)
@torch.no_grad()
def test_ragged_streams_have_the_frames_of_the_offline_network_each_alone(
    nemo: NemoModel, lengths: list[int], chunk: int, head: str
) -> None:
    graph = graph_of(nemo, head)
    waveforms = [babble(length, seed=length) for length in lengths]
    for found, waveform in zip(streamed(graph, waveforms, chunk), waveforms, strict=True):
        torch.testing.assert_close(found, whole(nemo, waveform, chunk, head), atol=ALLOWED, rtol=0)


@pytest.mark.parametrize("extra", range(-1, 11))
@torch.no_grad()
def test_streams_end_with_the_frame_that_the_offline_network_ends_with(nemo: NemoModel, extra: int) -> None:
    """However many features are left over, and wherever in a chunk the last frame is."""
    graph, waveform = graph_of(nemo), babble(4 * 640 + 160 * extra, seed=1)
    for chunk in graph.contexts:
        (found,) = streamed(graph, [waveform], chunk)
        torch.testing.assert_close(found, whole(nemo, waveform, chunk, "transducer"), atol=ALLOWED, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_each_chunk_has_what_transformers_computes_in_its_own_steps(
    kind: str, folders: Callable[[str], tuple[Path, Any]]
) -> None:
    folder, theirs = folders(kind)
    model, _, _ = read_folder(folder)
    graph, worst = graph_of(model), 0.0
    assert list(graph.contexts) == list(CHUNKS)
    waveform = babble(40000, seed=3)
    features = features_of(kind, waveform)["input_features"]
    prompts = [torch.tensor([LANGUAGES["de"]])] if kind == KINDS[1] else []
    for chunk in CHUNKS:
        begin, end, caches = 0, 8 * (chunk - 1) + 1, {}
        states = list(graph.zero_states(1, graph.contexts[chunk]).values())
        for block, counts in windows(graph, [waveform], chunk):
            if end > features.shape[1]:
                break
            upstream = theirs.get_audio_features(
                features[:, begin:end],
                **({"prompt_ids": prompts[0]} if prompts else {}),
                **caches,
                use_cache=True,
                num_lookahead_tokens=chunk - 1,
            )
            caches = {"cache": upstream.cache, "padding_cache": upstream.padding_cache}
            begin, end = end, end + 8 * chunk
            found = dict(zip(graph.outputs, graph(block, counts, *prompts, *states), strict=True))
            states = [found[f"next_{name}"] for name in graph.state_shapes]
            assert found["num_frames"].tolist() == [chunk]
            worst = max(worst, float((found["encoder_out"] - upstream.pooler_output).abs().max()))
        assert begin > features.shape[1] - 8 * chunk
    assert worst < ALLOWED, worst


def transcribed(
    pipeline: StreamingPipeline, jobs: Sequence[tuple[np.ndarray, SearchOptions, Sequence[int]]]
) -> list[Any]:
    """The final transcripts of streams that advance together; of each its audio, options, and where that is cut."""
    slots = [pipeline.open(options) for _, options, _ in jobs]
    pieces = [np.split(waveform, sorted(min(cut, len(waveform)) for cut in cuts)) for waveform, _, cuts in jobs]
    finals: dict[int, Any] = {}
    for turn in range(max(map(len, pieces))):
        steps = [
            Step(slot, own[turn], final=turn + 1 == len(own))
            for slot, own in zip(slots, pieces, strict=True)
            if turn < len(own)
        ]
        for step, answer in zip(steps, pipeline.advance(steps), strict=True):
            if step.final:
                finals[step.slot] = answer
    return [finals[slot] for slot in slots]


def timed(transcript: Any) -> list[tuple[str, float]]:
    return [(each.text, round(each.start_s, 3)) for each in transcript.tokens]


@settings(max_examples=10)
@given(data=st.data())
def test_streams_of_any_pieces_have_the_tokens_of_the_whole_utterance_in_their_own_language(
    bundle: Path, data: st.DataObject
) -> None:
    offline, pipeline = pipelines(bundle)
    jobs = []
    for seed in range(data.draw(st.integers(1, 3))):
        length = data.draw(st.integers(0, 24000))
        options = SearchOptions(language=data.draw(st.sampled_from(("", *LANGUAGES))))
        cuts = data.draw(st.lists(st.integers(0, 24000), max_size=6))
        jobs.append((babble(length, seed=seed), options, cuts))
    expected = offline.recognize([waveform for waveform, _, _ in jobs], [options for _, options, _ in jobs])
    for found, wanted in zip(transcribed(pipeline, jobs), expected, strict=True):
        assert timed(found) == timed(wanted)


TAGS = {"<de-DE>": ("'", "▁world"), "<en-US>": ("b", "o")}  # in place of which tokens, of the archive and the folder


def tagged_archive(folder: Path) -> Path:
    """An archive some of whose tokens are tags."""
    content = causal_config()
    labels = [next((tag for tag, (label, _) in TAGS.items() if label == each), each) for each in LABELS]
    content["labels"] = content["decoder"]["vocabulary"] = content["joint"]["vocabulary"] = labels
    content["aux_ctc"]["decoder"]["vocabulary"] = labels
    return write_archive(folder / "m.nemo", make_model(content))


def tagged_folder(folder: Path) -> Path:
    """A folder of transformers some of whose pieces are tags."""
    path = save(folder / "m", KINDS[1], random_model(KINDS[1]))
    tokenizer = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    for tag, (_, piece) in TAGS.items():
        tokenizer["model"]["vocab"][tag] = tokenizer["model"]["vocab"].pop(piece)
    write_json(path / "tokenizer.json", tokenizer)
    return path


@pytest.mark.parametrize("tagged", [tagged_folder, pytest.param(tagged_archive, marks=pytest.mark.slow)])
def test_tags_are_the_languages_of_texts_and_no_part_of_them(tagged: Callable[[Path], Path], tmp_path: Path) -> None:
    export_nemo(archive=tagged(tmp_path), output=tmp_path / "b", streaming=True)
    recognizer, languages, several = tritone.load(tmp_path / "b"), set(), 0
    for seed in range(4):
        waveform = babble(20000 + 3000 * seed, seed=seed)
        whole, stream = recognizer.transcribe([waveform])[0].get(), recognizer.stream()
        partial, final = stream.accept(waveform), stream.finish()
        written = [each.text for each in whole.tokens]
        assert [each.text for each in final.tokens] == written
        plain = "".join(each for each in written if each not in TAGS).replace("▁", " ")
        assert " ".join(plain.split()) == whole.text == final.text
        assert whole.text.startswith(partial.text)
        assert "<de" not in partial.text
        assert (whole.language, whole.segments) == (final.language, final.segments)
        named = re.findall("[^▁<>]▁*<([a-z]{2}-[A-Z]{2})>", "".join(each for each in written if each != "<unk>"))
        assert [each.language for each in whole.segments or [whole]] == [each for each, _ in groupby(named or [""])]
        assert whole.to_dict().get("language", "") == whole.language
        if whole.segments:
            assert " ".join(each.text for each in whole.segments).replace(" ", "") == whole.text.replace(" ", "")
        languages.add(whole.language)
        several += len(whole.segments) > 1
    assert several
    assert languages - {""}


def pipelines(bundle: Path, opened: dict[Path, Any] = {}) -> tuple[OfflinePipeline, StreamingPipeline]:  # noqa: B006
    """Opened once for all examples."""
    if bundle not in opened:
        read = Bundle.open(bundle)
        opened[bundle] = OfflinePipeline(read), StreamingPipeline(read, capacity=4)
    found: tuple[OfflinePipeline, StreamingPipeline] = opened[bundle]
    return found


def test_the_chunk_is_chosen_where_a_bundle_is_loaded_among_those_it_was_trained_for(bundle: Path) -> None:
    read = Bundle.open(bundle)
    streaming = read.manifest.streaming
    assert streaming is not None
    assert (streaming.chunk_size, streaming.left_chunks, streaming.trained) == (3, 2, {3: 2, 1: 6})
    waveform = babble(24000, seed=1)
    brief = StreamingPipeline(read, chunk_size=1, capacity=2)
    assert brief.geometry.left_frames == 6
    cuts = ((), (1, 2, 5000), range(160, 24000, 160))
    found = [timed(transcribed(brief, [(waveform, SearchOptions(), each)])[0]) for each in cuts]
    assert found[0] == found[1] == found[2] != []
    assert StreamingPipeline(read, chunk_size=1, left_chunks=2, capacity=1).geometry.left_frames == 2
    for sizes in ({"chunk_size": 2}, {"chunk_size": 1, "left_chunks": 7}, {"left_chunks": -1}):
        with pytest.raises(BundleError, match="1 with up to 6, 3 with up to 2 left chunks"):
            StreamingPipeline(read, capacity=1, **sizes)
    with pytest.raises(InputError, match="language is 'xx', and this model knows"):
        brief.open(SearchOptions(language="xx"))


def test_memory_knows_what_a_stream_keeps(bundle: Path) -> None:
    streaming = Bundle.open(bundle).manifest.streaming
    assert streaming is not None
    layers, width, kernel = 2, 16, 5
    for chunk, left in streaming.trained.items():
        kept = 8 + 4 * layers * width * (2 * chunk * left + kernel - 1)
        assert streaming.state_bytes(chunk * left) == kept
        options = ModelOptions(device="gpu", chunk_size=chunk).for_streams(Bundle.open(bundle))
        assert options.max_streams * kept <= STREAM_BYTES


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"att_context_size": [-1, -1]}, r"contexts \[-1, -1\] of style chunked_limited; needed is one without -1"),
        ({"att_context_style": "regular"}, "of style regular"),
        ({"causal_downsampling": False}, "its subsampling sees the future"),
        ({"conv_context_size": None}, r"its convolutions see the future .conv_context_size is \[2, 2\]"),
    ],
)
def test_a_model_that_needs_the_future_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExportError, match=f"cannot be streamed: .*{reason}.*without --streaming"):
        contexts_of_streams(parse_config(causal_config(**change)))


def test_features_of_whole_utterances_and_unfit_sizes_are_refused(tmp_path: Path) -> None:
    content = causal_config("ctc")
    content["preprocessor"]["normalize"] = "per_feature"
    archive = write_archive(tmp_path / "m.nemo", make_model(content))
    with pytest.raises(ExportError, match="features are normalised over whole utterances"):
        export_nemo(archive=archive, output=tmp_path / "b", streaming=True)
    with pytest.raises(ExportError, match="a chunk size is for streams; add --streaming"):
        export_nemo(archive=archive, output=tmp_path / "b", chunk_size=2)
    archive = write_archive(tmp_path / "m.nemo", make_model(causal_config("ctc")))
    with pytest.raises(ExportError, match="chunk size 4: this model was trained for chunks of 1, 2, 3 encoder frames"):
        export_nemo(archive=archive, output=tmp_path / "b", streaming=True, chunk_size=4)


def test_streams_in_bf16_keep_the_bits_of_what_they_keep(nemo: NemoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """States of half the memory, and the same numbers as of states that are float32."""
    narrow = in_precision(nemo, "bf16")
    graph = graph_of(narrow)
    run = next(graph.trials())
    assert {name: value.dtype for name, value in run.states.items()} == {
        "offset": torch.int64,
        "att_cache": torch.int16,
        "conv_cache": torch.int16,
    }
    found = list(network_outputs(graph, run))
    monkeypatch.setattr(streaming, "kept", lambda x: x.to(torch.float32))
    monkeypatch.setattr(streaming, "taken", as_dtype)
    monkeypatch.setattr(graphs, "kept_as", lambda dtype: torch.float32)
    wide = graph_of(narrow)
    run = next(wide.trials())
    assert run.states["att_cache"].dtype == torch.float32
    for one, other in zip(found, network_outputs(wide, run), strict=True):
        np.testing.assert_array_equal(one["encoder_out"], other["encoder_out"])
