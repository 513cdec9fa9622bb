"""Text that changes while it is recognised  ->  text that is only ever added to.

OpenAI's deltas are appended by whoever reads them, and nothing takes them back. A partial transcript may change at its
end, so words are sent when the model says that they are settled, or else when two partials in a row agree on them.

Source: the agreement of two is LocalAgreement-2 of Liu et al., "Low-Latency Sequence-to-Sequence Speech Recognition and
Translation by Partial Hypothesis Selection", Interspeech 2020.
"""

import re

from tritone.transcript import IDEOGRAPH

# A word after its space, or one sign of a script without spaces.
_last_word = re.compile(rf"{IDEOGRAPH}|[^\s{IDEOGRAPH[1:-1]}]+\s*|\s+")  # read from the end, which takes one look


class Deltas:
    """The deltas of one item.

    Args:
        early: whether words are sent before the final text; without, all of it is one delta, which is the transcript.
    """

    def __init__(self, *, early: bool = True) -> None:
        self.sent = ""
        self._early = early
        self._last = ""

    def partial(self, text: str, settled: int | None = None) -> str:
        """Take the item's text so far and return what can be added to what was sent; often nothing.

        Args:
            settled: characters of the text that do not change any more; None: nobody knows.
        """
        if settled is not None:
            agreed = text[:settled]
        else:
            agreed = _common_start(self._last, text)
            if last := _last_word.match(agreed[::-1]):  # it may still grow
                agreed = agreed[: -last.end()]
        self._last = text
        if not self._early or not agreed.startswith(self.sent):
            return ""
        return self._add(agreed)

    def final(self, text: str) -> str:
        """Take the final text and return the rest of it; nothing where it contradicts what was sent."""
        return self._add(text) if text.startswith(self.sent) else ""

    def _add(self, text: str) -> str:
        delta = text[len(self.sent) :]
        self.sent = text
        return delta


def _common_start(one: str, other: str) -> str:
    low, high = 0, min(len(one), len(other))
    while low < high:  # long texts are compared as a whole
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return one[:low]
