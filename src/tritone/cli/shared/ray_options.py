"""Where a command's bundle runs, if not in its own process: on the workers of a Ray cluster."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from tritone.result import AnyResult
    from tritone.systems import BundleSystem
    from tritone.systems.ray_system import RaySystem
    from tritone.systems.ray_worker import Load


@dataclass(frozen=True, kw_only=True)
class OnRay:
    """The options of commands that may run on a Ray cluster; None is not given."""

    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --model: run it on a Ray cluster: host:port, auto (this machine's), or local (one of this "
            "machine alone, for this command).",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="With --ray: workers, each with a model; as many as there is room for if not given."),
    ] = None
    cpus_per_worker: Annotated[
        int | None, typer.Option(min=1, help="With --ray: CPUs of a worker, and threads of its model; 1 if not given.")
    ] = None
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(min=0, help="With --ray: GPUs of a worker, or a part of one; 1 with --device cuda."),
    ] = None
    unordered: Annotated[
        bool | None,
        typer.Option("--unordered", help="With --ray: results as they come, not in the order of the recordings."),
    ] = None

    def check(self, bundle: str | None, **others: Any) -> None:
        """Make sure that the options belong together.

        Args:
            others: options of the command that a cluster does not have; None and False are not given.

        Raises:
            typer.BadParameter: they do not.
        """
        if self.ray is None:
            if given := [name for name, value in vars(self).items() if value not in (None, False)]:
                raise typer.BadParameter(f"{_flags(given)} goes with --ray")
            return
        if bundle is None:
            raise typer.BadParameter("--ray goes with --model, which its workers run; a server of --url needs none")
        if given := [name for name, value in others.items() if value not in (None, False)]:
            raise typer.BadParameter(f"{_flags(given)} cannot be used with --ray")

    @contextmanager
    def reserved_stdout(self) -> Iterator[TextIO | None]:
        """Keep what Ray prints out of a command's data: inside, only the file that it gives is stdout.

        None where there is no need: what Ray prints about its machines may stand between the data on a terminal.
        """
        if self.ray is None or sys.stdout.isatty():
            yield None
            return
        data = sys.stdout
        with redirect_stdout(sys.stderr):
            yield data

    def system(
        self,
        here: "BundleSystem[AnyResult]",
        *,
        load: "Load",
        bundle: str,
        result: "type[AnyResult]",
        options: Mapping[str, Any],
    ) -> "RaySystem[AnyResult]":
        """The bundle on the cluster; raises `ValueError` for an address that cannot be one."""
        from tritone.systems.ray_system import Cluster, RaySystem

        assert self.ray is not None
        device = str(options.get("device", "cpu"))
        if ":" in device:
            raise ValueError(f"--device {device}: Ray chooses the GPU of each worker; write --device cuda")
        on_gpu = device == "cuda"
        gpus = self.gpus_per_worker if self.gpus_per_worker is not None else float(on_gpu)
        cluster = Cluster(
            address=self.ray,
            workers=self.workers,
            cpus=self.cpus_per_worker or 1,
            gpus=gpus,
            ordered=not self.unordered,
        )
        return RaySystem(here, cluster, load=load, bundle=bundle, result=result, options=options)


def _flags(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
