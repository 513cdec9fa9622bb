"""Metrics in the text format of Prometheus, written and read by prometheus-client.

text([family("gauge", "tritone_ready", "Whether it is ready.", 1)])   ->  a page
samples(page.splitlines())                                            ->  names, labels, values
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Literal

from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

Labelled = Iterable[tuple[Mapping[str, str], float]]


def family(kind: Literal["counter", "gauge"], name: str, about: str, values: float | Labelled) -> Metric:
    """A metric with one value, or one for each set of labels."""
    found = Metric(name.removesuffix("_total"), about, kind)
    for labels, value in [({}, values)] if isinstance(values, (int, float)) else values:
        found.add_sample(name, dict(labels), float(value))
    return found


def text(metrics: Iterable[Metric]) -> str:
    """The page of these metrics."""
    return generate_latest(SimpleNamespace(collect=lambda: metrics)).decode()


def samples(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    """The samples of a page: metric, labels, value; lines that are none are left out.

    Each line is read by itself: after `# TYPE` the parser would write `_total` behind the names of Triton's counters.
    """
    for line in lines:
        if not line.startswith("#"):
            with suppress(ValueError):
                for each in text_string_to_metric_families(line):
                    yield from ((sample.name, sample.labels, sample.value) for sample in each.samples)


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """The value below which a share of what a histogram counted is; None if it counted nothing.

    Args:
        counts: what is at most so large, by upper bounds, infinity among them.
        share: 0 to 1.

    Source: Prometheus, `histogram_quantile`: linear within a bucket, the largest bound for what is beyond it.
    """
    total = counts.get(math.inf, 0.0)
    if total <= 0:
        return None
    lower, before = 0.0, 0.0
    for upper, count in sorted(counts.items()):
        if count >= share * total:
            if math.isinf(upper):
                return lower
            return lower + (upper - lower) * (share * total - before) / max(count - before, 1e-9)
        lower, before = upper, count
    return lower
