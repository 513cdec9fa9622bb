"""The tables of an evaluation, for a terminal and for a page alike.

Evaluation, Comparison  ->  report.Table
"""

from collections.abc import Callable, Sequence

from tritone.evaluate.compare import Comparison
from tritone.evaluate.result import Evaluation, percentile
from tritone.evaluate.score import Confusion, Counts, pool
from tritone.report.table import Cell, Column, Table

LENGTHS = (1, 3, 6, 11, 21, 51)  # words of the reference, where each class of lengths begins


def figures(evaluation: Evaluation, title: str | None = None) -> Table:
    """The figures of one system, a row each with its details."""
    score = evaluation.score
    rows: list[dict[str, Cell]] = []

    def add(name: str, value: str, detail: str) -> None:
        rows.append({"figure": name, "value": value, "detail": detail})

    level = f"{100 * evaluation.level:g} %"
    add("WER", error_rate(score.words), f"{interval(evaluation.wer_interval, level)}; {counted(score.words, 'words')}")
    add(
        "CER",
        error_rate(score.characters),
        f"{interval(evaluation.cer_interval, level)}; {counted(score.characters, 'characters')}",
    )
    exact = sum(each.exact for each in score.utterances)
    add("sentence accuracy", percent(score.sentence_accuracy), f"{exact} of {len(evaluation.rows)} without an error")
    failed = f"of {len(evaluation.rows)}"
    if evaluation.failures:
        failed += f"; they count as deleted; WER of the others alone: {error_rate(evaluation.recognised.words)}"
    add("failed", str(len(evaluation.failures)), failed)
    if not evaluation.complete:
        add(
            "not tried", str(evaluation.total - len(evaluation.rows)), f"of {evaluation.total}: the run was interrupted"
        )
    if evaluation.rtf is not None and evaluation.rtfx is not None:
        add(
            "RTF",
            f"{evaluation.rtf:.4f}",
            f"RTFx {evaluation.rtfx:.1f}, at concurrency {evaluation.concurrency}; {evaluation.audio_s:.1f} s of audio "
            f"in {evaluation.wall_s:.2f} s",
        )
    elif evaluation.paced:
        add("streams at once", evaluation.concurrency, f"{evaluation.audio_s:.1f} s of audio, played in real time")
    streaming = evaluation.system.get("mode") == "streaming"
    median, slow = evaluation.latency_s(50), evaluation.latency_s(95)
    if not streaming and median is not None and slow is not None:
        add("latency p50", f"{1000 * median:.0f} ms", f"p95 {1000 * slow:.0f} ms, from handing audio over to its text")
    _add_streaming(evaluation, add)
    columns = [Column("figure", "figure"), Column("value", "value", align="right"), Column("detail", "details")]
    note = f"Counted after normalisation: {evaluation.normalization.summary()}."
    if streaming and not evaluation.paced:
        note += " Times of streams are worked out from those that answers took: they were not played in real time."
    return Table(evaluation.name if title is None else title, columns, rows, note=note)


def comparison(compared: Comparison) -> Table:
    """What changes against the first system: the precision-impact table."""
    rows: list[dict[str, Cell]] = []
    for change in compared.changes:
        evaluation, delta, cer_delta = change.evaluation, change.words, change.characters
        counts = evaluation.score.words
        row: dict[str, Cell] = {
            "system": change.name,
            "wer": change.wer,
            "substitutions": counts.substitutions,
            "deletions": counts.deletions,
            "insertions": counts.insertions,
            "cer": change.cer,
            "accuracy": evaluation.score.sentence_accuracy,
            "failed": len(evaluation.failures),
            "rtfx": evaluation.rtfx,
            "concurrency": evaluation.concurrency,
        }
        if delta is not None and cer_delta is not None:
            low, high = delta.interval
            row |= {
                "delta": delta.delta,
                "relative": compared.relative(change),
                "interval": f"{100 * low:+.2f} … {100 * high:+.2f}",
                "p": delta.p_value,
                "cer_delta": cer_delta.delta,
                "changed": change.changed,
            }
        stability = evaluation.stability
        if stability is not None:
            final_s = percentile(stability.finals_s, 95)
            row["final_ms"] = None if final_s is None else 1000 * final_s
            row["unstable"] = stability.unstable_ratio
        rows.append(row)
    columns = [
        Column("system", "system"),
        Column("wer", "WER", digits=2, unit="%", scale=100),
        Column("delta", "Δ WER", digits=2, unit="points", scale=100),
        Column("relative", "Δ relative", digits=1, unit="%", scale=100),
        Column("interval", f"Δ WER, {100 * compared.baseline.evaluation.level:g} %", unit="points", align="right"),
        Column("p", "p", digits=3),
        Column("substitutions", "S"),
        Column("deletions", "D"),
        Column("insertions", "I"),
        Column("cer", "CER", digits=2, unit="%", scale=100),
        Column("cer_delta", "Δ CER", digits=2, unit="points", scale=100),
        Column("accuracy", "sentences", digits=1, unit="% right", scale=100),
        Column("changed", "other texts"),
        Column("failed", "failed"),
        Column("rtfx", "RTFx", digits=1),
        Column("concurrency", "concurrency", align="right"),
        Column("final_ms", "final p95", digits=0, unit="ms"),
        Column("unstable", "unstable", digits=3),
    ]
    baseline = compared.baseline
    first, words = baseline.evaluation, baseline.evaluation.score.words
    left_out = f" {compared.left_out} utterances that not all have are left out." if compared.left_out else ""
    note = (
        f"Δ: against {baseline.name}, on {len(first.rows)} utterances and {words.reference_length} words; p: how "
        "probable such a difference is by chance if both are equally good; other texts: utterances with another text "
        f"than the baseline's.{left_out}"
    )
    return Table("Against the baseline", columns, rows, note=note).without_empty()


def confusions(evaluation: Evaluation, n: int) -> list[Table]:
    """The most frequent substitutions, deletions and insertions; a kind that does not occur has no table."""
    found = evaluation.score.confusions(n)
    tables = []
    for title, kind in (
        ("Substitutions", found.substitutions),
        ("Deletions", found.deletions),
        ("Insertions", found.insertions),
    ):
        rows: list[dict[str, Cell]] = [_confusion(each) for each in kind]
        columns = [Column("reference", "reference"), Column("hypothesis", "recognised"), Column("times", "times")]
        if rows:
            tables.append(Table(title, columns, rows).without_empty())
    return tables


def by_length(evaluations: Sequence[Evaluation]) -> Table:
    """The word error rate of utterances by the length of their references, each system in a column."""
    classes = list(zip(LENGTHS, [*(each - 1 for each in LENGTHS[1:]), None], strict=True))
    rows: list[dict[str, Cell]] = []
    for first, last in classes:
        row: dict[str, Cell] = {"length": f"{first} and more" if last is None else f"{first}-{last}"}
        for number, evaluation in enumerate(evaluations):
            held = [
                each.score.words
                for each in evaluation.rows
                if first <= each.score.words.reference_length
                and (last is None or each.score.words.reference_length <= last)
            ]
            if not held:
                continue
            counts = pool(held)
            if number == 0:
                row |= {"utterances": len(held), "words": counts.reference_length}
            row[f"wer {number}"] = counts.rate
        if len(row) > 1:
            rows.append(row)
    columns = [Column("length", "words in the reference"), Column("utterances", "utterances"), Column("words", "words")]
    for number, evaluation in enumerate(evaluations):
        name = "WER" if len(evaluations) == 1 else evaluation.name
        columns.append(
            Column(f"wer {number}", name, digits=2, unit="%" if len(evaluations) == 1 else "WER %", scale=100)
        )
    return Table("By length", columns, rows)


def failures(evaluation: Evaluation, n: int) -> Table:
    """The first `n` utterances that failed, and why."""
    rows: list[dict[str, Cell]] = [{"id": row.id, "error": row.score.error} for row in evaluation.failures]
    more = f"and {len(rows) - n} more" if len(rows) > n else ""
    return Table(f"Failed: {evaluation.name}", [Column("id", "id"), Column("error", "error")], rows[:n], note=more)


def percent(rate: float) -> str:
    """A fraction for reading."""
    return "∞" if rate == float("inf") else f"{100 * rate:.2f} %"


def error_rate(counts: Counts) -> str:
    """An error rate for reading; "-" where there was nothing to get wrong."""
    return percent(counts.rate) if counts.reference_length or counts.errors else "-"


def interval(bounds: tuple[float, float], level: str) -> str:
    """A confidence interval of a rate for reading."""
    low, high = bounds
    # Resampling utterances without an error yields no errors either: it bounds nothing.
    if high == float("inf") or low == high:
        return f"{level} interval unknown"
    return f"{level} interval {100 * low:.2f} … {100 * high:.2f}"


def counted(counts: Counts, units: str) -> str:
    """What a rate is made of."""
    errors = "1 error" if counts.errors == 1 else f"{counts.errors} errors"
    kinds = f"{counts.substitutions} S, {counts.deletions} D, {counts.insertions} I"
    return f"{errors} in {counts.reference_length} {units}: {kinds}"


def _add_streaming(evaluation: Evaluation, add: Callable[[str, str, str], None]) -> None:
    stability = evaluation.stability
    if stability is None:
        return
    for name, values, meaning in (
        ("first partial p50", stability.first_partials_s, "from the start of the audio to the first words"),
        ("final text p50", stability.finals_s, "from the end of the audio to the final text"),
    ):
        median, slow = percentile(values, 50), percentile(values, 95)
        if median is not None and slow is not None:
            add(name, f"{1000 * median:.0f} ms", f"p95 {1000 * slow:.0f} ms, {meaning}")
    add(
        "unstable words",
        f"{stability.unstable_ratio:.3f}",
        f"words shown and taken back per final word; in {stability.unsteady_streams} of {stability.streams} streams",
    )
    add(
        "revisions",
        f"{stability.revision_ratio:.3f}",
        f"answers that took words back, per stream; {stability.grown_words} times a last word only grew",
    )
    add("edit overhead", percent(stability.edit_overhead), f"share of needless edits in {stability.partials} partials")
    if stability.stability_lag_s is not None:
        add(
            "stability lag",
            f"{1000 * stability.stability_lag_s:.0f} ms",
            "mean, from a word's appearance to its staying",
        )


def _confusion(found: Confusion) -> dict[str, Cell]:
    return {
        "reference": found.reference or None,
        "hypothesis": found.hypothesis or None,
        "times": found.times,
    }
