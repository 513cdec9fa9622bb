"""Running a Python function of a bundle on batches of arrays.

    folder with steps.py, "steps:tokenize"  ->  PythonFunction: arrays by input  ->  arrays by output

The function is a program of the bundle's author, with all rights of this process. So it is loaded only where runtime
`python` was asked for by name.
"""

import importlib
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tritone.errors import BundleError, InputError, OperatorError
from tritone.runtime.functions.requirements import check_requirements
from tritone.runtime.functions.signature import Models, Signature, read_signature
from tritone.runtime.graph import Array

TARGET = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")
_importing = threading.Lock()


class NoModels:
    """The models of a function to which nobody gave any."""

    def __getitem__(self, name: str) -> Callable[..., Mapping[str, Array]]:
        raise OperatorError(
            f"a function called the model {name!r}, but it was given none. Open it with models={{{name!r}: ...}}, or "
            "serve it in a repository that has this model"
        )


class PythonFunction:
    """A function, or an object of a class without arguments that is made once and called. Calls are not checked for
    being thread-safe: one is made at a time.
    """

    def __init__(self, folder: Path, target: str, requirements: Sequence[str] = ()) -> None:
        """Import the function. This runs code of its module.

        Args:
            folder: with the module's files.
            target: `module:function`.
            requirements: packages that must be installed.

        Raises:
            MissingDependencyError: a package is missing, or has another version.
            BundleError: the module cannot be imported, has no such function, or one that cannot be served.
        """
        check_requirements(requirements, f"{folder}, function {target},")
        found = load_object(folder, target)
        try:
            self.signature: Signature = read_signature(found, target)
        except ValueError as error:
            raise BundleError(f"{folder}: {error}") from error
        self.target = target
        self._lock = threading.Lock()
        if inspect.isclass(found):
            try:
                found = found()
            except Exception as error:  # code of the author
                raise BundleError(
                    f"{folder}: {target}() failed ({type(error).__name__}: {error}); a class is made without arguments"
                ) from error
        self._function = found

    def __call__(
        self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None, models: Models | None = None
    ) -> dict[str, Array]:
        """Call the function on a batch.

        Args:
            inputs: arrays (rows, *dims); optional ones may be missing.
            outputs: those to return; None for all.
            models: those that the function may call.

        Raises:
            InputError: an input is missing, unknown or has another type or shape; or the function says so.
            OperatorError: the result is not as annotated.
        """
        if self.signature.decoupled:
            raise InputError(f"{self.target} is a generator, which answers many times; ask for its stream of answers")
        arguments, rows = self._arguments(inputs, models)
        with self._lock:
            found = self.signature.results(self._function(**arguments), rows)
        return found if outputs is None else {name: found[name] for name in outputs}

    def stream(self, inputs: Mapping[str, Array], models: Models | None = None) -> Iterator[dict[str, Array]]:
        """Call a generator on a batch and return each of its answers; arguments and errors as of a call."""
        arguments, rows = self._arguments(inputs, models)
        results = self._function(**arguments) if self.signature.decoupled else iter([self._function(**arguments)])
        return (self.signature.results(result, rows) for result in results)

    def _arguments(self, inputs: Mapping[str, Array], models: Models | None) -> tuple[dict[str, Any], int]:
        known = {each.name: each for each in self.signature.inputs}
        if unknown := [name for name in inputs if name not in known]:
            raise InputError(f"{self.target} has no input {', '.join(unknown)}; it takes {', '.join(known)}")
        if missing := [name for name, each in known.items() if name not in inputs and not each.optional]:
            raise InputError(f"{self.target} needs the input {', '.join(missing)}")
        rows = {name: len(array) if array.ndim else 0 for name, array in inputs.items()}
        if len(set(rows.values())) != 1:
            raise InputError(f"the inputs of {self.target} have different numbers of rows: {rows}")
        arguments = {name: known[name].value(array) for name, array in inputs.items()}
        if self.signature.models is not None:
            arguments[self.signature.models] = NoModels() if models is None else models
        return arguments, next(iter(rows.values()))


def split_target(text: str) -> tuple[str, str]:
    """Module and function of `module:function`; raises `ValueError` if it is not that."""
    match = TARGET.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.100} should be module:function, such as steps:tokenize")
    return match["module"], match["name"]


def load_object(folder: Path, target: str) -> Any:
    """Import `module:name` of a folder. This runs code of the module.

    A module of the same name that was imported from elsewhere keeps its place for everybody else.

    Raises:
        BundleError: it cannot be imported, or comes from another folder, or has no such name.
        ValueError: `target` is not `module:name`.
    """
    name, attribute = split_target(target)
    with _importing, _alone(folder.resolve(), name.partition(".")[0]):
        try:
            module = importlib.import_module(name)
        except Exception as error:  # code of the author
            raise BundleError(
                f"{folder}: the module {name} cannot be imported ({type(error).__name__}: {error}). Files that it "
                "needs must be in the bundle (--include), packages must be installed (--requirement)."
            ) from error
    if not _is_below(module, folder.resolve()):
        raise BundleError(f"{folder}: the module {name} is not in this folder; Python found {_origin(module)}")
    if not hasattr(module, attribute):
        raise BundleError(f"{folder}: the module {name} has no {attribute!r}")
    return getattr(module, attribute)


def forget(folder: Path) -> None:
    """Have Python forget the modules that were imported from a folder that is about to go."""
    inside = f"{folder.resolve()}{os.sep}"
    for name in [name for name, module in sys.modules.items() if _origin(module).startswith(inside)]:
        del sys.modules[name]


@contextmanager
def _alone(folder: Path, top: str) -> Iterator[None]:
    """Import from a folder first, as if nothing of the same names had been imported before."""
    mine = {top, *(path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir())}

    def taken() -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in mine}

    before = taken()
    for name in before:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a bundle holds only the files of its manifest
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        sys.path.remove(str(folder))
        if before:
            for name in taken():
                del sys.modules[name]
            sys.modules.update(before)


def _origin(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a part of Python"


def _is_below(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(folder)
