"""The mean of many speakers' embeddings, which is subtracted from each before they are compared.

mean_vec.npy  ->  (dim,) float32
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tritone.errors import ExportError

MAX_BYTES = 2**20  # embeddings have a few hundred numbers


def read_mean(path: Path, dim: int) -> npt.NDArray[np.float32]:
    """Read the vector that upstream's `vector_mean` or `score.py` leaves behind.

    Raises:
        ExportError: it is missing, no array of numbers, or not of `dim` of them.
    """
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ExportError(f"{path} has {size} bytes; a mean vector has no more than {MAX_BYTES}")
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ExportError(f"cannot read the mean vector {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, SyntaxError) as error:
        raise ExportError(
            f"{path} is no array of numbers that numpy has saved ({str(error)[:200]}). Give upstream's mean_vec.npy."
        ) from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.size != max(array.shape, default=0):
        raise ExportError(f"{path} holds no vector of numbers; give upstream's mean_vec.npy")
    if array.size != dim:
        raise ExportError(f"{path} has {array.size} numbers, but embeddings of this model have {dim}")
    mean = array.reshape(-1).astype(np.float32)
    if not np.isfinite(mean).all():
        raise ExportError(f"{path} holds numbers that are not finite")
    return mean
