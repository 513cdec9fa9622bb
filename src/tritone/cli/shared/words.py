"""The words of a command line, checked for all commands in one place before any of them runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from tritone.later import later
from tritone.paths import ADDRESS, not_supported

if TYPE_CHECKING:
    from tritone.storage import known
else:
    known = later("schemes")

# All other options that take text with :// in it take paths.
TAKE_ADDRESSES = ("--url", "--metrics-url", "--compare", "--ray", "--cors", "--traces")
IN_STORAGE = ("BUNDLE", "REPO", "STORAGE", "WHAT")  # metavars of parameters that may be s3://... begin so
TAKE_AUDIO = ("transcribe", "embed")  # commands whose recordings may be s3://... and the like
TAKE_BUNDLES_OR_FILES = ("inspect", "check-precision")  # commands whose arguments may be bundles


def check_words(command: Any, words: Sequence[str]) -> None:
    """Refuse paths with a scheme such as s3:// where a command reads or writes none, and options that would be dropped.

    Of an option that takes one value and is given twice, the first would be lost without a word.

    Raises:
        typer.BadParameter: the first such path or option.
    """
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    takes_one = (each for each in command.params if not (getattr(each, "is_flag", True) or each.multiple))
    single = {name for each in takes_one for name in each.opts}
    stored = {name for each in command.params if _may_be_stored(each) for name in each.opts}
    if command.name in TAKE_AUDIO:
        stored.add("--data-dir")
    arguments = command.name in (*TAKE_BUNDLES_OR_FILES, *TAKE_AUDIO) or any(
        _may_be_stored(each) for each in command.params if each.param_type_name == "argument"
    )
    valued = {name for each in command.params if not getattr(each, "is_flag", False) for name in each.opts}
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
                option = option if option in valued else ""  # a flag takes no word
                continue
        address = next(filter(None, map(ADDRESS.match, value.split(","))), None)
        if address is not None and not (
            option in TAKE_ADDRESSES
            or ((option in stored if option else arguments) and known.scheme(address[1]) is not None)
        ):
            raise typer.BadParameter(not_supported(address.string, address[1]), param_hint=option or None)
        option = ""


def _may_be_stored(parameter: Any) -> bool:
    return str(parameter.metavar or "").startswith(IN_STORAGE)
