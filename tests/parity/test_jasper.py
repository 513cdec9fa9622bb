"""Jasper and QuartzNet against arrays made by upstream's own code: features, blocks, exported graphs, pipelines.

Tolerances are those of the golden data's README. Everything is compared with what upstream gives an utterance alone.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from effort import TORCH
from parity.front_end import UNMASKED
from parity.golden_cases import Case, largest
from tritone.bundle import Bundle
from tritone.bundle.vocabulary import SPACE
from tritone.families.jasper.checkpoint import check_state, read_config, read_weights
from tritone.families.jasper.graphs import OfflineGraph
from tritone.families.jasper.model import Network
from tritone.families.layers.log_mel import LogMel, analysis_window
from tritone.families.layers.mel import mel_banks
from tritone.pipelines import open_offline
from tritone.pipelines.graphs.placement import Placement
from tritone.runtime import open_graph

RUNTIMES = ("onnxruntime", TORCH, pytest.param("torchscript", marks=pytest.mark.slow))
FEATURE_ATOL = 1e-3
BLOCK_ATOL = 2e-4
LOG_PROB_ATOL = 2e-3  # from audio

_graphs: dict[tuple[str, bool, bool], OfflineGraph] = {}


def offline(case: Case, *, ema: bool = True, masked: bool = True) -> OfflineGraph:
    key = case.name, ema, masked
    if key not in _graphs:
        config = replace(read_config(case.path / "config.yaml"), masked=masked)
        weights = read_weights(case.path / "checkpoint.pt", ema=ema)
        assert weights.averaged == ema
        check_state(config, weights.state, case.name)
        _graphs[key] = OfflineGraph(Network.of(config, weights.state), LogMel(config.features)).eval()
    return _graphs[key]


def waveforms(case: Case) -> list[np.ndarray]:
    count = len(case.inputs["lens"])
    return [case.inputs[f"audio_{index}"].astype(np.float32) / 32768 for index in range(count)]


def batch(rows: list[np.ndarray], fill: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    block = np.full((len(rows), max(map(len, rows))), fill, np.float32)
    for row, waveform in zip(block, rows, strict=True):
        row[: len(waveform)] = waveform
    return block, np.array([len(waveform) for waveform in rows])


def tensors(case: Case, fill: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    block, counts = batch(waveforms(case), fill)
    return torch.from_numpy(block), torch.from_numpy(counts)


def check_log_probs(case: Case, found: np.ndarray, counts: np.ndarray, array: str) -> None:
    assert counts.tolist() == [int(case.expected[f"enc_len_solo_{row}"][0]) for row in range(len(counts))]
    for row, count in enumerate(counts):
        difference = largest(found[row, :count], case.expected[f"{array}_{row}"][:count])
        assert difference <= LOG_PROB_ATOL, f"utterance {row}: largest difference {difference:.2e}"


def test_bands_and_window_are_upstreams(jasper_case: Case) -> None:
    features = read_config(jasper_case.path / "config.yaml").features
    banks = mel_banks(features.n_filt, features.sample_rate, features.n_fft, features.low_freq, features.high_freq)
    assert largest(banks.T, jasper_case.expected["mel_fb"]) <= 1e-8
    window = analysis_window(features.window, features.frame_length)
    assert largest(window, jasper_case.expected["window"]) <= 1e-6


@torch.no_grad()
def test_features_in_a_batch_are_upstreams_of_each_utterance_alone(jasper_case: Case) -> None:
    front_end, expected = offline(jasper_case).front_end, jasper_case.expected
    waveform, num_samples = tensors(jasper_case, fill=0.3)
    log_mel = front_end.log_mel(waveform, num_samples)
    features, counts = front_end(waveform, num_samples)
    assert counts.tolist() == expected["feat_lens_solo"].tolist()
    for row, count in enumerate(counts.tolist()):
        assert largest(log_mel[row, :count].T, expected[f"logmel_solo_{row}"][:, :count]) <= FEATURE_ATOL
        assert largest(features[row, :count].T, expected[f"feats_solo_{row}"][:, :count]) <= FEATURE_ATOL


@torch.no_grad()
def test_blocks_of_the_folded_network_are_upstreams(jasper_case: Case) -> None:
    graph, expected = offline(jasper_case), jasper_case.expected
    samples = torch.from_numpy(jasper_case.inputs["lens"][:1]).long()
    x, rows = graph.rows(torch.from_numpy(expected["feats_solo_0"])[None, :, None], samples)
    results, rows = graph.network.outputs_of_blocks(x, rows)
    [count] = rows.own.tolist()
    for layer, result in enumerate(results):
        wanted = expected[f"block{layer}_solo_0"]
        frames = min(count, wanted.shape[1])
        assert largest(result[0, :, 0, :frames], wanted[:, :frames]) <= BLOCK_ATOL, layer


@pytest.mark.parametrize(("masked", "array"), [(True, "log_probs_solo"), (False, "log_probs_nomask_solo")])
@torch.no_grad()
def test_log_probs_in_a_batch_are_upstreams_of_each_utterance_alone(
    jasper_case: Case, masked: bool, array: str
) -> None:
    log_probs, counts, encoded = offline(jasper_case, masked=masked)(*tensors(jasper_case, fill=-0.2))
    check_log_probs(jasper_case, log_probs.numpy(), counts.numpy(), array)
    assert encoded.shape[:2] == log_probs.shape[:2]


@torch.no_grad()
def test_the_weights_that_are_not_averaged_are_there_too(jasper_case: Case) -> None:
    waveform, num_samples = tensors(jasper_case)
    log_probs, counts, _ = offline(jasper_case, ema=False)(waveform[:1, : num_samples[0]], num_samples[:1])
    wanted = jasper_case.expected["log_probs_rawsd_solo_0"]
    assert largest(log_probs[0, : counts[0]], wanted[: counts[0]]) <= LOG_PROB_ATOL


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_exported_graphs_give_upstreams_log_probs(jasper_case: Case, exported: Any, runtime: Any) -> None:
    graph = open_graph(Bundle.open(exported(jasper_case)).artifact("encoder", runtime))
    block, counts = batch(waveforms(jasper_case), fill=0.5)
    feed = {"waveform": block, "num_samples": counts}
    log_probs, num_frames = graph(feed, ["log_probs", "num_frames"])
    check_log_probs(jasper_case, log_probs, num_frames, "log_probs_solo")


def test_an_exported_unmasked_graph_gives_upstreams_log_probs(jasper_case: Case, exported: Any) -> None:
    graph = open_graph(Bundle.open(exported(jasper_case).with_name(UNMASKED)).artifact("encoder"))
    block, counts = batch(waveforms(jasper_case))
    log_probs, num_frames = graph({"waveform": block, "num_samples": counts}, ["log_probs", "num_frames"])
    check_log_probs(jasper_case, log_probs, num_frames, "log_probs_nomask_solo")


def tidy(text: str) -> str:
    """Upstream keeps spaces that begin or end a text or follow each other; we write none."""
    return " ".join(text.split())


def labels(case: Case, array: str, row: int) -> str:
    """What upstream's log-probabilities say, repeats and blanks taken out, spaces kept."""
    frames = case.expected[f"{array}_{row}"][: int(case.expected[f"enc_len_solo_{row}"][0])]
    best = frames.argmax(axis=1)
    kept = best[np.diff(best, prepend=-1) != 0]
    table = read_config(case.path / "config.yaml").labels
    return "".join(table[each] for each in kept.tolist() if each < len(table))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_pipeline_gives_upstreams_texts(jasper_case: Case, exported: Any, runtime: str) -> None:
    found = open_offline(Bundle.open(exported(jasper_case)), placement=Placement(runtime=runtime)).recognize(
        waveforms(jasper_case)
    )
    assert [each.text for each in found] == [tidy(text) for text in jasper_case.expected["text_solo"].tolist()]
    for row, each in enumerate(found):
        assert "".join(token.text for token in each.tokens).replace(SPACE, " ") == labels(
            jasper_case, "log_probs_solo", row
        )


def test_the_unmasked_pipeline_gives_upstreams_texts(jasper_case: Case, exported: Any) -> None:
    bundle = Bundle.open(exported(jasper_case).with_name(UNMASKED))
    found = [open_offline(bundle).recognize([waveform])[0].text for waveform in waveforms(jasper_case)]
    assert found == [tidy(text) for text in jasper_case.expected["text_nomask_solo"].tolist()]
