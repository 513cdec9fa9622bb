"""Fast beam search against the results of k2's, on encoder outputs of upstream's own code."""

from collections.abc import Sequence

import numpy as np
import pytest

from parity.golden_cases import Case, rows
from parity.transducer_network import NumpyNetwork
from tritone.search.hypothesis import Hypothesis
from tritone.search.transducer.batch import advance_beams
from tritone.search.transducer.fast_beam import FastBeam
from tritone.search.transducer.predictor import PredictorCache

# What the golden data was made with: `fast_beam_search_one_best` on the trivial graph.
OPTIONS = {
    "sherpa": {"beam": 4.0, "max_states": 32, "max_contexts": 4},
    "icefall": {"beam": 20.0, "max_states": 64, "max_contexts": 8},
}


def search(case: Case, encoder_out: np.ndarray, num_frames: np.ndarray, which: str, nbest: int) -> list[Hypothesis]:
    network = NumpyNetwork(case)
    cache = PredictorCache(network)
    beams = [FastBeam(cache, **OPTIONS[which], final_arc=True, nbest=nbest) for _ in num_frames]  # type: ignore[arg-type]
    advance_beams(beams, network.project(encoder_out), num_frames)
    return [beam.hypotheses(1, final=True)[0] for beam in beams]


def tokens(found: Sequence[Hypothesis]) -> list[list[int]]:
    return [[token.id for token in hypothesis.tokens] for hypothesis in found]


@pytest.mark.parametrize("nbest", [1, 4])
@pytest.mark.parametrize("which", list(OPTIONS))
def test_tokens_and_times_are_upstreams(icefall_case: Case, which: str, nbest: int) -> None:
    golden = icefall_case.expected
    prefix = "simulated_" if "simulated_encoder_out" in golden else ""
    name = f"{prefix}fbs_{which}"
    if f"{name}_tokens" not in golden:
        pytest.skip(f"the case has no {name}_tokens")
    found = search(icefall_case, golden[f"{prefix}encoder_out"], golden[f"{prefix}encoder_out_lens"], which, nbest)
    assert tokens(found) == rows(golden[f"{name}_tokens"], golden[f"{name}_tokens_lens"])
    times = [[token.start_frame for token in hypothesis.tokens] for hypothesis in found]
    assert times == rows(golden[f"{name}_timestamps"], golden[f"{name}_timestamps_lens"])


def test_tokens_of_streams_are_upstreams(icefall_case: Case) -> None:
    golden = icefall_case.expected
    if "stream_fbs_sherpa_tokens" not in golden:
        pytest.skip("the case has no streams")
    streams = [golden[f"stream{i}_encoder_out"] for i in range(len(golden["stream_fbs_sherpa_tokens"]))]
    num_frames = np.array([len(stream) for stream in streams])
    batch = np.full((len(streams), num_frames.max(), streams[0].shape[1]), np.nan, dtype=np.float32)
    for row, stream in zip(batch, streams, strict=True):
        row[: len(stream)] = stream
    expected = rows(golden["stream_fbs_sherpa_tokens"], golden["stream_fbs_sherpa_tokens_lens"])
    assert tokens(search(icefall_case, batch, num_frames, "sherpa", 1)) == expected


def test_without_final_arcs_nothing_of_the_last_frame_is_lost(icefall_case: Case) -> None:
    """Upstream finds nothing in an utterance of one frame; greedy search tells whether there is something."""
    network = NumpyNetwork(icefall_case)
    golden = icefall_case.expected
    frames = network.project(golden["simulated_encoder_out" if "simulated_encoder_out" in golden else "encoder_out"][0])
    start = (0,) * network.context_size
    logits = network.join(frames, np.repeat(network.predict(np.array([start])), len(frames), axis=0))
    best = np.argmax(logits, axis=1)
    cache = PredictorCache(network)
    ours, upstream = ([FastBeam(cache, final_arc=arc) for _ in frames] for arc in (False, True))
    for beams in (ours, upstream):
        advance_beams(beams, frames[:, None], np.ones(len(frames), dtype=np.int64))
    found = tokens([beam.hypotheses(1, final=True)[0] for beam in ours])
    assert found == [[int(token)] if token else [] for token in best]
    assert any(found)
    assert not any(tokens([beam.hypotheses(1, final=True)[0] for beam in upstream]))
