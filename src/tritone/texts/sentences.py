"""Text from strangers, as sentences and clauses that a voice can speak.

    "Dr. Smith left. Did he?\n"  ->  ["Dr. Smith left.", "Did he?"]
    "Well, did he?"              ->  [("Well", ","), ("did he", "?")]

A sentence is what is spoken at once: speech of a text begins when its first one is done. It is cut by rule, at marks
that end one in most scripts; where a cut is missed, speech begins later, and nothing else changes.
"""

import re
import unicodedata
from collections.abc import Iterator

from tritone.errors import InputError

MAX_SENTENCE = 300  # characters; about 20 s of speech, for which a network of Piper takes some hundred megabytes
MAX_REST = 4096  # characters without a word
PAUSE_S = 0.2  # of silence between sentences, beside that which a voice makes
MAX_CLAUSE = 200  # characters, at most 800 bytes: espeak-ng reads lines of less than 1000
ABBREVIATIONS = frozenset(
    {"dr", "mr", "mrs", "ms", "prof", "st", "vs", "etc", "cf", "nr", "fig", "vol", "inc", "ltd", "jr", "sr", "gen"}
    | {"col", "capt", "lt", "rev", "hon", "approx", "dept", "bzw", "ca", "usw", "bspw", "hr", "evtl", "ggf", "mme"}
    | {"mlle", "sra", "srta"}
)
"""Words before a full stop that seldom end a sentence, in English and some neighbours, in lower case."""
FULL_STOPS = ".!?…"
WIDE_STOPS = "。！？؟।॥｡"  # end a sentence whether or not a space follows
CLOSING = "\"'”’»)]}›"
ENDS = re.compile(
    rf"(?P<mark>[{re.escape(FULL_STOPS)}]+)[{re.escape(CLOSING)}]*(?=\s|$)|[{WIDE_STOPS}]+[{re.escape(CLOSING)}]*"
)
PARAGRAPHS = re.compile(r"\n\s*\n|[\u2028\u2029]|(?<=[^\s,;:-])\n(?=\s*[-•*\d])")
PAUSES = re.compile(
    rf"(?P<mark>[,;:]|[{re.escape(FULL_STOPS)}]+|--+|(?<=\s)[-–])[{re.escape(CLOSING)}]*(?=\s|$)"
    rf"|[，、；：،؛—{WIDE_STOPS}]+[{re.escape(CLOSING)}]*"
)
PLAIN = str.maketrans({"…": ".", "。": ".", "｡": ".", "।": ".", "॥": ".", "！": "!", "？": "?", "؟": "?"})
PLAIN |= str.maketrans({"，": ",", "、": ",", "،": ",", "；": ";", "؛": ";", "：": ":", "—": ",", "–": ",", "-": ","})


def cleaned(text: str) -> str:
    """Text without what nobody can read aloud: control characters, halves of surrogate pairs, private characters."""
    kept = (
        each if each == "\n" or unicodedata.category(each) not in ("Cc", "Cs", "Co", "Cn") else " "
        for each in unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    )
    return "".join(kept)


def sentences(text: str, most: int = MAX_SENTENCE) -> Iterator[str]:
    """The sentences of cleaned text that have something to speak, each of at most `most` characters."""
    for paragraph in PARAGRAPHS.split(text):
        plain = " ".join(paragraph.split())
        begin = 0
        for found in ENDS.finditer(plain):
            if _ends(plain, begin, found):
                yield from pieces(plain[begin : found.end()], most)
                begin = found.end()
        yield from pieces(plain[begin:], most)


class ComingText:
    """A text that comes in parts, which are cut anywhere."""

    def __init__(self) -> None:
        self._rest = ""

    def add(self, part: str) -> list[str]:
        """The sentences that are complete with this part; the last one may go on.

        Raises:
            InputError: a sentence has no end.
        """
        self._rest = cleaned(self._rest + part)
        found = list(sentences(self._rest))
        if len(found) > 1:
            self._rest = found.pop() + self._rest[len(self._rest.rstrip()) :]
            return found
        if len(self._rest) > MAX_REST:
            raise InputError(f"{len(self._rest):,} characters came, in which nothing can be spoken")
        return []

    def end(self) -> list[str]:
        """The rest."""
        rest, self._rest = self._rest, ""
        return list(sentences(rest))


def clauses(sentence: str) -> Iterator[tuple[str, str]]:
    """The clauses of a sentence, and the mark behind each that a voice expresses: one of . ! ? , ; : or nothing."""
    begin = 0
    for found in PAUSES.finditer(sentence):
        mark = found[0].translate(PLAIN).strip(CLOSING)
        if mark.startswith(".") and not _ends(sentence, begin, found):
            continue
        # What is left of several marks is the one that is clearest in speech.
        yield from _spoken(sentence[begin : found.start()], next((each for each in "?!.;:," if each in mark), "."))
        begin = found.end()
    yield from _spoken(sentence[begin:], "")


def _spoken(clause: str, mark: str) -> Iterator[tuple[str, str]]:
    parts = list(pieces(clause, MAX_CLAUSE))
    for index, part in enumerate(parts, 1):
        yield part, mark if index == len(parts) else ""


def _ends(text: str, begin: int, found: "re.Match[str]") -> bool:
    """Whether a mark ends a sentence; a full stop may belong to a word or a number."""
    if found["mark"] != ".":
        return True
    word = text[begin : found.start()].rpartition(" ")[2].lstrip("\"'“‘«([{").lower()
    rest = text[found.end() :].lstrip()
    if rest and rest[0].islower():
        return False
    # "J. R. R. Tolkien", "U.S. Army", "am 3. Mai"
    return not (word in ABBREVIATIONS or re.fullmatch(r"([^\W\d_]\.)*[^\W\d_]|\d{1,2}", word)) or not rest


def pieces(text: str, most: int) -> Iterator[str]:
    """Text in pieces of at most `most` characters, cut at a pause if there is one, else between words or anywhere."""
    text = text.strip()
    while len(text) > most:
        head = text[: most + 1]
        pauses = [found.end() for found in PAUSES.finditer(head) if most // 3 < found.end() <= most]
        cut = pauses[-1] if pauses else head.rfind(" ")
        cut = cut if cut > 0 else most
        yield from pieces(text[:cut], most)
        text = text[cut:].lstrip()
    if any(unicodedata.category(each)[0] in "LN" or unicodedata.category(each) in ("Sc", "Sm", "So") for each in text):
        yield text
