"""Addresses of the internet as people say them: written whole, or not at all, for a part is somebody else's address.

    john dot smith at example dot com      ->  john.smith@example.com
    w w w dot example dot org slash news   ->  www.example.org/news

Where one begins and ends has to show in another way: a word before it introduces it ("to", "visit"), or the text begins
there. `to my shop dot com` stays words, and `we are hiring at example dot com`, where "at" is no sign.
"""

import re
from collections.abc import Callable, Sequence

from tritone.texts.written import row

SIGNS = dict(zip(row("dot at underscore hyphen dash plus slash colon"), ".@_--+/:", strict=True))
TOP_DOMAINS = frozenset(row("com org net edu gov io de uk info eu fr nl ch ca au ai dev app tv"))
WEB = frozenset(row("w www h http https"))  # first words of an address before which "at" is no sign
NAME = "[a-z][a-z0-9]*"
ADDRESS = re.compile(
    rf"(?:(?P<local>{NAME}(?:[._+-][a-z0-9]+)*)@|https?://)?(?=[a-z][a-z0-9])(?:{NAME}(?:-[a-z0-9]+)*\.)+"
    rf"(?:{'|'.join(TOP_DOMAINS)})(?P<path>/[a-z0-9]+(?:[-_./][a-z0-9]+)*)?"
)
BEFORE = frozenset(row("to is at on from via by cc visit open see email mail address contact website site page url"))
MAIL = frozenset(row("email mail address contact write send"))
NO_NAMES = frozenset(
    row("""the an this that my our your his her their its it we he she they you me us him them is are was were be of
    to up down in out on off over here there now online available more and or for by look shop apply register order buy
    meet subscribe work live read join start search book find visit vote stay""")
)
"""Words that begin no address, or have an "at" after them that is no sign."""
LONGEST = 64  # words
Number = Callable[[Sequence[str], int], tuple[str | int, int]]  # ("", 0): no digits there


def address(words: Sequence[str], at: int, number: Number) -> tuple[str, int] | None:
    """The address that begins at a word, and how many words it has; `number` reads digits in the same way.

    An empty text is one of words that are signs and names, but no address that is sure. None: they are neither.
    """
    if words[at] in NO_NAMES:
        return None
    text, end = "", at
    while end - at < LONGEST and (label := _label(words, end, number))[1]:
        text, end = text + label[0], end + label[1]
        first = end
        while end < len(words) and words[end] in SIGNS and not _is_place(words, end):
            end += 1
        if end == first:
            break
        text += "".join(SIGNS[word] for word in words[first:end])
    if "." not in text:
        return None
    is_sure = (found := ADDRESS.fullmatch(text)) and _is_sure(words, at, end, found)
    return text if is_sure else "", end - at


def _label(words: Sequence[str], at: int, number: Number) -> tuple[str, int]:
    """What is said without a sign: a word or letters, with digits; blank before a digit that may be a word."""
    text, end = "", at
    while end < min(len(words), at + LONGEST) and not (text in TOP_DOMAINS and words[at - 1] == "dot"):
        digits, taken = number(words, end)
        if taken:
            text += f"{digits}" if len(f"{digits}") > 1 or (end > at and len(words[end - 1]) == 1) else f" {digits}"
        elif words[end] not in SIGNS and (end == at or len(words[at]) == len(words[end]) == 1):
            text, taken = text + words[end], 1
        else:
            break
        end += taken
    return text, end - at


def _is_place(words: Sequence[str], at: int) -> bool:
    """Whether an "at" is the word and no sign: before `www`, and after a domain unless another one follows."""
    is_after = words[at - 1] in TOP_DOMAINS and words[at - 2] == "dot" and words[at + 2 : at + 3] != ["dot"]
    return words[at] == "at" and (is_after or (at + 1 < len(words) and words[at + 1] in WEB))


def _is_sure(words: Sequence[str], at: int, end: int, found: re.Match[str]) -> bool:
    """Whether an address begins and ends where it was found."""
    before = words[at - 1] if at else ""
    if before and before not in BEFORE:
        return False
    if end < len(words) and (found["path"] and words[end] not in ("please", "thanks", "thank")):
        return False
    if not found["local"]:
        return before != "at" or words[at] in WEB or at == 1 or words[at - 2] in NO_NAMES
    if not found["local"].isalnum() or (len(words[at]) == 1 and words[at + 1] != "at"):
        return True
    if len(words[at]) == 1 or words[at].endswith(("ed", "ing")):  # we are hiring at example dot com
        return False
    is_asked = before in MAIL or (before in ("is", "to", "at") and not MAIL.isdisjoint(words[max(0, at - 6) : at - 1]))
    return is_asked if before else end == len(words)
