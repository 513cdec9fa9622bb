"""Help of every command: few options at first, all on request, and examples that work."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tritone.cli.main import app
from tritone.cli.shared.examples import EXAMPLES
from tritone.cli.shared.help import MOST_SHOWN
from tritone.cli.shared.panels import FIRST, PANELS
from tritone.cli.shared.words import check_words
from tritone.families.known import families


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its words."""
    names = command.list_commands(None) if isinstance(command, typer.core.TyperGroup) else []
    if path and (not names or command.invoke_without_command):
        yield path, command
    for name in names:
        yield from _commands(command.get_command(None, name), f"{path} {name}".strip())


OF_FAMILIES = {f"export {name}": family for name, family in families().items()}
EXAMPLES_OF = {**EXAMPLES, **{path: family.examples for path, family in OF_FAMILIES.items()}}
FIRST_OF = {**FIRST, **{path: family.first for path, family in OF_FAMILIES.items() if family.first}}
COMMANDS = dict(_commands(typer.main.get_command(app)))


def _options(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "option" and not each.hidden]


@cache
def _help(path: str, flag: str) -> str:
    env = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    result = CliRunner().invoke(app, [*path.split(), flag], prog_name="tritone", env=env)
    assert result.exit_code == 0
    return result.stdout


def _shown(text: str) -> list[str]:
    return re.findall(r"^  (?:-[a-z], )?(--[a-z0-9-]+)", text.partition("\nOptions:\n")[2], re.MULTILINE)


@pytest.mark.parametrize("path", COMMANDS)
def test_help_shows_few_options_and_says_how_many_more_there_are(path: str):
    options = len(_options(COMMANDS[path])) + 1  # --help
    text = _help(path, "--help")
    shown = len(_shown(text))
    assert shown <= MOST_SHOWN
    more = re.search(r"(\d+) more options with --help-all", text)
    assert (int(more[1]) if more else 0) == options - shown


@pytest.mark.parametrize("path", COMMANDS)
def test_help_all_shows_every_option_once(path: str):
    text = _help(path, "--help-all")
    assert sorted(_shown(text)) == sorted(["--help", *(each.opts[0] for each in _options(COMMANDS[path]))])
    assert "more options" not in text


@pytest.mark.parametrize("path", FIRST_OF)
def test_what_everyone_needs_is_first(path: str):
    assert _shown(_help(path, "--help"))[:5] == list(FIRST_OF[path])


def test_every_name_in_the_panels_is_an_option_and_in_one_panel():
    known = {f"{prefix}{name}" for path, each in COMMANDS.items() for option in _options(each) for name in option.opts
             for prefix in ("", f"{path} ")}  # fmt: skip
    named = [name for held in PANELS.values() for name in held]
    assert [name for name in named if name not in known] == []
    assert len(set(named)) == len(named)


SEVERAL_TEXTS = {
    "what a command reads and writes": {
        "--output": 12, "--format": 4, "--json": 6, "--html": 2, "--report": 2, "--journal": 2, "--resume": 2,
        "--reference": 3, "--wavscp": 2, "--trans": 2, "--store": 3, "--title": 2, "--name": 2, "--page": 2,
        "--dry-run": 2, "--force": 4, "--port": 2, "--collar-s": 2, "--num-speakers": 2, "--overcommit": 2,
    },
    "what a toolkit calls a file or a part of its checkpoints": {
        "--checkpoint": 8, "--config": 4, "--mean-vec": 2, "--tokens": 4, "--head": 2, "--layout": 2, "--opset": 2,
        "--max-drift": 2, "--language": 2, "--sample-rate": 3,
    },
    "code of others that may run here": {"--trust": 2},
    "a model: which there may be, and how many": {"--model": 7, "--mode": 2, "--speaker-model": 2},
    "one setting as it is stored, built, served, or used in process, each with a default of its own": {
        "--device": 5, "--precision": 9, "--runtime": 4, "--max-audio-s": 4, "--threads": 2, "--threshold": 2,
        "--chunk-size": 7, "--left-chunks": 5, "--search": 2, "--window-s": 3, "--shift-s": 3, "--vad": 2, "--rows": 2,
        "--segmentation": 2, "--right-context": 2,
        "--lm": 2, "--max-streams": 2, "--trial": 2, "--no-trial": 2,
    },
    "one setting of Triton, also as values that a sweep tries": {
        "--instances": 3, "--max-batch-size": 4, "--queue-delay-ms": 3, "--queue-limit": 2,
    },
    "a server: asked, measured or started": {
        "--url": 4, "--protocol": 3, "--concurrency": 3, "--timeout-s": 3, "--pcm": 2, "--metrics-url": 3,
        "--metrics-port": 2, "--drain-s": 2, "--server": 2, "--tls-certificate": 2, "--seed": 3,
    },
    "audio in chunks, and what is done with it": {"--streaming": 7, "--realtime": 2, "--chunk-ms": 5},
    "the same, for the WER of a load test": {"--case": 2, "--punctuation": 2, "--units": 2},
}  # fmt: skip
"""Options with several texts of help, and how many: why they are one meaning all the same. Think of one more first:
an option that means something else needs another name."""


def test_an_option_has_one_meaning_in_all_commands():
    texts: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for option in _options(command):
            for name in (*option.opts, *option.secondary_opts):
                texts.setdefault(name, set()).add(option.help)
    several = {name: len(found) for name, found in texts.items() if len(found) > 1}
    reasons = [name for held in SEVERAL_TEXTS.values() for name in held]
    assert len(set(reasons)) == len(reasons)
    assert several == {name: count for held in SEVERAL_TEXTS.values() for name, count in held.items()}


def test_summaries_of_subcommands_are_whole_on_a_narrow_terminal():
    assert "..." not in _help("repo", "--help").partition("Commands:")[2]
    assert "..." not in _help("export", "--help").partition("Commands:")[2]


def test_every_command_has_two_examples():
    assert {path: len(lines) for path, lines in EXAMPLES_OF.items()} == dict.fromkeys(COMMANDS, 2)


@pytest.mark.parametrize("path", COMMANDS)
def test_examples_end_the_help_and_are_accepted(path: str):
    assert _help(path, "--help").endswith("".join(f"  {line}\n" for line in EXAMPLES_OF[path]))
    for line in EXAMPLES_OF[path]:
        words = shlex.split(line.partition(" < ")[0])
        name = path.split()
        assert words[: 1 + len(name)] == ["tritone", *name]
        check_words(COMMANDS[path], words[1 + len(name) :])
        COMMANDS[path].make_context(line, words[1 + len(name) :])
