"""Accuracy: texts against references."""

from tritone.corpus.dataset import read_utterances
from tritone.evaluate.normalize import Normalization, Normalizer
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
