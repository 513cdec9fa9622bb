"""`tritone export FAMILY`: a trained checkpoint, or any graph, becomes a bundle. Each family has a command."""

from importlib import import_module
from typing import Any

import typer

from tritone.cli.export.options import Values, with_options
from tritone.cli.export.run import export
from tritone.cli.shared.help import App, Group
from tritone.families.family import Family
from tritone.families.known import families


class Exports(Group):
    """A command for each family that is known, made when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(families())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        family = families().get(cmd_name)
        return None if family is None else command_of(family)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _sentence(families()[name])) for name in self.list_commands(ctx)])


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
