"""`tritone language`: which language recordings are in, by a running server or in this process."""

import json as json_format
import re
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritone.cli.shared import recordings
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.where import Where
from tritone.errors import InputError, TritoneError
from tritone.options.fields import described
from tritone.paths import stored
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.systems import BundleSystem, System, transcriber

if TYPE_CHECKING:
    from tritone.result import TranscriptResult

CODE = re.compile("[A-Za-z0-9_-]{1,40}")  # of a language
UNKNOWN = "unknown"  # of a recording without audio


@takes_option_classes()
def language(
    *,
    files: recordings.Files = None,
    wavscp: recordings.WavScp = None,
    manifest: recordings.Manifests = None,
    data_dir: recordings.DataDir = None,
    where: Where,
    allowed_languages: Annotated[
        str,
        typer.Option(metavar="CODES", help=described(DecodingOptions)["allowed_languages"].help),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    lists: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a list of the recordings in each language there, DIR/de.json, which --manifest of other "
            "commands takes.",
        ),
    ] = None,
) -> None:
    """Find out which language recordings are in.

    A Whisper model of several languages does it, on a running server (--url) or in this process (--model). Of each
    recording the likeliest languages are printed with their probabilities. Exit code 0 only if every recording worked.
    """
    where.check("whisper-base")
    asked = {"task": "identify", "allowed_languages": allowed_languages}
    try:
        options = DecodingOptions().changed(asked)
    except TritoneError as error:
        raise typer.BadParameter(str(error)) from error
    paths, ids = recordings.named(files, wavscp, manifest, data_dir, model=where.what, doing="find the language of")
    waiting: dict[int, TranscriptResult] = {}
    spoken: dict[str, list[str]] = {}
    failed, shown = False, 0
    with ExitStack() as stack:
        system = stack.enter_context(closing(_system(where, asked, options)))
        for result in stack.enter_context(closing(system.run(paths))):
            waiting[result.index] = result
            while shown in waiting:
                path, found = paths[shown], waiting.pop(shown)
                try:
                    transcript = found.get()
                except TritoneError as error:
                    failed = True
                    typer.echo(f"error: {error if path in str(error) else f'{path}: {error}'}", err=True)
                else:
                    name = transcript.language or UNKNOWN
                    spoken.setdefault(name, []).append(path)
                    typer.echo(_line(ids[shown] if ids else path, name, transcript.languages, as_json=json))
                shown += 1
    if lists is not None:
        _write(lists, spoken)
    if failed:
        raise typer.Exit(1)


def _line(recording: str, name: str, languages: tuple[tuple[str, float], ...], *, as_json: bool) -> str:
    if as_json:
        shares = {code: round(share, 4) for code, share in languages}
        return json_format.dumps({"recording": recording, "language": name, "languages": shares}, ensure_ascii=False)
    return f"{recording}\t" + (" ".join(f"{code} {share:.2f}" for code, share in languages) or name)


def _write(folder: Path, spoken: dict[str, list[str]]) -> None:
    """A list of the recordings in each language, as `--manifest` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, paths in spoken.items():
        if not CODE.fullmatch(name):  # models are strangers'
            raise InputError(f"the model calls a language {name[:80]!r}, which is no name of a file; leave out --lists")
        lines = ({"audio_filepath": path if stored(path) else str(Path(path).absolute())} for path in paths)
        text = "".join(f"{json_format.dumps(line)}\n" for line in lines)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def _system(where: Where, asked: dict[str, Any], options: DecodingOptions) -> "System[TranscriptResult]":
    try:
        if where.url is not None:
            return transcriber(where.connect(), where.model, concurrency=where.concurrency, details=True, search=asked)
        from tritone import load_as  # a server's client need not wait for it
        from tritone.pipelines.whisper.transcriber import Transcriber
        from tritone.result import TranscriptResult

        given = {"task": options.task, "allowed_languages": options.allowed_languages}
        loading = where.loading(**given)
        system = BundleSystem[TranscriptResult](load_as(Transcriber, where.prepared(), **loading), options=loading)
        system.prepare()  # what is wrong with the model concerns all recordings
        return system
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
