"""One exported streaming graph at any chunk size and with any part of the past, from none to all.

What a stream says is compared with the torch network on the whole utterance under the mask that says the same: a frame
sees its own chunk and so many before it.
"""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from families.conftest import babble, export
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, ExportError
from tritone.families.layers.fbank import Fbank
from tritone.families.wenet.checkpoint import load_model, read_config
from tritone.families.wenet.model import AsrModel
from tritone.pipelines import StreamingPipeline, open_offline, open_streaming
from tritone.pipelines.graphs.geometry import SHORTEST_HISTORY, Geometry, parts
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.streaming import Step
from tritone.search.ctc.greedy import ctc_greedy

FRAME_S = 0.04
SIZES = [(1, 6), (5, 0), (7, -1), (16, 2), (23, -1)]
STEP = 500  # samples that a client sends at once


open_bundle = cache(Bundle.open)


@cache
def load(files: Path) -> tuple[AsrModel, Fbank]:
    return load_model(read_config(files / "train.yaml"), files / "final.pt").eval(), Fbank()


@cache
def open_with(bundle: Path, chunk_size: int, left_chunks: int, max_history_s: float = 60.0) -> StreamingPipeline:
    return open_streaming(
        Bundle.open(bundle),
        placement=Placement(threads=1),
        chunk_size=chunk_size,
        left_chunks=left_chunks,
        max_history_s=max_history_s,
    )


@torch.no_grad()
def masked_text(files: Path, bundle: Path, waveform: np.ndarray, chunk_size: int, left_chunks: int) -> str:
    """What the network says of the whole utterance under the chunk mask; nothing where it has no frame."""
    if len(waveform) < 1360:
        return ""
    model, front_end = load(files)
    feats, count = front_end(torch.from_numpy(waveform)[None], torch.tensor([len(waveform)]))
    encoded, lengths = model.encoder(feats, count, chunk_size, left_chunks)
    [tokens] = ctc_greedy(model.ctc(encoded).numpy(), lengths.numpy(), 0)
    return open_bundle(bundle).vocabulary.text([token.id for token in tokens])


def stream_texts(pipeline: StreamingPipeline, waveforms: list[np.ndarray], step: int = STEP) -> list[str]:
    """Streams side by side, each ended with its last audio."""
    open_ones = {pipeline.open(): waveform for waveform in waveforms}
    order, texts = list(open_ones), {}
    start = 0
    while open_ones:
        end = start + step
        steps = [Step(slot, wave[start:end], end >= len(wave)) for slot, wave in open_ones.items()]
        for each, transcript in zip(steps, pipeline.advance(steps), strict=True):
            if each.final:
                texts[each.slot] = transcript.text
                del open_ones[each.slot]
        start = end
    return [texts[slot] for slot in order]


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_a_stream_says_what_the_masked_utterance_says_for_any_sizes(
    causal_files: Path, causal_bundle: Path, data: st.DataObject
) -> None:
    chunk_size, left_chunks = data.draw(st.integers(1, 24)), data.draw(st.integers(-1, 6))
    waveform = babble(data.draw(st.integers(0, 40000)), seed=data.draw(st.integers(0, 3)))
    pipeline = open_with(causal_bundle, chunk_size, left_chunks)
    [text] = stream_texts(pipeline, [waveform], step=data.draw(st.integers(200, 50000)))
    assert text == masked_text(causal_files, causal_bundle, waveform, chunk_size, left_chunks)


@pytest.mark.parametrize(("chunk_size", "left_chunks"), SIZES)
def test_streams_of_any_age_say_together_what_they_say_alone(
    causal_files: Path, causal_bundle: Path, chunk_size: int, left_chunks: int
) -> None:
    """Streams begin while others are old, so histories of several lengths are in one step; no tail is lost."""
    pipeline = open_with(causal_bundle, chunk_size, left_chunks)
    rng = np.random.default_rng(chunk_size)
    waveforms = [babble(int(samples), seed=int(samples)) for samples in rng.integers(0, 90_000, 7)]
    expected = [masked_text(causal_files, causal_bundle, w, chunk_size, left_chunks) for w in waveforms]
    assert sum(map(len, expected)) > 100, "the random model should say something, or this test shows nothing"
    found: dict[int, str] = {}
    running: dict[int, tuple[int, int]] = {}  # slot -> which waveform, samples sent
    waiting = list(range(len(waveforms)))
    while waiting or running:
        for _ in range(min(len(waiting), 1 if running else 2)):
            running[pipeline.open()] = (waiting.pop(), 0)
        steps = [
            Step(slot, waveforms[which][sent : sent + 12_345], sent + 12_345 >= len(waveforms[which]))
            for slot, (which, sent) in running.items()
        ]
        for step, transcript in zip(steps, pipeline.advance(steps), strict=True):
            which, sent = running[step.slot]
            running[step.slot] = (which, sent + 12_345)
            if step.final:
                found[which] = transcript.text
                del running[step.slot]
    assert [found[each] for each in range(len(waveforms))] == expected
    assert pipeline.num_open == 0


def test_left_chunks_matter(causal_files: Path, causal_bundle: Path) -> None:
    """Or the tests above would pass with a graph that sees always the same."""
    waveform = babble(60_000, seed=5)
    said = {left: stream_texts(open_with(causal_bundle, 5, left), [waveform])[0] for left in (0, 1, 3, -1)}
    assert len(set(said.values())) == len(said)


@pytest.mark.slow
@pytest.mark.parametrize(("chunk_size", "left_chunks"), [(16, 4), (7, -1)])
def test_a_stream_may_be_longer_than_200_seconds_at_any_chunk_size(
    causal_files: Path, causal_bundle: Path, chunk_size: int, left_chunks: int
) -> None:
    """What upstream's table of 5,000 positions ends. With all history, the last 9 seconds are what a step sees."""
    waveform = babble(203 * 16000, seed=6)
    pipeline = open_with(causal_bundle, chunk_size, left_chunks, max_history_s=9.0)
    seen = left_chunks if left_chunks >= 0 else int(9.0 / FRAME_S) // chunk_size
    [text] = stream_texts(pipeline, [waveform], step=80_000)
    assert text == masked_text(causal_files, causal_bundle, waveform, chunk_size, seen)


@pytest.mark.slow
def test_a_whole_utterance_may_be_longer_than_200_seconds(causal_files: Path, causal_bundle: Path) -> None:
    waveform = babble(201 * 16000, seed=7)
    [found] = open_offline(Bundle.open(causal_bundle), placement=Placement(threads=1)).recognize([waveform])
    assert found.text == masked_text(causal_files, causal_bundle, waveform, -1, -1)
    assert found.tokens[-1].end_s > 199.8


@pytest.mark.parametrize(("chunk_size", "left_chunks"), SIZES[1:4])
def test_audio_under_a_tenth_of_a_second_is_an_ordinary_stream(
    causal_files: Path, causal_bundle: Path, tmp_path: Path, chunk_size: int, left_chunks: int
) -> None:
    """Too short for a feature frame, for an encoder frame, and just long enough; with and without silence after it."""
    lengths = [0, 1, 399, 400, 1359, 1360, 1599, 1600, 9000]
    waveforms = [babble(samples, seed=3)[:samples] for samples in lengths]
    alone = stream_texts(open_with(causal_bundle, chunk_size, left_chunks), waveforms)
    assert alone == [masked_text(causal_files, causal_bundle, w, chunk_size, left_chunks) for w in waveforms]
    shutil.copytree(causal_bundle, tmp_path / "b")
    manifest = json.loads((causal_bundle / "manifest.json").read_text(encoding="utf-8"))
    manifest["encoder"]["tail_samples"] = 3200
    (tmp_path / "b" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    longer = [np.pad(w, (0, 3200)) if len(w) >= 400 else w for w in waveforms]
    pipeline = open_streaming(
        Bundle.open(tmp_path / "b"), placement=Placement(threads=1), chunk_size=chunk_size, left_chunks=left_chunks
    )
    assert stream_texts(pipeline, waveforms) == [
        masked_text(causal_files, causal_bundle, w, chunk_size, left_chunks) for w in longer
    ]


def test_the_manifest_gives_the_sizes_and_any_may_be_chosen(causal_bundle: Path) -> None:
    bundle = Bundle.open(causal_bundle)
    assert bundle.manifest.streaming is not None
    assert bundle.manifest.streaming.flexible
    default = open_streaming(bundle, placement=Placement(threads=1)).geometry
    assert (default.chunk_size, default.left_chunks, default.left_frames) == (4, 3, 12)
    chosen = open_streaming(bundle, placement=Placement(threads=1), chunk_size=16).geometry
    assert (chosen.chunk_size, chosen.left_chunks, chosen.left_frames) == (16, 3, 48)
    # 67 feature frames for 16 encoder frames, and 64 from window to window: upstream's numbers for conv2d
    assert (chosen.window_samples, chosen.shift_samples) == (66 * 160 + 400, 64 * 160)


def test_a_bundle_can_be_exported_to_see_all_of_the_past(causal_files: Path, causal_bundle: Path) -> None:
    bundle = Bundle.open(causal_bundle)
    streaming = bundle.manifest.streaming
    assert streaming is not None
    geometry = Geometry.choose(bundle, streaming.model_copy(update={"left_chunks": -1}))
    assert (geometry.left_chunks, geometry.left_frames, geometry.states["att_cache"].shape) == (
        -1,
        None,
        (2, 2, None, 17),
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"chunk_size": 0}, "chunk_size must be at least 1 encoder frame .* got chunk_size 0"),
        ({"left_chunks": -2}, "left_chunks at least 0, or -1 for all of the past; .* left_chunks -2"),
        ({"chunk_size": 10**6}, "windows of 640000720 samples, at most 1048576 are allowed; choose a smaller one"),
        ({"left_chunks": 10**6}, "would keep .* 160000 s.*choose a smaller chunk_size or left_chunks"),
        ({"left_chunks": -1, "max_history_s": 1e6}, "would keep .* choose a smaller max_history_s"),
        ({"left_chunks": -1, "max_history_s": 0.0}, "max_history_s must be more than 0 seconds, got 0"),
        ({"left_chunks": -1, "max_history_s": float("nan")}, "more than 0 seconds, got nan"),
    ],
)
def test_sizes_that_cannot_be_are_told_before_the_first_stream(
    causal_bundle: Path, options: dict[str, float], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        open_streaming(Bundle.open(causal_bundle), placement=Placement(threads=1), **options)


def test_a_graph_of_fixed_sizes_goes_on_working_and_names_the_way_to_others(toy_bundle: Path) -> None:
    bundle = Bundle.open(toy_bundle)
    assert (
        open_streaming(bundle, placement=Placement(threads=1), chunk_size=4, left_chunks=1).geometry.window_samples
        == 2720
    )
    for sizes in ({"chunk_size": 8}, {"left_chunks": -1}):
        with pytest.raises(BundleError, match=r"for chunk_size 4 and left_chunks 1 alone, .*export the model again"):
            open_streaming(bundle, placement=Placement(threads=1), **sizes)


def test_impossible_defaults_are_refused_at_export(causal_files: Path, tmp_path: Path) -> None:
    for sizes in ({"chunk_size": 0, "left_chunks": 1}, {"chunk_size": 4, "left_chunks": -2}):
        with pytest.raises(ExportError, match="at least 1 frame a chunk and 0 or more left chunks, or -1"):
            export(causal_files, tmp_path / "b", streaming=True, **sizes)


@given(chunk_size=st.integers(1, 100), chunks=st.integers(0, 5000), max_history_s=st.floats(0.01, 300, allow_nan=False))
def test_a_growing_history_has_room_for_all_frames_up_to_its_limit(
    causal_bundle: Path, chunk_size: int, chunks: int, max_history_s: float
) -> None:
    bundle = open_bundle(causal_bundle)
    assert bundle.manifest.streaming is not None
    geometry = Geometry.choose(bundle, bundle.manifest.streaming, chunk_size, -1, max_history_s)
    length = geometry.history(chunks * geometry.shift_samples)
    assert length % chunk_size == 0, "a limit in whole chunks is what a number of left chunks means"
    assert length >= min(geometry.max_history, (chunks + 1) * chunk_size)
    assert length <= max(2 * (chunks + 1) * chunk_size, SHORTEST_HISTORY + chunk_size)
    assert geometry.max_history <= max(chunk_size, max_history_s / FRAME_S)


@given(counts=st.lists(st.integers(1, 70), max_size=6), max_batch=st.integers(1, 64), workers=st.integers(1, 8))
def test_calls_hold_streams_of_one_history_and_no_more_than_fit(
    counts: list[int], max_batch: int, workers: int
) -> None:
    histories = [length for length, count in enumerate(counts) for _ in range(count)]
    calls = parts(histories, max_batch, workers)
    assert [each for call in calls for each in range(call.start, call.stop)] == list(range(len(histories)))
    for call in calls:
        assert 1 <= call.stop - call.start <= max_batch
        assert len(set(histories[call])) == 1


def test_a_device_gets_many_streams_in_two_calls_of_which_one_is_prepared_while_the_other_is_computed() -> None:
    def sizes(count: int, max_batch: int) -> list[int]:
        return [call.stop - call.start for call in parts([0] * count, max_batch, 1, ahead=True)]

    assert sizes(255, 256) == [255]
    assert sizes(256, 256) == [128, 128]
    assert sizes(300, 1024) == [150, 150]
    assert sizes(600, 256) == [200, 200, 200]
