"""`--runtimes ...,tensorrt` of the export commands: engines of the ONNX graphs of the bundle that comes out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from tritone.cli.engine import announced_tools, print_engines
from tritone.errors import TritoneError

if TYPE_CHECKING:
    from tritone.bundle.bundle import Bundle
    from tritone.bundle.manifest import Precision
    from tritone.tensorrt.library import Tools

TENSORRT = "tensorrt"


def progress(step: str) -> None:
    """Print what is done next."""
    typer.echo(f"{step} ...", err=True)


@dataclass(frozen=True)
class RuntimePlan:
    """`runtimes`: what the family shall export for. `engines`: precisions of engines; `tools`: what builds them."""

    runtimes: tuple[str, ...]
    engines: tuple["Precision", ...] = ()
    tools: "Tools | None" = None

    def build_engines(self, bundle: "Bundle") -> None:
        """Build the engines that were asked for, of the usual sizes."""
        if self.tools is None:
            return
        from tritone.tensorrt import build_engines
        from tritone.tensorrt.profile import DEFAULT

        typer.echo(f"engines for {DEFAULT} (`tritone engine {bundle.path}` builds them for other sizes)", err=True)
        try:
            built = build_engines(bundle, precisions=self.engines, tools=self.tools, progress=progress)
        except TritoneError:
            typer.echo(f"note: {bundle.path} is there, without engines; `tritone engine` tries again", err=True)
            raise
        print_engines(built, self.tools)


def plan_runtimes(runtimes: Sequence[str], precisions: Sequence[str]) -> RuntimePlan:
    """Split TensorRT from what a family exports for; what is missing for it is reported before anything is exported.

    Raises:
        ValueError: no engine can be in any of the precisions, or a runtime is given twice.
        MissingDependencyError, OperatorError: nothing here can build engines; see `find_tools`.
    """
    if TENSORRT not in runtimes:
        return RuntimePlan(tuple(runtimes))
    if len(set(runtimes)) < len(runtimes):
        raise ValueError(f"expected each runtime once; got {', '.join(runtimes)}")
    from tritone.tensorrt.bundled import PRECISIONS

    engines = tuple(each for each in PRECISIONS if each in precisions)
    if not engines:
        raise ValueError(
            f"no engine can be in {' or '.join(precisions)}: tensorrt has {', '.join(PRECISIONS)}. Add one of them "
            "with --precision"
        )
    if left_out := [each for each in precisions if each not in PRECISIONS]:
        typer.echo(f"tensorrt has {', '.join(PRECISIONS)}: {', '.join(left_out)} is left out there", err=True)
    others = tuple(each for each in runtimes if each != TENSORRT)
    if "onnxruntime" not in others:  # engines are built of its graphs
        others = (*others, "onnxruntime")
    return RuntimePlan(others, engines, announced_tools())
