"""The words of a command line, checked for all commands in one place before any of them runs."""

from collections.abc import Sequence
from typing import Any

import typer

from tritone.paths import ADDRESS, not_supported

TAKE_ADDRESSES = ("--url", "--metrics-url", "--compare")  # all other options that take text with :// in it take paths


def check_words(command: Any, words: Sequence[str]) -> None:
    """Refuse paths with a scheme such as s3://, which no command reads or writes, and options that would be dropped.

    Of an option that takes one value and is given twice, the first would be lost without a word.

    Raises:
        typer.BadParameter: the first such path or option.
    """
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    takes_one = (each for each in command.params if not (getattr(each, "is_flag", True) or each.multiple))
    single = {name for each in takes_one for name in each.opts}
    seen: set[str] = set()
    option = ""
    for word in words:
        if word == "--":  # what follows is for another program
            return
        value = word
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            if option in single & seen:
                raise typer.BadParameter(f"{option} is given twice, but takes one value", param_hint=option)
            seen.add(option)
            if not equals:
                continue
        address = next(filter(None, map(ADDRESS.match, value.split(","))), None)
        if address is not None and option not in TAKE_ADDRESSES:
            raise typer.BadParameter(not_supported(address.string, address[1]), param_hint=option or None)
        option = ""
