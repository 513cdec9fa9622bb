"""Whether a load test may pass: its own failures, and what became worse since another one.

Report                  ->  complaints
Comparison, a limit     ->  slowdowns
"""

from collections import Counter
from collections.abc import Sequence

from tritone.loadtest.findings.result import Measurement, Report
from tritone.loadtest.findings.series import operating_point, unit_of, varying
from tritone.loadtest.pages.compare import WER_RISE, Comparison, Pair

MOST_SENTENCES = 10  # sentences of one kind


def complaints(report: Report, max_wer: float | None = None) -> list[str]:
    """The reasons for which a load test failed, in sentences; none if it may pass.

    Args:
        report: of the run.
        max_wer: the word error rate that no measurement may exceed, as a fraction.
    """
    measured = report.measurements
    found = []
    failed = sum(each.failed for each in measured)
    if failed:
        requests = sum(each.requests for each in measured)
        errors: Counter[str] = sum((Counter(each.errors) for each in measured), Counter())
        message, count = errors.most_common(1)[0]
        found.append(f"{failed} of {requests} requests failed, {count} of them with: {message}")
    elif any(each.latency is None for each in measured):
        found.append("at some loads no request was answered")
    if report.complete and not measured:
        found.append("nothing was measured")
    return found + ([] if max_wer is None else _wrong_texts(measured, max_wer))


def _wrong_texts(measured: Sequence[Measurement], max_wer: float) -> list[str]:
    rates = [each.wer for each in measured if each.wer is not None]
    if measured and not rates:
        return ["no text could be compared with a reference, so the limit on the WER was not checked"]
    if wrong := [rate for rate in rates if rate > max_wer]:
        return [
            f"the texts are wrong: WER up to {100 * max(wrong):.2f} % in {len(wrong)} of {len(measured)} measurements, "
            f"at most {100 * max_wer:.2f} % is allowed"
        ]
    return []


def slowdowns(comparison: Comparison, max_slowdown: float) -> list[str]:
    """Everything that is worse in B than in A, in sentences; none if B may pass.

    Worse is less throughput or a higher p95 by more than `max_slowdown` (a share: 0.1 is 10 %), a larger share of
    failures, a word error rate that rose by more than a tenth of a point, or nothing to compare. Streams are sent as
    fast as they are spoken, so only their latency counts.

    Raises:
        ValueError: `max_slowdown` is not a share.
    """
    if not 0 <= max_slowdown < 1:
        raise ValueError(f"a slowdown is from 0 to below 100 %, got {100 * max_slowdown:g} %")
    if not comparison.pairs:
        return [text for text, _ in comparison.notices() if text.startswith("No operating point")] or ["no pairs"]
    names = varying([pair.a for pair in comparison.pairs])
    found = [
        f"{operating_point(pair.a, names)}: {', '.join(worse)}"
        for pair in comparison.pairs
        if (worse := _worse(pair, max_slowdown))
    ]
    if len(found) > MOST_SENTENCES:
        found = [
            *found[:MOST_SENTENCES],
            f"and {len(found) - MOST_SENTENCES} more of {len(comparison.pairs)} operating points",
        ]
    return found


def _worse(pair: Pair, most: float) -> list[str]:
    a, b = pair.a, pair.b
    found = []
    if a.loop != "streaming" and pair.throughput is not None and pair.throughput < 1 - most:
        rates = f"{a.throughput:.1f} to {b.throughput:.1f} {unit_of([a])}/s"
        found.append(f"throughput {_percent(pair.throughput)} ({rates})")
    p95 = pair.latency("p95")
    if p95 is not None and p95 > 1 + most and a.latency and b.latency:
        found.append(f"p95 {_percent(p95)} ({a.latency.p95_ms:.1f} to {b.latency.p95_ms:.1f} ms)")
    if a.latency is not None and b.latency is None:
        found.append("nothing was answered")
    if b.failed * max(1, a.requests) > a.failed * max(1, b.requests):
        found.append(f"{b.failed} of {b.requests} requests failed, before {a.failed} of {a.requests}")
    if pair.wer_difference is not None and pair.wer_difference > WER_RISE:
        found.append(f"WER {100 * (a.wer or 0):.2f} to {100 * (b.wer or 0):.2f} %")
    return found


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
