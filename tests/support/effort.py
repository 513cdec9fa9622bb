"""How much a run tries: all in a whole run, and less in one that leaves out what is slow.

    @settings(max_examples=examples(200))      # of hypothesis: 200, or 50 of them
    export_x(..., runtimes=runtimes())         # a program of torch too, or ONNX alone
    @pytest.mark.parametrize("runtime", ["onnxruntime", TORCH])

Tests of hypothesis without settings take the number of the profile, which conftest.py loads. torch traces a network for
its programs eight times as long as for ONNX; those of a few families are in quick runs.
"""

from typing import Literal

import hypothesis
import pytest

TORCH = pytest.param("torch", marks=pytest.mark.slow)
LEAST = 10  # tests of few examples keep them
SHARE = 4
_share = 1


def choose(*, quick: bool) -> None:
    """Take whether a run leaves out what is slow; before tests are imported."""
    global _share  # of this process, which has one run
    _share = SHARE if quick else 1
    # The same examples in every run, and no time limit per example: test machines are busy.
    hypothesis.settings.register_profile("tritone", deadline=None, derandomize=True, max_examples=examples(100))
    hypothesis.settings.load_profile("tritone")


def examples(number: int) -> int:
    """So many of a number of examples as this run tries."""
    return min(number, max(LEAST, number // _share))


def runtimes() -> tuple[Literal["onnxruntime", "torch"], ...]:
    """What to export for, where tests of torch are slow ones."""
    return ("onnxruntime",) if _share > 1 else ("onnxruntime", "torch")
