"""What an exported WeNet model promises: streams equal chunk-masked utterances, and batches change nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from families.conftest import UNITS, babble, export, with_cmvn, write_model
from tritone.bundle.bundle import Bundle
from tritone.errors import ExportError
from tritone.families.onnx.storage import quantise
from tritone.pipelines import open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.streaming import Step
from tritone.runtime import open_graph


def stream_text(pipeline: Any, pieces: list[np.ndarray]) -> str:
    slot = pipeline.open()
    for piece in pieces[:-1]:
        pipeline.advance([Step(slot, piece, False)])
    [final] = pipeline.advance([Step(slot, pieces[-1], True)])
    return final.text


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_any_way_of_cutting_the_audio_gives_the_same_stream(causal_bundle: Path, data: st.DataObject) -> None:
    pipeline = _streaming_pipeline(causal_bundle)
    waveform = babble(14000, seed=3)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(waveform)), max_size=12)))
    pieces = np.split(waveform, cuts)
    assert stream_text(pipeline, pieces) == stream_text(pipeline, [waveform])


_pipelines: dict[Path, Any] = {}


def _streaming_pipeline(bundle: Path) -> Any:
    if bundle not in _pipelines:
        _pipelines[bundle] = open_streaming(Bundle.open(bundle), placement=Placement(threads=1))
    return _pipelines[bundle]


def test_a_stream_of_single_samples_equals_one_piece(causal_bundle: Path) -> None:
    pipeline, waveform = _streaming_pipeline(causal_bundle), babble(5000, seed=4)
    assert stream_text(pipeline, list(waveform.reshape(-1, 1))) == stream_text(pipeline, [waveform])


def test_streams_side_by_side_equal_streams_alone(causal_bundle: Path) -> None:
    pipeline = _streaming_pipeline(causal_bundle)
    waveforms = [babble(samples, seed=samples) for samples in (9000, 20000, 1000, 15321, 0, 12800)]
    alone = [stream_text(pipeline, [waveform]) for waveform in waveforms]
    slots = [pipeline.open() for _ in waveforms]
    found: dict[int, str] = {}
    for start in range(0, 20000 + 3000, 3000):
        steps = [
            Step(slot, waveform[start : start + 3000], start + 3000 >= len(waveform))
            for slot, waveform in zip(slots, waveforms, strict=True)
            if slot not in found
        ]
        for step, transcript in zip(steps, pipeline.advance(steps) if steps else [], strict=True):
            if step.final:
                found[step.slot] = transcript.text
    assert [found[slot] for slot in slots] == alone


@pytest.mark.parametrize("kind", ["causal_bundle", "centred_bundle"])
def test_200_utterances_say_the_same_alone_in_any_batch_and_in_any_order(
    kind: str, request: pytest.FixtureRequest
) -> None:
    pipeline = open_offline(Bundle.open(request.getfixturevalue(kind)), placement=Placement(threads=1))
    rng = np.random.default_rng(5)
    waveforms = [babble(int(samples), seed=int(samples)) for samples in rng.integers(0, 32000, 200)]
    alone = [pipeline.recognize([waveform])[0].text for waveform in waveforms]
    assert len(set(alone)) > 150
    assert [t.text for t in pipeline.recognize(waveforms)] == alone
    order = rng.permutation(len(waveforms))
    shuffled = pipeline.recognize([waveforms[i] for i in order])
    assert [t.text for t in shuffled] == [alone[i] for i in order]


@pytest.mark.slow
def test_offline_audio_may_be_longer_than_upstreams_table(centred_bundle: Path) -> None:
    graph = open_graph(Bundle.open(centred_bundle).artifact("encoder"), threads=1)
    waveform = babble(201 * 16000, seed=8)
    log_probs, num_frames = graph(
        {"waveform": waveform[None], "num_samples": np.array([len(waveform)])}, ["log_probs", "num_frames"]
    )
    assert num_frames.tolist() == [((1 + (len(waveform) - 400) // 160) - 3) // 4]
    assert np.isfinite(log_probs).all()


@pytest.mark.parametrize("storage", ["fp16", "int8"])
def test_compressed_weights_are_smaller_and_close(
    causal_files: Path, causal_bundle: Path, tmp_path: Path, storage: Any
) -> None:
    compressed = Bundle.open(export(causal_files, tmp_path / "b", weight_storage=storage))
    assert compressed.manifest.artifacts[0].weight_storage == storage
    full = Bundle.open(causal_bundle)
    waveform = babble(16000, seed=9)
    feed = {"waveform": waveform[None], "num_samples": np.array([len(waveform)])}
    [small] = open_graph(compressed.artifact("encoder"))(feed, ["log_probs"])
    [exact] = open_graph(full.artifact("encoder"))(feed, ["log_probs"])
    difference = np.abs(small - exact).mean()
    # fp16 keeps 11 bits of a weight and int8 about 7: sixteen times the error of one is what the other may have
    assert 0 < difference < (0.02 if storage == "fp16" else 0.32)


def test_int8_levels_lose_at_most_half_a_step() -> None:
    array = np.random.default_rng(0).normal(0, 1, (64, 48)).astype(np.float32) * np.geomspace(
        1e-3, 1, 48, dtype=np.float32
    )
    levels, scale = quantise(array)
    assert scale.shape == (1, 48), "one scale per column, because the columns differ in size"
    assert np.all(np.abs(levels * scale - array) <= scale * 0.5001)


def test_offline_and_streaming_graphs_share_their_weights(causal_bundle: Path) -> None:
    bundle = Bundle.open(causal_bundle)
    held = {}
    for role in ("encoder", "streaming_encoder"):
        model = onnx.load(bundle.artifact(role), load_external_data=False)
        held[role] = {
            tuple(entry.value for entry in tensor.external_data)
            for tensor in model.graph.initializer
            if tensor.data_location == onnx.TensorProto.EXTERNAL
        }
    assert held["encoder"] & held["streaming_encoder"]
    assert {name for graph in held.values() for name, *_ in graph} == {"weights.bin"}
    assert len(held["encoder"] ^ held["streaming_encoder"]) < len(held["encoder"] & held["streaming_encoder"])


def test_the_manifest_tells_the_streaming_arithmetic(causal_bundle: Path) -> None:
    manifest = json.loads((causal_bundle / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["encoder"] == {
        "subsampling_rate": 4,
        "output_dim": 16,
        "min_samples": 6 * 160 + 400,
        "tail_samples": 0,
        "equal_lengths": False,
        "language": "",
        "languages": {},
        "text_forms": None,
        "tags": [],
    }
    streaming = manifest["streaming"]
    assert (streaming["chunk_size"], streaming["left_chunks"], streaming["flexible"]) == (4, 3, True)
    assert streaming["shift_samples"] == 4 * 4 * 160
    assert streaming["window_samples"] == (3 * 4 + 7 - 1) * 160 + 400
    assert {s["name"]: s["shape"] for s in streaming["states"]} == {
        "offset": [],
        "att_cache": [2, 2, "left_frames", 8 + 8 + 1],
        "cnn_cache": [2, 6, 16],
    }
    assert manifest["vocabulary"]["eos_id"] == len(UNITS) - 1
    assert set(manifest["provenance"]["sources"]) == {"checkpoint", "config", "tokens"}


def test_a_non_causal_model_cannot_be_exported_for_streaming(tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        with_cmvn(config)
        config["encoder_conf"]["causal"] = False

    folder = write_model(tmp_path / "model", change)
    with pytest.raises(ExportError, match=r"not causal .* Export it without --streaming"):
        export(folder, tmp_path / "b", streaming=True)
    assert not (tmp_path / "b").exists()


def test_a_tail_is_silence_appended_to_utterances_and_streams(
    causal_files: Path, causal_bundle: Path, tmp_path: Path
) -> None:
    """A bundle with a tail says of audio what one without says of audio followed by silence, at times within it."""
    manifest = json.loads((causal_bundle / "manifest.json").read_text(encoding="utf-8"))
    shutil.copytree(causal_bundle, tmp_path / "b")
    manifest["encoder"]["tail_samples"] = 4800
    (tmp_path / "b" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    plain, tailed = Bundle.open(causal_bundle), Bundle.open(tmp_path / "b")
    waveforms = [babble(samples, seed=samples) for samples in (400, 1000, 9000, 16000)]
    followed = [np.concatenate([waveform, np.zeros(4800, np.float32)]) for waveform in waveforms]
    expected = [t.text for t in open_offline(plain, placement=Placement(threads=1)).recognize(followed)]
    found = open_offline(tailed, placement=Placement(threads=1)).recognize(waveforms)
    assert [t.text for t in found] == expected
    streams = open_streaming(tailed, placement=Placement(threads=1))
    for waveform, longer, transcript in zip(waveforms, followed, found, strict=True):
        assert stream_text(streams, [waveform]) == stream_text(_streaming_pipeline(causal_bundle), [longer])
        assert transcript.audio_s == len(waveform) / 16000
        assert all(span.end_s <= transcript.audio_s for span in (*transcript.tokens, *transcript.words))
    too_short = babble(399, seed=1)
    assert [t.text for t in open_offline(tailed, placement=Placement(threads=1)).recognize([too_short])] == [""]
    assert stream_text(streams, [too_short]) == ""
