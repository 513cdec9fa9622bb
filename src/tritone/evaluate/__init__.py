"""Accuracy: texts against references."""

from tritone.corpus.dataset import read_utterances
from tritone.evaluate.normalize import Normalizer
from tritone.evaluate.run import evaluate

__all__ = [
    "Normalizer",
    "evaluate",
    "read_utterances",
]
