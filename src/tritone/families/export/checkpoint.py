"""Checkpoints of strangers: read without running code of theirs, and compared with the network they are for."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.fit import require_shapes

NUMBERS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def file_in(path: Path, name: str) -> Path:
    """`path`, or the file `name` in it if it is a folder."""
    return path / name if path.is_dir() else path


def load_checkpoint(path: Path, *, plain: str, usual: str, file: IO[bytes] | None = None) -> Any:
    """The content of a checkpoint: tensors, numbers and containers of these.

    Args:
        path: of the checkpoint, also for errors.
        plain: advice how to write one that can be read safely, a sentence.
        usual: the file that training writes.
        file: to be read in place of the file at `path`.

    Raises:
        ExportError: no such file, not a checkpoint, or it holds more than that.
    """
    if not path.is_file():
        raise ExportError(f"checkpoint not found: {path}")
    try:
        # A training checkpoint is several times as large as what is read of it.
        mapped = file is None and zipfile.is_zipfile(path)
        return torch.load(file or path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise ExportError(
            f"checkpoint {path} cannot be read safely: it is damaged or holds Python objects besides tensors and "
            f"numbers. {plain}"
        ) from error
    except Exception as error:  # torch reads any file as a pickle, which fails in as many ways as there are files
        raise ExportError(
            f"checkpoint {path} is not a readable torch file ({type(error).__name__}: {error}). Give the {usual} that "
            "training wrote."
        ) from error


def tensors_of(state: Any, path: Path, expected: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name.

    Args:
        state: its content.
        path: of the checkpoint, for errors.
        expected: what it should hold, for errors.

    Raises:
        ExportError: it is no dict of tensors alone.
    """
    if not isinstance(state, Mapping):
        raise ExportError(f"checkpoint {path} holds a {type(state).__name__} in place of a dict of tensors")
    if wrong := [str(name) for name, value in state.items() if not isinstance(value, Tensor)]:
        raise ExportError(f"checkpoint {path}: expected {expected}; {', '.join(wrong[:5])} are something else")
    return {str(name): value for name, value in state.items()}


def require_fit(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor], origin: str, network: str) -> None:
    """Compare a checkpoint's tensors with those of a network.

    Args:
        wanted: the shapes of all tensors of the network.
        origin: where the tensors come from, for errors.
        network: what they do not fit, for errors: "its config".

    Raises:
        ExportError: names every tensor that is missing, misshapen, not finite, or unknown to the network.
    """

    def wrong_numbers(name: str) -> str | None:
        value = found[name]
        if value.dtype not in NUMBERS:
            return str(value.dtype)
        return None if bool(torch.isfinite(value).all()) else "NaN or Inf"

    shapes = {name: tuple(value.shape) for name, value in found.items()}
    require_shapes(wanted, shapes, origin, network, wrong_numbers)
