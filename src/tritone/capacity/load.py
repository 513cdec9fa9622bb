"""A load as it comes: utterances or live streams, by the hour of the day, with their lengths.

Load  ->  arrivals(...)  ->  Arrivals: times and lengths of a day
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from tritone.capacity.simulation import MAX_ARRIVALS, Arrivals, Floats
from tritone.errors import InputError
from tritone.loadtest.workload.workload import SHORTEST_S, parse_lengths
from tritone.paths import plain_text

HOUR_S, DAY_S = 3600.0, 86400.0
LONGEST_S = 86400.0  # a stream of a day
SAMPLE = 100_000  # lengths drawn for their mean
# Shapes to try a plan with; nobody measured them. `office`: two humps of a working day, a tenth of it at night.
DAYS: Mapping[str, Sequence[float]] = {
    "flat": (1.0,),
    "office": (10, 10, 10, 10, 10, 12, 20, 40, 70, 92, 100, 95, 80, 85, 96, 98, 90, 70, 50, 40, 30, 22, 15, 11),
}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What arrives.

    `utterances_per_hour`: at the busiest time of the day. `lengths`: seconds of audio, as for `tritone bench`. `day`:
    how arrivals are spread over it, as numbers at equal distances from midnight, of any scale; between them the rate
    changes evenly. Arrivals do not depend on each other.
    """

    utterances_per_hour: float
    lengths: str
    day: Sequence[float] = (1.0,)
    day_name: str = "flat"

    def __post_init__(self) -> None:
        if not 0 < self.utterances_per_hour < math.inf:
            raise ValueError(f"a load has more than 0 utterances an hour, got {self.utterances_per_hour:g}")
        if not self.day or min(self.day) < 0 or not 0 < max(self.day) < math.inf:
            raise ValueError(f"a day is numbers from 0, one of them above, got {list(self.day)}")

    @cached_property
    def mean_s(self) -> float:
        """Mean length in seconds."""
        return float(self.draw(SAMPLE, np.random.default_rng(0)).mean())

    @property
    def rate(self) -> float:
        """Utterances per second at the busiest time."""
        return self.utterances_per_hour / HOUR_S

    @property
    def streams(self) -> float:
        """Streams open on average at the busiest time, if utterances are live: Little's law."""
        return self.rate * self.mean_s

    @property
    def mean_share(self) -> float:
        """The mean rate of a day as a share of the busiest."""
        points = np.append(self.day, self.day[0])
        return float(((points[:-1] + points[1:]) / 2).mean() / points.max())

    @property
    def audio_h_per_day(self) -> float:
        """Hours of audio in a day."""
        return self.streams * self.mean_share * DAY_S / HOUR_S

    def share_at(self, times_s: Floats) -> Floats:
        """The rate at some times since midnight, as a share of the busiest."""
        places = np.asarray(times_s) / DAY_S * len(self.day)
        points = np.array(self.day) / max(self.day)
        return np.interp(places % len(self.day), np.arange(len(self.day) + 1), np.append(points, points[0]))

    def grown(self, factor: float) -> "Load":
        """The same day with that many times the utterances."""
        return replace(self, utterances_per_hour=self.utterances_per_hour * factor)

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw lengths, in seconds."""
        _, drawn = parse_lengths(self.lengths, longest_s=LONGEST_S)
        return np.clip(drawn(count, rng), SHORTEST_S, LONGEST_S)

    def arrivals(self, start_s: float, end_s: float, seed: int = 0) -> Arrivals:
        """Draw what arrives between two times since midnight.

        Raises:
            InputError: it is more than can be simulated in reasonable time.
        """
        most = self.rate * (end_s - start_s)
        if most * self.mean_share > MAX_ARRIVALS:
            raise InputError(
                f"{most * self.mean_share:.0f} arrivals in {(end_s - start_s) / HOUR_S:g} h are too many to simulate, "
                f"at most {MAX_ARRIVALS}; simulate a tenth of the load and of the replicas"
            )
        rng = np.random.default_rng([seed, 0])
        # Lewis and Shedler's thinning: of arrivals at the highest rate those are kept that the time of day allows.
        times = np.sort(rng.uniform(start_s, end_s, rng.poisson(most)))
        times = times[rng.random(times.size) < self.share_at(times)]
        return Arrivals(times=times, lengths=self.draw(times.size, rng))


def read_day(text: str) -> tuple[str, Sequence[float]]:
    """Read a day's shape: a name of `DAYS`, or a file with a number on each line, from midnight on.

    Raises:
        InputError: there is no such name or file, or it holds something else.
    """
    if text in DAYS:
        return text, DAYS[text]
    path = Path(text)
    try:
        numbers = tuple(float(line) for line in plain_text(path.read_bytes()).split())
    except OSError as error:
        raise InputError(f"{text!r} is not one of {', '.join(DAYS)} and no file: {error.strerror}") from error
    except ValueError as error:
        raise InputError(
            f"{path} must hold a number on each line, utterances of an hour for example: {error}"
        ) from error
    if not numbers or min(numbers) < 0 or not 0 < max(numbers) < math.inf:
        raise InputError(f"{path} must hold numbers from 0, and one above 0, for the parts of a day from midnight on")
    return path.name, numbers
