"""What builds engines here: TensorRT's Python package, TensorRT for RTX, or `trtexec` where there is nothing else.

nothing or a name  ->  Tools(library, version, gpu, ...)  ->  a builder
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tritone.bundle.manifest import Engine
from tritone.errors import MissingDependencyError, OperatorError
from tritone.paths import cache_folder
from tritone.runtime.cuda.tensorrt import INSTALL, OLDEST, TITLES, Gpu, Library, find_gpu, installed, load_library
from tritone.tensorrt.build import EngineBuilder
from tritone.tensorrt.trtexec import TrtexecBuilder, find_trtexec


@dataclass(frozen=True)
class Tools:
    """What was found. `library`: the Python package, or None, then `program` is trtexec. `gpu`: the first one."""

    name: str
    version: str
    library: Library | None
    program: Path | None
    gpu: Gpu | None

    @property
    def title(self) -> str:
        """For people."""
        return f"{TITLES[self.name]} {self.version}" + ("" if self.library else f" ({self.program})")

    def stamp(self, profiles: tuple[str, ...]) -> Engine:
        """What a manifest says of an engine that these tools build for these sizes."""
        return Engine(
            library=self.name,  # type: ignore[arg-type]  # of those that there are
            version=self.version,
            gpu=self.gpu.name if self.gpu else None,
            compute_capability=self.gpu.capability if self.gpu else None,
            profiles=profiles,
        )

    def builder(
        self,
        *,
        workspace_mib: int | None = None,
        timing_cache: Path | None = None,
        level: int | None = None,
        progress: Callable[[str], None] = lambda step: None,
    ) -> EngineBuilder | TrtexecBuilder:
        """A builder; arguments as of `EngineBuilder`, but that None takes the usual timing cache."""
        cache = timing_cache or self.usual_timing_cache()
        if self.library is not None:
            return EngineBuilder(self.library, workspace_mib, cache, level, progress)
        assert self.program is not None
        return TrtexecBuilder(self.program, workspace_mib, cache, level, progress)

    def usual_timing_cache(self) -> Path:
        """In the user's cache folder: what was measured on one GPU by one version is good for no other."""
        gpu = "".join(char if char.isalnum() else "-" for char in self.gpu.name) if self.gpu else "no-gpu"
        return cache_folder() / f"{self.name}-{self.version}-{gpu}.timing"


def find_tools(name: str | None = None) -> Tools:
    """Look for something that can build engines on this machine.

    Args:
        name: "tensorrt" or "tensorrt-rtx"; None takes the first that is there.

    Raises:
        MissingDependencyError: nothing is there, or it is too old; says what to install.
        OperatorError: TensorRT is there, but no GPU, which it builds for. TensorRT for RTX needs none.
    """
    gpu = find_gpu()
    program = find_trtexec() if name in (None, "tensorrt") else None
    found = [each for each in installed() if name in (None, each)]
    if not found and program is None:
        wanted = TITLES[name] if name else "TensorRT"
        raise MissingDependencyError(f"no engine can be built here, because {wanted} is not installed: {INSTALL}")
    if found:
        library = load_library(found[0])
        tools = Tools(library.name, library.version, library, None, gpu)
    else:
        assert program is not None
        tools = Tools("tensorrt", TrtexecBuilder(program).version(), None, program, gpu)
        if int(tools.version.split(".")[0]) < OLDEST:
            raise MissingDependencyError(f"TensorRT {OLDEST} or newer is needed, {tools.title} is here: {INSTALL}")
    if gpu is None and tools.name == "tensorrt":
        raise OperatorError(
            f"{tools.title} builds engines on the GPU that shall run them, and finds none here. Build where the GPU is"
        )
    return tools
