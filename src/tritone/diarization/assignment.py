"""The best pairs of rows and columns, each used at most once: speakers of two descriptions of a recording, or names.

best_pairs([[5, 1], [4, 3]])  ->  [(0, 0), (1, 1)]   # 8 in total; (0, 1) and (1, 0) have 5
"""

import numpy as np
import numpy.typing as npt


def best_pairs(gains: npt.ArrayLike) -> list[tuple[int, int]]:
    """Pairs of rows and columns with the greatest sum of gains, by row; as many as the shorter side has.

    The Hungarian method with potentials, of one row at a time, in O(rows² columns). Source: Kuhn 1955; the form is that
    of Jonker and Volgenant 1987.

    Args:
        gains: (rows, columns), finite.
    """
    matrix = np.asarray(gains, dtype=np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise ValueError(f"gains must be finite, (rows, columns), got {matrix.shape}")
    if matrix.shape[0] > matrix.shape[1]:
        return sorted((row, column) for column, row in best_pairs(matrix.T))
    costs = -matrix
    rows, columns = costs.shape
    row_price, column_price = np.zeros(rows + 1), np.zeros(columns + 1)
    # The row of each column, and `rows` where there is none; the column beyond the last is where a new row begins.
    owner = np.full(columns + 1, rows)
    for row in range(rows):
        owner[columns] = row
        here = columns
        least, before = np.full(columns, np.inf), np.full(columns, columns)
        used = np.zeros(columns + 1, dtype=bool)
        while owner[here] != rows:
            used[here] = True
            reduced = costs[owner[here]] - row_price[owner[here]] - column_price[:columns]
            better = ~used[:columns] & (reduced < least)
            least[better], before[better] = reduced[better], here
            there = int(np.argmin(np.where(used[:columns], np.inf, least)))
            step = least[there]
            row_price[owner[used]] += step
            column_price[used] -= step
            least[~used[:columns]] -= step
            here = there
        while here != columns:
            owner[here] = owner[before[here]]
            here = int(before[here])
    return sorted((int(row), column) for column, row in enumerate(owner[:columns]) if row != rows)
