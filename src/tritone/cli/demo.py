"""`tritone demo`: a real Triton answers, on this machine, from the bundles and clips that come with the package."""

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tritone.bundle import shipped_bundles
from tritone.cli.shared.interrupts import interrupts
from tritone.cli.shared.voices_printer import failures, voice_tables
from tritone.demo import SHIPPED_CLIPS, Clip, Measured, Run, VoiceRun, read_clips, run_demo
from tritone.demo.run import CONCURRENCY
from tritone.errors import OperatorError
from tritone.evaluate.score import pool
from tritone.gateway.options import DEFAULT_PORT

PAGE_COMMAND = "make page, or: pip install 'tritone[gateway]' and tritone demo --page"


def demo(
    bundle: Annotated[
        list[str] | None,
        typer.Option(
            help="Bundles to serve, once for each: a bundle folder, or a shipped one by name.",
            show_default="all shipped ones",
        ),
    ] = None,
    clips: Annotated[
        Path, typer.Option(help="Folder with clips.jsonl and its files.", show_default="the shipped ones")
    ] = SHIPPED_CLIPS,
    realtime: Annotated[bool, typer.Option("--realtime", help="Stream at the speed of speech.")] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a page for microphone and files instead, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="Of the page; 0: any that is free.", min=0, max=65535)] = DEFAULT_PORT,
) -> None:
    """See a real Triton transcribe clips, or speak to it.

    Serves the shipped models, transcribes the shipped clips offline and streaming, compares their voices, prints tables
    and stops the server. With --page it is you who speaks: in a browser, to the same models behind a gateway.
    """
    if page:
        with interrupts():
            _serve_page(bundle, port)
        return
    # A pipe has no width of its own, and a narrow table would cut the texts.
    screen = Console(stderr=True)
    output = Console() if Console().is_terminal else Console(width=200)
    recordings = read_clips(clips)
    with interrupts(), _Screen(screen) as observer:
        runs = run_demo(bundle or list(shipped_bundles()), recordings, observer, realtime=realtime)
    texts = [run for run in runs if isinstance(run, Run)]
    voices = [run for run in runs if isinstance(run, VoiceRun)]
    if texts:
        wide, narrow = _table(texts, realtime), _table(texts, realtime, narrow=True)
        output.print(wide if _fits(output, wide) else narrow)
    for run in voices:
        tables = list(voice_tables(run))
        output.print(*(tables if all(_fits(output, table) for table in tables) else voice_tables(run, narrow=True)))
    results = [result for run in texts for result in run.results]
    failed = [result for result in results if result.error is not None]
    problems = []
    if failed:
        told = "\n".join(f"  {result.clip.name} ({result.mode}): {result.error}" for result in failed)
        problems.append(f"{len(failed)} of {len(results)} transcriptions failed:\n{told}")
    for run in voices:
        if unheard := failures(run):
            told = "\n".join(f"  {voice.clip.name}: {voice.error}" for voice in unheard)
            problems.append(f"{len(unheard)} of {len(run.voices)} clips have no embeddings:\n{told}")
    if problems:
        raise OperatorError("\n".join(problems))
    screen.print(f"To speak to these models yourself: {PAGE_COMMAND}", highlight=False, markup=False)


def _serve_page(bundles: list[str] | None, port: int) -> None:
    from tritone.demo.page import serve_page

    def stage(text: str) -> None:
        typer.echo(f"{text} ...", err=True)

    def told(address: str) -> None:
        typer.echo(f"The page: {address}   (Ctrl-C ends it)")

    with tempfile.TemporaryDirectory(prefix="tritone-vad-") as folder:
        chosen = bundles or [*shipped_bundles(), *_voice_activity(Path(folder) / "silero")]
        with serve_page(chosen, stage, port=port, told=told) as server:
            server.run()


def _voice_activity(output: Path) -> list[str]:
    """A bundle of silero-vad's network, where its package and onnx are installed."""
    if find_spec("silero_vad") is None or find_spec("onnx") is None:
        typer.echo(
            "no voice activity: pauses end segments by the models' own rules. For silero-vad's: "
            "pip install 'tritone[import]', then pip install --no-deps silero-vad",
            err=True,
        )
        return []
    from tritone.families.silero.export import export_silero

    export_silero(output=output)
    return [str(output)]


def _fits(output: Console, table: Table) -> bool:
    return Measurement.get(output, output.options.update(max_width=1000), table).maximum <= output.width


class _Screen:
    """Shows the stages and the growing texts on stderr: on a terminal in one changing line, else line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._shown = ""

    def __enter__(self) -> "_Screen":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def stage(self, text: str) -> None:
        self._console.print(Text(f"{text} ..."))

    def partial(self, clip: Clip, text: str) -> None:
        if text == self._shown:
            return
        self._shown = text
        line = Text.assemble((f"  {clip.name}  ", "dim"), text)
        if self._live:
            self._live.update(line, refresh=True)
        else:
            self._console.print(line, soft_wrap=True)

    def measured(self, result: Measured) -> None:
        self._shown = ""
        if self._live:
            self._live.update(Text(""), refresh=True)
        said = Text(result.text, "green") if result.error is None else Text(f"failed: {result.error}", "red")
        self._console.print(Text.assemble((f"  {result.clip.name}  ", "dim"), said), soft_wrap=True)


def _table(runs: Sequence[Run], realtime: bool, narrow: bool = False) -> Table:
    """A section for each model and mode, and the totals last.

    `narrow` leaves the room of frames and of the voices to the texts; it fits a terminal of 80 columns."""
    if narrow:
        table = Table(title="Tritone demo", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    else:
        table = Table(title="Tritone demo")
    for name in ("clip", "mode") if narrow else ("clip", "voice", "mode"):
        table.add_column(name, no_wrap=True)
    for name in ("text", "reference"):
        table.add_column(name, min_width=12, overflow="fold")
    for name in ("WER %", "audio s", "RTF", "latency"):
        table.add_column(name, justify="right", no_wrap=True)
    totals = []
    for run, mode in product(runs, ("offline", "streaming")):
        rows = [result for result in run.results if result.mode == mode]
        if not rows:
            continue
        if len(runs) > 1:
            table.add_row(Text(run.model, "bold"))
        for row in rows:
            table.add_row(
                row.clip.name,
                *(() if narrow else (row.clip.voice,)),
                mode,
                _marked(row),
                Text(row.clip.reference),
                f"{100 * row.word_errors.rate:.1f}",
                f"{row.audio_s:.2f}",
                f"{row.rtf:.3f}",
                f"{row.latency_s * 1000:.0f} ms",
            )
        table.add_section()
        counts = pool(row.word_errors for row in rows)
        audio_s = sum(row.audio_s for row in rows)
        busy_s = run.wall_s if mode == "offline" else sum(row.compute_s for row in rows)
        totals.append(
            (
                f"all {len(rows)}" if len(runs) == 1 else run.model,
                *(() if narrow else ("",)),
                mode,
                f"word errors: {counts.errors} in {counts.reference_length}",
                "",
                f"{100 * counts.rate:.1f}",
                f"{audio_s:.2f}",
                f"{busy_s / audio_s:.3f}" if audio_s else "",
                f"{1000 * sum(row.latency_s for row in rows) / len(rows):.0f} ms",
            )
        )
    for total in totals:
        table.add_row(*total, style="bold")
    table.caption = (
        f"offline: {CONCURRENCY} requests at a time; streaming: one clip after the other"
        f"{', at the speed of speech' if realtime else ''}. Latency: offline from the request to its text, streaming "
        "from the end of the audio to the final text. RTF: time waiting for answers / audio time. Last rows: all "
        "clips, mean latency."
    )
    return table


def _marked(row: Measured) -> Text:
    if row.error is not None:
        return Text("failed", "red")
    return Text(row.text, "" if row.word_errors.errors == 0 else "yellow")
