"""The score of a sentence by an n-gram model, word for word as searches look it up.

log10_of(NgramModel, "one two")  ->  log10 P(one two </s> | <s>)
"""

from typing import Any

import numpy as np

from tritone.search.compiled.compiler import compiled
from tritone.search.ngram.model import NgramModel
from tritone.search.ngram.tables import Ids, score_word


@compiled
def _score(places: Any, words: Ids, start: Ids) -> Any:
    at = places[0]
    context = start.copy()
    total = 0.0
    for word in words:
        total += score_word(at, context, np.int64(word), context)
    return total


def log10_of(model: NgramModel, sentence: str) -> float:
    """A model without sentence marks starts without context, or adds nothing at the end."""
    ids = [model.word_id(word) for word in sentence.split()] + ([model.end] if model.end else [])
    return float(_score(model.place, np.asarray(ids, dtype=np.int32), model.start))
