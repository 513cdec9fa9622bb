"""What options were called before: commands take the old names until 0.3, rewritten before their words are checked.

tritone drain --url HOST:8002   ->   tritone drain --metrics-url HOST:8002, and a line on stderr that says so
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import typer

ENDS_WITH = "0.3"


def _search_flags(parameters: str) -> list[str]:
    from tritone.cli.shared.search_options import parameters_as_flags  # most command lines need not wait for it

    return parameters_as_flags(parameters)


def _decoding_flags(text: str) -> list[str]:
    from tritone.cli.shared.search_options import decoding_as_flags

    return decoding_as_flags(text)


_TRIAL = {"--check": "--trial", "--no-check": "--no-trial"}
_LOAD = {"--window-s": "--measure-s", "--max-streams": "--max-load"}
_GRAPHS = ("export onnx", "export torch-export", "export torchscript", "export tensorrt")

RENAMED: Mapping[str, Mapping[str, str | Callable[[str], list[str]]]] = {
    **{path: {"--format": "--axes", "--version": "--model-version"} for path in _GRAPHS},
    "compile": {"--lengths": "--num-lengths"},
    "build": {
        "--hotwords": "--hotwords-file",
        "--version": "--model-version",
        "--timestamps": "--detail-times",
        "--no-timestamps": "--no-detail-times",
        "--decoding": _decoding_flags,
        **_TRIAL,
    },
    "ensemble": _TRIAL,
    "convert": {"--keep": "--keep-fp32"},
    "gateway": {"--triton": "--url", "--triton-s": "--triton-timeout-s"},
    "models unload": {"--stages": "--with-stages"},
    "repo rollback": {"--to": "--to-version"},
    "drain": {"--url": "--metrics-url"},
    "transcribe": {"--bundle": "--model", "--resume": "--reconnect", "--decoding": _decoding_flags},
    "embed": {"--bundle": "--model", "--output-directory": "--output"},
    **{path: {"--bundle": "--model"} for path in ("diarize", "enroll", "identify", "demo")},
    "segments": {"--bundle": "--model", "--threshold": "--speech-threshold"},
    "verify": {"--bundle": "--model", "--check": "--exit-code"},
    "evaluate": {"--bundle": "--model", "--json": "--report", "--parameters": _search_flags},
    "bench": {
        "--bundle": "--model",
        "--parameters": _search_flags,
        "--json": "--report",
        **_LOAD,
    },
    "bench sweep": {"--json": "--report", **_LOAD},
}
"""By the words of a command: the old name, and the new one or what makes new words of its value."""


def with_new_names(name: str, command: Any, words: Sequence[str]) -> list[str]:
    """The words of a command line with the names that options have now; says which were old.

    Args:
        name: of the command, whose own commands may be the first words.
    """
    words, leading = list(words), list[str]()
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]
        leading.append(words.pop(0))
    old_names = RENAMED.get(" ".join((name, *leading)), {})
    return [*leading, *_renamed(iter(words), old_names)]


def _renamed(words: Iterator[str], old_names: Mapping[str, str | Callable[[str], list[str]]]) -> Iterator[str]:
    warned: set[str] = set()  # once, of options that may be repeated
    for word in words:
        if word == "--":  # what follows is for another program
            yield word
            yield from words
            return
        name, equals, value = word.partition("=")
        new = old_names.get(name)
        if new is None:
            yield word
        elif isinstance(new, str):
            if name not in warned:
                _warn(name, new)
            warned.add(name)
            yield f"{new}{equals}{value}"
        else:
            found = new(value if equals else next(words, ""))
            _warn(name, " ".join(found))
            yield from found


def _warn(old: str, new: str) -> None:
    typer.echo(f"tritone: {old} is {new} now; the old name goes with {ENDS_WITH}", err=True)
