"""The transducer loss against every alignment counted one by one, and its gradient against finite differences."""

import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples

torch = pytest.importorskip("torch", reason="the recipe trains with torch: pip install '.[export]'")

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from training import lattice  # noqa: E402


def enumerate_alignments(log_probs: np.ndarray, target: list[int], one_per_frame: bool) -> float:
    """Sum over all alignments of one utterance: log_probs (frames, tokens + 1, vocab), blank 0."""
    frames, count = len(log_probs), len(target)
    total = -math.inf
    if one_per_frame:
        for said_at in itertools.combinations(range(frames), count):
            score, place = 0.0, 0
            for frame in range(frames):
                if frame in said_at:
                    score += log_probs[frame, place, target[place]]
                    place += 1
                else:
                    score += log_probs[frame, place, 0]
            total = np.logaddexp(total, score)
        return float(total)
    # Every frame ends with one blank, so an alignment is how many tokens each frame says before it.
    for split in itertools.product(range(count + 1), repeat=frames):
        if sum(split) != count:
            continue
        score, place = 0.0, 0
        for frame, here in enumerate(split):
            for _ in range(here):
                score += log_probs[frame, place, target[place]]
                place += 1
            score += log_probs[frame, place, 0]
        total = np.logaddexp(total, score)
    return float(total)


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4),
    one_per_frame=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_loss_sums_every_alignment_of_every_row(
    rows: list[tuple[int, int]], one_per_frame: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    frames, tokens = (max(row[place] for row in rows) for place in (0, 1))
    logits = rng.normal(scale=2.0, size=(len(rows), frames, tokens + 1, 4)).astype(np.float32)
    targets = rng.integers(1, 4, size=(len(rows), tokens))
    counts = torch.tensor(rows).T
    loss = lattice.transducer_loss(
        torch.from_numpy(logits), torch.from_numpy(targets), counts[0], counts[1], one_per_frame=one_per_frame
    )
    wide = logits.astype(np.float64)
    log_probs = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    for row, (length, count) in enumerate(rows):
        expected = enumerate_alignments(log_probs[row, :length], targets[row, :count].tolist(), one_per_frame)
        assert loss[row].item() == pytest.approx(0.0 if expected == -math.inf else -expected, abs=2e-5, rel=2e-5)


@pytest.mark.parametrize("one_per_frame", [False, True])
def test_the_gradient_is_that_of_finite_differences(one_per_frame: bool) -> None:
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(size=(2, 4, 3, 5))).float().requires_grad_()
    targets, num_frames, num_tokens = torch.tensor([[1, 3], [2, 4]]), torch.tensor([4, 3]), torch.tensor([2, 1])
    weights = torch.tensor([1.0, -0.5])

    def loss(values: Any) -> Any:
        losses = lattice.transducer_loss(values, targets, num_frames, num_tokens, one_per_frame=one_per_frame)
        return (weights * losses).sum()

    loss(logits).backward()
    step = 0.02
    for place in itertools.product(*map(range, logits.shape)):
        change = torch.zeros_like(logits)
        change[place] = step
        with torch.no_grad():
            slope = (loss(logits + change) - loss(logits - change)).item() / (2 * step)
        assert logits.grad is not None
        assert logits.grad[place].item() == pytest.approx(slope, abs=3e-4)


def test_a_row_that_cannot_be_aligned_costs_nothing_and_moves_nothing() -> None:
    logits = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = lattice.transducer_loss(
        logits, torch.ones(2, 4, dtype=torch.int64), torch.tensor([3, 3]), torch.tensor([4, 3]), one_per_frame=True
    )
    loss.sum().backward()
    assert loss[0].item() == 0.0
    assert loss[1].item() > 0.0
    assert logits.grad is not None
    assert not logits.grad[0].any()
    assert logits.grad[1].any()


def test_long_lattices_stay_finite() -> None:
    logits = 30.0 * torch.randn(1, 400, 101, 4, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    loss = lattice.transducer_loss(
        logits, torch.ones(1, 100, dtype=torch.int64), torch.tensor([400]), torch.tensor([100])
    )
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a GPU")
def test_the_kernel_walks_as_the_loop_does() -> None:
    generator = torch.Generator().manual_seed(0)
    for steps, rows, width in [(1, 1, 1), (7, 3, 5), (300, 20, 130), (50, 2, 600)]:
        stay, arrive = -5 * torch.rand(2, steps, rows, width, generator=generator)
        start = torch.where(torch.arange(width) == 0, 0.0, lattice.NEVER).expand(rows, -1)
        expected = lattice.walk(start, stay, arrive)
        found = lattice.walk(start.cuda(), stay.cuda(), arrive.cuda())
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-3)
