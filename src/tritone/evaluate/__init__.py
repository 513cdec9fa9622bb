"""Accuracy: texts against references."""

from tritone.corpus.dataset import Utterance, read_utterances
from tritone.evaluate.compare import Comparison, compare, gate
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.page import write_page
from tritone.evaluate.result import Evaluation, Report, Row
from tritone.evaluate.run import Status, evaluate
from tritone.evaluate.series import evaluate_each, read_baseline

__all__ = [
    "Comparison",
    "Evaluation",
    "Normalization",
    "Normalizer",
    "Report",
    "Row",
    "Status",
    "Utterance",
    "compare",
    "evaluate",
    "evaluate_each",
    "gate",
    "read_baseline",
    "read_utterances",
    "write_page",
]
