"""What the rest of Tritone may know of a family of models, on one page that imports neither torch nor onnx.

    families/wenet/family.py: FAMILY = Family(name="wenet", ...)
        ->  `tritone export wenet`, a line of `tritone inspect`, an export of `tritone serve WHAT`

A family of another package is named in its entry point of the group `tritone.families`, see `known.py`.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritone.errors import BundleError, MissingDependencyError
from tritone.families.foreign import Foreign
from tritone.families.seen import Seen
from tritone.installing import pip_install
from tritone.pages import Page


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What `tritone export FAMILY` reads.

    `what`: in words. `arguments`: of the family's export, files and folders by the names of its options. `files`: all
    that is read. `extra`: which of Tritone's extras the export needs, empty if none, None if as the family says.
    `int8`: whether it can be exported so, and chosen by a gate; None if as the family says. `program`: it is code that
    runs as soon as it is loaded. `family`, and `first`, the name of the one argument that the command takes without an
    option, are filled in by who asks the families.
    """

    what: str
    arguments: Mapping[str, Path]
    files: Sequence[Path] = field(repr=False)
    extra: str | None = None
    int8: bool | None = None
    program: bool = False
    family: str = ""
    first: str = ""

    def command(self, output: str, **options: str) -> str:
        """The line of a shell that exports it; options with the value "" are switches."""
        words = ["tritone", "export", self.family]
        if self.first:
            words.append(str(self.arguments[self.first]))
        for name, value in {**self.arguments, "output": output, **options}.items():
            if name != self.first:
                words += [f"--{name.replace('_', '-')}", *([str(value)] if str(value) else [])]
        return shlex.join(words)


Recognise = Callable[[Seen], Checkpoint | Foreign | None]


@dataclass(frozen=True, kw_only=True)
class Family(Page):
    """One family of models, and its command `tritone export NAME`.

    `what`: the help of the command; its first sentence is shown in lists.
    `options`: the class of the export's options, a `BundleOptions`; its field with `argument` is the command's.
    `export`: the function; it takes the fields of the options as keywords, and returns an `ExportReport`. Of a family
    with several: which, by what was given.
    `recognise`: says of what somebody has whether it is one of these models, or is `Foreign`, one that cannot be
    exported; raises `BundleError` if something of it is missing. Families are asked by `order`.
    `types`: values of `model_type` in config.json of transformers' folders that this family exports.
    `layout`: what such a folder holds, for messages, such as "train.yaml with final.pt (WeNet)".
    `pickles`, `weights`: patterns of names of files that hold a pickle, and of others beyond safetensors and ONNX.
    `extra`: which of Tritone's extras the export needs. `int8`: whether such models can be exported so.
    `count`: a function that counts the numbers in a file of weights, None if it is none of its files.
    `installed`: a function that says where an installed package has such a model, for the demo's page; raises
    `TritoneError` if none has, and says how to get one.
    `reader`: a function of what a folder of ready-made graphs holds (`ctc`, `transducer`, or a `pair` of encoder and
    decoder) and of the metadata of its first graph: the `Importer` that reads them, True if this family's own export
    does, with the argument `folder`, and False if they are another's.
    `unit`: of the differences in a report, from `original`, in which `{option}` is filled in.
    `first`: flags of the options that its help begins with; `examples`: lines that it ends with; `page`: its document.
    `is_graph`: its files are graphs, which `tritone inspect` shows as they are.
    `command`: a function of `tritone.cli` in place of the command that is made of the options.
    """

    GROUP = "tritone.families"
    INTERFACE = 1

    what: str
    options: str = ""
    export: str | Callable[[Mapping[str, Any]], str]
    recognise: Recognise = lambda seen: None
    order: int = 50
    types: tuple[str, ...] = ()
    layout: str = ""
    pickles: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    extra: str = "export"
    int8: bool = False
    count: str = ""
    installed: str = ""
    reader: str = ""
    unit: str = "log probability"
    original: str = "the torch network"
    first: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    page: str = ""
    is_graph: bool = False
    command: str = ""

    @property
    def option_class(self) -> Any:
        """The class of the export's options, a `BundleOptions`."""
        return self.look_up(self.options)

    def exporter(self, given: Mapping[str, Any]) -> Callable[..., Any]:
        """The function that exports, for what was given of the options.

        Raises:
            MissingDependencyError: a package that it needs is not installed.
        """
        name = self.export if isinstance(self.export, str) else self.export(given)
        try:
            function: Callable[..., Any] = self.look_up(name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("tritone"):  # a fault of ours, which nobody can install
                raise
            raise MissingDependencyError(
                f"exporting needs {error.name}, which is not installed: {pip_install(self.extra or 'export')}"
            ) from error
        return function

    def count_numbers(self, path: Path) -> int | None:
        """How many numbers a file of weights holds, if the family can say that of it."""
        return self.look_up(self.count)(path) if self.count else None

    def installed_file(self) -> Path:
        """Where an installed package has such a model, see `installed`."""
        found: Path = self.look_up(self.installed)()
        return found

    def reader_of(self, kind: str, metadata: Mapping[str, str]) -> Any:
        """What of this family reads a folder of ready-made graphs, see `reader`."""
        return self.look_up(self.reader)(kind, metadata) if self.reader else False


def saved_by_transformers(
    seen: Seen, types: Sequence[str], argument: str, *, beside: Sequence[str] = ()
) -> Checkpoint | None:
    """A folder that transformers' `save_pretrained` wrote, of a model of one of some types; None if it is none.

    Args:
        argument: the option that takes the folder.
        beside: patterns of other files that may be the model, where there are no weights of transformers.

    Raises:
        BundleError: it has no weights.
    """
    kind = seen.config.get("model_type")
    if kind not in types:
        return None
    weights = seen.some("model*.safetensors*") or seen.some("pytorch_model*.bin*")
    if not weights:
        if seen.some(*beside):
            return None
        raise BundleError(f"{seen.path} is a {kind} of transformers without weights: model.safetensors is missing")
    files = list(dict.fromkeys([*seen.some("*.json", "*.txt"), *weights]))
    return Checkpoint(what=f"a model of transformers, {kind}", arguments={argument: seen.path}, files=files)
