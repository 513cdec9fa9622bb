"""Transducer search against icefall's own, on the encoder outputs that icefall computed."""

from typing import Any

import numpy as np
import pytest

from parity.golden_cases import Case, rows
from parity.transducer_network import NumpyNetwork
from tritone.search.hypothesis import Hypothesis, Token
from tritone.search.scoring.scorer import Scorer
from tritone.search.transducer.batch import advance_beams
from tritone.search.transducer.greedy import GreedyState, advance_greedy
from tritone.search.transducer.modified_beam import ModifiedBeam
from tritone.search.transducer.predictor import PredictorCache

LOG_PROB_TOLERANCE = 1e-3  # of sums over up to a hundred frames; icefall adds in float32


class SingleNetwork(NumpyNetwork):
    """What icefall's search of single utterances sees: once there is a token, blanks before it instead of nothing."""

    def predict(self, contexts: np.ndarray) -> np.ndarray:
        at_start = (contexts == self.start).all(axis=1, keepdims=True)
        return super().predict(np.where(at_start, contexts, np.maximum(contexts, 0)))


def arrays(case: Case) -> tuple[str, np.ndarray, np.ndarray]:
    """The prefix of a case's search results, and the encoder output that they belong to."""
    prefix = "simulated_" if "simulated_encoder_out" in case.expected else ""
    return prefix, case.expected[f"{prefix}encoder_out"], case.expected[f"{prefix}encoder_out_lens"]


def ragged(case: Case, name: str) -> list[list[int]]:
    return rows(case.expected[name], case.expected[f"{name}_lens"])


def ids(tokens: list[Token] | Hypothesis) -> list[int]:
    return [token.id for token in (tokens.tokens if isinstance(tokens, Hypothesis) else tokens)]


def times(tokens: list[Token] | Hypothesis) -> list[int]:
    return [token.start_frame for token in (tokens.tokens if isinstance(tokens, Hypothesis) else tokens)]


def modified(network: NumpyNetwork, encoded: np.ndarray, lengths: np.ndarray, **options: Any) -> list[list[Hypothesis]]:
    cache = PredictorCache(network)
    beams = [ModifiedBeam(cache, beam=4, **options) for _ in lengths]
    advance_beams(beams, network.project(encoded), lengths)
    return [beam.hypotheses(4, final=True) for beam in beams]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("greedy", {}),
        ("greedy_sym3", {"max_symbols": 3}),
        ("greedy_batch", {}),
        ("greedy_batch_bp1", {"blank_penalty": 1.0}),
    ],
)
def test_greedy_search_equals_icefall(icefall_case: Case, name: str, options: dict[str, Any]) -> None:
    prefix, encoded, lengths = arrays(icefall_case)
    network = NumpyNetwork(icefall_case) if "batch" in name else SingleNetwork(icefall_case)
    cache = PredictorCache(network)
    found = advance_greedy([GreedyState(cache, **options) for _ in lengths], network.project(encoded), lengths)
    assert [ids(tokens) for tokens in found] == ragged(icefall_case, f"{prefix}{name}_tokens")
    assert [times(tokens) for tokens in found] == ragged(icefall_case, f"{prefix}{name}_timestamps")


def test_modified_beam_search_equals_icefall(icefall_case: Case) -> None:
    prefix, encoded, lengths = arrays(icefall_case)
    found = modified(NumpyNetwork(icefall_case), encoded, lengths)
    assert [ids(best) for best, *_ in found] == ragged(icefall_case, f"{prefix}mbs4_tokens")
    assert [times(best) for best, *_ in found] == ragged(icefall_case, f"{prefix}mbs4_timestamps")
    for row, hypotheses in enumerate(found):
        name = f"{prefix}mbs4_nbest{row}"
        assert [ids(each) for each in hypotheses] == ragged(icefall_case, f"{name}_tokens")
        np.testing.assert_allclose(
            [each.log_prob for each in hypotheses],
            icefall_case.expected[f"{name}_log_prob"],
            rtol=0,
            atol=LOG_PROB_TOLERANCE,
        )


def test_phrases_of_a_context_graph_change_hypotheses_as_in_icefall(icefall_case: Case) -> None:
    """Every token is a word of one ideograph, so that a phrase of the text is a phrase of tokens."""
    prefix, encoded, lengths = arrays(icefall_case)
    network = NumpyNetwork(icefall_case)
    spellings = ["", *(chr(0x4E00 + token) for token in range(1, network.vocab_size))]
    score = float(icefall_case.expected[f"{prefix}ctx_score"])
    phrases = {"".join(spellings[t] for t in phrase) for phrase in ragged(icefall_case, f"{prefix}ctx_phrases")}
    scorer = Scorer.build(
        spellings,
        lm=None,
        lm_weight=0.0,
        word_bonus=0.0,
        hotwords=[(phrase, score * len(phrase)) for phrase in sorted(phrases)],
        overlapping=False,
    )
    best = [hypotheses[0] for hypotheses in modified(network, encoded, lengths, scorer=scorer)]
    assert [ids(each) for each in best] == ragged(icefall_case, f"{prefix}mbs4_ctx_tokens")
    assert [times(each) for each in best] == ragged(icefall_case, f"{prefix}mbs4_ctx_timestamps")
    np.testing.assert_allclose(
        [each.log_prob + each.bonus for each in best],
        icefall_case.expected[f"{prefix}mbs4_ctx_log_prob"],
        rtol=0,
        atol=LOG_PROB_TOLERANCE,
    )


def test_searches_of_streams_equal_icefall_chunk_by_chunk(icefall_case: Case) -> None:
    expected = icefall_case.expected
    if "stream_greedy_tokens" not in expected:
        pytest.skip("no streams in this case")
    network = NumpyNetwork(icefall_case)
    if network.is_conformer:
        network.start = (0,) * network.context_size  # as its streams start there, unlike its utterances
    streams = [
        np.split(network.project(expected[f"stream{i}_encoder_out"]), np.cumsum(expected[f"stream{i}_chunk_out_lens"]))
        for i in range(len(expected["stream_greedy_tokens"]))
    ]
    cache = PredictorCache(network)
    greedy = [GreedyState(cache) for _ in streams]
    beams = [ModifiedBeam(cache, beam=4) for _ in streams]
    tokens: list[list[Token]] = [[] for _ in streams]
    counts: list[list[int]] = [[] for _ in streams]
    # All streams together, although icefall had each of them alone.
    for step in range(max(map(len, streams)) - 1):
        alive = [i for i, chunks in enumerate(streams) if step < len(chunks) - 1]
        lengths = np.array([len(streams[i][step]) for i in alive])
        chunks = np.full((len(alive), max(lengths), streams[0][0].shape[1]), 1e3, dtype=np.float32)
        for row, i in enumerate(alive):
            chunks[row, : lengths[row]] = streams[i][step]
        for i, new in zip(alive, advance_greedy([greedy[i] for i in alive], chunks, lengths), strict=True):
            tokens[i] += new
            counts[i].append(len(tokens[i]))
        advance_beams([beams[i] for i in alive], chunks, lengths)
    assert [ids(each) for each in tokens] == ragged(icefall_case, "stream_greedy_tokens")
    assert counts == ragged(icefall_case, "stream_greedy_ntokens_after_chunk")
    best = [beam.hypotheses(1, final=True)[0] for beam in beams]
    assert [ids(each) for each in best] == ragged(icefall_case, "stream_mbs4_tokens")
    np.testing.assert_allclose(
        [each.log_prob for each in best], expected["stream_mbs4_log_prob"], rtol=0, atol=LOG_PROB_TOLERANCE
    )
