"""What an evaluation found: a `Row` per utterance, an `Evaluation` per system, a `Report` of one or several.

    outcomes  ->  Row  ->  Evaluation  ->  Report  ->  JSON

A failed utterance counts with all its words deleted: a system that gives no answer must not win by it. Rates are
fractions, times seconds unless the name says otherwise. In JSON a number that does not exist (the error rate of
nothing) is null.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tritone.errors import InputError, OperatorError
from tritone.evaluate.bootstrap import Interval, rate_interval
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.partials import SetStability, StreamStability
from tritone.evaluate.score import Counts, SetScore, UtteranceScore, score_utterance
from tritone.report.stamp import Stamp

SCHEMA = 1
KIND = "tritone evaluation"
LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Row:
    """One utterance through one system: its score, its file, its times as in `tritone.result.Result`."""

    score: UtteranceScore
    audio: str
    audio_s: float
    latency_s: float
    compute_s: float
    stability: StreamStability | None = None

    @property
    def id(self) -> str:
        return self.score.id

    def to_dict(self) -> dict[str, Any]:
        score = self.score
        return {
            "id": score.id,
            "audio": self.audio,
            "reference": score.reference,
            "hypothesis": None if score.error is not None else score.hypothesis,
            "error": score.error,
            "words": _counts(score.words),
            "characters": _counts(score.characters),
            "alignment": [list(pair) for pair in score.pairs],
            "audio_s": self.audio_s,
            "latency_s": self.latency_s,
            "compute_s": self.compute_s,
            "streaming": None if self.stability is None else asdict(self.stability),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], normalizer: Normalizer) -> "Row":
        """Read `to_dict` back; the texts are scored again."""
        streaming = fields["streaming"]
        if streaming is not None:
            streaming = StreamStability(**{**streaming, "lags_s": tuple(streaming["lags_s"])})
        return cls(
            score=score_utterance(
                fields["id"], fields["reference"], fields["hypothesis"], normalizer, error=fields["error"]
            ),
            audio=str(fields["audio"]),
            audio_s=float(fields["audio_s"]),
            latency_s=float(fields["latency_s"]),
            compute_s=float(fields["compute_s"]),
            stability=streaming,
        )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One system on a set of utterances.

    `system`: what it is, as `System.describe` returns it. `rows`: in the order of the set; of an interrupted run those
    that were tried. `total`: how many utterances there are. `wall_s`: time of all sessions, `concurrencies` those that
    they ran with. `reused`: rows that come from the journal of an earlier session. `level`: of the confidence
    intervals.
    """

    name: str
    system: Mapping[str, str]
    normalization: Normalization
    rows: Sequence[Row]
    total: int
    wall_s: float
    concurrencies: Sequence[int]
    reused: int = 0
    complete: bool = True
    level: float = LEVEL

    @cached_property
    def score(self) -> SetScore:
        return SetScore.of(row.score for row in self.rows)

    @cached_property
    def wer_interval(self) -> Interval:
        return self._interval("words")

    @cached_property
    def cer_interval(self) -> Interval:
        return self._interval("characters")

    def _interval(self, units: str) -> Interval:
        counts: list[Counts] = [getattr(row.score, units) for row in self.rows]
        return rate_interval(
            [each.errors for each in counts], [each.reference_length for each in counts], level=self.level
        )

    @property
    def failures(self) -> list[Row]:
        return [row for row in self.rows if row.score.error is not None]

    @cached_property
    def recognised(self) -> SetScore:
        """The score without the failed utterances."""
        return SetScore.of(row.score for row in self.rows if row.score.error is None)

    @property
    def audio_s(self) -> float:
        """Audio of the utterances that were recognised, in seconds."""
        return sum(row.audio_s for row in self.rows if row.score.error is None)

    @property
    def paced(self) -> bool:
        """Whether the audio was played in real time. Such a run does not measure the speed of the system."""
        return self.system.get("realtime") == "true"

    @property
    def rtf(self) -> float | None:
        """Seconds of the run per second of audio, at `concurrency`; reading the files is part of the run."""
        return self.wall_s / self.audio_s if self.audio_s and not self.paced else None

    @property
    def rtfx(self) -> float | None:
        """Seconds of audio per second of the run."""
        return self.audio_s / self.wall_s if self.audio_s and self.wall_s and not self.paced else None

    @property
    def concurrency(self) -> str:
        """As text; several numbers if sessions had different ones."""
        return ", ".join(str(each) for each in dict.fromkeys(self.concurrencies))

    @cached_property
    def stability(self) -> SetStability | None:
        """Stability of the streams that ended; None offline."""
        streams = [row.stability for row in self.rows if row.stability is not None and row.score.error is None]
        return SetStability.of(streams) if streams else None

    def latency_s(self, percent: float) -> float | None:
        """A percentile of the latencies of recognised utterances, with linear interpolation."""
        return percentile([row.latency_s for row in self.rows if row.score.error is None], percent)

    def rescored(self, normalization: Normalization) -> "Evaluation":
        """The same texts under another normalisation. What was measured of partial results stays as it was."""
        normalizer = Normalizer(normalization)
        rows = []
        for row in self.rows:
            score = row.score
            text = None if score.error is not None else score.hypothesis
            scored = score_utterance(score.id, score.reference, text, normalizer, error=score.error)
            rows.append(replace(row, score=scored))
        return replace(self, normalization=normalization, rows=rows)

    def only(self, ids: Iterable[str]) -> "Evaluation":
        """These utterances alone, in their order here."""
        wanted = set(ids)
        rows = [row for row in self.rows if row.id in wanted]
        return replace(self, rows=rows, total=len(rows))

    def summary(self) -> dict[str, Any]:
        """The figures, JSON-ready."""
        score, stability = self.score, self.stability
        found: dict[str, Any] = {
            "utterances": len(self.rows),
            "total": self.total,
            "complete": self.complete,
            "failures": len(self.failures),
            "wer": finite(score.words.rate),
            "wer_interval": [finite(each) for each in self.wer_interval],
            "wer_recognised": finite(self.recognised.words.rate),
            "words": _counts(score.words),
            "cer": finite(score.characters.rate),
            "cer_interval": [finite(each) for each in self.cer_interval],
            "characters": _counts(score.characters),
            "sentence_accuracy": score.sentence_accuracy,
            "level": self.level,
            "audio_s": self.audio_s,
            "wall_s": self.wall_s,
            "rtf": self.rtf,
            "rtfx": self.rtfx,
            "concurrency": list(self.concurrencies),
            "latency_s": {name: self.latency_s(percent) for name, percent in (("p50", 50), ("p95", 95))},
            "reused": self.reused,
        }
        if stability is not None:
            found["streaming"] = {
                "streams": stability.streams,
                "unsteady_streams": stability.unsteady_streams,
                "partials": stability.partials,
                "changes": stability.changes,
                "revisions": stability.revisions,
                "final_words": stability.final_words,
                "unstable_words": stability.unstable_words,
                "grown_words": stability.grown_words,
                "unstable_ratio": finite(stability.unstable_ratio),
                "revision_ratio": stability.revision_ratio,
                "edit_overhead": finite(stability.edit_overhead),
                "stability_lag_s": stability.stability_lag_s,
                "first_partial_s": {f"p{p}": percentile(stability.first_partials_s, p) for p in (50, 95)},
                "final_s": {f"p{p}": percentile(stability.finals_s, p) for p in (50, 95)},
            }
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "system": dict(self.system),
            "summary": self.summary(),
            "utterances": [row.to_dict() for row in self.rows],
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], normalization: Normalization) -> "Evaluation":
        normalizer, summary = Normalizer(normalization), fields["summary"]
        return cls(
            name=fields["name"],
            system=fields["system"],
            normalization=normalization,
            rows=[Row.from_dict(each, normalizer) for each in fields["utterances"]],
            total=summary["total"],
            wall_s=summary["wall_s"],
            concurrencies=summary["concurrency"],
            reused=summary["reused"],
            complete=summary["complete"],
            level=summary["level"],
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """Evaluations on one set of utterances, the first of which is the baseline of comparisons, and their conditions.

    `baseline`: one that was read from an earlier report and then takes the first one's place.
    """

    stamp: Stamp
    evaluations: Sequence[Evaluation]
    title: str = "Evaluation"
    baseline: Evaluation | None = None
    notes: Sequence[str] = field(default=())

    @property
    def complete(self) -> bool:
        return all(each.complete for each in self.evaluations)

    @property
    def normalization(self) -> Normalization:
        return self.evaluations[0].normalization

    @property
    def compared(self) -> list[Evaluation]:
        """All that can be compared, the baseline first: not what was interrupted before its first answer."""
        all_there_are = [*([] if self.baseline is None else [self.baseline]), *self.evaluations]
        return [each for each in all_there_are if each.rows]

    def to_dict(self, comparison: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """JSON-ready; `comparison` has the rows of `Comparison.to_dict`."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "title": self.title,
            "complete": self.complete,
            "stamp": asdict(self.stamp),
            "normalization": asdict(self.normalization),
            "notes": list(self.notes),
            "comparison": list(comparison),
            "systems": [each.to_dict() for each in self.evaluations],
        }

    def save(self, path: Path, comparison: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write as JSON.

        Raises:
            OperatorError: the file cannot be written.
        """
        text = json.dumps(self.to_dict(comparison), indent=1, ensure_ascii=False, allow_nan=False)
        try:
            path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise OperatorError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def read(cls, path: Path, normalization: Normalization | None = None) -> "Report":
        """Read what `save` wrote; its texts are scored again, by its own normalisation or by another one.

        Raises:
            InputError: no such file, or not such a report; the message names the file and the field.
        """
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields.get("kind") != KIND:
                raise InputError(f"{path} is not a result of `tritone evaluate --report`")
            if fields["schema"] != SCHEMA:
                raise InputError(f"{path} has schema {fields['schema']}, this Tritone reads {SCHEMA}; evaluate again")
            if normalization is None:
                normalization = Normalization(**fields["normalization"])
            return cls(
                stamp=Stamp(**fields["stamp"]),
                evaluations=[Evaluation.from_dict(each, normalization) for each in fields["systems"]],
                title=fields["title"],
                notes=fields["notes"],
            )
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{path} is not a result of `tritone evaluate --report` ({error!r})") from error


def finite(value: float) -> float | None:
    """None for what JSON cannot hold."""
    return value if math.isfinite(value) else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """With linear interpolation between order statistics; None of none."""
    return float(np.percentile(values, percent)) if len(values) else None


def _counts(counts: Counts) -> dict[str, int]:
    return {**asdict(counts), "reference_length": counts.reference_length}
