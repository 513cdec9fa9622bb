"""Reading a trained model: upstream's `config.yaml` and `avg_model.pt`, or a checkpoint of others alone.

Both are untrusted: checkpoints are loaded with `weights_only=True`, YAML with the safe loader, sizes are checked.
Upstream loads what fits and logs the rest. Here a tensor that is missing or unknown is an error, except for those that
matter in training alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.checkpoint import PREFIXES, load_checkpoint, require_fit, state_of, without
from tritone.families.export.settings import read_config_file
from tritone.families.wespeaker.config import ModelConfig, parse_config
from tritone.families.wespeaker.lightning import MODULE, UNREAD, config_of, is_lightning
from tritone.families.wespeaker.model import SpeakerNetwork, build_network
from tritone.families.wespeaker.names import FRONT_END, PROJECTION, tensor_shapes
from tritone.families.wespeaker.three_d_speaker import NOTE, campplus_of, is_campplus

MAX_CHECKPOINT_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Weights:
    """Tensors by upstream's names, the names of those that training alone needs, and what the file holds in all."""

    state: dict[str, Tensor]
    ignored: tuple[str, ...]
    content: Any


def read_config(path: Path) -> ModelConfig:
    """Read upstream's config.yaml.

    Raises:
        ExportError: it is unreadable, or something in it is missing, unknown or unsupported.
    """
    return parse_config(read_config_file(path))


def read_weights(path: Path) -> Weights:
    """Read a checkpoint's tensors, see `state_of`; counters of batches are left out.

    Raises:
        ExportError: no such file, not a checkpoint, it holds more than plain tensors and numbers, or it has a learned
            front end.
    """
    if path.is_file() and (size := path.stat().st_size) > MAX_CHECKPOINT_BYTES:
        raise ExportError(f"checkpoint {path} has {size} bytes; more than {MAX_CHECKPOINT_BYTES} cannot be right")
    content = load_checkpoint(
        path,
        plain="Save the bare state dict: torch.save(model.state_dict(), path).",
        usual="avg_model.pt",
        unread=UNREAD,
    )
    state = state_of(content, path, prefixes=(*PREFIXES, MODULE) if is_lightning(content) else PREFIXES).tensors
    if learned := [name for name in state if name.startswith(FRONT_END)]:
        raise ExportError(
            f"checkpoint {path} has a learned front end ({learned[0]} and {len(learned) - 1} more); "
            "models on filterbanks (fbank) can be exported, and no others"
        )
    kept = without(state, (f"{PROJECTION}*",))
    return Weights(kept, tuple(name for name in state if name.startswith(PROJECTION)), content)


def check_state(config: ModelConfig, state: Mapping[str, Tensor], origin: str) -> None:
    """Compare tensors with a config; errors as of `require_fit`."""
    require_fit(tensor_shapes(config), state, origin, f"{config.name} of its config")


def read_model(checkpoint: Path, config: Path | None) -> tuple[ModelConfig, Weights, tuple[str, ...]]:
    """The config of a model, from its file or from the checkpoint itself, the weights, and what was taken for granted.

    Raises:
        ExportError: a file is unreadable, or there is no config and none in the checkpoint.
    """
    weights = read_weights(checkpoint)
    if config is not None:
        return read_config(config), weights, ()
    if is_lightning(weights.content):
        return config_of(weights.content, weights.state, checkpoint), weights, ()
    if is_campplus(weights.state, weights.ignored):
        return campplus_of(weights.state, checkpoint), weights, (NOTE,)
    raise ExportError(
        f"{checkpoint} does not say what network it is of, as checkpoints of pyannote.audio and 3D-Speaker's CAM++ do: "
        "give the config.yaml that WeSpeaker's training wrote"
    )


def load_network(config: ModelConfig, checkpoint: Path) -> tuple[SpeakerNetwork, tuple[str, ...]]:
    """The network of a config with a checkpoint's weights, see `network_of`, and the names that were ignored.

    Raises:
        ExportError: the checkpoint is unreadable or does not fit; see `read_weights` and `check_state`.
    """
    weights = read_weights(checkpoint)
    return network_of(config, weights, checkpoint), weights.ignored


def network_of(config: ModelConfig, weights: Weights, checkpoint: Path) -> SpeakerNetwork:
    """The network of a config with weights in float32, in eval mode; `checkpoint` is for errors.

    Raises:
        ExportError: the weights do not fit; see `check_state`.
    """
    check_state(config, weights.state, str(checkpoint))
    with torch.device("meta"):  # allocates nothing that is not in the checkpoint
        network = build_network(config)
    network.to_empty(device="cpu")
    own = network.state_dict()
    network.load_state_dict({name: weights.state.get(name, torch.zeros(())) for name in own})
    return network.eval()
