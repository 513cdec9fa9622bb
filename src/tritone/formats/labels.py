"""Labels of Audacity: a line `start<TAB>end<TAB>text` for each, times in seconds.

Source: Audacity's manual, "Importing and Exporting Labels".
"""

from collections.abc import Iterable

from tritone.formats.phrases import printable


def write_labels(labels: Iterable[tuple[float, float, str]]) -> str:
    """Write labels: start and end in seconds, and their texts."""
    return "".join(f"{start_s:.6f}\t{max(start_s, end_s):.6f}\t{printable(text)}\n" for start_s, end_s, text in labels)
