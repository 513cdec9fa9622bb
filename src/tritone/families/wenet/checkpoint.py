"""Reading the files of a trained WeNet model: `final.pt`, `train.yaml`, `global_cmvn`, `units.txt`.

All of them are untrusted: checkpoints are loaded with `weights_only=True`, YAML with the safe loader,
sizes are checked.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.checkpoint import load_checkpoint, require_fit, state_of, without
from tritone.families.export.settings import read_bytes, read_config_file
from tritone.families.wenet.config import ModelConfig, parse_config
from tritone.families.wenet.model import AsrModel
from tritone.paths import plain_text

MAX_TEXT_BYTES = 64 * 2**20
# What may be left out: position tables are computed, concat_linear layers were never used, losses have no part in it.
TRAINING = ("*.pe", "*.concat_linear*", "criterion_att.*", "ctc.ctc_loss.*")
VARIANCE_FLOOR = 1e-20  # upstream's floor under the variance of a feature bin


def _read_text(path: Path, what: str) -> str:
    try:
        return plain_text(read_bytes(path, what, MAX_TEXT_BYTES))
    except UnicodeDecodeError as error:
        raise ExportError(f"{what} {path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def read_config(path: Path) -> ModelConfig:
    """Read `train.yaml`. Raises ExportError for unreadable YAML and unsupported settings."""
    return parse_config(read_config_file(path))


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state dict of tensors, see `state_of`.

    Raises:
        ExportError: no such file, not a checkpoint, or it holds more than plain tensors.
    """
    state = load_checkpoint(
        path, plain="Save the bare state dict: torch.save(model.state_dict(), path).", usual="final.pt"
    )
    return state_of(state, path).tensors


def read_cmvn(path: Path, is_json: bool) -> tuple[Tensor, Tensor]:
    """Read global statistics: mean and inverse standard deviation, each (bins,) float32.

    JSON holds sums (`mean_stat`, `var_stat`, `frame_num`); Kaldi text is `[ sums count  squares 0 ]`.
    """
    text = _read_text(path, "cmvn statistics")
    try:
        if is_json:
            stats = json.loads(text)
            sums, squares, count = stats["mean_stat"], stats["var_stat"], stats["frame_num"]
        else:
            fields = text.split()
            if fields[:1] != ["["] or fields[-1:] != ["]"]:
                raise ValueError("Kaldi text statistics start with '[' and end with ']'")
            values = [float(field) for field in fields[1:-1]]
            half = len(values) // 2
            sums, count, squares = values[: half - 1], values[half - 1], values[half:-1]
        sums_64 = torch.tensor(sums, dtype=torch.float64)
        squares_64 = torch.tensor(squares, dtype=torch.float64)
        if sums_64.shape != squares_64.shape or sums_64.dim() != 1 or not count > 0:
            raise ValueError(f"{len(sums)} sums, {len(squares)} squares, {count} frames")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        form = "JSON with mean_stat, var_stat and frame_num" if is_json else "Kaldi text"
        raise ExportError(f"cmvn statistics {path} are not {form}: {error!r}") from error
    mean = sums_64 / count
    variance = (squares_64 / count - mean.square()).clamp(min=VARIANCE_FLOOR)
    return mean.float(), variance.rsqrt().float()


def read_units(path: Path, vocab_size: int) -> list[str]:
    """Read `units.txt` (`token id` a line) as a list indexed by id, of exactly `vocab_size` tokens."""
    tokens: dict[int, str] = {}
    for number, line in enumerate(_read_text(path, "units").splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2 or not fields[1].isdigit():
            raise ExportError(f"units {path}, line {number}: expected 'token id', found {line!r}")
        if int(fields[1]) in tokens:
            raise ExportError(f"units {path}, line {number}: id {fields[1]} is given twice")
        tokens[int(fields[1])] = fields[0]
    if sorted(tokens) != list(range(vocab_size)):
        missing = sorted(set(range(vocab_size)) - set(tokens))[:5]
        raise ExportError(
            f"units {path} has {len(tokens)} tokens with ids up to {max(tokens, default=-1)}, "
            f"but the config's output_dim is {vocab_size}"
            + (f"; missing ids start with {missing}" if missing else "")
            + ". Is it the table this model was trained with?"
        )
    return [tokens[index] for index in range(vocab_size)]


def _find_cmvn(config: ModelConfig, given: Path | None, folder: Path) -> Path:
    if given is not None:
        return given
    beside = folder / Path(config.cmvn_file or "global_cmvn").name
    if not beside.is_file():
        raise ExportError(
            f"the config asks for cmvn statistics ({config.cmvn_file}), the checkpoint does not hold them and "
            f"{beside} does not exist; give the file with --cmvn"
        )
    return beside


def load_model(config: ModelConfig, checkpoint: Path, cmvn: Path | None = None) -> AsrModel:
    """Build the network and fill it from `checkpoint`, in eval mode.

    Args:
        config: settings from `read_config`.
        checkpoint: upstream's `final.pt`.
        cmvn: statistics file; by default the one that the config names, looked for beside the checkpoint. Buffers
            inside the checkpoint win over either, as they do upstream.

    Raises:
        ExportError: names every tensor that is missing, misshapen, or unknown to the network that the config describes.
    """
    state = read_state_dict(checkpoint)
    model = AsrModel(config)
    wanted = {name: value for name, value in model.state_dict().items() if not name.endswith(".num_batches_tracked")}
    found = without(state, TRAINING if config.decoder is not None else (*TRAINING, "decoder.*"))
    if config.uses_cmvn and "encoder.global_cmvn.mean" not in found:
        mean, istd = read_cmvn(_find_cmvn(config, cmvn, checkpoint.parent), config.cmvn_is_json)
        found |= {"encoder.global_cmvn.mean": mean, "encoder.global_cmvn.istd": istd}
    require_fit({name: tuple(value.shape) for name, value in wanted.items()}, found, str(checkpoint), "its config")
    model.load_state_dict({name: value.to(wanted[name].dtype) for name, value in found.items()}, strict=False)
    return model.eval()
