"""The `tritone` command: finds the subcommand, runs it, turns errors into one line and an exit code.

Exit codes: 0 all worked, 1 something failed, 2 wrong usage, 130 interrupted.
"""

import ast
import codecs
import io
import itertools
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tritone.cli.shared.help import App
from tritone.cli.shared.renamed import with_new_names
from tritone.cli.shared.transfer_bar import TransferBar
from tritone.cli.shared.words import check_words
from tritone.errors import TritoneError
from tritone.paths import ADVICE, explained
from tritone.storage.progress import showing

MAX_SHOWN = 120  # characters of a path that may be too long to be one
# Dependencies that the image of the client does without.
LEFT_OUT = ("llvmlite", "matplotlib", "numba", "onnx", "onnxruntime")
GROUPS = {
    "Models": ("export", "inspect", "convert", "check-precision", "engine", "compile"),
    "Serving": ("build", "repo", "ensemble", "serve", "gateway", "models", "drain"),
    "Recordings": ("transcribe", "language", "segments", "diarize", "embed", "evaluate"),
    "Texts": ("speak",),
    "Speakers": ("score", "verify", "enroll", "identify"),
    "Measuring and operating": ("api", "top", "bench", "demo", "doctor", "cache"),
}
"""In the order of the road. Each is a function (or `app`) in the module of its name (with _ for -), imported when it is
called."""
COMMANDS = tuple(itertools.chain.from_iterable(GROUPS.values()))


class Commands(TyperGroup):
    """Loads a subcommand's module on first use, so that `tritone transcribe` does not wait for what `serve` imports."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        function = cmd_name.replace("-", "_")
        module = import_module(f"tritone.cli.{function}")
        commands = getattr(module, "app", None)
        if commands is None:
            commands = App()
            commands.command(cmd_name)(getattr(module, function))
        command = typer.main.get_command(commands)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = formatter.width - 6 - max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            with formatter.section(title):
                shown = (TyperCommand(name, help=_help_of(name)) for name in names)
                formatter.write_dl([(str(each.name), each.get_short_help_str(width)) for each in shown])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and (close := get_close_matches(args[0], COMMANDS)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(close)}?")
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            rest = with_new_names(name, command, rest)
            check_words(command, rest)
        return name, command, rest

    def main(self, *args: Any, **options: Any) -> Any:
        speak_utf8()
        return super().main(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            with showing(TransferBar()):
                return super().invoke(ctx)
        except TritoneError as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        except OSError as error:
            if error.errno not in ADVICE or ctx.params.get("debug"):
                raise
            name = str(error.filename2 or error.filename or "a file")
            shown = name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}..."
            typer.echo(f"error: {explained(error, f'cannot use {shown}')}", err=True)
            raise typer.Exit(1) from error
        except ModuleNotFoundError as error:
            if error.name not in LEFT_OUT or ctx.params.get("debug"):
                raise
            typer.echo(
                f"error: this needs {error.name}, which is not installed: pip install {error.name}, or use the image "
                "tritone/server-slim, which has it",
                err=True,
            )
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


def _help_of(command: str) -> str:
    """The docstring of a command, read from its file: to import all of them takes seconds."""
    function = command.replace("-", "_")
    spec = find_spec(f"tritone.cli.{function}")
    assert spec is not None
    assert spec.origin is not None
    functions = [each for each in ast.parse(Path(spec.origin).read_bytes()).body if isinstance(each, ast.FunctionDef)]
    groups = (each for each in functions if "app.callback()" in map(ast.unparse, each.decorator_list))
    found = next(groups, None) or next(each for each in functions if each.name == function)
    return ast.get_docstring(found) or ""


def speak_utf8() -> None:
    """Read and write UTF-8 whatever the locale is, unless `PYTHONIOENCODING` says otherwise."""
    if os.environ.get("PYTHONIOENCODING"):
        return
    codecs.register_error("tritone", _as_named)
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "tritone"), (sys.stderr, "tritone")):
        if isinstance(stream, io.TextIOWrapper):  # one that is closed is None
            stream.reconfigure(encoding="utf-8", errors=errors)


def _as_named(error: UnicodeError) -> tuple[str | bytes, int]:
    """Names of files are written as the system has them, whatever else is no text in escapes."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help keeps option names whole at any width and reads well in logs
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tritone {version('tritone')}")
        raise typer.Exit


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take a trained speech model into production on NVIDIA Triton: checkpoint, bundle, repository, server, text."""
