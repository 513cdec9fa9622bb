"""Token search over frame log-probabilities."""

from tritone.search.ctc.greedy import ctc_greedy

__all__ = ["ctc_greedy"]
