"""Calls of a program that were compiled ahead of time, and the cache folder in which they are kept.

    program, device  ->  CompiledStore: outputs and shapes of each call  ->  functions of the program's inputs

`compiler` makes them. Each is a library of machine code for one set of outputs and one shape of every input but for its
rows, of which there may be fewer, on one kind of device and one version of torch. Weights are inputs of it, so all of
them share those of the program, and a program with other weights can use them too.

Opening a compiled call runs its code. So only files of the process's own user or of root are opened, and only where
nobody else could have written to them or to the folders that hold them.
"""

import ctypes
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from tritone.runtime import kept
from tritone.runtime.cuda.kernels import FORM, stamp_of
from tritone.runtime.graph import Bucket, TensorSpec, rows_up_to
from tritone.runtime.kept import digest, distrust, make_private, stamp_digest

LOGGER = logging.getLogger(__name__)
CPP_LIBRARY = "libstdc++.so.6"

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
"""The shape of each input, rows first."""


class Compilable(Protocol):
    """The part of `builder.Program` that is used here."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]: ...

    @property
    def graph(self) -> fx.Graph: ...

    @property
    def constants(self) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class CompiledCall:
    """A call that was compiled: its outputs, the shapes of its inputs, the file's SHA-256, and how long it took.

    It takes as many rows as the shapes have, or fewer.
    """

    outputs: tuple[str, ...]
    shapes: Shapes
    sha256: str
    compile_s: float

    @property
    def bucket(self) -> Bucket:
        """The largest size of the call: of the first input that has rows and samples."""
        rows, samples, *_ = next(shape for shape in self.shapes.values() if len(shape) > 1)
        return Bucket(rows, samples)

    @property
    def rows(self) -> list[int]:
        """The numbers of rows that calls are padded to."""
        return rows_up_to(most_rows(self.shapes))

    def takes(self, shapes: Sequence[Shape]) -> bool:
        """Whether inputs of these shapes can be given to it."""
        return beyond_rows(shapes) == beyond_rows([*self.shapes.values()]) and shapes[0][0] <= most_rows(self.shapes)


class CompiledStore:
    """The compiled calls of one program on one device, in the user's cache folder."""

    def __init__(self, program: Compilable, device: torch.device, root: Path | None = None) -> None:
        """Take a program that is on its device; `root`: the cache folder, by default `cache_folder()`."""
        self._program = program
        self._device = device
        self.root = kept.root(root)

    @cached_property
    def stamp(self) -> dict[str, str]:
        """What compiled code depends on beside the program; it runs nowhere else."""
        return stamp_of(self._device)

    @cached_property
    def folder(self) -> Path:
        """Where the calls of this program, torch and device are."""
        return self.root / program_digest(self._program)[:32] / stamp_digest(self.stamp)

    def place(self, outputs: Sequence[str], shapes: Shapes) -> Path:
        """The file of a call, whether or not it is there."""
        single = ["single"] if most_rows(shapes) == 1 else []
        stamp_text = json.dumps([list(outputs), [[name, list(shape[1:])] for name, shape in shapes.items()], *single])
        size = next((shape[1] for shape in shapes.values() if len(shape) > 1), 0)
        return self.folder / f"{size}-{digest(stamp_text)[:12]}.pt2"

    def calls(self) -> Iterator[tuple[CompiledCall, Path]]:
        """The calls that are there, each with its file. Those that must not be used are named in the log."""
        if not self.root.is_dir():
            return
        if not self.folder.is_dir():
            if self.folder.parent.is_dir():
                self._warn("was compiled for another torch, driver or device", self._differences())
            return
        if reason := distrust(self.root) or distrust(self.folder.parent) or distrust(self.folder):
            self._warn("has compiled calls that are not used", reason)
            return
        for path in sorted(self.folder.glob("*.json")):
            if path.name == "stamp.json":
                continue
            try:
                call, file = _read(path), path.with_suffix(".pt2")
                if reason := distrust(path) or distrust(file):
                    self._warn("has a compiled call that is not used", reason)
                elif hashlib.sha256(file.read_bytes()).hexdigest() != call.sha256:
                    self._warn("has a compiled call that is not used", f"{file} is damaged")
                else:
                    yield call, file
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._warn("has a compiled call that is not used", f"{path} cannot be read ({error})")

    def open(self, concurrency: int = 1, loaded: "Sequence[LoadedCall]" = ()) -> "list[LoadedCall]":
        """Load all calls; those that cannot be loaded are named in the log.

        Args:
            concurrency: calls that are made at once; on a GPU they are made in turn.
            loaded: those of this program and device that were loaded before, which are not loaded again.
        """
        found = []
        for call, path in self.calls():
            try:
                had = next((each for each in loaded if each.call == call), None)
                found.append(had or LoadedCall(call, path, self._program, self._device, concurrency))
            except RuntimeError as error:
                self._warn("has a compiled call that is not used", f"{path} cannot be loaded ({error})")
        return found

    def keep(self, outputs: Sequence[str], shapes: Shapes, made: Path, compile_s: float) -> CompiledCall:
        """Put a compiled call into the cache; `made`, which is in the same file system, is moved."""
        path = self.place(outputs, shapes)
        sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
        call = CompiledCall(tuple(outputs), {name: tuple(shape) for name, shape in shapes.items()}, sha256, compile_s)
        made.chmod(0o600)
        os.replace(made, path)
        _write(self.folder / "stamp.json", self.stamp)
        _write(path.with_suffix(".json"), asdict(call) | {"form": FORM})  # last: now the call counts
        return call

    def prepare(self) -> None:
        """Make the folder, for this user alone."""
        make_private(self.root, self.folder.parent, self.folder)

    def _differences(self) -> str:
        """What differs between this machine and those that calls were compiled for."""
        stamp_text = []
        for path in sorted(self.folder.parent.glob("*/stamp.json")):
            try:
                other = json.loads(path.read_text(encoding="utf-8"))
                names = [name for name in {*other, *self.stamp} if other.get(name) != self.stamp.get(name)]
                stamp_text += [f"{name} {other.get(name)} there, {self.stamp.get(name)} here" for name in sorted(names)]
            except (OSError, ValueError, AttributeError):
                continue
        return "; ".join(dict.fromkeys(stamp_text)) or "its stamp cannot be read"

    def _warn(self, what: str, why: str) -> None:
        LOGGER.warning("the program %s: %s; it runs as it is. `tritone compile` compiles it again", what, why)


class LoadedCall:
    """A compiled call as a function of the program's inputs."""

    def __init__(
        self, call: CompiledCall, path: Path, program: Compilable, device: torch.device, concurrency: int = 1
    ) -> None:
        """Load the code.

        Raises:
            RuntimeError: it cannot be loaded.
        """
        self.call = call
        on_gpu = device.type == "cuda"
        share_cpp_library()
        # Without threads of its own it synchronises nothing, which a recorded call on a GPU does not allow.
        loader = torch._C._aoti.AOTIModelPackageLoader
        self._loaded = loader(str(path), "model", on_gpu, 1 if on_gpu else concurrency, device.index if on_gpu else -1)
        self._constants = list(lifted_constants(program).values())

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        # The code reads memory as it was compiled for, whatever the strides say.
        found: list[Tensor] = self._loaded.run([*(each.contiguous() for each in inputs), *self._constants])
        return found

    def giving(self, outputs: Sequence[str]) -> Callable[..., list[Tensor]]:
        """A function of the inputs that returns these outputs, which are among those of the call."""
        if tuple(outputs) == self.call.outputs:
            return self
        places = [self.call.outputs.index(name) for name in outputs]

        def some(*inputs: Tensor) -> list[Tensor]:
            found = self(*inputs)
            return [found[place] for place in places]

        return some


def share_cpp_library() -> None:
    """Let libraries that are loaded from now on use the C++ library that this process has.

    Where g++ links a copy of it into the code that it makes, as on Ubuntu 24.04 with CUDA 13, two copies mix their
    locales, and the first regular expression of torch's own start ends the process. Python loads torch, and with it
    libstdc++, for torch alone; libraries prefer what is there for all.
    """
    with suppress(OSError):  # on other systems than Linux it has another name
        ctypes.CDLL(CPP_LIBRARY, mode=ctypes.RTLD_GLOBAL)


def input_shapes(inputs: Mapping[str, TensorSpec], bucket: Bucket, history: int = 0) -> dict[str, Shape]:
    """The shapes of all inputs of a call.

    The first axis is that of rows. The other open one of the first input, a waveform or features, has the bucket's
    samples; those of further inputs, the states of streams, have `history` frames.
    """
    shapes: dict[str, Shape] = {}
    for name, spec in inputs.items():
        length = history if shapes else bucket.samples
        shapes[name] = tuple(
            bucket.rows if place == 0 else length if axis is None else axis for place, axis in enumerate(spec.shape)
        )
    return shapes


def most_rows(shapes: Shapes) -> int:
    """The rows of a call with these shapes."""
    return next(iter(shapes.values()))[0]


def beyond_rows(shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """What shapes have beside their rows."""
    return tuple(shape[1:] for shape in shapes)


def lifted_constants(program: Compilable) -> dict[str, Tensor]:
    """The constants that compiled calls take after the inputs of the program, all of them and always in this order."""
    return dict(program.constants)


def program_digest(program: Compilable) -> str:
    """A name for all programs that compute the same with their weights: its operators and the types of its weights."""
    lines = [f"{name} {spec.dtype} {spec.shape}" for name, spec in program.inputs.items()]
    lines += [f"{name} {each.dtype} {tuple(each.shape)} {each.stride()}" for name, each in program.constants.items()]
    for node in program.graph.nodes:
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        lines.append(f"{node.op} {node.name} {target} {node.args} {node.kwargs}")
    return digest(re.sub(r"cuda:\d+|device\(type='cuda', index=\d+\)", "cuda", "\n".join(lines)))


def _read(path: Path) -> CompiledCall:
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    if content["form"] != FORM:
        raise ValueError(f"it is of form {content['form']}, known is {FORM}")
    shapes = {str(name): tuple(int(axis) for axis in shape) for name, shape in content["shapes"].items()}
    return CompiledCall(
        tuple(map(str, content["outputs"])), shapes, str(content["sha256"]), float(content["compile_s"])
    )


def _write(path: Path, content: Mapping[str, Any]) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(content, indent=1), encoding="utf-8")
    new.chmod(0o600)
    os.replace(new, path)
