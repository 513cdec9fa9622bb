"""Option classes as options of a command: names, help, defaults, units, and what comes back."""

from dataclasses import dataclass, field
from typing import Annotated

import typer
from typer.testing import CliRunner

from tritone.cli.shared.option_classes import takes_option_classes


@dataclass(frozen=True, kw_only=True)
class Inner:
    case: str = "lower"
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Outer:
    size: int = field(default=3, metadata={"help": "How large.", "min": 1})
    share: float = field(default=0.1, metadata={"help": "In percent.", "flags": ["--stability"], "percent": True})
    inner: Inner = field(default_factory=Inner, metadata={"help": {"case": "Upper or lower."}})
    label: Annotated[str, typer.Option("--name", help="What to call it.")] = "x"
    hidden: int = 7  # no help, so no option
    left: int = field(default=0, metadata={"help": "Not of this command."})

    def __post_init__(self) -> None:
        if self.size > 9:
            raise ValueError(f"size must be at most 9, got {self.size}")


def run(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()

    @app.command()
    @takes_option_classes(leave_out=("left",))
    def show(hidden: Annotated[int, typer.Argument()], outer: Outer) -> None:
        typer.echo(f"{hidden} {outer}")

    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_fields_with_a_help_are_options_and_the_command_gets_an_instance() -> None:
    code, out, err = run("1", "--size", "4", "--stability", "25", "--case", "upper", "--name", "y")
    assert code == 0, err
    assert out.strip() == f"1 {Outer(size=4, share=0.25, inner=Inner(case='upper'), label='y')}"
    assert run("2")[1].strip() == f"2 {Outer()}"


def test_the_help_is_that_of_the_fields_and_leaves_out_what_is_no_option() -> None:
    _, out, _ = run("--help")
    for text in ("--size", "How large.", "--stability", "10.0", "--case", "Upper or lower.", "--name"):
        assert text in out
    for text in ("--share", "--quiet", "--left", "--hidden"):
        assert text not in out


def test_values_that_do_not_fit_are_wrong_usage() -> None:
    assert run("1", "--size", "0")[0] == 2
    code, _, err = run("1", "--size", "10")
    assert code == 2
    assert "size must be at most 9, got 10" in err
