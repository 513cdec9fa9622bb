"""Text from strangers, as sentences and clauses that a voice can speak.

    "Dr. Smith left. Did he?\n"  ->  ["Dr. Smith left.", "Did he?"]
    "Well, did he?"              ->  [("Well", ","), ("did he", "?")]

A sentence is what is spoken at once: speech of a text begins when its first one is done, and pauses after each. It is
cut by rule, at marks that end one in most scripts and at the ends of lines that are not wrapped.
"""

import re
import unicodedata
from collections.abc import Iterator

from tritone.errors import InputError
from tritone.texts.written import row

MAX_SENTENCE = 300  # characters; about 20 s of speech, for which a network of Piper takes some hundred megabytes
MAX_REST = 4096  # characters without a word
PAUSE_S = 0.2  # of silence between sentences, beside that which a voice makes
AROUND = 40  # characters beside a mark that tell whether it ends a sentence
MAX_CLAUSE = 200  # characters, at most 800 bytes: espeak-ng reads lines of less than 1000
FOLLOWED = frozenset(  # abbreviations with something after them, in English and some neighbours
    row("""dr mr mrs ms prof vs cf nr fig vol gen col capt lt rev hon approx bzw ca bspw hr evtl ggf mme mlle sra srta
    e.g i.e z.b d.h u.a""")
)
ABBREVIATIONS = FOLLOWED | set(row("st etc inc ltd jr sr dept usw co corp"))
LAST = frozenset(row("etc usw a.m p.m"))  # end a sentence before a capital letter
NUMBERED = frozenset(row("no nos p pp art sec ch jan feb apr jun jul aug sep sept oct nov dec"))  # before a number
STARTERS = frozenset(  # words that are no names: an abbreviation or an initial before them ends a sentence
    row("""I He She It We You They The This That These Those There Here But And So Then If When What Who How Why Where
    Can Please Next My His Her Our Their Your Yes Now Not In On At As For After Before Is Are Was Er Sie Es Wir Ich Das
    Der Die Ein Eine Und Aber Dann Wenn Bitte""")
)
ORDINAL = re.compile(  # of German, with 0 for the number: am 0. Mai
    r"\b(?:(?<!\bI )[Aa]m|vom|zum|[Ii]m|[Dd]e[rnms]|[Dd]a?s|[Dd]ie|beim|seit|bis|ab|[Ee]ine?[nmrs]?) 0\. "
    r"|0\. (?:(?:Januar|Jänner|Februar|März|Mai|Juni|Juli|Oktober|Dezember)\b|\d{1,2}\.|\d{4}\b)"
)
FULL_STOPS = ".!?…‼⁇⁈⁉‽"
WIDE_STOPS = "。！？؟।॥｡։።፧۔။។៕"  # end a sentence whether or not a space follows
CLOSING = "\"'”’“‘»«›‹)]}」』】）》〉*_`"
OPENING = "\"'“‘„‚«»‹›([{「『（*_`"
EMOJI = "\u2600-\u2763\u2765-\u27bf\U0001f000-\U0001f492\U0001f4a0-\U0001faff"  # hearts are verbs, too
CLOSED = rf"(?:[{re.escape(CLOSING)}{EMOJI}\ufe0f\u200d]|\[\d+\])*+"
STOPS = rf"(?<![{re.escape(FULL_STOPS)}])[{re.escape(FULL_STOPS)}]++"
ENDS = re.compile(
    rf"(?P<mark>{STOPS}){CLOSED}(?=\s|$)|[{WIDE_STOPS}]++{CLOSED}|(?<![{EMOJI}])[{EMOJI}][{EMOJI}\ufe0f\u200d]*+(?=\s)"
)
LINES = re.compile(r"[^\n\u2028\u2029]*[\n\u2028\u2029]|[^\n\u2028\u2029]+$")
ITEM = re.compile(r"[-•*–—·▪◦●+#>☐✓]|\d|\w{1,3}\)")  # at the beginning of a line of a list
OPEN_ENDS = tuple(",;:-–—(")  # of lines that go on; a voice pauses at most of them
OPEN_WORDS = frozenset(row("a an and at by for from in of on or the to with"))
PAUSES = re.compile(rf"(?P<mark>[,;:]|{STOPS}|--++|(?<=\s)[-–]){CLOSED}(?=\s|$)|[，、；：،؛—{WIDE_STOPS}]++{CLOSED}")
PLAIN = str.maketrans(dict.fromkeys("…。｡।॥։።۔။។៕", ".") | dict.fromkeys("！‼", "!") | dict.fromkeys("？؟፧⁇⁈⁉‽", "?"))
PLAIN |= str.maketrans(dict.fromkeys("，、،—–-", ",") | {"；": ";", "؛": ";", "：": ":"})


def cleaned(text: str) -> str:
    """Text without what nobody can read aloud: control characters, halves of surrogate pairs, private characters."""
    kept = (
        each if each == "\n" or unicodedata.category(each) not in ("Cc", "Cs", "Co", "Cn") else " "
        for each in unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    )
    return "".join(kept)


def sentences(text: str, most: int = MAX_SENTENCE) -> Iterator[str]:
    """The sentences of cleaned text that have something to speak, each of at most `most` characters."""
    for part in _parts(text):
        yield from pieces(" ".join(part.split()), most)


def _parts(text: str, *, goes_on: bool = False) -> Iterator[str]:
    """The sentences of a text as they are written, which together are the text; `goes_on`: its last line may."""
    for block in _blocks(text, goes_on=goes_on):
        begin = 0
        for found in ENDS.finditer(block):
            if _ends(block, begin, found):
                yield block[begin : found.end()]
                begin = found.end()
        yield block[begin:]


def _blocks(text: str, *, goes_on: bool) -> Iterator[str]:
    """Lines, those together that are one wrapped text: a sentence goes on in the next of them."""
    blocks: list[list[str]] = []  # from the last line to the first
    has_end = goes_on
    for line in reversed(LINES.findall(text)):
        if blocks and not _is_apart(line.rstrip(), blocks[-1][-1].strip(), has_end):
            blocks[-1].append(line)
        else:
            has_end = goes_on and not blocks
            blocks.append([line])
        has_end = has_end or bool(ENDS.search(line))
    return ("".join(reversed(each)) for each in reversed(blocks))


def _is_apart(line: str, after: str, has_end: bool) -> bool:
    """Whether a line ends a sentence; `has_end`: there is a mark in the lines after it, so that they are no list."""
    if not line or not after or (not line.endswith(OPEN_ENDS) and ITEM.match(after)):
        return True
    if line.endswith(OPEN_ENDS):
        return False
    is_small = after.lstrip(OPENING)[:1].islower()
    if (mark := [*ENDS.finditer(line)][-1:]) and mark[0].end() == len(line):
        joined = f"{line} {after}"
        return _ends(joined.lower() if is_small else joined, 0, mark[0])
    return not has_end if is_small else line.split()[-1].lower() not in OPEN_WORDS


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
        parts = list(_parts(self._rest, goes_on=True))
        found = [list(pieces(" ".join(each.split()), MAX_SENTENCE)) for each in parts]
        last = max((index for index, each in enumerate(found) if each), default=0)
        if sum(map(len, found)) > 1:
            # What is left of a sentence that was cut, else the sentence as it came, with its lines.
            left = parts[last] if len(found[last]) == 1 else found[last][-1] + parts[last][len(parts[last].rstrip()) :]
            self._rest = left + "".join(parts[last + 1 :])
            return [each for some in found for each in some][:-1]
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
    head = text[max(begin, found.start() - AROUND) : found.start()]
    rest = text[found.end() : found.end() + AROUND].lstrip()
    if found["mark"] is None and found[0][0] not in WIDE_STOPS:  # an emoji
        return rest[:1].isupper() and any(map(str.isalnum, head))
    if found["mark"] != "." or not rest:
        return True
    opening = text[:AROUND] + text[begin : begin + AROUND]
    if rest[0].islower() and opening != opening.lower():  # in a text with capitals it goes on
        return False
    before, _, word = " ".join(head.split()).rpartition(" ")
    word = word.lstrip(OPENING).lower()
    if word.isdecimal() and len(word) < 4:  # "1. First", "am 3. Mai"
        if not before:
            return begin > 0 and word != "1" and f"{int(word) - 1}. " not in text[:begin]
        return not (before.endswith(":") and word == "1") and not ORDINAL.search(f"{before} 0. {rest}")
    if word in NUMBERED and rest[0].isdecimal():
        return False
    # "J. R. R. Tolkien", "U.S. Army"
    if word not in ABBREVIATIONS and not re.fullmatch(r"([^\W\d_]\.)*[^\W\d_]", word):
        return True
    first = re.match(r"\w+(?=['’\s])|", rest.lstrip(OPENING))
    starts = word not in FOLLOWED and first is not None and first[0] in STARTERS
    return starts or (word in LAST and not rest[0].islower())


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
