"""What the rest of Tritone may know of a runtime, on one page that imports neither it nor numpy.

    runtime/onnx/runtime.py: RUNTIME = Runtime(name="onnxruntime", suffix=".onnx", ...)
        ->  `open_graph("encoder.onnx")`, `--runtime onnxruntime`, a line of `tritone doctor`

A runtime of another package is named in its entry point of the group `tritone.runtimes`, see `known.py`.
"""

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tritone.errors import MissingDependencyError
from tritone.installing import pip_install
from tritone.pages import Page


@dataclass(frozen=True)
class NativeBackend:
    """A backend of Triton's own: its name, the platform it stands for, and what the file of a graph is called.

    `numbered`: tensors go by their names and places, `name__0`, since the graph has none for them.
    """

    name: str
    platform: str
    file: str
    numbered: bool = False

    def output(self, name: str, place: int) -> str:
        """What the backend calls an output of a generic model, whose inputs keep their names everywhere."""
        return name if re.search(r"__\d+$", name) else self.tensor(name, place)

    def tensor(self, name: str, place: int) -> str:
        """What the backend calls a tensor that is in this place among the inputs, or the outputs."""
        return f"{name}__{place}" if self.numbered else name


@dataclass(frozen=True, kw_only=True)
class Runtime(Page):
    """One runtime: what opens its graphs, what it needs, and what its files are.

    `graph`: the class of its graphs, a `Graph`, made of path, device, threads and `split_calls`, and of what it `takes`
    beside them, of the arguments of `open_graph`. `suffix`: of its files.
    `obstacle`: a function of a device's name that says why it cannot run there, with the way out, or None if it can; it
    is asked of GPUs, once what the runtime `needs` is installed.
    `needs`: the package that it is. `extra`: of Tritone that brings that, if it is no dependency. `oldest`: its first
    version that will do. `on_cpu`: whether it runs there, too. `by_itself`: its graphs choose where they compute.
    `named`: it runs the files of another runtime, so it is used only where it is asked for by name. `programs`: what
    its files are, if they are code that the runtime executes; they are opened only where it is asked for by name.
    `order`: of its place in lists.
    `describe`: a function of a path that says what a file says of itself, a `GraphDescription`: of a file that begins
    with `starts`, whatever it is called; without that, of its own files and of what is nobody's. `opaque`: what its
    files are, if they show nothing.
    `slow`: a function that says what is slower than it could be as it is installed here, and why, or None.
    `kept`: a module for what it compiles and keeps in the user's cache: `stamp_here(device)` and
    `kept_files(programs, device)`, as in `torch/kept.py`.
    `native`: the backend of Triton's own that serves its files.
    `precisions`: what networks are exported in for it, and `written_with` which packages, in words: of ONNX, programs
    of torch and scripts, which are all that Tritone writes.
    """

    GROUP = "tritone.runtimes"
    INTERFACE = 1

    graph: str
    suffix: str
    obstacle: str = "graph:obstacle"
    takes: tuple[str, ...] = ()
    needs: str
    extra: str = ""
    oldest: tuple[int, ...] = ()
    on_cpu: bool = True
    by_itself: bool = False
    named: bool = False
    programs: str = ""
    order: int = 90
    describe: str = ""
    starts: bytes = b""
    opaque: str = ""
    slow: str = ""
    kept: str = ""
    native: NativeBackend | None = None
    precisions: tuple[str, ...] = ()
    written_with: str = ""

    @property
    def is_usual(self) -> bool:
        """Whether it comes with Tritone, and runs without being asked for."""
        return not (self.extra or self.named or self.programs)

    @property
    def lack(self) -> str | None:
        """What is missing or too old, with the line that installs it; None if nothing is."""
        if find_spec(self.needs) is None:
            return f"the package {self.needs}, which is not installed: {self._install}"
        try:
            installed = version(self.needs)
        except PackageNotFoundError:  # under another name, such as onnxruntime-gpu
            return None
        if tuple(int(part) for part in installed.split("+")[0].split(".")[:2] if part.isdigit()) < self.oldest:
            oldest = ".".join(map(str, self.oldest))
            return f"{self.needs} {oldest} or newer, installed is {installed}: {self._install}"
        return None

    @property
    def _install(self) -> str:
        return pip_install(self.extra) if self.extra else f"pip install {self.needs}"

    def require(self, path: Path) -> None:
        """Raise `MissingDependencyError` if it cannot have a file because of what it lacks."""
        if lack := self.lack:
            raise MissingDependencyError(f"{path.name} needs {lack}.")
