"""The file that wires models into an ensemble.

spec.yaml  ->  EnsembleSpec

name: sentence-embedding
steps:
  tokenizer:
    python: steps:tokenize          # a function beside this file
    inputs: {text: TEXT}            # an input of the ensemble
  transformer:
    bundle: minilm                  # a bundle's folder, relative to this file, or the name of a shipped one
    inputs: {input_ids: tokenizer.input_ids, attention_mask: tokenizer.attention_mask}
  pooling:
    python: steps:pool
    inputs: {hidden: transformer.last_hidden_state, mask: tokenizer.attention_mask}
outputs: {EMBEDDING: pooling.output}
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tritone.bundle.bundle import explain_fault
from tritone.errors import InputError
from tritone.paths import local, open_file
from tritone.yaml_text import read_yaml

MAX_BYTES = 2**18
MAX_STEPS = 100
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Tensor = Annotated[str, Field(min_length=1, max_length=256)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Part(_Part):
    """A model of an ensemble: a `bundle`, or a function of `python`, `module:function` or `path/module.py:function`.

    `runtime`, `precision`: which of a bundle's graphs to run; programs only where `runtime` says so, but a function
    that is named here is the user's own. `platform`: `native` leaves the graph to Triton's own backend for it.
    `instances`: processes, `COUNT[@PLACE]`. `max_batch_size`: rows of a call of a
    function. `include`, `requirements`: files and packages of a function, see `tritone export python`.
    """

    bundle: str | None = None
    python: str | None = None
    runtime: str | None = None
    precision: str | None = None
    platform: Literal["tritone", "native"] = "tritone"
    instances: str | int | None = None  # YAML reads a count alone as a number
    max_batch_size: Annotated[int, Field(ge=0, le=65536)] | None = None
    include: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_one(self) -> "Part":
        if (self.bundle is None) == (self.python is None):
            raise ValueError("expected either `bundle` or `python`")
        if self.python is None and (self.include or self.requirements or self.max_batch_size is not None):
            raise ValueError("include, requirements and max_batch_size are of functions (`python`), not of bundles")
        if self.python is not None and (self.runtime or self.precision or self.platform == "native"):
            raise ValueError("runtime, precision and platform are of bundles; a function needs none")
        return self


class Step(Part):
    """A step. `inputs`: for each of its inputs an output `STEP.OUTPUT`, or the name of an input of the ensemble."""

    inputs: Annotated[dict[Tensor, Tensor], Field(min_length=1)]


class EnsembleSpec(_Part):
    """An ensemble. `models`: those that functions of its steps call, by the names that they have for them.

    `outputs`: for each output of the ensemble one of a step.
    """

    name: Name
    steps: Annotated[dict[Word, Step], Field(min_length=1, max_length=MAX_STEPS)]
    models: Annotated[dict[Name, Part], Field(max_length=MAX_STEPS)] = {}
    outputs: Annotated[dict[Tensor, Tensor], Field(min_length=1)]

    @property
    def has_functions(self) -> bool:
        """True if a step or a model is a Python function, whose module is imported to use it."""
        return any(part.python is not None for part in (*self.steps.values(), *self.models.values()))


def read_spec(path: str | Path) -> EnsembleSpec:
    """Read the file of an ensemble.

    Raises:
        InputError: it cannot be read, is no YAML, or a field is missing, unknown or unfit; the message names it.
    """
    path = local(path)
    try:
        with open_file(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{path} has more than {MAX_BYTES} bytes; give a YAML file of steps")
    found = read_yaml(content, str(path), loader=_Loader)
    if not isinstance(found, dict):
        raise InputError(
            f"{path} must have name, steps and outputs, got {type(found).__name__}; see docs/serving/ensemble.md"
        )
    try:
        return EnsembleSpec.model_validate(found)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, each['loc'])) or 'spec'}: {explain_fault(each)}" for each in error.errors()[:5]]
        raise InputError(f"{path}: {'; '.join(faults)}") from error


def split(reference: str) -> tuple[str, str] | None:
    """Step and output of `STEP.OUTPUT`; None for the name of an input of the ensemble."""
    step, dot, output = reference.partition(".")
    return (step, output) if dot else None


class _Loader(yaml.SafeLoader):
    """YAML without a key that is given twice, and without aliases, by which a small file could become a huge one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError(f"line {self.peek_event().start_mark.line + 1}: aliases (*name) are not allowed here")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.YAMLError(f"line {node.value[index][0].start_mark.line + 1}: {key!r} is there twice")
        return super().construct_mapping(node, deep)
