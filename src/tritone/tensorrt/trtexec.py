"""Building engines by `trtexec`, which comes with TensorRT where its Python package may not.

encoder.fp16.onnx + ranges of sizes  ->  trtexec --onnx=... --stronglyTyped --minShapes=...  ->  plan (bytes)
"""

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritone.errors import ExportError, OperatorError
from tritone.tensorrt.profile import Range

USUAL_PLACES = (Path("/usr/src/tensorrt/bin/trtexec"), Path("/opt/tensorrt/bin/trtexec"))
BANNER = re.compile(r"\[TensorRT v(\d+)\]")  # 101303 is 10.13.3
LAST_LINES = 5  # of what it printed, in an error

Progress = Callable[[str], None]


def find_trtexec() -> Path | None:
    """The program on PATH, or where NVIDIA's packages and containers have it."""
    found = shutil.which("trtexec")
    places = [Path(found)] if found else [place for place in USUAL_PLACES if place.is_file()]
    return places[0] if places else None


@dataclass
class TrtexecBuilder:
    """Builds engines by running `program`; see `EngineBuilder` for the rest."""

    program: Path
    workspace_mib: int | None = None
    timing_cache: Path | None = None
    level: int | None = None
    progress: Progress = lambda step: None

    def version(self) -> str:
        """Of TensorRT, as its banner states.

        Raises:
            OperatorError: the program cannot be run, or does not print it.
        """
        try:
            done = subprocess.run(
                [self.program, "--help"],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OperatorError(f"{self.program} cannot be run: {error}") from error
        if (match := BANNER.search(done.stdout + done.stderr)) is None:
            raise OperatorError(f"{self.program} does not print its version; it should be NVIDIA's trtexec")
        number = int(match[1])
        # 8601 is 8.6.1 and 101303 is 10.13.3
        high, low = (10000, 100) if number >= 100000 else (1000, 100)
        return f"{number // high}.{number % high // low}.{number % low}"

    def build(self, graph: Path, ranges: Sequence[Mapping[str, Range]]) -> bytes:
        """Build an engine; see `EngineBuilder.build`. Ctrl-C ends the program too."""
        with tempfile.TemporaryDirectory(prefix="tritone-trtexec-") as folder:
            plan = Path(folder) / "engine.plan"
            self.progress(f"running {self.program}")
            command = [str(self.program), f"--onnx={graph}", f"--saveEngine={plan}", *self._options(ranges)]
            try:
                done = subprocess.run(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    encoding="utf-8",
                    errors="replace",
                    check=False,
                )
            except OSError as error:
                raise OperatorError(f"{self.program} cannot be run: {error}") from error
            if done.returncode != 0 or not plan.is_file():
                error_lines = [line.strip() for line in done.stdout.splitlines() if "[E]" in line]
                error_lines = (error_lines or done.stdout.splitlines())[-LAST_LINES:]
                raise ExportError(
                    f"trtexec builds no engine of {graph}: {' | '.join(error_lines) or 'it gives no reason'}"
                )
            return plan.read_bytes()

    def _options(self, ranges: Sequence[Mapping[str, Range]]) -> Iterator[str]:
        if self.timing_cache is not None:
            try:
                self.timing_cache.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                self.progress(f"what is measured cannot be kept, so the next build measures again ({error})")
            else:
                yield f"--timingCacheFile={self.timing_cache}"
        yield from _options(ranges, level=self.level, workspace_mib=self.workspace_mib)


def trtexec_line(
    graph: Path,
    plan: Path,
    ranges: Sequence[Mapping[str, Range]],
    *,
    level: int | None = None,
    workspace_mib: int | None = None,
) -> str:
    """The command that builds the same engine, as a line for a shell."""
    options = _options(ranges, level=level, workspace_mib=workspace_mib)
    return shlex.join(["trtexec", f"--onnx={graph}", f"--saveEngine={plan}", *options])


def _options(ranges: Sequence[Mapping[str, Range]], *, level: int | None, workspace_mib: int | None) -> Iterator[str]:
    yield from ("--stronglyTyped", "--noTF32", "--skipInference")
    if level is not None:
        yield f"--builderOptimizationLevel={level}"
    if workspace_mib is not None:
        yield f"--memPoolSize=workspace:{workspace_mib}M"
    for number, sizes in enumerate(ranges):
        if len(ranges) > 1:
            yield f"--profile={number}"
        if sizes:
            yield f"--minShapes={_shapes({name: each.least for name, each in sizes.items()})}"
            yield f"--optShapes={_shapes({name: each.usual for name, each in sizes.items()})}"
            yield f"--maxShapes={_shapes({name: each.most for name, each in sizes.items()})}"


def _shapes(shapes: Mapping[str, Sequence[int]]) -> str:
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
