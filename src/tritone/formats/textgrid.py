"""TextGrid, Praat's format of labels: tiers of intervals that cover the recording without a gap.

Source: Praat's manual, "TextGrid file formats" (the full text format).
"""

from collections.abc import Iterable, Sequence

from tritone.formats.phrases import printable

Label = tuple[float, float, str]  # start and end in seconds, text


def write_textgrid(tiers: Sequence[tuple[str, Iterable[Label]]], duration_s: float) -> str:
    """Write tiers: each has a name and labels in the order of their starts. Between labels are empty intervals.

    Times are in milliseconds. A label of no length gets one, and one that begins within the label before begins at its
    end: intervals of a tier cannot overlap.
    """
    filled = [(name, _disjoint(labels)) for name, labels in tiers]
    end_ms = max([1, round(1000 * duration_s), *(label[1] for _, labels in filled for label in labels[-1:])])
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        "xmin = 0",
        f"xmax = {end_ms / 1000:.3f}",
        "tiers? <exists>",
        f"size = {len(filled)}",
        "item []:",
    ]
    for number, (name, labels) in enumerate(filled, start=1):
        intervals = _covering(labels, end_ms)
        lines += [
            f"    item [{number}]:",
            '        class = "IntervalTier"',
            f"        name = {_quoted(name)}",
            "        xmin = 0",
            f"        xmax = {end_ms / 1000:.3f}",
            f"        intervals: size = {len(intervals)}",
        ]
        for index, (start, end, text) in enumerate(intervals, start=1):
            lines += [
                f"        intervals [{index}]:",
                f"            xmin = {start / 1000:.3f}",
                f"            xmax = {end / 1000:.3f}",
                f"            text = {_quoted(text)}",
            ]
    return "\n".join(lines) + "\n"


def _disjoint(labels: Iterable[Label]) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    free = 0
    for start_s, end_s, text in labels:
        start = max(free, round(1000 * start_s))
        free = max(start + 1, round(1000 * end_s))
        found.append((start, free, text))
    return found


def _covering(labels: Sequence[tuple[int, int, str]], end_ms: int) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    free = 0
    for label in (*labels, (end_ms, end_ms, "")):
        if label[0] > free:
            found.append((free, label[0], ""))
        if label[1] > label[0]:
            found.append(label)
        free = label[1]
    return found


def _quoted(text: str) -> str:
    return '"' + printable(text).replace('"', '""') + '"'
