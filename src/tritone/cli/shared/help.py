"""The help of all commands: options in panels, those that everyone needs first, and two examples at the end.

    tritone transcribe --help         the first panels, at most `MOST_SHOWN` options, and how many more there are
    tritone transcribe --help-all     every option

Which options come first, and what belongs together, is in `panels.py`; the lines at the end are in `examples.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tritone.cli.shared.examples import EXAMPLES
from tritone.cli.shared.panels import FIRST, PANELS

MOST_SHOWN = 20  # options in --help; a longer list is not read
ALL = "--help-all"
_WANTED = f"{__name__}.all"
_TITLES = {name: title for title, held in PANELS.items() for name in held}
_WHOLE = 1000  # characters of a summary, which is wrapped in place of being cut


class _Help:
    """What `Command` and `Group` have in common; stands in front of typer's own class."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        commands = self.list_commands(ctx) if isinstance(self, TyperGroup) else ()
        for word in args:
            if word == "--" or word in commands:
                break
            if word == ALL:
                ctx.meta[_WANTED] = True
                typer.echo(ctx.get_help(), color=ctx.color)
                ctx.exit()
        return super().parse_args(ctx, args)  # type: ignore[misc]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        path = path_of(ctx)
        arguments: list[tuple[Any, Any]] = []
        options: list[tuple[Any, Any]] = []
        for each in self.get_params(ctx):  # type: ignore[attr-defined]
            record = each.get_help_record(ctx)
            if record is not None:
                (arguments if each.param_type_name == "argument" else options).append((each, record))
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([record for _, record in arguments])
        panels = arranged(path, options, getattr(self, "first", ()))
        shown = list(panels) if ctx.meta.get(_WANTED) else _fitting(panels)
        for title in shown:
            with formatter.section(title):
                formatter.write_dl([record for _, record in panels[title]])
        if left := {title: len(held) for title, held in panels.items() if title not in shown}:
            formatter.write_paragraph()
            what = ", ".join(f"{title} ({count})" for title, count in left.items())
            formatter.write_text(f"{sum(left.values())} more options with {ALL}: {what}.")
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if lines := getattr(self, "examples", None) or EXAMPLES.get(path_of(ctx)):
            with formatter.section("Examples"):
                for line in lines:  # whole, to be copied
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Command(_Help, TyperCommand):
    """A command of `tritone`."""


class Group(_Help, TyperGroup):
    """A command with commands of its own, whose summaries are shown whole."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_WHOLE)) for name, each in self.commands.items()])


class App(typer.Typer):
    """A `typer.Typer` whose commands have this help."""

    def __init__(self, **options: Any) -> None:
        # Plain help keeps option names whole at any width and reads well in logs.
        super().__init__(**{"cls": Group, "add_completion": False, "rich_markup_mode": None, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": Command, **options})


def path_of(context: Any) -> str:
    """The words that name a command, without the program's, such as "bench sweep"."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(names)


def arranged(
    path: str, options: Sequence[tuple[Any, Any]], first: Sequence[str] = ()
) -> dict[str, list[tuple[Any, Any]]]:
    """Options, each with what is shown of it, by the title of their panel, in the order in which panels are shown.

    `first`: the flags that come first, where `FIRST` does not say it.
    """
    first = first or FIRST.get(path, ())
    panels: dict[str, list[tuple[Any, Any]]] = {title: [] for title in ("Options", *PANELS)}
    for each, record in options:
        names = each.opts
        needed = each.required or any(name in first for name in names)
        title = "Options" if needed else _panel(path, each)
        panels.setdefault(title, []).append((each, record))

    def place(option: tuple[Any, Any]) -> int:
        names = [name for name in option[0].opts if name in first]
        return first.index(names[0]) if names else len(first)

    panels["Options"].sort(key=place)
    return {title: held for title, held in panels.items() if held}


def _panel(path: str, option: Any) -> str:
    known = [_TITLES[each] for name in option.opts for each in (f"{path} {name}", name) if each in _TITLES]
    return known[0] if known else getattr(option, "rich_help_panel", None) or "Options"


def _fitting(panels: dict[str, list[tuple[Any, Any]]]) -> list[str]:
    """The first panels, as long as they have no more than `MOST_SHOWN` options together; the first in any case."""
    shown: list[str] = []
    count = 0
    for title, held in panels.items():
        count += len(held)
        if shown and count > MOST_SHOWN:
            break
        shown.append(title)
    return shown
