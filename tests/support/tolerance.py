"""Tolerances of float32 arithmetic, from the sizes of numbers and sums alone, for results that are computed twice.

Two correct programs, or one on two processors, add the terms of a sum in different orders. How far their results may
lie apart follows from the arithmetic, and not from what a machine happened to show.
"""

import numpy as np
import numpy.typing as npt

EPSILON = float(np.finfo(np.float32).eps)  # 2^-23: an addition is off by up to half of it, times the size of its result
MARGIN = 4.0


def float_noise(scale: float, terms: int, sums: int = 1, epsilon: float = EPSILON) -> float:
    """How far two float32 results may lie apart that differ in nothing but the order of additions.

    Every addition rounds, which is off by 0.29 ε of its result's size at one standard deviation. The roundings of a sum
    of `terms` terms, and of `sums` such sums behind each other, are independent and add up like a random walk: with the
    square root of their number. Two results differ by √2 of that, and the largest of a million such differences lies at
    five standard deviations: 5 · √2 · 0.29 ≈ 2. `MARGIN` is twice that, for layers that amplify what they get.

    The worst case, all roundings in one direction, grows with the number itself. It does not happen, and a bound that
    allowed for it would not see real defects; a wrong term is larger than this by orders of magnitude.

    Args:
        scale: the largest magnitude among the numbers that are added, or what they come to.
        terms: of the longest sum: inputs of a linear layer, channels times kernel of a convolution.
        sums: how many lie behind each other from input to result.
        epsilon: ε of the numbers, 2^-10 of float16.
    """
    return MARGIN * epsilon * scale * float(np.sqrt(terms * sums))


def assert_close(
    found: npt.ArrayLike,
    expected: npt.ArrayLike,
    *,
    terms: int,
    sums: int = 1,
    scale: float | None = None,
    epsilon: float = EPSILON,
) -> None:
    """Compare float32 results, see `float_noise`; `scale` is by default the largest magnitude of `expected`."""
    expected = np.asarray(expected)
    if scale is None:
        scale = float(np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=float_noise(scale, terms, sums, epsilon))
