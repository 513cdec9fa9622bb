"""An utterance as lists have it, and where in a list it stands."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.audio.files import Selection
from tritone.errors import InputError

MAX_TEXT = 1_000_000  # characters of one reference, 18 hours of speech


@dataclass(frozen=True)
class Utterance:
    """A recording: its name, its file, what is said in it and how long it is in seconds, as far as the lists state it.

    `span`: the part of the file that it is, from and to, in seconds; None for all of it.
    """

    id: str
    audio: Path
    text: str | None = None
    duration_s: float | None = None
    span: tuple[float, float] | None = None

    @property
    def source(self) -> str | Selection:
        """What is read."""
        path = os.fspath(self.audio)
        return path if self.span is None else Selection(path, start_s=self.span[0], end_s=self.span[1])


@dataclass(frozen=True)
class Place:
    """Where something was read, for messages: a line of a file."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"

    @property
    def within(self) -> str:
        """The same for one who knows the file."""
        return f"line {self.line}"


class Item(Place):
    """An item of an array: where it stands in the file is not known, so they are counted."""

    def __str__(self) -> str:
        return f"{self.path}, item {self.line}"

    @property
    def within(self) -> str:
        return f"item {self.line}"


class Whole(Place):
    """A file as a whole."""

    def __str__(self) -> str:
        return str(self.path)


Listed = tuple[Place, Utterance]


def check_text(place: Place, text: str) -> str:
    """Give a reference back; raises `InputError` if it is too long to be one."""
    if len(text) > MAX_TEXT:
        raise InputError(f"{place}: a reference of {len(text):,} characters; at most {MAX_TEXT:,} are scored")
    return text


def shown(value: Any) -> str:
    """A value as a message shows it: short."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
