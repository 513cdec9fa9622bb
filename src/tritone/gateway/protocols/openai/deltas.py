"""Text that changes while it is recognised  ->  text that is only ever added to.

OpenAI's deltas are appended by whoever reads them, and nothing takes them back. A partial transcript may change at its
end, so words are sent when the model says that they are settled, or else when two partials in a row agree on them.

Source: the agreement of two is LocalAgreement-2 of Liu et al., "Low-Latency Sequence-to-Sequence Speech Recognition and
Translation by Partial Hypothesis Selection", Interspeech 2020.
"""

import re

from tritone.transcript import IDEOGRAPH

# A word after its space, or one sign of a script without spaces.
_last_word = re.compile(rf"(?:{IDEOGRAPH}|\s*[^\s{IDEOGRAPH[1:-1]}]+|\s+)$")


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
        agreed = _last_word.sub("", _common_start(self._last, text))  # the last word may still grow
        if settled is not None:
            agreed = text[:settled]
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
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]
