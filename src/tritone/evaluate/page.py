"""The page of an evaluation: one HTML file with figures, aligned texts and, as far as a budget goes, the audio.

    Report, Comparison  ->  report.html

The page asks no network for anything and plays from a folder as well as from a server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritone.audio.encode import PLAYED_RATE, bytes_per_s, encode_speech
from tritone.audio.files import read_audio
from tritone.errors import AudioError, OperatorError
from tritone.evaluate import tables
from tritone.evaluate.compare import Comparison
from tritone.evaluate.result import Evaluation, Report, Row
from tritone.evaluate.score import Pair
from tritone.report.page import render
from tritone.report.table import Cell, Column, Table

DEFAULT_AUDIO_BUDGET_MB = 20.0
MAX_ROWS = 5000  # utterances in a page; a browser takes seconds to sort more
BASE64 = 4 / 3
CHEAPEST = 0.1  # of the usual size: what near silence may come down to
MAX_MISSES = 20  # files encoded in vain, since they did not fit any more, until no other is tried


@dataclass(frozen=True)
class _Output:
    """What one system made of an utterance."""

    name: str
    pairs: Sequence[Pair]
    errors: int
    wer: float | None
    latency_ms: float
    error: str | None


@dataclass
class _Utterance:
    """A row of the page."""

    id: str
    file: str
    words: int
    audio_s: float
    outputs: list[_Output] = field(default_factory=list)
    audio: bytes | None = None
    mime: str = ""
    why_silent: str = ""

    @property
    def errors(self) -> int:
        return max(output.errors for output in self.outputs)

    @property
    def wrong(self) -> bool:
        return any(output.errors or output.error for output in self.outputs)

    @property
    def failed(self) -> bool:
        return any(output.error for output in self.outputs)

    @property
    def differs(self) -> bool:
        texts = [[pair.hypothesis for pair in output.pairs if pair.hypothesis] for output in self.outputs]
        return any(text != texts[0] for text in texts)


def write_page(
    report: Report,
    comparison: Comparison | None,
    path: Path,
    *,
    worst: int = 10,
    audio_budget_mb: float = DEFAULT_AUDIO_BUDGET_MB,
) -> None:
    """Write the page.

    Args:
        report: what was found; with several systems `comparison` has them all.
        worst: how many confusions of each kind are listed.
        audio_budget_mb: how much audio the page may hold, in megabytes of the file; utterances with the most errors
            come first.

    Raises:
        OperatorError: the file cannot be written.
    """
    content = page(report, comparison, worst=worst, audio_budget_mb=audio_budget_mb)
    try:
        path.write_text(content, encoding="utf-8", errors="backslashreplace")  # file names need not be UTF-8
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error.strerror}") from error


def page(report: Report, comparison: Comparison | None, *, worst: int, audio_budget_mb: float) -> str:
    """The page as text; arguments as of `write_page`."""
    evaluations = list(report.evaluations)
    compared = report.compared if comparison is None else [change.evaluation for change in comparison.changes]
    utterances = _utterances(compared, {row.id: row.audio for each in reversed(evaluations) for row in each.rows})
    shown = utterances[:MAX_ROWS]
    silent = _add_audio(shown, audio_budget_mb)
    first = evaluations[0]
    return render(
        "tritone.evaluate",
        "evaluate.html",
        title=report.title,
        subtitle=f"Counted after normalisation: {first.normalization.summary()}.",
        stamp=report.stamp,
        notices=_notices(report, len(utterances), silent, audio_budget_mb),
        cards=_cards(first) if comparison is None else [],
        comparison=None if comparison is None else tables.comparison(comparison),
        systems=[_system(each, worst) for each in evaluations],
        identities=_identities(compared),
        lengths=tables.by_length(compared),
        names=[each.name for each in compared],
        utterances=shown,
        alone=len(compared) == 1,
    )


def _utterances(evaluations: Sequence[Evaluation], files: Mapping[str, str]) -> list[_Utterance]:
    """Rows of the page for all systems together, those with the most errors first.

    `files`: where the audio is now; an earlier report may have been written elsewhere.
    """
    found: dict[str, _Utterance] = {}
    for evaluation in evaluations:
        for row in evaluation.rows:
            words = row.score.words
            file = files.get(row.id, row.audio)
            utterance = found.setdefault(row.id, _Utterance(row.id, file, words.reference_length, row.audio_s))
            utterance.audio_s = utterance.audio_s or row.audio_s  # a failed one may not have been read
            utterance.outputs.append(_output(evaluation.name, row))
    return sorted(found.values(), key=lambda each: (-each.failed, -each.errors, each.id))


def _output(name: str, row: Row) -> _Output:
    rate = row.score.words.rate
    return _Output(
        name=name,
        pairs=row.score.pairs,
        errors=row.score.words.errors,
        wer=rate if rate != float("inf") else None,
        latency_ms=1000 * row.latency_s,
        error=row.score.error,
    )


def _add_audio(utterances: Sequence[_Utterance], budget_mb: float) -> int:
    """Give utterances their audio, in their order, as long as the budget lasts; how many went without for its sake."""
    left = budget_mb * 1e6
    misses = silent = 0
    for utterance in utterances:
        audio, mime = b"", ""
        if misses < MAX_MISSES and utterance.audio_s * bytes_per_s() * CHEAPEST * BASE64 <= left:
            try:
                audio, mime = encode_speech(read_audio(utterance.file, PLAYED_RATE), PLAYED_RATE)
            except AudioError as error:
                utterance.why_silent = str(error)
                continue
            misses += len(audio) * BASE64 > left
        if not audio or len(audio) * BASE64 > left:
            utterance.why_silent = "left out"
            silent += 1
            continue
        left -= len(audio) * BASE64
        utterance.audio, utterance.mime = audio, mime
    return silent


def _notices(report: Report, num_utterances: int, silent: int, budget_mb: float) -> list[tuple[str, str]]:
    notices = []
    for each in report.evaluations:
        if not each.complete:
            tried = f"interrupted after {len(each.rows)} of {each.total} utterances"
            notices.append((f"{each.name}: {tried}. The figures are partial.", "bad"))
        if each.failures:
            failed = f"{len(each.failures)} of {len(each.rows)} utterances failed"
            notices.append((f"{each.name}: {failed}. They count as deleted in all rates.", "bad"))
    if silent:
        notices.append(
            (
                f"The audio of {silent} utterances was left out: this page holds at most {budget_mb:g} MB of it "
                "(--audio-budget-mb).",
                "warn",
            )
        )
    if num_utterances > MAX_ROWS:
        notices.append((f"Of {num_utterances} utterances the {MAX_ROWS} with the most errors are listed.", "warn"))
    return notices + [(note, "warn") for note in report.notes]


def _cards(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    score = evaluation.score
    words, level = score.words, f"{100 * evaluation.level:g} %"
    cards = [
        ("WER", tables.error_rate(words), tables.interval(evaluation.wer_interval, level)),
        ("CER", tables.error_rate(score.characters), tables.interval(evaluation.cer_interval, level)),
        (
            "Sentences right",
            tables.percent(score.sentence_accuracy),
            f"of {len(evaluation.rows)} utterances",
        ),
        (
            "Errors",
            str(words.errors),
            f"{words.substitutions} substitutions, {words.deletions} deletions, {words.insertions} insertions in "
            f"{words.reference_length} words",
        ),
    ]
    if evaluation.rtf is not None and evaluation.rtfx is not None:
        cards.append(
            ("RTF", f"{evaluation.rtf:.4f}", f"RTFx {evaluation.rtfx:.1f} at concurrency {evaluation.concurrency}")
        )
    stability = evaluation.stability
    slow = None if stability is None else tables.percentile(stability.finals_s, 95)
    if stability is not None:
        if slow is not None:
            cards.append(("Final text, p95", f"{1000 * slow:.0f} ms", "after the end of the audio"))
        cards.append(("Unstable words", f"{stability.unstable_ratio:.3f}", "shown and taken back, per final word"))
    cards.append(("Failed", str(len(evaluation.failures)), f"of {len(evaluation.rows)} utterances"))
    return cards


def _system(evaluation: Evaluation, worst: int) -> Mapping[str, object]:
    return {
        "name": evaluation.name,
        "figures": tables.figures(evaluation, title="Figures"),
        "confusions": tables.confusions(evaluation, worst) if worst else [],
        "failures": tables.failures(evaluation, 50) if evaluation.failures else None,
    }


def _identities(evaluations: Sequence[Evaluation]) -> Table:
    rows: list[dict[str, Cell]] = [
        {"name": each.name, "key": key, "value": value} for each in evaluations for key, value in each.system.items()
    ]
    return Table(
        "What was evaluated", [Column("name", "system"), Column("key", "property"), Column("value", "value")], rows
    )
