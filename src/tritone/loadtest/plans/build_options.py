"""Options of `tritone build` as text: those of a bundle that is served for a measurement, those that a sweep varies.

"max-batch-size", "16"  ->  parse_option  ->  BuildOptions  ->  build_command, labels of figures
"""

import re
import shlex
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_type_hints

from tritone.backend.settings import from_text
from tritone.repository import AUTO, ModelOptions
from tritone.repository.instances import read_count
from tritone.search.options import MODEL_PARAMETERS
from tritone.server.layout import Acoustic, Layout

Value = int | float | str | tuple[int, ...] | tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class BuildOptions(ModelOptions):
    """How a bundle is served: options of its models, and their layout."""

    layout: Layout = "fused"
    acoustic: Literal["", "native", "python"] = ""  # who runs the network of an ensemble; "" as `tritone build` chooses
    stage: tuple[str, ...] = ()  # of an ensemble, STAGE=COUNT[@PLACE] each

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("layout", get_args(Layout)), ("acoustic", ("", *get_args(Acoustic)))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be {' or '.join(filter(None, known))}, got {getattr(self, name)!r}")

    def build_command(self, bundle: str, output: str = "REPO", mode: str = "both") -> str:
        """The command line that builds this repository; options at their defaults are left out."""
        words = ["tritone", "build", bundle, "--output", output]
        if mode != "both":
            words += ["--mode", mode]
        for name, default in OPTIONS.items():
            value, option = getattr(self, name), f"--{written(name)}"
            if name == "stage":
                words += [word for each in self.stage for word in (option, each)]
            elif value is False and default:
                words.append(option.replace("--", "--no-", 1))
            elif value != default:
                words += [option, text_of(value)]
        return shlex.join(words)


TYPES = get_type_hints(BuildOptions)
DEFAULTS = BuildOptions()
OPTIONS = {  # how to serve first, then how to search
    field.name: getattr(DEFAULTS, field.name)
    for field in sorted(fields(BuildOptions), key=lambda f: f.name in MODEL_PARAMETERS)
    if field.compare
}


def parse_option(name: str, text: str) -> tuple[str, Value]:
    """Read the value of an option of `tritone build`, "max-batch-size" or "max_batch_size", from text.

    Returns:
        The name of the field of `BuildOptions`, and the value.

    Raises:
        ValueError: there is no such option, or the text is no value of its type.
    """
    field = name.strip().removeprefix("--").replace("-", "_")
    field = next((each for each in OPTIONS if written(each).replace("-", "_") == field), field)
    if field not in OPTIONS:
        known = ", ".join(map(written, OPTIONS))
        raise ValueError(f"there is no option {name!r} of `tritone build`; there are {known}")
    if field == "stage":  # places have commas too: acoustic=2@0,1,decoder=4
        return field, tuple(re.split(r"\s*,\s*(?=\w+=)", text.strip()))
    is_list = isinstance(OPTIONS[field], tuple)
    if field == "instances" and "@" in text:
        return field, read_count(text)
    if text.strip() == "auto" and BuildOptions.__dataclass_fields__[field].metadata.get("auto"):
        return field, AUTO
    try:
        if is_list:
            return field, tuple(int(part) for part in text.split(",") if part.strip())
        return field, from_text(int if field == "instances" else TYPES[field], text.strip())
    except ValueError as error:
        kind = "whole numbers separated by commas" if is_list else error
        raise ValueError(f"{name} needs {kind}, got {text!r}") from None


def written(field: str) -> str:
    """What a command line calls a field of `BuildOptions`, without its dashes."""
    described = MODEL_PARAMETERS.get(field)
    flag = described.flags[0].partition("/")[0] if described and described.flags else field.replace("_", "-")
    return flag.removeprefix("--")


def text_of(value: Value) -> str:
    """A value as it is written on a command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def short(name: str) -> str:
    """The name of an option where there is little room."""
    return {"max_batch_size": "max batch", "queue_delay_ms": "delay ms"}.get(name, name.replace("_", " "))


def in_words(name: str, value: str) -> str:
    """A setting in words: "queue delay 5 ms"."""
    words, _, unit = name.rpartition("_")
    return f"{words.replace('_', ' ')} {value} {unit}" if unit in ("ms", "s") else f"{name.replace('_', ' ')} {value}"
