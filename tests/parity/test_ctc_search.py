"""CTC search against upstream's Python reference on random log-probabilities."""

import numpy as np

from parity.golden_cases import Case, load
from tritone.search.ctc.greedy import ctc_greedy


def test_greedy_equals_upstream(ctc_search_case: Case) -> None:
    cases = load(ctc_search_case.path / "cases.npz")
    blank_id, count = int(cases["blank_id"]), int(cases["num_cases"])
    assert count
    for index in range(count):
        log_probs = cases[f"case{index}_log_probs"]
        [found] = ctc_greedy(log_probs[None], np.array([len(log_probs)]), blank_id)
        assert [token.id for token in found] == [t for t in cases[f"case{index}_greedy"].tolist() if t >= 0], (
            f"case {index}"
        )
