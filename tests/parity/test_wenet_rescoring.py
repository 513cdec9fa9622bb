"""The attention decoder's graph against upstream's scores: the torch network, and what was exported of it.

Tolerances are those of the golden data's README.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parity.golden_cases import Case, largest
from tritone.bundle.bundle import Bundle
from tritone.families.wenet.checkpoint import load_model, read_config
from tritone.families.wenet.rescoring import RescoringGraph
from tritone.kinds.ctc.part import DecoderPart
from tritone.runtime import open_graph

SCORE_ATOL = 5e-4
RUNTIMES = ("torch network", "onnxruntime", pytest.param("torch", marks=pytest.mark.slow))


@pytest.fixture(params=RUNTIMES)
def score(wenet_case: Case, exported: Any, request: pytest.FixtureRequest) -> Any:
    """encoder_out, num_frames, hypotheses, num_tokens -> left and right scores (None without a right decoder)."""
    if request.param == "torch network":
        graph = network(wenet_case.path)

        def run(*inputs: np.ndarray) -> Any:
            with torch.no_grad():
                scores = [each.numpy() for each in graph(*map(torch.from_numpy, inputs))]
            return scores if len(scores) == 2 else (*scores, None)

        return run
    bundle = Bundle.open(exported(wenet_case, request.param))
    session = open_graph(bundle.artifact("decoder", request.param), threads=1)
    outputs = ["left_scores", "right_scores"] if bundle.manifest.part(DecoderPart).bidirectional else ["left_scores"]

    def run_exported(*inputs: np.ndarray) -> Any:
        names = ("encoder_out", "num_frames", "hypotheses", "num_tokens")
        scores = session(dict(zip(names, inputs, strict=True)), outputs)
        return scores if len(scores) == 2 else (*scores, None)

    return run_exported


@cache
def network(folder: Path) -> RescoringGraph:
    """sos and eos are what upstream says of the case; an export must find them by itself."""
    model = load_model(read_config(folder / "train.yaml"), folder / "final.pt")
    assert model.decoder is not None
    with np.load(folder / "expected.npz") as expected:
        sos, eos = int(expected["sos"]), int(expected["eos"])
    return RescoringGraph(model.decoder, sos, eos, model.config.encoder.output_size).eval()


def ids(tokens: np.ndarray) -> np.ndarray:
    """The golden padding of -1 as something no score may depend on."""
    return np.where(tokens < 0, 3, tokens).astype(np.int64)


def batch(case: Case) -> tuple[np.ndarray, ...]:
    expected = case.expected
    lengths = expected["encoder_lens"].astype(np.int64)
    return expected["encoder_out"], lengths, ids(expected["beam_tokens"]), expected["beam_lens"].astype(np.int64)


def from_log_probs(log_probs: np.ndarray, tokens: list[int], eos: int) -> float:
    return float(sum(log_probs[place, token] for place, token in enumerate([*tokens, eos])))


def test_scores_are_sums_of_upstreams_log_probs(wenet_case: Case, score: Any) -> None:
    expected = wenet_case.expected
    encoder_out, num_frames, hypotheses, num_tokens = batch(wenet_case)
    left, right = score(encoder_out, num_frames, hypotheses, num_tokens)
    eos, checked = int(expected["eos"]), 0
    for row, utterance in enumerate(expected["decoder_utts"].tolist()):
        for place in range(hypotheses.shape[1]):
            if not np.isfinite(expected["beam_scores"][utterance, place]):
                continue
            tokens = hypotheses[utterance, place, : num_tokens[utterance, place]].tolist()
            wanted = from_log_probs(expected["decoder_log_probs"][row, place], tokens, eos)
            assert left[utterance, place] == pytest.approx(wanted, abs=SCORE_ATOL)
            if right is not None:
                wanted = from_log_probs(expected["r_decoder_log_probs"][row, place], tokens[::-1], eos)
                assert right[utterance, place] == pytest.approx(wanted, abs=SCORE_ATOL)
            checked += 1
    assert checked


def test_hypotheses_of_any_length_score_as_upstream_says(wenet_case: Case, score: Any) -> None:
    """Of 0, 1, 6 and 13 tokens, all at once and each in a call of its own."""
    expected = wenet_case.expected
    frames = int(expected["encoder_lens"][0])
    memory, count = expected["encoder_out"][:1, :frames], np.array([frames])
    hypotheses, lengths = ids(expected["given_hyps"])[None], expected["given_lens"].astype(np.int64)[None]
    scores = score(memory, count, hypotheses, lengths)
    eos = int(expected["eos"])
    for which, name in enumerate(("given_decoder_log_probs", "given_r_decoder_log_probs")):
        found = scores[which]
        assert (found is None) == (name not in expected)
        if found is None:
            continue
        for place, length in enumerate(lengths[0].tolist()):
            tokens = hypotheses[0, place, :length].tolist()
            wanted = from_log_probs(expected[name][place], tokens[:: -1 if "_r_" in name else 1], eos)
            assert found[0, place] == pytest.approx(wanted, abs=SCORE_ATOL)
            alone = hypotheses[:, place : place + 1, : max(1, length)]
            again = score(memory, count, alone, lengths[:, place : place + 1])[which]
            assert again[0, 0] == pytest.approx(wanted, abs=SCORE_ATOL)


def test_weighted_scores_choose_upstreams_winner(wenet_case: Case, score: Any) -> None:
    expected = wenet_case.expected
    left, right = score(*batch(wenet_case))
    there = np.isfinite(expected["beam_scores"])
    ctc = np.where(there, expected["beam_scores"], 0.0)
    pairs = zip(expected["rescore_ctc_weight"], expected["rescore_reverse_weight"], strict=True)
    for index, (ctc_weight, reverse_weight) in enumerate(pairs):
        attention = left if right is None else (1 - reverse_weight) * left + reverse_weight * right
        total = np.where(there, attention + ctc_weight * ctc, -np.inf)
        assert largest(total[there], expected["rescore_scores"][index][there]) <= SCORE_ATOL
        assert total.argmax(axis=1).tolist() == expected["rescore_best_index"][index].tolist()
        if index == 0:
            assert total.argmax(axis=1).tolist() == expected["gpu_best_index"].tolist()


def test_scores_do_not_depend_on_batch_mates_or_padding(wenet_case: Case, score: Any) -> None:
    encoder_out, num_frames, hypotheses, num_tokens = batch(wenet_case)
    together = score(encoder_out, num_frames, hypotheses, num_tokens)
    row = int(num_frames.argmin())
    frames, length = int(num_frames[row]), int(num_tokens[row].max())
    alone = score(
        encoder_out[row : row + 1, :frames],
        num_frames[row : row + 1],
        hypotheses[row : row + 1, :2, : max(1, length)],
        num_tokens[row : row + 1, :2],
    )
    dirty = encoder_out.copy()
    for index, count in enumerate(num_frames):
        dirty[index, count:] = np.nan
    junk = np.where(np.arange(hypotheses.shape[2]) < num_tokens[..., None], hypotheses, 10**6)
    spoilt = score(dirty, num_frames, junk, num_tokens)
    for whole, single, other in zip(together, alone, spoilt, strict=True):
        if whole is not None:
            assert largest(single[0], whole[row, :2]) <= 1e-4
            np.testing.assert_array_equal(other, whole)
