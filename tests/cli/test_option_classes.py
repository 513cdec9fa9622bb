"""Option classes as options of a command: names, help, defaults, units, and what comes back."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.options.fields import check_bounds, option


@dataclass(frozen=True, kw_only=True)
class Inner:
    case: str = "lower"
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Outer:
    size: int = option(3, "How large.", least=1)
    share: float = option(0.1, "In percent.", flags=("--stability",), percent=True)
    inner: Inner = field(default_factory=Inner, metadata={"help": {"case": "Upper or lower."}})
    label: Annotated[str, typer.Option("--name", help="What to call it.")] = "x"
    hidden: int = 7  # no help, so no option
    count: int = option(-9, "How many.", auto=True)
    left: int = option(0, "Not of this command.")

    def __post_init__(self) -> None:
        check_bounds(self)
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


def test_a_number_may_be_left_to_what_suits() -> None:
    assert run("1", "--count", "auto")[1].strip() == f"1 {Outer(count=-9)}"
    assert run("1", "--count", "3")[1].strip() == f"1 {Outer(count=3)}"
    code, _, err = run("1", "--count", "few")
    assert (code, "count must be a whole number or auto, got 'few'" in err) == (2, True)
    assert "[default: auto]" in run("--help")[1]


def test_values_that_do_not_fit_are_wrong_usage() -> None:
    assert run("1", "--size", "0")[0] == 2
    code, _, err = run("1", "--size", "10")
    assert code == 2
    assert "size must be at most 9, got 10" in err


@dataclass(frozen=True, kw_only=True)
class Base:
    beam: int = option(4, "How wide.", metavar="N")
    times: bool = option(True, "Whether there are times.")


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    mode: str = option("greedy", "How to search.", name="search")
    sizes: tuple[int, ...] = option((1, 2), "Sizes.")


def run_derived(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @takes_option_classes()
    def show(made: Derived) -> None:
        typer.echo(made)

    @app.command()
    @takes_option_classes(leave_out=("sizes",))
    def given(wanted: Annotated[dict[str, Any], Derived]) -> None:
        typer.echo(wanted)

    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_fields_that_describe_themselves_are_options_and_tuples_are_text_with_commas() -> None:
    assert run_derived("show")[1].strip() == str(Derived())
    code, out, err = run_derived("show", "--search", "beam", "--beam", "9", "--no-times", "--sizes", "3, 4")
    assert code == 0, err
    assert out.strip() == str(Derived(mode="beam", beam=9, times=False, sizes=(3, 4)))
    code, _, err = run_derived("show", "--sizes", "a")
    assert (code, "expected numbers separated by commas, like 0,1; got 'a'" in err) == (2, True)


def test_own_fields_come_before_inherited_ones_in_the_help() -> None:
    _, out, _ = run_derived("show", "--help")
    places = [out.index(text) for text in ("--search", "--sizes", "--beam N", "--times / --no-times")]
    assert places == sorted(places)


def test_a_mapping_has_the_options_that_were_given_under_their_names() -> None:
    assert run_derived("given")[1].strip() == "{}"
    assert run_derived("given", "--search", "greedy", "--no-times")[1].strip() == "{'search': 'greedy', 'times': False}"
    assert run_derived("given", "--sizes", "1")[0] == 2
