"""The audio of a load test: a pool of utterances, prepared before the clock starts and used again and again.

    "5"                        utterances of 5 seconds
    "lognormal:5,0.5"          lengths drawn from a distribution: median and sigma of the logarithm
    "uniform:2,10"  "normal:6,2"  "file:lengths.txt"
    files                      recordings with or without references; references give the error rate of the same run

The same seed gives the same pool everywhere.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tritone.audio import read_audio
from tritone.audio.waveform import Waveform
from tritone.corpus.dataset import Utterance
from tritone.errors import InputError
from tritone.loadtest.workload.speech import Tape
from tritone.paths import plain_text

MAX_UTTERANCES = 256
MAX_OF_ONE_LENGTH = 64
MAX_POOL_S = 3600.0  # of audio: 230 MB at 16 kHz
SHORTEST_S, LONGEST_S = 0.1, 120.0  # drawn lengths beyond become these

Lengths = npt.NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], Lengths]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A pool of distinct utterances, equally likely.

    `seconds` describes them for people. `waveforms` are (samples,) float32 at `sample_rate` Hz. `references` has a
    text, or None, for each; empty means that none has one.
    """

    seconds: str
    sample_rate: int
    waveforms: Sequence[Waveform]
    references: Sequence[str | None] = ()
    ids: Sequence[str] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if not self.waveforms:
            raise ValueError("a workload needs at least one utterance")
        for name in ("references", "ids"):
            if getattr(self, name) and len(getattr(self, name)) != len(self.waveforms):
                raise ValueError(f"{len(self.waveforms)} waveforms, but {len(getattr(self, name))} {name}")

    @property
    def mean_s(self) -> float:
        """Mean length in seconds."""
        return sum(map(len, self.waveforms)) / len(self.waveforms) / self.sample_rate

    @property
    def pool(self) -> Sequence[Waveform]:
        """What is sent."""
        return self.waveforms

    def mean_bytes(self, bytes_per_sample: int) -> float:
        """Mean size of an utterance as it travels."""
        return self.mean_s * self.sample_rate * bytes_per_sample

    @property
    def has_references(self) -> bool:
        return any(reference is not None for reference in self.references)


def speech_workload(spec: str, tape: Tape, *, seed: int = 0, max_utterances: int = MAX_UTTERANCES) -> Workload:
    """Cut a pool of utterances from a tape.

    Args:
        spec: a length in seconds ("5", "0.5"), or a distribution of lengths, see the top of this file.
        tape: the speech, at the model's rate.
        seed: draws the lengths and the places.
        max_utterances: size of the pool; it is smaller where the audio would fill more than an hour, and utterances of
            one length need no more than 64.

    Raises:
        InputError: the spec cannot be understood; the message has the forms.
    """
    label, draw = parse_lengths(spec)
    rng = np.random.default_rng(seed)
    if ":" not in spec:
        max_utterances = min(max_utterances, MAX_OF_ONE_LENGTH)
    lengths = np.clip(draw(max_utterances, rng), SHORTEST_S, LONGEST_S)
    lengths = lengths[: max(1, int(np.searchsorted(np.cumsum(lengths), MAX_POOL_S, side="right")))]
    rate = tape.sample_rate
    waveforms = [tape.cut(max(1, round(float(length) * rate)), rng) for length in lengths]
    return Workload(seconds=label, sample_rate=rate, waveforms=waveforms)


def files_workload(
    utterances: Sequence[Utterance], sample_rate: int, *, seed: int = 0, max_utterances: int = MAX_UTTERANCES
) -> Workload:
    """Read recordings, resampled to the model's rate in Hz; of more than fit, a random choice.

    Raises:
        InputError: there are none, or one cannot be read (`AudioError`, which names it).
    """
    if not utterances:
        raise InputError("there are no utterances to send; the list is empty")
    order = np.random.default_rng(seed).permutation(len(utterances))
    chosen: list[int] = []
    waveforms: dict[int, Waveform] = {}
    room = MAX_POOL_S * sample_rate
    for index in map(int, order[:max_utterances]):
        waveform = read_audio(utterances[index].audio, sample_rate)
        room -= len(waveform)
        if room < 0 and chosen:
            break
        chosen.append(index)
        waveforms[index] = waveform
    chosen.sort()
    notes = []
    if len(chosen) < len(utterances):
        notes.append(f"{len(chosen)} of the {len(utterances)} files were sent, chosen at random")
    return Workload(
        seconds="files",
        sample_rate=sample_rate,
        waveforms=[waveforms[index] for index in chosen],
        references=[utterances[index].text for index in chosen],
        ids=[utterances[index].id for index in chosen],
        notes=notes,
    )


def parse_lengths(spec: str, longest_s: float = LONGEST_S) -> tuple[str, Draw]:
    """Read a length, of at most `longest_s` seconds, or a distribution of lengths.

    Returns:
        How people write it, and a function that draws that many lengths in seconds.

    Raises:
        InputError: it cannot be understood.
    """
    kind, colon, rest = spec.strip().partition(":")
    if not colon:
        seconds = _number(kind, spec)
        if not 0 < seconds <= longest_s:
            raise InputError(f"a length must be above 0 and at most {longest_s:g} seconds, got {spec!r}")
        return f"{seconds:g}", lambda count, _: np.full(count, seconds)
    if kind == "file":
        return _from_file(Path(rest))
    if kind not in DISTRIBUTIONS:
        raise InputError(f"unknown distribution {kind!r} in {spec!r}; {FORMS}")
    numbers = [_number(part, spec) for part in rest.split(",")]
    if len(numbers) != 2:
        raise InputError(f"{spec!r}: {kind} takes two numbers; {FORMS}")
    first, second = numbers
    check, draw = DISTRIBUTIONS[kind]
    if complaint := check(first, second):
        raise InputError(f"{spec!r}: {complaint}")
    return f"{kind}({first:g}, {second:g})", lambda count, rng: draw(first, second, count, rng)


FORMS = "write a number of seconds, lognormal:MEDIAN,SIGMA, uniform:LOW,HIGH, normal:MEAN,DEVIATION or file:PATH"


def _uniform(low: float, high: float) -> str:
    return "" if 0 <= low <= high and high > 0 else "uniform needs 0 <= LOW <= HIGH, in seconds"


def _positive(middle: float, spread: float) -> str:
    return "" if middle > 0 and spread >= 0 else "the middle must be above 0 and the spread not below"


DISTRIBUTIONS: Mapping[
    str, tuple[Callable[[float, float], str], Callable[[float, float, int, np.random.Generator], Lengths]]
] = {
    "lognormal": (_positive, lambda median, sigma, count, rng: rng.lognormal(math.log(median), sigma, count)),
    "uniform": (_uniform, lambda low, high, count, rng: rng.uniform(low, high, count)),
    "normal": (_positive, lambda mean, deviation, count, rng: rng.normal(mean, deviation, count)),
}


def _from_file(path: Path) -> tuple[str, Draw]:
    try:
        lines = plain_text(path.read_bytes()).split()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read lengths from {path}: {error}") from error
    lengths = np.array([_number(line, f"{path}: {line}") for line in lines])
    if not lengths.size or not (lengths > 0).all():
        raise InputError(f"{path} must hold lengths in seconds, each above 0, one on each line")
    return f"file({path.name})", lambda count, rng: rng.choice(lengths, count)


def _number(text: str, spec: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise InputError(f"{text!r} in {spec!r} is no number; {FORMS}") from error
    if not math.isfinite(number):
        raise InputError(f"{text!r} in {spec!r} is not finite; {FORMS}")
    return number
