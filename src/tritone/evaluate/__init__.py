"""Accuracy: texts against references."""

from typing import TYPE_CHECKING, Any

from tritone.evaluate.normalize import Normalization, Normalizer

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
LAZY = {
    "evaluate": "tritone.evaluate.run",
    "evaluate_each": "tritone.evaluate.series",
    "read_baseline": "tritone.evaluate.series",
    "read_utterances": "tritone.corpus.dataset",
}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
