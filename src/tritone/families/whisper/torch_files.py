"""Tensors of Whisper models in files that torch reads: OpenAI's .pt, and a folder of transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.checkpoint import NUMBERS, load_checkpoint, unwrapped
from tritone.families.export.hf_folder import stored_tensors, weight_files
from tritone.families.whisper.dims import State

PLAIN = "Save its tensors with `model.save_pretrained(folder)`, or as a dict of `dims` and `model_state_dict`."


def openai_state(path: Path) -> tuple[Any, State, str]:
    """The sizes, as they are in the file, the tensors of a checkpoint of OpenAI's, and what was before all names.

    Raises:
        ExportError: it is none.
    """
    content = load_checkpoint(path, plain=PLAIN, usual=".pt file")
    if not isinstance(content, Mapping) or not {"dims", "model_state_dict"} <= set(content):
        raise ExportError(
            f"checkpoint {path}: expected a dict with dims and model_state_dict, as openai/whisper has it"
        )
    tensors = content["model_state_dict"]
    if not isinstance(tensors, Mapping) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ExportError(f"checkpoint {path}: expected a dict of tensors")
    own, prefix = unwrapped({str(name): each for name, each in tensors.items()}, path)
    unused = ("decoder.mask", "alignment_heads")  # of older versions
    return content["dims"], _state({name: each for name, each in own.items() if name not in unused}, path), prefix


def folder_state(folder: Path) -> tuple[list[Path], State, str]:
    """The files of weights of a folder of transformers, the tensors in them, and what was before all names.

    Raises:
        ExportError: there are none.
    """
    files = weight_files(folder)
    own, prefix = unwrapped({name: each for file in files for name, each in stored_tensors(file).items()}, folder)
    return files, _state(own, folder), prefix


def _state(tensors: Mapping[str, Tensor], origin: Path) -> State:
    wrong = [f"{name} holds {value.dtype}" for name, value in tensors.items() if value.dtype not in NUMBERS]
    if wrong:
        raise ExportError(f"checkpoint {origin} does not hold numbers alone: {', '.join(wrong[:10])}")
    return {name: value.float().contiguous().numpy() for name, value in tensors.items()}
