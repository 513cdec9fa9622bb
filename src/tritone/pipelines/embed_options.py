"""How an utterance is embedded: whole, or in windows whose embeddings are averaged.

{"window_s": "2", "shift_s": 1}  ->  EmbedOptions  ->  where the windows of so many samples begin
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tritone.errors import InputError
from tritone.options.fields import check_bounds, described, option, parse_parameters

MAX_OVERLAP = 20  # windows that contain the same sample: that many times the work of the whole utterance


@dataclass(frozen=True, kw_only=True)
class EmbedFields:
    """The options that requests and models have alike, under one name."""

    window_s: float = option(
        0.0,
        "Speaker models: embed longer audio in windows of so many seconds, and average; 0: all at once.",
        least=0,
        unit=" seconds",
    )
    shift_s: float = option(
        0.0, "Speaker models: seconds from one window to the next; 0: a window's length.", least=0, unit=" seconds"
    )


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(EmbedFields):
    """How to embed in one request; see the help of the fields.

    The last window begins earlier where that lets it end with the audio, and the embedding of the whole is the plain
    mean of those of its windows.
    """

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.shift_s and not self.window_s:
            raise InputError(f"shift_s is {self.shift_s:g}, but there are no windows to shift; give window_s as well")
        if self.shift_s and not self.window_s / MAX_OVERLAP <= self.shift_s <= self.window_s:
            raise InputError(
                f"shift_s must be {self.window_s / MAX_OVERLAP:g} to {self.window_s:g} s, a {MAX_OVERLAP}th of a "
                f"window to all of it, or 0 for all of it; got {self.shift_s:g}"
            )

    def changed(self, parameters: Mapping[str, Any]) -> "EmbedOptions":
        """These options with some of them replaced, as a request's parameters ask for; numbers may be text.

        Raises:
            InputError: a name is unknown, or a value unfit; says which and what would do.
        """
        values = parse_parameters(described(EmbedOptions), parameters)
        # Another window, or none, has a usual shift of its own.
        if "window_s" in values and values["window_s"] != self.window_s:
            values.setdefault("shift_s", 0.0)
        return replace(self, **values)

    def starts(self, num_samples: int, sample_rate: int) -> list[int]:
        """Where the windows of an utterance begin, in samples; that of a whole one at 0."""
        window = self.samples(num_samples, sample_rate)
        last = num_samples - window
        shift = max(1, _samples(self.shift_s or self.window_s, sample_rate, num_samples))
        return [*range(0, last, shift), last]

    def samples(self, num_samples: int, sample_rate: int) -> int:
        """How long the windows of an utterance of so many samples are."""
        return _samples(self.window_s, sample_rate, num_samples) if self.window_s else num_samples


def _samples(seconds: float, sample_rate: int, most: int) -> int:
    """Seconds in samples, at most `most`: the product may be more than any number that can be rounded."""
    return round(min(most, seconds * sample_rate))


PARAMETERS = tuple(described(EmbedFields))  # of a request
