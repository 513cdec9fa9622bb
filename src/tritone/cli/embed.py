"""`tritone embed`: recordings to speaker embeddings in Kaldi archives, by a running server or in this process."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tritone.cli.shared import recordings
from tritone.cli.shared.documents import names_of
from tritone.cli.shared.interrupts import INTERRUPTED, interrupts
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.ray_options import OnRay
from tritone.cli.shared.where import Where
from tritone.report.table import visible
from tritone.result import EmbeddingResult
from tritone.speakers.archive_writer import DEFAULT_SHARD_SIZE
from tritone.speakers.bulk import BulkResult, BulkStatus, Recording, embed_corpus
from tritone.systems import BundleSystem, System, embedder

SHOW_EVERY_S = 0.1  # how often the bar moves; thousands of updates a second would cost more than small models


@takes_option_classes()
def embed(
    *,
    files: recordings.Files = None,
    output: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where xvector_000.ark, .scp and the other archives go; created if missing."),
    ],
    wavscp: recordings.WavScp = None,
    manifest: recordings.Manifests = None,
    data_dir: recordings.DataDir = None,
    where: Where,
    on_ray: OnRay,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Without --url: CPU threads of the model; all CPUs if not given.")
    ] = None,
    window_s: Annotated[
        float | None,
        typer.Option(min=0, help="Embed longer audio in windows of this many seconds, and average them."),
    ] = None,
    shift_s: Annotated[
        float | None, typer.Option(min=0, help="Distance from one window to the next; their length if not given.")
    ] = None,
    shard_size: Annotated[int, typer.Option(min=1, help="Vectors in one archive.")] = DEFAULT_SHARD_SIZE,
    force: Annotated[
        bool, typer.Option("--force", help="Start again if another model, or other options, made the vectors in DIR.")
    ] = False,
) -> None:
    """Turn recordings into embeddings, in Kaldi archives.

    With a running server (--url), or a model in this process (--model) or on a Ray cluster (with --ray too). Name the
    files, which are called as they are without their suffix, or a list of them by --wavscp or --manifest, or a folder
    by --data-dir. Vectors that are already in DIR are kept: after an interrupt or a
    crash, the same command continues with the rest. Recordings that fail are listed in DIR/failures.jsonl. Exit code 0
    only if every recording has its vector.
    """
    where.check("demo-speaker", threads=threads)
    on_ray.check(where.what)
    # A recording that is missing is a failure like others.
    paths, ids = recordings.named(files, wavscp, manifest, data_dir, model=where.what, doing="embed", need_audio=False)
    names = ids or names_of(paths)
    windows = {"window_s": window_s, "shift_s": shift_s}
    with (
        on_ray.reserved_stdout(),
        interrupts(),
        closing(_open(where, on_ray, threads, windows)) as system,
        _progress() as show,
    ):
        result = embed_corpus(
            [Recording(id=name, path=path) for name, path in zip(names, paths, strict=True)],
            system,
            output,
            shard_size=shard_size,
            force=force,
            progress=show,
        )
    _report(result)


def _open(where: Where, on_ray: OnRay, threads: int | None, windows: dict[str, Any]) -> System[EmbeddingResult]:
    from tritone import Embedder, load_as

    load = partial(load_as, Embedder)
    try:
        if where.url is not None:
            return embedder(where.connect(), where.model, concurrency=where.concurrency, **windows)
        bundle = where.prepared()
        options = where.loading(threads=threads, **windows)
        here = BundleSystem[EmbeddingResult](load(bundle, **options), options=options)
        if on_ray.ray is None:
            return here
        return on_ray.system(here, load=load, bundle=bundle, result=EmbeddingResult, options=options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def _progress() -> Iterator[Callable[[BulkStatus], None]]:
    """A bar on a terminal, nothing elsewhere; gives the function that moves it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda status: None
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("embed", total=None, speed="")
        shown = float("-inf")

        def show(status: BulkStatus) -> None:
            nonlocal shown
            if status.done < status.total and time.monotonic() - shown < SHOW_EVERY_S:
                return
            shown = time.monotonic()
            failed = f", {status.failed} failed" if status.failed else ""
            bar.update(task, completed=status.done, total=status.total, speed=_speed(status) + failed)

        yield show


def _speed(status: BulkStatus) -> str:
    if not status.elapsed_s:
        return ""
    return (
        f"{status.embedded / status.elapsed_s:.1f} utterances/s, {status.audio_s / status.elapsed_s:.0f} s of audio/s"
    )


def _report(result: BulkResult) -> None:
    """Say what came of it; raises `typer.Exit` if not all is well."""

    def notify(sentence: str) -> None:
        typer.echo(visible(sentence), err=True)

    status = result.status
    for sentence in result.mended:
        notify(sentence)
    there = f", {status.reused} were there" if status.reused else ""
    others = f"; it also lists {result.others} that were not asked for" if result.others else ""
    speed = f": {_speed(status)}" if status.embedded else ""
    notify(f"embedded {status.embedded} of {status.total}{there}{speed}")
    notify(f"{result.scp} lists them{others}")
    again = "The same command continues with the rest."
    if result.interrupted:
        notify(f"interrupted. {again}")
        raise typer.Exit(INTERRUPTED)
    problems = [str(result.stopped)] if result.stopped is not None else []
    if status.failed:
        which = "the first is " if status.failed > 1 else ""
        problems.append(
            f"{status.failed} of {status.total} recordings failed, see {result.failures}; {which}{result.first_failure}"
        )
    if left := status.total - status.done:
        problems.append(f"{left} of {status.total} recordings are left. {again}")
    for problem in problems:
        notify(f"error: {problem}")
    if not result.complete:
        raise typer.Exit(1)
