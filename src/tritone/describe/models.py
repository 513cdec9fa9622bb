"""What the configuration of a model says about its interface, with a sample value for each input.

    config.pbtxt of any model of Triton  ->  DescribedModel

Models need not be Tritone's. What a server would find out from the file of a network alone is not known here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import triton_to_np_dtype

from tritone.errors import OperatorError
from tritone.pipelines.wire import PCM, WAV, WAV_LENS
from tritone.repository.config import from_text, parameter
from tritone.repository.folder import CONFIG
from tritone.storage import fetch

SAMPLE_S = 0.25  # of sound; embeddings need some
TONE_HZ = 220.0
LOUDNESS = 0.25
SOME = 8  # of an axis of any size
MOST_VALUES = 2**24  # of an input of a sample; a model that needs more is described without samples
MOST_IN_JSON = 2**20  # of those of a sample in JSON
NO_JSON = ("FP16", "BF16")  # Triton takes them as binary tensors alone
CLASSES = 3  # that a sample asks for of an output with labels
Usage = Literal["request", "stream", "answers"]


@dataclass(frozen=True)
class DescribedTensor:
    """An input or an output: name, type as of the protocol, and shape of a request of one row, -1 for any size.

    `labels`: whether the classes of an output have names, so that it can be asked for as the best of them.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    labels: bool = False
    optional: bool = False


@dataclass(frozen=True)
class DescribedModel:
    """A model's interface.

    `usage`: a request has an answer; or belongs to a stream; or has any number of answers, which HTTP gives as events.
    `warmup`: shapes that the model is warmed up with, which it certainly takes. `sample_rate` in Hz, 0 of others than
    ours. `folder`: of its files.
    """

    name: str
    inputs: tuple[DescribedTensor, ...]
    outputs: tuple[DescribedTensor, ...]
    batched: bool
    usage: Usage
    max_batch_size: int = 0
    sample_rate: int = 0
    warmup: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def sampled(self) -> tuple[DescribedTensor, ...]:
        """The inputs of a sample: all that must be sent, and of sound the shorter form."""
        names = {each.name for each in self.inputs}
        left_out = {WAV} if {WAV, PCM} <= names else set()
        sound = {PCM, WAV} & names
        return tuple(
            each for each in self.inputs if each.name not in left_out and (not each.optional or each.name in sound)
        )

    @property
    def has_json(self) -> bool:
        """Whether a request can be written in JSON."""
        return not any(each.type in NO_JSON for each in (*self.sampled, *self.outputs))

    @property
    def sample_values(self) -> int:
        """How many values the largest input of a sample has."""
        return max((math.prod(self._shape(each)) for each in self.sampled), default=0)

    @cached_property
    def sample(self) -> Mapping[str, npt.NDArray[Any]]:
        """A value of each input that a request needs, one row of it: a short tone, ones, or a word."""
        return {each.name: self._value(each) for each in self.sampled}

    def _value(self, tensor: DescribedTensor) -> npt.NDArray[Any]:
        shape = self._shape(tensor)
        if tensor.name == WAV_LENS and self.sample_rate:
            return np.full(shape, self._samples, np.int32)
        if tensor.name in (WAV, PCM) and self.sample_rate:
            tone = LOUDNESS * np.sin(2 * np.pi * TONE_HZ / self.sample_rate * np.arange(math.prod(shape)))
            wave = np.round(tone * 32767).astype(np.int16) if tensor.name == PCM else np.round(tone, 4)
            return np.reshape(wave, shape).astype(triton_to_np_dtype(tensor.type))
        if tensor.type == "BYTES":
            return np.full(shape, b"hello", np.object_)
        return np.ones(shape, np.float32 if tensor.type == "BF16" else triton_to_np_dtype(tensor.type))

    @property
    def _samples(self) -> int:
        return int(SAMPLE_S * self.sample_rate)

    def _shape(self, tensor: DescribedTensor) -> tuple[int, ...]:
        rows, dims = ((1,), tensor.shape[1:]) if self.batched else ((), tensor.shape)
        some = self.warmup.get(tensor.name, ())
        if tensor.name in (WAV, PCM) and self.sample_rate:
            some = (self._samples,) * len(dims)
        elif len(some) != len(dims):
            some = (SOME,) * len(dims)
        return (*rows, *(other if size == -1 else size for size, other in zip(dims, some, strict=True)))


def described_models(repository: str | Path, names: Sequence[str] = ()) -> list[DescribedModel]:
    """The models of a repository by name; stages of an ensemble, which are asked by it, only where they are named.

    Args:
        names: of the models to describe; none means all.

    Raises:
        OperatorError: it is no repository, cannot be read from storage, has no such model, or a configuration cannot be
            read or has no tensors.
    """
    repository = fetch(repository, only=f"*/{CONFIG}")
    if not repository.is_dir():
        raise OperatorError(f"{repository} is not a folder. Make a repository with tritone build.")
    configs = {
        folder.name: _config(folder / CONFIG) for folder in sorted(repository.iterdir()) if (folder / CONFIG).is_file()
    }
    if not configs:
        raise OperatorError(f"{repository} is not a model repository: no folder in it has a {CONFIG}.")
    if missing := set(names) - set(configs):
        raise OperatorError(
            f"{repository} has no model {', '.join(sorted(missing))}; it has {', '.join(configs)}, those without a "
            f"{CONFIG} left out."
        )
    steps = {step.model_name for config in configs.values() for step in config.ensemble_scheduling.step}
    wanted = names or [name for name in configs if name not in steps]
    return [described(name, configs[name]) for name in wanted]


def described(name: str, config: Any) -> DescribedModel:
    """A model as its `ModelConfig` describes it.

    Raises:
        OperatorError: it says nothing about inputs or outputs.
    """
    if not config.input or not config.output:
        raise OperatorError(
            f"model '{name}': its {CONFIG} has no inputs or outputs, which only a server could complete. Write them "
            "there (GET /v2/models/NAME/config of a server that has the model shows them), or leave the model out."
        )
    batched = config.max_batch_size > 0
    usage: Usage = "request"
    if config.HasField("sequence_batching"):
        usage = "stream"
    elif config.model_transaction_policy.decoupled:
        usage = "answers"
    rate = parameter(config, "sample_rate")
    return DescribedModel(
        name=name,
        inputs=tuple(_tensor(each, batched, optional=each.optional) for each in config.input),
        outputs=tuple(_tensor(each, batched, labels=bool(each.label_filename)) for each in config.output),
        batched=batched,
        usage=usage,
        max_batch_size=config.max_batch_size,
        sample_rate=int(rate) if rate.isdigit() else 0,
        warmup={key: tuple(value.dims) for sample in config.model_warmup[:1] for key, value in sample.inputs.items()},
    )


def _tensor(tensor: Any, batched: bool, **more: bool) -> DescribedTensor:
    name = pb.DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
    return DescribedTensor(tensor.name, name, ((-1,) if batched else ()) + tuple(tensor.dims), **more)


def _config(path: Path) -> Any:
    try:
        return from_text(path.read_text(encoding="utf-8"))
    except (OperatorError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path}: {error}") from error
