"""Error rates of turns of speakers, from RTTM files, as commands print them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritone.errors import InputError
from tritone.formats.rttm import Turn, read_rttm
from tritone.report.table import Column, Table

if TYPE_CHECKING:
    from tritone.diarization.error_rates import Errors

Reference = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Who really speaks when, RTTM of these recordings: prints DER and JER."),
]
CollarS = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="With --reference: leave out so much before and after its boundaries (0 if not given).",
    ),
]
SkipOverlap = Annotated[
    bool, typer.Option("--skip-overlap", help="With --reference: do not score where two speakers talk at once.")
]


def turns_in(path: Path) -> dict[str, list[Turn]]:
    """The turns of an RTTM file by recording, in the order of the file.

    Raises:
        InputError: it cannot be read, is too large, or is no RTTM.
    """
    from tritone.corpus.list_file import read_list

    found: dict[str, list[Turn]] = {}
    for each in read_rttm(read_list(path), source=str(path)):
        found.setdefault(each.recording, []).append(each)
    return found


def of_recording(turns: Mapping[str, list[Turn]], name: str, path: Path) -> list[Turn]:
    """The turns of a recording; raises `InputError` if there are none, and names those that there are."""
    if name not in turns:
        some = ", ".join(list(turns)[:5]) + (", ..." if len(turns) > 5 else "")
        raise InputError(f"{path} has no turns of the recording {name!r}; it has {some or 'none at all'}")
    return turns[name]


@dataclass(frozen=True)
class Scoring:
    """A reference and how turns are compared with it; see `score_turns`."""

    path: Path
    turns: Mapping[str, list[Turn]]
    collar_s: float
    skip_overlap: bool

    def score(self, name: str, hypothesis: Sequence[Turn]) -> "Errors":
        """The errors of a recording; raises `InputError` if the reference does not have it."""
        from tritone.diarization.error_rates import score_turns

        reference = of_recording(self.turns, name, self.path)
        return score_turns(reference, hypothesis, collar_s=self.collar_s, skip_overlap=self.skip_overlap)

    def table(self, errors: "Mapping[str, Errors]") -> Table:
        """A row for each recording, and one for all of them where there are several."""
        from tritone.diarization.error_rates import sum_errors

        rows = [{"recording": name, **fields_of(each)} for name, each in errors.items()]
        if len(errors) > 1:
            rows.append({"recording": "all", **fields_of(sum_errors(errors.values()))})
        columns = [
            Column("recording", "recording"),
            Column("speech_s", "speech s", digits=1),
            *(
                Column(name, f"{label} %", scale=100, digits=2)
                for name, label in (
                    ("missed", "missed"),
                    ("false_alarm", "false alarm"),
                    ("confusion", "confusion"),
                    ("der", "DER"),
                    ("jer", "JER"),
                )
            ),
        ]
        collar = f"Collar {self.collar_s:g} s" + (" before and after" if self.collar_s else "")
        overlap = "overlapped speech is not scored" if self.skip_overlap else "overlapped speech is scored"
        return Table("", columns, rows, note=f"{collar}, {overlap}. Counted as by pyannote.metrics.")


def fields_of(errors: "Errors") -> dict[str, Any]:
    """Errors as shares of the reference's speech, as JSON has them."""
    total_s = errors.total_s or 1.0
    return {
        "speech_s": round(errors.total_s, 3),
        "missed": errors.missed_s / total_s,
        "false_alarm": errors.false_alarm_s / total_s,
        "confusion": errors.confusion_s / total_s,
        "der": errors.der,
        "jer": errors.jer,
    }


def scoring(reference: Path | None, collar_s: float | None, skip_overlap: bool) -> Scoring | None:
    """What the options say; None without a reference. Raises `typer.BadParameter` if the others stand alone."""
    if reference is None:
        if collar_s is not None or skip_overlap:
            raise typer.BadParameter("--collar-s and --skip-overlap go with --reference")
        return None
    return Scoring(reference, turns_in(reference), collar_s or 0.0, skip_overlap)


def print_errors(hypothesis: Path, judge: Scoring | None, as_json: bool) -> None:
    """Print the error rates of an RTTM file; recordings of the reference that it lacks are missed altogether.

    Raises:
        InputError: a file cannot be read, or the reference lacks a recording.
    """
    from rich.console import Console

    assert judge is not None
    found = turns_in(hypothesis)
    for name in found:
        of_recording(judge.turns, name, judge.path)
    errors = {name: judge.score(name, found.get(name, [])) for name in judge.turns}
    if as_json:
        for name, each in errors.items():
            typer.echo(json.dumps({"recording": name, **fields_of(each)}, ensure_ascii=False))
        return
    Console(highlight=False).print(judge.table(errors))
