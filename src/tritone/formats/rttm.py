"""RTTM, the NIST format of who spoke when: a line for each turn.

    SPEAKER meeting 1 12.340 2.500 <NA> <NA> alice <NA> <NA>
            |         |      |               `- speaker
            |         |      `- duration in seconds
            |         `- start in seconds
            `- recording

Source: NIST, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan", appendix A.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tritone.errors import InputError

UNKNOWN = "<NA>"
FIELDS = (8, 9, 10)  # numbers of fields in use: NIST's has 10 since 2009 and 9 before; trailing ones are often left out
# Types of lines that the format has beside SPEAKER. They hold words and events, and no turns.
OTHER_TYPES = frozenset(
    {"SEGMENT", "NOSCORE", "NO_RT_METADATA", "LEXEME", "NON-LEX", "NON-SPEECH", "FILLER", "EDIT", "SU", "IP", "CB"}
    | {"A/P", "SPKR-INFO"}
)
MAX_TURNS = 1_000_000  # in one text
MAX_SECONDS = 1e7  # of one recording, 116 days


@dataclass(frozen=True, slots=True)
class Turn:
    """A stretch of a recording in which one speaker talks; `speaker` is "" where unknown."""

    recording: str
    start_s: float
    end_s: float
    speaker: str = ""

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


def write_rttm(turns: Iterable[Turn]) -> str:
    """Write turns, one line each, times in milliseconds.

    Raises:
        InputError: the name of a recording or a speaker is empty or has spaces, which separate the fields.
    """
    lines = []
    for turn in turns:
        start_s, end_s = round(turn.start_s, 3), round(turn.end_s, 3)
        name, speaker = field(turn.recording, "recording", "RTTM"), field(turn.speaker or UNKNOWN, "speaker", "RTTM")
        lines.append(f"SPEAKER {name} 1 {start_s:.3f} {end_s - start_s:.3f} {UNKNOWN} {UNKNOWN} {speaker} <NA> <NA>\n")
    return "".join(lines)


def read_rttm(text: str, *, source: str = "the RTTM") -> list[Turn]:
    """Read the turns of an RTTM text, in its order. Lines of other types and comments (`;;`) are left out.

    Args:
        source: name of the text in messages, such as its path.

    Raises:
        InputError: a line is none of RTTM, or there are too many; names the line.
    """
    turns: list[Turn] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        fields = line.split()
        if not fields or line.lstrip().startswith(";;") or fields[0] in OTHER_TYPES:
            continue
        if len(turns) == MAX_TURNS:
            raise InputError(f"{source}: more than {MAX_TURNS:,} turns; split it into files of fewer recordings")
        turns.append(_turn(fields, f"{source}:{number}"))
    return turns


def field(text: str, what: str, format: str) -> str:
    """A name as a field of a line; raises `InputError` if it is empty or has spaces, which separate the fields."""
    if not text or any(letter.isspace() for letter in text):
        raise InputError(
            f"the {what} {text!r} cannot be written as {format}, whose fields are separated by spaces; "
            "rename it or choose another format"
        )
    return text


def _turn(fields: list[str], place: str) -> Turn:
    if fields[0] != "SPEAKER" or len(fields) not in FIELDS:
        seen = " ".join(fields)
        raise InputError(
            f"{place}: expected 'SPEAKER recording channel start duration <NA> <NA> speaker <NA> <NA>', "
            f"got {seen if len(seen) <= 80 else seen[:77] + '...'!r}"
        )
    start_s, duration_s = (
        _seconds(each, what, place) for each, what in ((fields[3], "start"), (fields[4], "duration"))
    )
    speaker = fields[7]
    return Turn(fields[1], start_s, round(start_s + duration_s, 6), "" if speaker == UNKNOWN else speaker)


def _seconds(text: str, what: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_SECONDS:
        raise InputError(f"{place}: the {what} must be seconds from 0 to {MAX_SECONDS:.0f}, got {text[:40]!r}")
    return value
