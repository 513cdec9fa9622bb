"""`tritone compile`: the networks of a bundle compiled for this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from tritone.cli.shared.interrupts import interrupts
from tritone.errors import InputError
from tritone.paths import plain_text

RATE = 8000  # Hz, to measure recordings by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tritone.pipelines.compile import CompiledSize


def compile(  # the name of the command
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or name of a shipped bundle.")],
    sizes: Annotated[
        str, typer.Option(help="Sizes of calls, most rows x seconds, like 64x10,32x16.7; auto chooses them.")
    ] = "auto",
    data: Annotated[
        Path | None,
        typer.Option(help="Choose sizes for recordings as in this folder, list or manifest; or file of seconds."),
    ] = None,
    num_lengths: Annotated[int, typer.Option(min=1, max=32, help="Different lengths to choose.")] = 12,
    rows: Annotated[int, typer.Option(min=1, max=1024, help="Most streams that advance in one call.")] = 256,
    modes: Annotated[
        Literal["offline", "streaming", "both"], typer.Option(help="Graphs for whole utterances, for streams, or both.")
    ] = "both",
    search: Annotated[
        str, typer.Option(help="Search mode that the model will be served with; the network returns what it needs.")
    ] = "greedy",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cuda",
    runtime: Annotated[str | None, typer.Option(help="torch, the only one that is compiled.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, fp16 or bf16; the bundle's first if not given.")] = None,
    max_audio_s: Annotated[float, typer.Option(min=0.1, help="Longest audio to compile for, in seconds.")] = 30.0,
    chunk_size: Annotated[int | None, typer.Option(help="Streams: encoder frames a step, as they are served.")] = None,
    left_chunks: Annotated[int | None, typer.Option(help="Streams: past chunks a step sees.")] = None,
) -> None:
    """Compile a bundle's networks for this machine.

    Calls are padded to the lengths that they are compiled for, and much faster.
    What is compiled is kept in the user's cache folder, where models that run on this machine find it.
    """
    from tritone.bundle.bundle import Bundle
    from tritone.pipelines.compile import compile_bundle
    from tritone.pipelines.graphs.placement import Placement

    try:
        opened = Bundle.open(bundle)
        opened.verify()
        with interrupts():
            found = compile_bundle(
                opened,
                placement=Placement(device=device, runtime=runtime, precision=precision),
                sizes=sizes,
                modes=modes,
                search=search,  # type: ignore[arg-type]  # checked there
                lengths_s=_lengths(data) if data else (),
                count=num_lengths,
                rows=rows,
                max_audio_s=max_audio_s,
                chunk_size=chunk_size,
                left_chunks=left_chunks,
                progress=lambda step: typer.echo(f"{step} ...", err=True),
            )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    Console(soft_wrap=True).print(_table(found))


def _lengths(data: Path) -> list[float]:
    """Seconds of recordings: a file with a number on each line, or a list or folder of recordings."""
    from tritone.audio.files import read_audio
    from tritone.corpus.dataset import read_utterances

    if data.is_file() and data.suffix == ".txt":
        try:
            found = [float(line) for line in plain_text(data.read_bytes()).split()]
        except ValueError as error:
            raise InputError(f"{data} must hold a number of seconds on each line ({error})") from error
        if not found or min(found) <= 0:
            raise InputError(f"{data} must hold numbers above 0, the seconds of recordings")
        return found
    if data.is_dir():
        utterances = read_utterances(data_dir=data, need_text=False)
    elif data.suffix in (".json", ".jsonl"):
        utterances = read_utterances(manifest=data, need_text=False)
    else:
        utterances = read_utterances(wavscp=data, need_text=False)
    return [
        len(read_audio(each.audio, RATE)) / RATE if each.duration_s is None else each.duration_s for each in utterances
    ]


def _table(found: "Sequence[CompiledSize]") -> Table:
    table = Table("mode", "most rows x audio", "compiled in", "padding", box=None)
    for each in found:
        took = "before" if each.compile_s is None else f"{each.compile_s:.1f} s"
        table.add_row(each.mode, str(each), took, "" if each.padding is None else f"{each.padding:.1%}")
    return table
