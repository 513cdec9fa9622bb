"""Reading the files of `torch.jit.save` (.ts) as data.

    encoder.ts  ->  the text of `forward`, the constants that it uses, names and shapes of inputs and outputs

`torch.jit.load` is for files of friends. A file brings code that runs while it is loaded (`__setstate__`) and when it
is called, and that code may write files (`aten::save`), map them into memory (`aten::from_file`), print, or never end.
So nothing here is handed to torch's loader: the text is parsed, the tables of tensors are unpickled by a reader that
knows tensors alone, and everything else is not looked at.
Source of the format: torch/csrc/jit/serialization/{export_module,pickler,python_print}.cpp, torch 2.11 to 2.13.
"""

import ast
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch

from tritone.runtime.torch.records import Records

MAX_CODE_BYTES = 2**23
MAX_TABLE_BYTES = 2**25
STORAGES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class ScriptArchive(Records):
    """An open .ts file."""

    kind = "archive of torch.jit"
    compressible = "code/"

    def forward(self) -> ast.FunctionDef:
        """The one function of the one class in the file; nothing in it has been looked at."""
        sources = [name for name in self.names() if name.startswith("code/") and name.endswith(".py")]
        if len(sources) != 1:
            raise self.fault(f"it has {len(sources)} files of code; a graph is one function, frozen into one class")
        try:
            text = self.read(sources[0], MAX_CODE_BYTES).decode()
            content = ast.parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise self.fault(f"its code cannot be read ({type(error).__name__}: {error})") from error
        functions: list[ast.FunctionDef] = []
        for part in content.body:
            if not isinstance(part, ast.ClassDef):
                raise self.fault(f"beside its class it has {describe(part)}")
            functions += (each for each in part.body if isinstance(each, ast.FunctionDef))
        if [function.name for function in functions] != ["forward"]:
            called = ", ".join(function.name for function in functions) or "none"
            raise self.fault(f"a graph has the function forward and no other, this one has {called}")
        return functions[0]

    def constants(self) -> list[torch.Tensor]:
        """The tensors that the code calls CONSTANTS.c0, CONSTANTS.c1, …, on the CPU."""
        if not self.has("constants.pkl"):
            return []
        try:
            table = _Table(self, self.read("constants.pkl", MAX_TABLE_BYTES)).load()
        except pickle.UnpicklingError as error:
            raise self.fault(f"its table of constants is damaged or holds more than tensors ({error})") from error
        found = list(table) if isinstance(table, tuple) else [table]
        if not all(isinstance(each, torch.Tensor) for each in found):
            raise self.fault("its table of constants holds more than tensors")
        return found


class _Table(pickle.Unpickler):
    """Unpickles tensors. The only functions that a table can name are those in `find_class`, and they do no harm."""

    def __init__(self, archive: ScriptArchive, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._archive = archive
        self._held: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return _Fixed(STORAGES[name])
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Fixed(self._tensor)
        if (module, name) == ("collections", "OrderedDict"):
            return _Fixed(_no_hooks)
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> torch.Tensor:
        match pid:
            case ("storage", _Fixed() as kind, str() as key, str(), int()) if isinstance(kind.value, torch.dtype):
                if (key, kind.value) not in self._held:
                    self._held[key, kind.value] = self._archive.numbers(f"constants/{key}", kind.value)
                return self._held[key, kind.value]
        raise pickle.UnpicklingError(f"a reference {str(pid)[:60]}")

    def _tensor(self, flat: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> torch.Tensor:
        if not isinstance(flat, torch.Tensor) or not all(isinstance(each, tuple) for each in (shape, strides)):
            raise pickle.UnpicklingError("a tensor without numbers or sizes")
        sizes = [offset, *shape, *strides]
        if not all(type(each) is int and abs(each) < 2**62 for each in sizes):
            raise pickle.UnpicklingError(f"a tensor of sizes {str(sizes)[:60]}")
        return self._archive.view("a constant", flat, shape, strides, offset)


class _Fixed:
    """What a name in a table stands for; a table can call it and do nothing else with it."""

    __slots__ = ("value",)
    value: Any

    def __init__(self, value: Callable[..., Any] | torch.dtype) -> None:
        object.__setattr__(self, "value", value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f"a change of {name}")

    def __call__(self, *args: Any) -> Any:
        if isinstance(self.value, torch.dtype):
            raise pickle.UnpicklingError("a call of a type")
        return self.value(*args)


def _no_hooks(*args: Any) -> None:
    if args:
        raise pickle.UnpicklingError("hooks of a tensor")


def describe(part: ast.AST) -> str:
    """A piece of code as an error says it."""
    try:
        return repr(ast.unparse(part)[:80])
    except Exception:  # text that parses need not be possible to write again
        return type(part).__name__
