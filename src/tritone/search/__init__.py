"""Token search over frame log-probabilities."""

from tritone.search.ctc.greedy import CtcGreedy, ctc_greedy
from tritone.search.hypothesis import Token

__all__ = ["CtcGreedy", "Token", "ctc_greedy"]
