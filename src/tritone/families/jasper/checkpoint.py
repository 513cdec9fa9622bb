"""Reading a trained Jasper or QuartzNet: checkpoint and config of upstream, or a .nemo archive that holds both.

All of it is untrusted: checkpoints are loaded with `weights_only=True`, YAML with the safe loader, sizes are checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.archive import ARCHIVE_SUFFIX, open_weights
from tritone.families.export.checkpoint import load_checkpoint, require_fit, state_of, without
from tritone.families.export.settings import read_config_file
from tritone.families.jasper.archived import read_archived_config
from tritone.families.jasper.config import ModelConfig, parse_config
from tritone.families.jasper.names import TRAINING, from_archived_names, tensor_shapes, todays_names

STATE, EMA_STATE = "state_dict", "ema_state_dict"


@dataclass(frozen=True)
class Weights:
    """Tensors by upstream's names, and whether they are the averaged ones (`ema_state_dict`)."""

    state: dict[str, Tensor]
    averaged: bool


def read_config(path: Path) -> ModelConfig:
    """Read upstream's yaml config, or the one in a .nemo archive.

    Raises:
        ExportError: it is unreadable, or something in it is missing, unknown or unsupported.
    """
    if path.suffix == ".toml":
        raise ExportError(f"config {path}: upstream has left TOML for YAML; give the .yaml of the same name")
    if path.suffix == ARCHIVE_SUFFIX and path.is_file():
        return parse_config(read_archived_config(path))
    return parse_config(read_config_file(path))


def read_weights(path: Path, *, ema: bool = True) -> Weights:
    """Read a checkpoint's tensors by upstream's names of today.

    Args:
        path: upstream's checkpoint, a bare state dict, or a .nemo archive.
        ema: take the averaged weights if there are any.

    Raises:
        ExportError: no such file, not a checkpoint, or it holds more than plain tensors and numbers.
    """
    if path.suffix == ARCHIVE_SUFFIX and path.is_file():
        with open_weights(path) as file:
            state = state_of(_load(path, file), path).tensors
            return Weights(todays_names(from_archived_names(without(state, TRAINING))), averaged=False)
    found = state_of(_load(path), path, averaged=ema)
    return Weights(todays_names(without(found.tensors, TRAINING)), found.averaged)


def _load(path: Path, file: IO[bytes] | None = None) -> Any:
    return load_checkpoint(
        path,
        plain=f"Save the part {EMA_STATE} or {STATE} alone, with torch.save.",
        usual="Jasper_…_checkpoint.pt",
        file=file,
    )


def check_state(config: ModelConfig, state: Mapping[str, Tensor], origin: str) -> None:
    """Compare tensors with a config; errors as of `require_fit`."""
    require_fit(tensor_shapes(config), state, origin, "its config")
