"""The plan of a load test: its loads, its audio, its time.

"1:64:8", "10,20,50"  ->  numbers  ->  Plan  ->  series of Points, every one of which ends by itself
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from tritone.loadtest.findings.result import Loop
from tritone.loadtest.findings.series import load_of

MOST_VALUES = 1000  # of one list; a slip like 1:1000000 is refused at once, not after a week
MOST_POINTS = 2000
NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+", re.ASCII)


def parse_numbers(text: str, *, least: float = 0, whole: bool = False) -> list[float]:
    """Read numbers: a list like 1,2,4, ranges like 1:64:8 (start:end:step), or both: 1,2,4:16:4.

    A range counts from its start in steps (1 if not given) as long as it is not beyond its end, as in perf_analyzer:
    1:64:8 is 1, 9, ..., 57; 8:64:8 ends with 64.

    Args:
        text: the numbers.
        least: the smallest that is allowed.
        whole: whether they must be integers.

    Returns:
        The numbers in ascending order, each once.

    Raises:
        ValueError: it is not such a list, or means more than `MOST_VALUES` numbers; the message shows the part.
    """
    found: set[Decimal] = set()
    for part in text.split(","):
        found.update(_numbers(part.strip(), whole))
        if len(found) > MOST_VALUES:
            raise ValueError(f"{text!r} means more than {MOST_VALUES} values; choose a larger step")
    if small := [number for number in sorted(found) if number < Decimal(str(least))]:
        raise ValueError(f"{text!r} holds {small[0]}, it must be {least:g} or more")
    return [float(number) for number in sorted(found)]


def parse_counts(text: str) -> list[int]:
    """Read whole numbers from 1 as `parse_numbers` does."""
    return [int(number) for number in parse_numbers(text, least=1, whole=True)]


def _numbers(part: str, whole: bool) -> Iterator[Decimal]:
    pieces = [piece.strip() for piece in part.split(":")]
    if len(pieces) > 3 or not all(NUMBER.fullmatch(piece) for piece in pieces):
        raise ValueError(f"{part!r} is not a number, start:end or start:end:step; write for example 1,2,4 or 1:64:8")
    numbers = [Decimal(piece) for piece in pieces]
    if whole and (broken := [number for number in numbers if number % 1]):
        raise ValueError(f"{part!r}: {broken[0]} is not a whole number")
    if len(numbers) == 1:
        yield numbers[0]
        return
    start, end, step = (*numbers, Decimal(1))[:3]
    if step <= 0:
        raise ValueError(f"{part!r}: the step must be above 0")
    if end < start:
        raise ValueError(f"{part!r} ends ({end}) before it starts ({start})")
    count = int((end - start) / step) + 1
    if count > MOST_VALUES:
        raise ValueError(f"{part!r} means {count} values, {MOST_VALUES} is the limit; choose a larger step")
    for index in range(count):
        yield start + index * step


@dataclass(frozen=True, kw_only=True)
class Point:
    """One operating point: a load in the unit of its loop (see `Measurement`), with what audio and batch size."""

    loop: Loop
    load: float
    batch_size: int = 1
    audio: str = ""

    def __str__(self) -> str:
        parts = [load_of(self.loop, self.load).removesuffix(" offered")]
        parts += [f"batch size {self.batch_size}"] if self.batch_size > 1 else []
        parts += [f"{self.audio} s" if NUMBER.fullmatch(self.audio) else self.audio] if self.audio else []
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The points to measure: each load with each batch size and each audio."""

    loop: Loop
    loads: Sequence[float]
    batch_sizes: Sequence[int] = (1,)
    audio: Sequence[str] = ("",)

    def __post_init__(self) -> None:
        if not (self.loads and self.batch_sizes and self.audio):
            raise ValueError("a plan needs at least one load, one batch size and one kind of audio")
        if len(self) > MOST_POINTS:
            raise ValueError(f"{len(self)} points are more than one run measures ({MOST_POINTS}); give fewer values")

    def __len__(self) -> int:
        """How many points there are."""
        return sum(map(len, self.series()))

    def series(self) -> list[list[Point]]:
        """The points by series, which is all loads of one batch size and one audio; in each by growing load."""
        return [
            [Point(loop=self.loop, load=load, batch_size=batch_size, audio=audio) for load in sorted(set(self.loads))]
            for audio in dict.fromkeys(self.audio)
            for batch_size in dict.fromkeys(self.batch_sizes)
        ]


@dataclass(frozen=True)
class Duration:
    """How long something takes, in seconds: as a rule, and at most."""

    usual_s: float
    most_s: float

    def __mul__(self, times: int) -> "Duration":
        return Duration(self.usual_s * times, self.most_s * times)

    def __str__(self) -> str:
        usual, most = duration_text(self.usual_s), duration_text(self.most_s)
        return f"about {usual}" if usual == most else f"about {usual}, at most {most}"


def duration_text(seconds: float) -> str:
    """A time in words: "40 s", "12 min", "2 h 5 min"."""
    if seconds < 100:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
