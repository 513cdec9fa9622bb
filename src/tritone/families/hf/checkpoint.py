"""The tensors of a model's folder, under the names of our network.

model.safetensors | pytorch_model.bin  ->  {name: tensor} without upstream's prefix, weight norm folded
"""

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path

import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.hf_folder import SAFE, read_tensors
from tritone.families.hf.config import PREFIXES

# Weight norm: magnitude and direction, by the names of torch's newer and its older form.
NORMED = ((".parametrizations.weight.original0", ".parametrizations.weight.original1"), (".weight_g", ".weight_v"))
TRAINING = ("masked_spec_embed", "num_batches_tracked")  # ends of names of what matters in training alone
# What Wav2Vec2-Conformer stores and does not use, or makes of its config: transformers never calls the convolution.
UNUSED = {"wav2vec2-conformer": ("encoder.pos_conv_embed.", "encoder.embed_positions.")}
HEADS = dict.fromkeys(("omniasr_ctc", "lasr_ctc", "granite_speech5_ctc"), "ctc_head.")
HEAD = "lm_head."  # of all others
# Two layers that are one, of which a file may have either.
TIED = {"granite_speech5_ctc": ("ctc_head.", "encoder.out.")}
# Parts of other types that are wav2vec 2.0's or in their place, by their names behind the prefix.
NAMES: Mapping[str, Mapping[str, str]] = {
    "omniasr_ctc": {
        "subsampling.conv_layers.": "feature_extractor.conv_layers.",
        "subsampling.": "feature_projection.",
        "encode_positions.": "encoder.pos_conv_embed.",
        "layers.": "encoder.layers.",
        "layer_norm.": "encoder.layer_norm.",
    },
    "lasr_ctc": {
        "subsampler.": "feature_extractor.",
        "layers.": "encoder.layers.",
        "out_norm.": "encoder.out_norm.",
    },
    "granite_speech5_ctc": {"": "encoder."},
}


def read_state(files: list[Path], model_type: str) -> dict[str, Tensor]:
    """Read the tensors of all files.

    Raises:
        ExportError: a file is unreadable, or the model has no CTC head.
    """
    state: dict[str, Tensor] = {}
    for file in files:
        state |= read_tensors(file)
    for one, other in permutations(TIED.get(model_type, ()), 2):
        state = {one + name.removeprefix(other): state[name] for name in state if name.startswith(other)} | state
    if (head := f"{HEADS.get(model_type, HEAD)}weight") not in state:
        raise ExportError(
            f"{files[0].parent} has no {head}: it is a model without CTC head, such as one that was only pretrained. "
            "Give one that was fine-tuned for CTC, saved from a …ForCTC class."
        )
    return renamed(state, model_type)


def renamed(state: Mapping[str, Tensor], model_type: str) -> dict[str, Tensor]:
    """Tensors by names without upstream's prefix; what is of no use here is left out, weight norm is folded."""
    prefix, own_head, parts = PREFIXES[model_type], HEADS.get(model_type, HEAD), NAMES.get(model_type, {})

    def own(name: str) -> str:
        if name.startswith(own_head):
            return HEAD + name.removeprefix(own_head)
        name = name.removeprefix(prefix)
        part = next((each for each in parts if name.startswith(each)), "")
        return parts.get(part, "") + name.removeprefix(part)

    found = {own(name): value for name, value in state.items() if not name.endswith(TRAINING)}
    found = {name: value for name, value in found.items() if not name.startswith(UNUSED.get(model_type, ()))}
    if (head := found.get(f"{HEAD}weight")) is not None and head.dim() == 3:  # a convolution of kernel 1
        found[f"{HEAD}weight"] = head.squeeze(2)
    for magnitude, direction in NORMED:
        for name in [name for name in found if name.endswith(magnitude)]:
            root = name.removesuffix(magnitude)
            if root + direction in found:
                found[f"{root}.weight"] = _normed(found.pop(name), found.pop(root + direction))
    return found


def _normed(magnitude: Tensor, direction: Tensor) -> Tensor:
    """A weight of its magnitude and its direction, which are separate for each place of the kernel (the last axis)."""
    length = direction.double().square().sum(dim=(0, 1), keepdim=True).sqrt()
    return (direction.double() * (magnitude.double() / length)).float()


def adapter_file(folder: Path, language: str) -> Path:
    """The weights of a language of MMS.

    Raises:
        ExportError: there are none, or the language's name is not the name of a file.
    """
    names = [f"adapter.{language}{suffix}" for suffix in (SAFE, ".bin")]
    for name in names:
        if Path(name).name == name and (folder / name).is_file():
            return folder / name
    raise ExportError(f"{folder} has no {' or '.join(names)}: this language's adapter is not there")


def read_adapter(path: Path, model_type: str) -> dict[str, Tensor]:
    """The tensors that a language replaces: adapters of layers and the CTC head; errors as of `read_tensors`."""
    state = read_tensors(path)
    name = f"{HEAD}weight"
    if name not in state or not torch.is_tensor(state[name]):
        raise ExportError(f"{path} has no {name}; an adapter holds the head of its language")
    return renamed(state, model_type)
