"""The mean of many speakers' embeddings, which is subtracted from each before they are compared.

mean_vec.npy  ->  (dim,) float32
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tritone.bundle.npy import read_vector
from tritone.errors import ExportError


def read_mean(path: Path, dim: int) -> npt.NDArray[np.float32]:
    """Read the vector that upstream's `vector_mean` or `score.py` leaves behind.

    Raises:
        ExportError: it is missing, no array of numbers, or not of `dim` of them.
    """
    try:
        mean = read_vector(path)
    except OSError as error:
        raise ExportError(f"cannot read the mean vector {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ExportError(f"{path} is no mean vector: {error}. Give upstream's mean_vec.npy.") from error
    if mean.size != dim:
        raise ExportError(f"{path} has {mean.size} numbers, but embeddings of this model have {dim}")
    return mean
