"""Checkpoints of strangers: read without running code of theirs, and compared with the network they are for."""

import pickle
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.fit import require_shapes
from tritone.families.known import refuse_foreign

NUMBERS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# Where trainers keep a model's weights in a larger file, and the mean of them over the last steps.
PLACES = ("state_dict", "model_state_dict", "model")
AVERAGED = ("ema_state_dict", "state_dict_ema", "model_ema", "model_avg", "ema")
# Before all names of models that were saved as they trained: on several GPUs, compiled, by peft, within a trainer.
WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
PREFIXES = (*WRAPPERS, "model.")
INNER = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")  # before parts of models, too
# In names of weights that change others: of peft's adapters, merged or not, the latter have nothing of it.
ADAPTER = re.compile(r"\b((lora|hada|lokr|ia3|oft|boft|vera_lambda)_\w+|base_layer|modules_to_save|original_module)\b")
EMA_PREFIX = "ema_model."  # before the names of means that lie among the weights themselves
EMA_REST = ("online_model.*", "initted", "step", "n_averaged")  # what else lies there
COUNTERS = "*num_batches_tracked"  # of batch norms: matter in training alone


@dataclass(frozen=True)
class State:
    """The tensors of a checkpoint by the names that the network gives them.

    `averaged`: whether they are a mean over the last steps of training.
    """

    tensors: dict[str, Tensor]
    averaged: bool = False


def file_in(path: Path, name: str) -> Path:
    """`path`, or the file `name` in it if it is a folder."""
    return path / name if path.is_dir() else path


class Unread:
    """Stands for an object in a checkpoint of a class that is not loaded; keeps nothing of what it was made with."""

    def __new__(cls, *_arguments: object) -> "Unread":
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Leave the object's state out."""


class Kept(Unread):
    """Stands for such an object too; `values` are those fields of it that are plain: numbers, texts and lists of them.

    Fields are what the object's state has, however it was made.
    """

    values: Mapping[str, Any] = MappingProxyType({})

    def __setstate__(self, state: object) -> None:
        """Keep the plain fields."""
        if isinstance(state, Mapping):
            self.values = {name: value for name, value in state.items() if isinstance(name, str) and _is_simple(value)}


def _is_simple(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, bool | int | float | str | None) for each in value)
    return isinstance(value, bool | int | float | str | None)


def load_checkpoint(
    path: Path,
    *,
    plain: str,
    usual: str,
    file: IO[bytes] | None = None,
    unread: Collection[str] = (),
    kept: Collection[str] = (),
) -> Any:
    """The content of a checkpoint: tensors, numbers and containers of these.

    Args:
        path: of the checkpoint, also for errors.
        plain: advice how to write one that can be read safely, a sentence.
        usual: the file that training writes.
        file: to be read in place of the file at `path`.
        unread: packages whose objects may be in it, which nobody needs: none of their code is loaded or runs, and an
            `Unread` stands in the place of each.
        kept: full names of classes of these packages in whose place a `Kept` stands.

    Raises:
        ExportError: no such file, not a checkpoint, or it holds more than that.
    """
    if not path.is_file():
        raise ExportError(f"checkpoint not found: {path}")
    if file is None:
        refuse_foreign(path)
    try:
        # A training checkpoint is several times as large as what is read of it.
        mapped = file is None and zipfile.is_zipfile(path)
        named = torch.serialization.get_unsafe_globals_in_checkpoint(path) if unread and mapped else []
        stand_in = {name: Kept if name in kept else Unread for name in named if name.partition(".")[0] in unread}
        replaced = [(each, name) for name, each in stand_in.items()]
        with torch.serialization.safe_globals(replaced):  # type: ignore[arg-type]  # pairs are for other names
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


def state_of(content: Any, path: Path, *, averaged: bool = True, prefixes: Sequence[str] = PREFIXES) -> State:
    """A model's weights, wherever a trainer has put them into its file, and by their own names.

    Args:
        content: of the checkpoint: tensors by name, or a dict that has them under one of `PLACES` or `AVERAGED`.
        path: of the checkpoint, for errors.
        averaged: prefer the mean over the last steps of training, if the file has one.
        prefixes: what may stand before all names.

    Raises:
        ExportError: there is no dict of plain tensors alone.
    """
    is_averaged = False
    for place in (*(AVERAGED if averaged else ()), *PLACES):
        if isinstance(content, Mapping) and not isinstance(content.get(place), Tensor | None) and content[place]:
            content, is_averaged = content[place], place in AVERAGED
            break
    expected = f"a dict of tensors, or one under {', '.join(PLACES)} or {', '.join(AVERAGED)}"
    state = tensors_of(content, path, expected)
    if means := {name: value for name, value in state.items() if name.startswith(EMA_PREFIX)}:
        if other := [name for name in without(state, EMA_REST) if name not in means]:
            raise ExportError(
                f"checkpoint {path} has {EMA_PREFIX}… and beside it {', '.join(other[:5])}; save one alone"
            )
        state, is_averaged = _below(state, EMA_PREFIX if averaged else "online_model."), averaged
    state.pop("n_averaged", None)  # of torch.optim.swa_utils
    return State(unwrapped(state, path, prefixes)[0], is_averaged)


def unwrapped(
    state: Mapping[str, Tensor], path: Path, prefixes: Sequence[str] = WRAPPERS
) -> tuple[dict[str, Tensor], str]:
    """The tensors by the names that a model has by itself, and what was taken off before all of them.

    Raises:
        ExportError: weights of an adapter are not merged into those of the model.
    """
    if adapters := [name for name in state if ADAPTER.search(name)]:
        raise ExportError(
            f"checkpoint {path} has {len(adapters)} tensors of an adapter that is not merged, such as {adapters[0]}. "
            "Merge it into its model (merge_and_unload() of peft), save that, and export what was saved."
        )
    state, taken = dict(state), ""
    while prefix := next((each for each in prefixes if state and all(name.startswith(each) for name in state)), ""):
        state, taken = _below(state, prefix), taken + prefix
    return {INNER.sub("", name): value for name, value in state.items()}, taken


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def without(state: Mapping[str, Tensor], training: Sequence[str]) -> dict[str, Tensor]:
    """The tensors but for those that training alone needs.

    What is kept is to be used, or to be refused by `require_fit`: nothing else may leave a tensor out.

    Args:
        training: patterns of their names, as the shell has them: `loss.*`.
    """
    patterns = (*training, COUNTERS)
    return {name: value for name, value in state.items() if not any(fnmatchcase(name, each) for each in patterns)}


def tensors_of(state: Any, path: Path, expected: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, without `WRAPPERS`.

    Args:
        state: its content.
        path: of the checkpoint, for errors.
        expected: what it should hold, for errors.

    Raises:
        ExportError: it is no dict of tensors alone, or has those of an adapter.
    """
    if not isinstance(state, Mapping):
        raise ExportError(f"checkpoint {path} holds a {type(state).__name__} in place of a dict of tensors")
    # Averaging divides everything, also counters, which may be no tensors afterwards.
    state = {name: value for name, value in state.items() if _is_plain(value) or not str(name).endswith(COUNTERS[1:])}
    if wrong := [str(name) for name, value in state.items() if not _is_plain(value)]:
        raise ExportError(
            f"checkpoint {path}: expected {expected}; {', '.join(wrong[:5])} are something else (sparse, quantized and "
            "empty ones are no plain tensors). If the weights are inside of one of these, save that part alone."
        )
    return unwrapped({str(name): value for name, value in state.items()}, path)[0]


def _is_plain(value: object) -> bool:
    """Whether it is a tensor of numbers in memory, all of them stored."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        and value.numel() * value.itemsize <= value.untyped_storage().nbytes()
    )


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
