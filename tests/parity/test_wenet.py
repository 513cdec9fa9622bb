"""WeNet models against arrays made by upstream's own code: the torch network, the exported graphs, the pipelines.

Tolerances are those of the golden data's README: float noise of upstream itself, times about ten.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch

from parity.front_end import as_samples, golden_tensors, streaming_sizes
from parity.golden_cases import Case, largest, rows
from tritone.bundle.bundle import Bundle
from tritone.families.wenet.checkpoint import load_model, read_config
from tritone.families.wenet.model import AsrModel
from tritone.pipelines import open_offline, open_streaming
from tritone.pipelines.graphs.geometry import Geometry
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.streaming import Step
from tritone.runtime import open_graph
from tritone.search.ctc.greedy import ctc_greedy

ENCODER_ATOL = 2e-5
LOG_PROB_ATOL = 5e-5
RUNTIMES = ("onnxruntime", pytest.param("torch", marks=pytest.mark.slow))  # exports for torch take longest

_models: dict[str, AsrModel] = {}


def load_case(case: Case) -> AsrModel:
    if case.name not in _models:
        _models[case.name] = load_model(read_config(case.path / "train.yaml"), case.path / "final.pt")
    return _models[case.name]


@pytest.fixture
def model(wenet_case: Case) -> AsrModel:
    return load_case(wenet_case)


@pytest.fixture
def streaming_model(streaming_case: Case) -> AsrModel:
    return load_case(streaming_case)


def compare_rows(found: np.ndarray, expected: np.ndarray, lengths: np.ndarray, atol: float) -> None:
    for row, length in enumerate(lengths):
        difference = largest(found[row, :length], expected[row, :length])
        assert difference <= atol, f"utterance {row}: largest difference {difference:.2e}, allowed {atol:.0e}"


@torch.no_grad()
def test_torch_batch_equals_upstream_with_its_padding(wenet_case: Case, model: AsrModel) -> None:
    expected, (feats, lengths) = wenet_case.expected, golden_tensors(wenet_case)
    model.encoder.upstream_padding = True
    try:
        encoded, out_lengths = model.encoder(feats, lengths)
    finally:
        model.encoder.upstream_padding = False
    assert out_lengths.tolist() == expected["encoder_lens"].tolist()
    compare_rows(encoded.numpy(), expected["encoder_out"], out_lengths, ENCODER_ATOL)
    log_probs = model.ctc(encoded).numpy()
    compare_rows(log_probs, expected["ctc_log_probs"], out_lengths, LOG_PROB_ATOL)
    tokens = [
        [token.id for token in found] for found in ctc_greedy(log_probs, out_lengths.numpy(), model.config.blank_id)
    ]
    assert tokens == rows(expected["greedy_tokens"], expected["greedy_lens"])


@torch.no_grad()
def test_torch_batch_equals_each_utterance_alone(wenet_case: Case, model: AsrModel) -> None:
    expected, (feats, lengths) = wenet_case.expected, golden_tensors(wenet_case)
    encoded, out_lengths = model.encoder(feats, lengths)
    compare_rows(encoded.numpy(), expected["single_encoder_out"], out_lengths, ENCODER_ATOL)
    compare_rows(model.ctc(encoded).numpy(), expected["single_ctc_log_probs"], out_lengths, LOG_PROB_ATOL)


@torch.no_grad()
def test_torch_chunk_mask_equals_upstream(streaming_case: Case, streaming_model: AsrModel) -> None:
    chunk_size, left_chunks = streaming_sizes(streaming_case)
    expected, (feats, lengths) = streaming_case.expected, golden_tensors(streaming_case)
    encoded, out_lengths = streaming_model.encoder(feats, lengths, chunk_size, left_chunks)
    assert out_lengths.tolist() == expected["chunk_encoder_lens"].tolist()
    compare_rows(encoded.numpy(), expected["chunk_encoder_out"], out_lengths, ENCODER_ATOL)
    compare_rows(streaming_model.ctc(encoded).numpy(), expected["chunk_ctc_log_probs"], out_lengths, LOG_PROB_ATOL)
    unlimited, _ = streaming_model.encoder(feats, lengths, chunk_size, -1)
    compare_rows(unlimited.numpy(), expected["chunk_allleft_encoder_out"], out_lengths, ENCODER_ATOL)


def stream_windows(case: Case, utterance: int) -> list[tuple[int, int, int]]:
    return [tuple(row) for row in case.expected[f"stream_utt{utterance}_ranges"].tolist()]


@torch.no_grad()
def test_torch_streaming_steps_equal_upstream_with_their_caches(
    streaming_case: Case, streaming_model: AsrModel
) -> None:
    chunk_size, left_chunks = streaming_sizes(streaming_case)
    expected, (feats, lengths) = streaming_case.expected, golden_tensors(streaming_case)
    window = int(expected["decoding_window"])
    utterances = [u for u in range(len(lengths)) if f"stream_utt{u}_ranges" in expected]
    assert utterances
    layers, heads, columns = streaming_model.encoder.att_cache_shape
    size, cached = columns - streaming_model.encoder.encoders[0].self_attn.key_size, chunk_size * left_chunks
    config = streaming_model.config.encoder
    for utterance in utterances:
        att = torch.zeros(1, layers, heads, cached, columns)
        cnn = (
            torch.zeros(1, layers, config.cnn_module_kernel - 1, config.output_size) if config.use_cnn_module else None
        )
        offset = torch.zeros(1, dtype=torch.int64)
        for step, (start, end, upstream_offset) in enumerate(stream_windows(streaming_case, utterance)):
            assert int(offset) == upstream_offset
            block = torch.zeros(1, window, feats.shape[2])
            block[0, : end - start] = feats[utterance, start:end]
            found, count, att, cnn = streaming_model.encoder.forward_chunk(
                block, torch.tensor([end - start]), offset, att, cnn
            )
            wanted = expected[f"stream_utt{utterance}_chunk{step}_out"]
            assert int(count) == wanted.shape[1]
            assert largest(found[:, : int(count)], wanted) <= ENCODER_ATOL
            offset = offset + count
            values = expected.get(f"stream_utt{utterance}_chunk{step}_att_cache")
            if values is not None and int(count) == chunk_size and cached:
                # Keys are stored with their position term added, so values are what can be compared as they are.
                held = min(cached, values.shape[2])
                assert largest(att[0, :, :, cached - held :, -size:], values[:, :, -held:, -size:]) <= ENCODER_ATOL
            frames = expected.get(f"stream_utt{utterance}_chunk{step}_cnn_cache")
            if cnn is not None and frames is not None and int(count) == chunk_size:
                assert largest(cnn[0].transpose(1, 2), frames[:, 0]) <= ENCODER_ATOL


@torch.no_grad()
def test_torch_decoders_equal_upstream(wenet_case: Case, model: AsrModel) -> None:
    expected = wenet_case.expected
    if model.decoder is None:
        pytest.skip("no attention decoder")
    lengths = torch.from_numpy(expected["given_lens"])
    hypotheses = torch.from_numpy(expected["given_hyps_in"])
    frames = int(expected["encoder_lens"][0])
    memory = torch.from_numpy(expected["encoder_out"][:1, :frames]).expand(len(hypotheses), -1, -1)
    reverse = hypotheses.clone()
    for row, length in enumerate(lengths.tolist()):
        reverse[row, 1 : length + 1] = hypotheses[row, 1 : length + 1].flip(0)
    left, right = model.decode(memory, torch.full((len(hypotheses),), frames), hypotheses, reverse)
    for found, name in ((left, "given_decoder_log_probs"), (right, "given_r_decoder_log_probs")):
        if name not in expected:
            assert found is None
            continue
        wanted = expected[name]
        defined = ~np.isnan(wanted)
        assert found is not None
        assert defined.any()
        difference = np.abs(torch.log_softmax(found, -1).numpy() - wanted)[defined]
        assert difference.max() <= LOG_PROB_ATOL


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_exported_batch_equals_each_utterance_alone(wenet_case: Case, exported, runtime: Any) -> None:
    expected = wenet_case.expected
    graph = open_graph(Bundle.open(exported(wenet_case, runtime)).artifact("encoder", runtime))
    feats, lengths = wenet_case.inputs["feats"], wenet_case.inputs["feats_lengths"].astype(np.int64)
    feed = {"waveform": feats.reshape(len(feats), -1), "num_samples": lengths * feats.shape[2]}
    log_probs, num_frames, encoded = graph(feed, ["log_probs", "num_frames", "encoder_out"])
    assert num_frames.tolist() == expected["encoder_lens"].tolist()
    compare_rows(encoded, expected["single_encoder_out"], num_frames, ENCODER_ATOL)
    compare_rows(log_probs, expected["single_ctc_log_probs"], num_frames, LOG_PROB_ATOL)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_exported_streaming_steps_equal_upstream_in_one_batch(streaming_case: Case, exported, runtime: Any) -> None:
    expected, feats = streaming_case.expected, streaming_case.inputs["feats"]
    bundle = Bundle.open(exported(streaming_case, runtime))
    assert bundle.manifest.streaming is not None
    graph = open_graph(bundle.artifact("streaming_encoder", runtime))
    window, bins = int(expected["decoding_window"]), feats.shape[2]
    assert bundle.manifest.streaming.window_samples == window * bins
    assert bundle.manifest.streaming.shift_samples == int(expected["stride"]) * bins
    utterances = [u for u in range(len(feats)) if f"stream_utt{u}_ranges" in expected]
    plans = [stream_windows(streaming_case, u) for u in utterances]
    specs, left_frames = bundle.manifest.streaming.states, math.prod(streaming_sizes(streaming_case))
    states = {s.name: np.zeros((len(utterances), *s.sizes(left_frames)), s.dtype) for s in specs}
    for step in range(max(map(len, plans))):
        # streams that have ended stay in the batch with nothing to say, as neighbours that must not matter
        block = np.zeros((len(utterances), window, bins), np.float32)
        num_samples = np.zeros(len(utterances), np.int64)
        for row, (utterance, plan) in enumerate(zip(utterances, plans, strict=True)):
            if step < len(plan):
                start, end, _ = plan[step]
                block[row, : end - start] = feats[utterance, start:end]
                num_samples[row] = (end - start) * bins
        feed = {"waveform": block.reshape(len(utterances), -1), "num_samples": num_samples, **states}
        names = ["encoder_out", "num_frames", *(f"next_{s.name}" for s in specs)]
        encoded, num_frames, *rest = graph(feed, names)
        states = {spec.name: value for spec, value in zip(specs, rest, strict=True)}
        for row, (utterance, plan) in enumerate(zip(utterances, plans, strict=True)):
            if step < len(plan):
                wanted = expected[f"stream_utt{utterance}_chunk{step}_out"]
                assert num_frames[row] == wanted.shape[1]
                assert largest(encoded[row, : num_frames[row]], wanted[0]) <= ENCODER_ATOL


@pytest.mark.parametrize(("left_chunks", "array"), [(None, "chunk_encoder_out"), (-1, "chunk_allleft_encoder_out")])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_exported_steps_that_see_some_or_all_of_the_past_equal_upstreams_masks(
    streaming_case: Case, exported, runtime: Any, left_chunks: int | None, array: str
) -> None:
    """All utterances of the case side by side; with -1 their histories grow from step to step."""
    expected, bundle = streaming_case.expected, Bundle.open(exported(streaming_case, runtime))
    assert bundle.manifest.streaming is not None
    geometry = Geometry.choose(bundle, bundle.manifest.streaming, left_chunks=left_chunks)
    graph = open_graph(bundle.artifact("streaming_encoder", runtime))
    waveforms = as_samples(streaming_case)
    slots = graph.slots(geometry.states, len(waveforms))
    for slot in range(len(waveforms)):
        slots.clear(slot)
    parts: list[list[np.ndarray]] = [[] for _ in waveforms]
    position = 0
    while active := [u for u, w in enumerate(waveforms) if len(w) - position >= bundle.manifest.encoder.min_samples]:
        windows = [waveforms[u][position : position + geometry.window_samples] for u in active]
        block = np.stack([np.pad(window, (0, geometry.window_samples - len(window))) for window in windows])
        inputs = {"waveform": block, "num_samples": np.array([len(window) for window in windows])}
        slots.reserve(len(active))
        encoded, num_frames = slots(active, inputs, ["encoder_out", "num_frames"], length=geometry.history(position))
        for utterance, frames, count in zip(active, encoded, num_frames, strict=True):
            parts[utterance].append(frames[:count])
        position += geometry.shift_samples
    assert max(map(len, parts)) > 2, "there should be steps with a past"
    for utterance, (found, length) in enumerate(zip(parts, expected["chunk_encoder_lens"], strict=True)):
        assert largest(np.concatenate(found), expected[array][utterance, :length]) <= ENCODER_ATOL


def expected_texts(bundle: Bundle, tokens: np.ndarray, lengths: np.ndarray) -> list[str]:
    return [bundle.vocabulary.text(row) for row in rows(tokens, lengths)]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_offline_pipeline_gives_upstream_greedy_text(wenet_case: Case, exported, runtime: str) -> None:
    expected, bundle = wenet_case.expected, Bundle.open(exported(wenet_case, runtime))
    found = open_offline(bundle, placement=Placement(runtime=runtime)).recognize(as_samples(wenet_case))
    assert [t.text for t in found] == expected_texts(
        bundle, expected["single_greedy_tokens"], expected["single_greedy_lens"]
    )


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_streaming_pipeline_gives_upstream_chunked_greedy_text(streaming_case: Case, exported, runtime: str) -> None:
    expected, bundle = streaming_case.expected, Bundle.open(exported(streaming_case, runtime))
    pipeline = open_streaming(bundle, placement=Placement(runtime=runtime))
    wanted = expected_texts(bundle, expected["chunk_greedy_tokens"], expected["chunk_greedy_lens"])
    slots = [pipeline.open() for _ in wanted]
    found = pipeline.advance(
        [Step(slot, samples, True) for slot, samples in zip(slots, as_samples(streaming_case), strict=True)]
    )
    assert [t.text for t in found] == wanted
