"""Parts of a manifest: what all have in common, and which of them the manifests of a kind have.

    kind, {"segmentation": {...}}  ->  (SegmentationPart(...),)

What several kinds have is part of `Manifest`. What one kind has is a class of that kind's, a `KindPart`: a kind of ours
is a folder of `tritone/kinds/`, called as the kind with `_` for `-`, whose module `part` has a `Parts` as `PARTS`. Such
a module imports nothing but `tritone.bundle` and other parts, and whoever reads bundles of the kind may import it. A
kind of another package has its `Parts` as the attribute `parts`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

GROUP = "tritone.kinds"
"""Of the entry points of other packages' kinds."""

# A bundle may come from a stranger, and memory is taken by these numbers. They are far beyond any real model.
MAX_COUNT = 2**20  # of anything: samples of a window, frames, tokens, dimensions
MAX_STATE_BYTES = 2**28  # that one stream keeps from step to step

Positive = Annotated[int, Field(gt=0, le=MAX_COUNT)]
NonNegative = Annotated[int, Field(ge=0, le=MAX_COUNT)]

# fmt: off
TensorType = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "STRING",
]
# fmt: on
"""Triton's names of the types of tensors."""

AUDIO = ("sample_rate", "features", "encoder")
TEXT = (*AUDIO, "vocabulary")
ASKED = ("streaming", "encoder.languages", "encoder.text_forms")
"""What most kinds that write text may have."""
WRONG_PART = "wrong_part"
"""The type of the errors about parts that a kind does not have, or needs."""


class Part(BaseModel):
    """A piece of a manifest: frozen, checked when it is made, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class KindPart(Part):
    """A part that one kind has, or several that are much alike. `key`: its name in files."""

    key: ClassVar[str]
    optional: ClassVar[bool] = False

    @property
    def named(self) -> str:
        """Its name in the file."""
        return self.key

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the bundle that it names."""
        return ()

    def check_files(self, path_of: Callable[[str], Path]) -> None:
        """Read those of its files that can be wrong by themselves.

        Args:
            path_of: finds a file of the bundle.

        Raises:
            BundleError: one is.
        """

    def written(self, **how: Any) -> Any:
        """Its content as files have it; arguments as of `model_dump`."""
        return self.model_dump(**how)

    def ahead(self, chunk_size: int) -> int:
        """Encoder frames that a step of a stream needs beyond its chunk."""
        return 0


class UnknownPart(KindPart):
    """A part of a kind that is not known here, as its file has it. Such a bundle can be inspected and copied."""

    name: str
    content: Any

    @property
    def named(self) -> str:
        return self.name

    def written(self, **how: Any) -> Any:
        return self.content


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the manifests of a kind have: `needs` and `may_have` of what several kinds have, by name, and its own."""

    needs: tuple[str, ...] = AUDIO
    may_have: tuple[str, ...] = ()
    own: tuple[type[KindPart], ...] = ()

    def faults(self, kind: str, present: Collection[str]) -> Iterator[InitErrorDetails]:
        """What a manifest has too much or too little, by the names of the shared parts that are present."""
        for name in present:
            if name not in (*self.needs, *self.may_have):
                yield unknown_part(kind, name)
        for name in self.needs:
            if name not in present:
                yield _missing_part(kind, name)


def unknown_part(kind: str, name: str) -> InitErrorDetails:
    """The error for a part that a kind does not have."""
    said = f"unknown field: kind is {kind!r}, which has no part `{name}`"
    return InitErrorDetails(type=PydanticCustomError(WRONG_PART, said), loc=tuple(name.split(".")), input=None)


def _missing_part(kind: str, name: str) -> InitErrorDetails:
    said = f"this field is required but absent: kind is {kind!r}, which needs the part `{name}`"
    return InitErrorDetails(type=PydanticCustomError(WRONG_PART, said), loc=(name,), input=None)


def package_of(kind: str) -> str | None:
    """The package of a kind of ours, by the kind's name; None if there is no such folder."""
    name = f"{GROUP}.{kind.replace('-', '_')}"
    found = find_spec(name) if kind.replace("-", "").isalnum() else None
    return name if found is not None and found.submodule_search_locations is not None else None


def parts_of(kind: str) -> Parts | None:
    """What the manifests of a kind have; None if the kind is not known here."""
    if (package := package_of(kind)) is not None:
        parts = import_module(f"{package}.part").PARTS
    else:
        try:
            parts = next((point.load().parts for point in entry_points(group=GROUP, name=kind)), None)
        except Exception:  # code of others: opening a model of this kind says so
            return None
    return parts if isinstance(parts, Parts) else None


def read_parts(kind: str, contents: Mapping[str, Any]) -> tuple[KindPart, ...]:
    """The parts of a manifest that are its kind's own, in the kind's order.

    Args:
        contents: by the names in files: a part, or what is to become one.

    Raises:
        ValidationError: the kind has no such part, needs another, or one is wrong within.
    """
    if (parts := parts_of(kind)) is None:
        return tuple(UnknownPart(name=name, content=content) for name, content in contents.items())
    faults = [unknown_part(kind, name) for name in contents if name not in {each.key for each in parts.own}]
    found = []
    for each in parts.own:
        if each.key not in contents:
            faults += [] if each.optional else [_missing_part(kind, each.key)]
            continue
        try:
            found.append(each.model_validate(contents[each.key]))
        except ValidationError as error:
            faults += [
                InitErrorDetails(
                    type=fault["type"], loc=(each.key, *fault["loc"]), input=fault["input"], ctx=fault.get("ctx", {})
                )
                for fault in error.errors(include_url=False)
            ]
    if faults:
        raise ValidationError.from_exception_data("Manifest", faults)
    return tuple(found)
