"""From a Python function to a bundle.

    steps:tokenize  ->  python/steps.py, and the modules beside it that it imports; manifest.json

Inputs and outputs come from the function's annotations (`runtime/functions/signature.py`). Files are found by reading
imports, and the function is then imported from their copies, so that what a bundle lacks is seen at export.
"""

import ast
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.bundle.bundle import Bundle, BundleWriter
from tritone.bundle.manifest import Manifest
from tritone.errors import BundleError, ExportError
from tritone.families.export.report import provenance
from tritone.families.graphs.proposal import FUNCTION_ROWS
from tritone.kinds.generic.part import GenericInput, GenericOutput, GenericPart, PythonFunction
from tritone.runtime.functions.function import PythonFunction as Loaded
from tritone.runtime.functions.function import forget, split_target
from tritone.runtime.functions.requirements import imported, requirements_of
from tritone.runtime.functions.signature import Argument

FOLDER = "python"  # of a bundle, from which its modules are imported
IGNORED = ("__pycache__", ".git", ".venv")
MAX_FILES = 1000


@dataclass(frozen=True)
class Source:
    """A function before its export: the folder that its module is imported from, and `module:function`."""

    folder: Path
    module: str
    function: str

    @classmethod
    def read(cls, text: str, folder: Path) -> "Source":
        """The source that `module:function` or `path/module.py:function` names, relative to a folder.

        Raises:
            ExportError: there is no such module.
            ValueError: it is neither.
        """
        file, _, function = text.rpartition(":")
        if file.endswith(".py"):
            path = folder / file
            folder, text = path.parent, f"{path.stem}:{function}"
        module, function = split_target(text)
        source = cls(folder, module, function)
        if module.partition(".")[0] in {*sys.stdlib_module_names, "tritone"}:
            raise ExportError(
                f"the module {module.partition('.')[0]} is called like one of Python's or Tritone's own, which would "
                "be imported in its place. Rename it."
            )
        if not source.file.is_file():
            raise ExportError(
                f"there is no module {module} in {folder.resolve()} ({source.file} is missing). Give module:function "
                "of a module in this folder, or path/module.py:function."
            )
        return source

    @property
    def file(self) -> Path:
        """The module's file."""
        path = self.folder.joinpath(*self.module.split("."))
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def files(self) -> list[Path]:
        """The files of the module's package, or its one file, and those of all modules beside it that they import."""
        names, found = [self.module.partition(".")[0]], dict[Path, None]()
        for name in names:  # which grows
            new = list(_files_of(self.folder, name))
            found |= dict.fromkeys(new)
            names += sorted(imported(path for path in new if path.suffix == ".py") - set(names))
        if len(found) > MAX_FILES:
            raise ExportError(f"{self.folder} has {len(found)} files for {self.module}; at most {MAX_FILES} are copied")
        first = self.file
        return [first, *(path for path in found if path != first)]


def export_python(
    *,
    target: str,
    output: Path,
    folder: Path | None = None,
    name: str | None = None,
    max_batch_size: int = FUNCTION_ROWS,
    include: Sequence[Path] = (),
    requirements: Sequence[str] = (),
) -> Bundle:
    """Make a bundle of a Python function. This imports its module.

    Args:
        target: `module:function`, or `path/module.py:function`; or a class, whose object is made once and called.
        output: the bundle's folder; an older bundle there is replaced.
        folder: where the module is; by default the current one.
        name: of the model; by default the output folder's name.
        max_batch_size: the most rows of a call; 0 serves tensors without the axis of rows: each request is one row.
        include: more files that the function reads, in that folder; or folders of them.
        requirements: packages as of pip. Those that the module imports are found, in at least the version that is
            installed; one that is given here replaces what was found.

    Raises:
        ExportError: the module is not there, its name is taken, or a file is outside of the folder.
        BundleError: the function cannot be imported from the bundle alone, or its annotations cannot be served.
        MissingDependencyError: a requirement is not met here.
        ValueError: the target or a requirement is not of the form needed, or `max_batch_size` is negative.
    """
    if max_batch_size < 0:
        raise ValueError(f"max_batch_size must be at least 1, or 0 for tensors without rows; got {max_batch_size}")
    source = Source.read(target, folder or Path())
    try:
        files = [*source.files(), *_included(source.folder, include)]
        modules = [path for path in files if path.suffix == ".py"]
        needed = requirements_of(imported(modules) - {path.stem for path in modules}, requirements)
    except SyntaxError as error:
        raise ExportError(f"{error.filename}, line {error.lineno}: {error.msg}. Repair the module.") from error
    with BundleWriter(output) as writer:
        names = [f"{FOLDER}/{path.relative_to(source.folder).as_posix()}" for path in dict.fromkeys(files)]
        for path, copy in zip(dict.fromkeys(files), names, strict=True):
            (writer.folder / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, writer.folder / copy)
        try:
            loaded = Loaded(writer.folder / FOLDER, f"{source.module}:{source.function}", needed)
        except BundleError as error:  # named after a folder that is gone then
            raise ExportError(str(error).replace(str(writer.folder / FOLDER), str(source.folder.resolve()))) from error
        finally:
            forget(writer.folder)
        signature = loaded.signature
        part = PythonFunction(
            function=source.function,
            requirements=needed,
            decoupled=signature.decoupled,
            calls=_calls(modules, signature.models) if signature.models else (),
        )
        manifest = Manifest(
            name=name or output.resolve().name,
            kind="generic",
            parts=(
                GenericPart(
                    inputs=tuple(GenericInput(**_tensor(each), optional=each.optional) for each in signature.inputs),
                    outputs=tuple(GenericOutput(**_tensor(each)) for each in signature.outputs),
                    max_batch_size=max_batch_size,
                    python=part,
                ),
            ),
            artifacts=(writer.artifact("model", *names, runtime="python"),),
            provenance=provenance(
                "python",
                dict(zip((each.removeprefix(f"{FOLDER}/") for each in names), dict.fromkeys(files), strict=True)),
                {"target": f"{source.module}:{source.function}", "max_batch_size": max_batch_size},
                ("tritone", "numpy"),
            ),
        )
        return writer.commit(manifest)


def _tensor(argument: Argument) -> dict[str, Any]:
    """Triton has no tensors without axes: where the function has none, the wire has one of size 1."""
    dims: dict[str, Any] = {"dims": argument.dims} if argument.dims else {"dims": (1,), "reshape": ()}
    return {"name": argument.name, "type": argument.type, **dims}


def _files_of(folder: Path, name: str) -> Iterator[Path]:
    """The file of a module of a folder, or all files of a package; none if it is not there."""
    if (folder / name).is_dir():
        for path in sorted((folder / name).rglob("*")):
            parts = path.relative_to(folder).parts
            if path.is_file() and not any(part in IGNORED or part.startswith(".") for part in parts):
                yield path
    elif (file := folder / f"{name}.py").is_file():
        yield file


def _included(folder: Path, paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        inside = Path(os.path.abspath(folder / path))
        if not inside.is_relative_to(os.path.abspath(folder)):
            raise ExportError(f"{path} is not in {folder.resolve()}, the module's folder; copy it there")
        inside = folder / inside.relative_to(os.path.abspath(folder))
        found = [each for each in sorted(inside.rglob("*")) if each.is_file()] if inside.is_dir() else [inside]
        if not inside.exists() or not found:
            raise ExportError(f"there is no file {inside} to include")
        yield from found


def _calls(modules: Sequence[Path], parameter: str) -> tuple[str, ...]:
    """The names of models that a function calls, as far as they are written out: `models["NAME"]`."""
    found = set()
    for path in modules:
        for node in ast.walk(ast.parse(path.read_bytes())):
            match node:
                case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(called))) if name == parameter:
                    found.add(called)
    return tuple(sorted(found))
