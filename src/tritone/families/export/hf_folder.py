"""A model's folder as transformers saves it: its JSON files and its tensors.

    config.json, processor_config.json | preprocessor_config.json, vocab.json, …
    model.safetensors | pytorch_model.bin, whole or in shards that an index lists

All of it is untrusted: no code in it runs, sizes are limited, and an index cannot name files elsewhere.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.checkpoint import load_checkpoint
from tritone.families.export.json_files import read_json, read_json_if_there

CONFIG = "config.json"
PROCESSOR, PREPROCESSOR = "processor_config.json", "preprocessor_config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first one that is there is read, as upstream does
SAFE = ".safetensors"


def read_extractor(folder: Path) -> tuple[dict[str, Any], Path]:
    """The settings of a folder's feature extractor, and the file that has them.

    Raises:
        ExportError: there are none, or the file is damaged.
    """
    within = read_json_if_there(folder / PROCESSOR).get("feature_extractor")
    if isinstance(within, dict):
        return within, folder / PROCESSOR
    if not (folder / PREPROCESSOR).is_file():
        raise ExportError(
            f"{folder} has neither {PREPROCESSOR} nor a feature extractor in {PROCESSOR}, which say what is made of "
            "audio; save the model's processor into the folder, with its save_pretrained"
        )
    return read_json(folder / PREPROCESSOR), folder / PREPROCESSOR


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's tensors.

    Raises:
        ExportError: there are none, or an index names a file that is missing or elsewhere.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        if (index := folder / f"{name}.index.json").is_file():
            listed = read_json(index).get("weight_map")
            if not isinstance(listed, dict) or not all(isinstance(each, str) for each in listed.values()):
                raise ExportError(f"{index} has no weight_map that says which file holds which tensor")
            names = sorted(set(listed.values()))
            if wrong := [each for each in names if Path(each).name != each or not (folder / each).is_file()]:
                raise ExportError(f"{index} names {wrong[0]!r}, which is not a file of {folder}")
            return [folder / each for each in names]
    raise ExportError(f"{folder} has no weights: expected {' or '.join(WEIGHTS)}, or an index of shards")


def read_tensors(path: Path) -> Mapping[str, Tensor]:
    """The tensors of one file, .safetensors or of torch.

    Raises:
        ExportError: it is not a readable file of tensors.
    """
    if path.suffix == SAFE:
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ExportError(f"{path} is not a readable safetensors file: {error}") from error
    content = load_checkpoint(
        path, plain="Save the model again as safetensors, with save_pretrained.", usual=WEIGHTS[1]
    )
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ExportError(f"{path} must hold tensors by name; save the model again with save_pretrained")
    return content
