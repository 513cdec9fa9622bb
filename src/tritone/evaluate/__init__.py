"""Accuracy: texts against references."""

from typing import TYPE_CHECKING

from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.corpus.dataset import read_utterances
    from tritone.evaluate.run import evaluate
    from tritone.evaluate.series import evaluate_each, read_baseline

__all__ = [
    "Normalization",
    "Normalizer",
    "evaluate",
    "evaluate_each",
    "read_baseline",
    "read_utterances",
]

# Imported on first use: each process of a load test normalises texts, and has no model.
__getattr__ = attributes(
    __name__,
    {
        "evaluate": "tritone.evaluate.run",
        "evaluate_each": "tritone.evaluate.series",
        "read_baseline": "tritone.evaluate.series",
        "read_utterances": "tritone.corpus.dataset",
    },
)
