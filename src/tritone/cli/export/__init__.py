"""`tritone export FAMILY`: a trained checkpoint, or any graph, becomes a bundle. Each family has a command."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from tritone.cli.export.options import Values, with_options
from tritone.cli.export.run import export
from tritone.cli.shared.help import App, Group
from tritone.families.family import Family
from tritone.families.known import families


class _Commands(Mapping[str, Any]):
    """The command of each family that is known, made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return command_of(families()[name])

    def __contains__(self, name: object) -> bool:  # without making the command
        return name in families()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(families()))

    def __len__(self) -> int:
        return len(families())


class Exports(Group):
    """The group of `tritone export`. Its commands stand where all who look at a group's, its names too, find them."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.commands: Any = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)  # typer asks each command whether it is hidden, which would make all of them

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _sentence(families()[name])) for name in self.commands])


def command_of(family: Family) -> Any:
    """The command of a family: its own, or one that is made of the options of its export."""
    if family.command:
        module, _, name = family.command.partition(":")
        function = getattr(import_module(f"{__name__}.{module}"), name)
    else:

        @with_options(family.option_class)
        def function(values: Values) -> None:
            export(family, values)

    commands = App()
    commands.command(family.name, help=family.what)(function)
    command: Any = typer.main.get_command(commands)
    command.name, command.examples, command.first = family.name, family.examples, family.first
    return command


def _sentence(family: Family) -> str:
    return family.what.partition("\n")[0]


app = App(no_args_is_help=True, cls=Exports)


@app.callback()
def commands() -> None:
    """Turn a trained checkpoint, or any model, into a bundle."""
