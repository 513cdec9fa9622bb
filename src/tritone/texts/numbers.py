"""Numbers, dates, times, amounts and spelled words of spoken English in written form: a small grammar.

    written_numbers(row("it is five thirty p m on march twentieth"))
    ->  it | is | 5:30 p.m. | on | March | 20

Rules are tried from the first word on, the most particular first; each says how many words it takes. What none of them
takes stays as it is, and so does every number beside a word that belongs to a number and that no rule took: "half a
million", "twenty point five five", "twenty-one hundred". A lone number below ten stays a word, as editors ask for,
unless a letter or a number stands beside it ("enter q six"), or a unit follows.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

from tritone.texts.addresses import address
from tritone.texts.written import Written, row

Words = Sequence[str]
Found = tuple[str, int]  # the written form, and how many words it stands for


def _values(words: str, first: int, step: int = 1) -> dict[str, int]:
    return {word: first + step * place for place, word in enumerate(row(words))}


DIGITS = _values("zero one two three four five six seven eight nine", 0) | {"oh": 0}
TEENS = _values("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen", 10)
TENS = _values("twenty thirty forty fifty sixty seventy eighty ninety", 20, 10)
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
ORDINALS = _values(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth",
    1,
)
TENTHS = {tens[:-1] + "ieth": value for tens, value in TENS.items()} | {"hundredth": 100, "thousandth": 1000}
MONTHS = row("january february march april may june july august september october november december")
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
CURRENCIES = {"dollar": ("$", "cent"), "euro": ("€", "cent"), "pound": ("£", "penny")}
COINS = {"cent": "cent", "cents": "cent", "penny": "penny", "pence": "penny"}
UNSURE = frozenset(row("pound pounds quid buck bucks"))  # of weight, or of money whose small change may follow
TWICE = {"double": 2, "triple": 3, "treble": 3}
DECADES = {f"{tens[:-1]}ies": f"{value}s" for tens, value in TENS.items()} | {"tens": "10s", "hundreds": "00s"}
SINGLE = {word: str(value) for word, value in DIGITS.items()}
SPELLED = {letter: letter for letter in LETTERS}
GROUPED_FROM = 10_000  # 6881, but 68,810
CARDINALS = {value: word for table in (DIGITS, TEENS, TENS) for word, value in table.items() if value}
LONGEST, ROW = 16, 200  # words of a number, and of signs that are said one by one
NUMBER = re.compile(r"-?\d[\d,.-]*(?: (?:million|billion|trillion))?")
POSITION = re.compile(r"\d[\d,]*(?:st|nd|rd|th)")
AMOUNT = re.compile(r"[$€£]\d.*")
PARTS = frozenset(
    {*DIGITS, *TEENS, *TENS, *SCALES, *ORDINALS, *TENTHS, *TWICE}
    | set(row("hundred half halve quarter o clock past slash dot quadruple millionth billionth trillionth"))
) - {"second"}
"""Words that belong to the numbers beside them, in the singular."""
LINKS = frozenset(row("and a an of to till or"))  # between parts of a number
# Words before which an ordinal below ten may be theirs: twenty first graders.
COUNTED = re.compile("(?:class|time|grade|year|hand|degree|people|children|men|women|.{3,}[^su]s)")
STRETCH = re.compile("[NP](?:L*[NPO])*")  # of kinds of words, see `_kind`
PHONE = {10: (3, 6)}  # where dashes stand in a number of so many digits, as North America writes it


def written_numbers(words: Words) -> list[Written]:
    """Write the numbers in some spoken words, in lower case."""
    made: list[Written] = []
    at = 0
    plain = list(_plainly(words))
    while at < len(words):
        text, taken = next(filter(None, (rule(plain, at) for rule in RULES)), (words[at], 1))
        made += [Written(text, at, at + taken)] if text else _alone(words, at, at + taken)
        at += taken
    return list(_lone_as_words(list(_half_understood(made, words)), words))


def _plainly(words: Words) -> Iterator[str]:
    """Words with "oh" for the digit where recognisers write the letter, and o'clock in one word."""
    before = ""
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        is_digit = _starts_number(before) or before in TWICE
        before = "oh" if word == "o" and is_digit and (after in DIGITS or after in (*TWICE, "o")) else word
        yield "o'clock" if word in ("oclock", "o\u2019clock") else before


def _word(words: Words, at: int) -> str:
    return words[at] if at < len(words) else ""


def _alone(words: Words, first: int, end: int) -> list[Written]:
    return [Written(words[at], at, at + 1) for at in range(first, end)]


def _date(words: Words, at: int) -> Found | None:
    """March twentieth [nineteen seventy], or [the] twentieth of March [nineteen seventy]."""
    day = _ordinal(words, at + (words[at] == "the")) or (0, 0)
    end = at + (words[at] == "the") + day[1]
    if 1 <= day[0] <= 31 and _word(words, end) == "of" and _word(words, end + 1) in MONTHS:
        year = _year(words, end + 2) or ("", 0)
        return f"{day[0]} {words[end + 1].capitalize()} {year[0]}".strip(), end + 2 + year[1] - at
    if words[at] not in MONTHS:
        return None
    month, ordinal = words[at].capitalize(), _ordinal(words, at + 1)
    day = ordinal or _below_hundred(words, at + 1) or (0, 0)
    later = _year(words, at + 1 + day[1])
    if 1 <= day[0] <= 31 and later:
        return f"{month} {day[0]}, {later[0]}", 1 + day[1] + later[1]
    if 1 <= day[0] <= 31 and ordinal:  # "may five" and "march ten" are more often no dates
        return f"{month} {day[0]}", 1 + day[1]
    return (f"{month} {later[0]}", 1 + later[1]) if (later := _year(words, at + 1)) else None


def _time(words: Words, at: int) -> Found | None:
    """Five [thirty] p m, five o'clock, half past five, a quarter to six."""
    if relative := _relative_time(words, at):
        return relative
    if not (hour := _below_hundred(words, at)) or not 1 <= hour[0] <= 12:
        return None
    end = at + hour[1]
    text = str(hour[0])
    if (clock := " ".join(words[end : end + 2])) in ("o clock", "o' clock") or _word(words, end) == "o'clock":
        text, end = f"{text} o'clock", end + 1 + (clock[1:] in (" clock", "' clock"))
    elif (minute := _minutes(words, end)) is not None:
        text, end = f"{text}:{minute[0]:02}", end + minute[1]
    if half := _half_of_day(words, end):
        return f"{text} {half[0]}", end + half[1] - at
    return (text, end - at) if text.endswith("clock") else None


def _relative_time(words: Words, at: int) -> Found | None:
    start = at + (words[at] == "a" and _word(words, at + 1) == "quarter")
    minutes = {"half past": 30, "quarter past": 15, "quarter to": -15}.get(" ".join(words[start : start + 2]))
    hour = _below_hundred(words, start + 2)
    if minutes is None or not hour or not 1 <= hour[0] <= 12:
        return None
    time = (60 * hour[0] + minutes - 60) % 720 + 60
    return f"{time // 60}:{time % 60}", start + 2 + hour[1] - at


def _minutes(words: Words, at: int) -> tuple[int, int] | None:
    if words[at : at + 1] == ["oh"] and (digit := DIGITS.get(_word(words, at + 1))):
        return digit, 2
    found = _below_hundred(words, at)
    return found if found and 10 <= found[0] < 60 else None


def _half_of_day(words: Words, at: int) -> Found | None:
    found = re.match(r"([ap])( m|m|\.m\.)(?!\S)", " ".join(words[at : at + 2]))
    return (f"{found[1]}.m.", 2 if found[2] == " m" else 1) if found else None


def _amount(words: Words, at: int) -> Found | None:
    """Five dollars [and twenty cents], fifty cents, two million euros, twenty percent."""
    if not (number := _decimal(words, at)):
        return None
    end = at + number[1]
    unit = _word(words, end)
    singular = unit.removesuffix("s")
    if unit == "percent" or list(words[end : end + 2]) == ["per", "cent"]:
        return f"{number[0]}%", number[1] + (1 if unit == "percent" else 2)
    whole = "." not in number[0] and " " not in number[0]
    if unit == "pence" and whole:  # a penny and a cent may be of several currencies
        value = int(number[0].replace(",", ""))
        return (f"£0.{value:02}", number[1] + 1) if value < 100 else None
    if singular not in CURRENCIES or not unit:
        return None
    sign, coin = CURRENCIES[singular]
    text, end = f"{sign}{number[0]}", end + 1
    start = end + (words[end : end + 1] == ["and"])
    if whole and (small := _below_hundred(words, start)):
        after = start + small[1]
        if after < len(words) and COINS.get(words[after]) == coin:
            return f"{text}.{small[0]:02}", after + 1 - at
    return None if unit in UNSURE else (text, end - at)


def _address(words: Words, at: int) -> Found | None:
    """Anna at example dot com; example dot org. Without a text: words that no other rule may take."""
    return address(words, at, lambda words, at: _one_by_one(words, at, SINGLE) or _below_hundred(words, at) or ("", 0))


def _position(words: Words, at: int) -> Found | None:
    """Twenty first, three hundred and thirty third, hundredth; ordinals below the tenth stay words."""
    if not (found := _large_ordinal(words, at) or _ordinal(words, at)) or found[0] < 10:
        return None
    value, taken = found
    last, after = words[at + taken - 1], _word(words, at + taken)
    # A twenty second delay, twenty first graders, twenty first class seats; a tenth of it, six and a tenth.
    if last == "second" or (last in ORDINALS and ORDINALS[last] < 10 and COUNTED.fullmatch(after)):
        return None
    if at and words[at - 1] in ("a", "an") and (after == "of" or "and" in words[max(0, at - 2) : at - 1]):
        return None
    ending = "th" if value % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{_grouped(value)}{ending}", taken


def _decade(words: Words, at: int) -> Found | None:
    """[The] nineteen eighties, [the] eighteen hundreds; without an article they may be notes of twenty."""
    if not at or words[at - 1] not in ("the", "early", "mid", "late"):
        return None
    century, decade = TEENS.get(words[at], 20 * (words[at] == "twenty")), DECADES.get(_word(words, at + 1))
    return (f"{century}{decade}", 2) if century > 12 and decade and (century, decade) != (20, "00s") else None


def _one_by_one(words: Words, at: int, known: Mapping[str, str]) -> Found | None:
    """Signs that are said one by one, also double or triple."""
    text, end = "", at
    while end < min(len(words), at + ROW):
        times = TWICE.get(words[end], 0)
        sign = known.get("".join(words[end + 1 : end + 2]) if times else words[end])
        if sign is None:
            break
        text, end = text + sign * (times or 1), end + (2 if times else 1)
    return (text, end - at) if text else None


def _digit_string(words: Words, at: int) -> Found | None:
    """One five oh one five, double oh seven: digits read one by one."""
    if not (found := _one_by_one(words, at, SINGLE)):
        return None
    digits, end = found[0], at + found[1]
    has_twice = not TWICE.keys().isdisjoint(words[at:end])
    # The last digit of "five six hundred" is the beginning of a number.
    if end < len(words) and words[end] in ("hundred", *SCALES) and not has_twice:
        digits, end = digits[:-1], end - 1
    # "Five oh no", "one double two singles": only a number of some length has these for sure.
    is_unsure = has_twice or "oh" in (words[at], words[end - 1])
    if len(digits) < (4 - (words[at] in TWICE) if is_unsure else 2):
        return None
    for place in reversed(PHONE.get(len(digits), ())):
        digits = f"{digits[:place]}-{digits[place:]}"
    return digits, end - at


def _spelled(words: Words, at: int) -> Found | None:
    """P i t t s b u r g h, p i double t s: letters said one by one."""
    letters, taken = _one_by_one(words, at, SPELLED) or ("", 0)
    # "a" and "I" are words themselves, in a row too: "i a m" is spelled, "a i" may be. Double u may be a w.
    is_unsure = set(letters) <= {"a", "i"} or "double u" in " ".join(words[at : at + taken])
    return (letters.upper(), taken) if len(letters) > 1 + (words[at] in TWICE) and not is_unsure else None


def _year_alone(words: Words, at: int) -> Found | None:
    """Nineteen seventy, and no number before or after it."""
    found = _year(words, at)
    if not found or (at and _starts_number(words[at - 1])):
        return None
    end = at + found[1]
    return None if _starts_number(_word(words, end)) or _word(words, end) == "point" else found


def _year(words: Words, at: int) -> Found | None:
    """Nineteen seventy, nineteen oh five, twenty hundred, two thousand [and] twelve."""
    if century := _below_hundred(words, at):
        end = at + century[1]
        if 10 <= century[0] <= 29:
            after = _word(words, end + 1 + (_word(words, end + 1) == "and"))
            if _word(words, end) == "hundred" and century[0] < 20 and not _starts_number(after):
                return f"{century[0]}00", century[1] + 1
            if (rest := _below_hundred(words, end)) and rest[0] >= 10:
                return f"{century[0]}{rest[0]}", century[1] + rest[1]
            if words[end : end + 1] == ["oh"] and DIGITS.get(_word(words, end + 1)):
                return f"{century[0]}0{DIGITS[words[end + 1]]}", century[1] + 2
    whole = _cardinal(words, at)
    return (str(whole[0]), whole[1]) if whole and 1000 <= whole[0] < 3000 else None


def _plain(words: Words, at: int) -> Found | None:
    """[Minus] three point one four, six thousand eight hundred and eighty one, two million."""
    minus = words[at] in ("minus", "negative") and not (at and _starts_number(words[at - 1]))
    found = _decimal(words, at + minus)
    if words[at : at + 1] == ["a"] and found and found[1] == 2:  # a hundred, a million
        return None
    return (f"{'-' * minus}{found[0]}", found[1] + minus) if found else None


def _decimal(words: Words, at: int) -> Found | None:
    whole = _cardinal(words, at)
    if whole is None:
        return None
    end = at + whole[1]
    if _word(words, end) == "point" and (part := _one_by_one(words, end + 1, SINGLE)):
        text, end = f"{_grouped(whole[0])}.{part[0]}", end + 1 + part[1]
        is_scaled = SCALES.get(_word(words, end), 0) >= 10**6
        return (f"{text} {words[end]}", end + 1 - at) if is_scaled else (text, end - at)
    for scale, value in SCALES.items():  # 2 million is easier to read than 2,000,000
        if value >= 10**6 and words[end - 1] == scale and not whole[0] % value:
            return f"{_grouped(whole[0] // value)} {scale}", whole[1]
    return _grouped(whole[0]), whole[1]


def _grouped(value: int) -> str:
    return f"{value:,}" if value >= GROUPED_FROM else str(value)


def _cardinal(words: Words, at: int) -> tuple[int, int] | None:
    """The value of a whole number, and how many words it has."""
    total, end, above = 0, at, 10**15
    while part := _below_thousand(words, end):
        after = end + part[1]
        scale = SCALES.get(_word(words, after), 1)
        # Parts count down: "two thousand three million" is two numbers.
        if scale >= above or (scale == 1 and end > at and part[0] >= above):
            break
        total, end, above = total + part[0] * scale, after + (scale > 1), scale
        if scale == 1:
            break
        if words[end : end + 1] == ["and"] and _below_hundred(words, end + 1):
            joined = _cardinal(words, end + 1)
            if joined and joined[0] < min(100, scale):
                return total + joined[0], end + 1 + joined[1] - at
    return (total, end - at) if end > at else None


def _below_thousand(words: Words, at: int) -> tuple[int, int] | None:
    first = _below_hundred(words, at)
    if words[at : at + 1] == ["a"] and words[at + 1 : at + 2] in (["hundred"], ["thousand"], ["million"]):
        first = (1, 1)
    if first is None or words[at + first[1] : at + first[1] + 1] != ["hundred"] or not 0 < first[0] < 100:
        return first
    end = at + first[1] + 1
    start = end + (words[end : end + 1] == ["and"])
    rest = _below_hundred(words, start)
    # The digits of "five hundred six six" are not its end.
    if rest and rest[0] > 0 and not (rest[0] < 10 and start + 1 < len(words) and words[start + 1] in DIGITS):
        return first[0] * 100 + rest[0], start + rest[1] - at
    return first[0] * 100, end - at


def _below_hundred(words: Words, at: int) -> tuple[int, int] | None:
    word = _word(words, at)
    if word in TENS:
        unit = DIGITS.get(_word(words, at + 1), 0)
        return TENS[word] + unit, 2 if unit else 1
    if word in TEENS:
        return TEENS[word], 1
    return (DIGITS[word], 1) if word in DIGITS and word != "oh" else None


def _ordinal(words: Words, at: int) -> tuple[int, int] | None:
    word = _word(words, at)
    if word in TENS and at + 1 < len(words) and 1 <= ORDINALS.get(words[at + 1], 0) <= 9:
        return TENS[word] + ORDINALS[words[at + 1]], 2
    value = ORDINALS.get(word) or TENTHS.get(word)
    return (value, 1) if value else None


def _large_ordinal(words: Words, at: int) -> tuple[int, int] | None:
    """Three hundred [and] thirty third: a whole number whose last word is an ordinal."""
    if not _starts_number(words[at]) and words[at] != "a":
        return None
    for end in range(at + 2, min(len(words), at + LONGEST)):
        last = CARDINALS.get(ORDINALS.get(words[end]) or TENTHS.get(words[end], 0))
        if last is not None:
            spoken = [*words[at:end], last]
            whole = _cardinal(spoken, 0)
            return whole if whole and whole[1] == len(spoken) and whole[0] > 100 else None
    return None


def _half_understood(made: Sequence[Written], words: Words) -> Iterator[Written]:
    """Numbers as words again where what stands beside them belongs to them and was not understood."""
    kinds = "".join(_kind(made, index, words) for index in range(len(made)))
    stretches = (found for found in STRETCH.finditer(kinds) if not set(found[0]) <= {*"NL"})
    back = {index for found in stretches for index in range(*found.span())}
    for index, each in enumerate(made):
        yield from _alone(words, each.first, each.end) if index in back else [each]


def _kind(made: Sequence[Written], index: int, words: Words) -> str:
    """What a word is to numbers beside it: N, a number; L, a link; P, a part of one, or one with a number before it; O,
    what belongs to a number before it alone, as an ordinal does; "-", none of these."""
    each, word = made[index], words[made[index].first]
    if _is_written(each, words):
        return "P" if _belongs_to_another(made, index, words) else "N"
    if word in LINKS:
        return "L"
    is_money = word in UNSURE or word.removesuffix("s") in CURRENCIES
    if is_money or word == "point":  # ten pounds [and] | fifty
        after = made[index + 1 + (is_money and _word(words, each.end) == "and") :][:1]
        return "P" if after and _is_written(after[0], words) else "O" if is_money and word not in UNSURE else "-"
    if word in COINS:  # two million dollars and fifty | cents
        beside = [other for other in made[max(0, index - 3) : index] if other.text != "and"][-2:]
        return "P" if len(beside) == 2 and AMOUNT.fullmatch(beside[0].text) else "-"
    if word in ORDINALS or word in TENTHS or word == "percent":
        return "O"
    singulars = {each for part in re.split(r"\W", word) for each in _singulars(part)}
    return "-" if singulars.isdisjoint(PARTS) and not word[0].isdigit() else "P"


def _is_written(each: Written, words: Words) -> bool:
    return each.text != " ".join(words[each.first : each.end])


def _belongs_to_another(made: Sequence[Written], index: int, words: Words) -> bool:
    """Whether it is one with a number before it, and was not understood: three | 100th, $9 and | 99, two to | 300."""
    each, (first, link) = made[index], ([Written("", 0, 0)] * 2 + list(made[max(0, index - 2) : index]))[-2:]
    is_amount = AMOUNT.fullmatch(each.text)
    if NUMBER.fullmatch(link.text):
        return bool(is_amount or POSITION.fullmatch(each.text) or each.text.endswith("%"))
    if AMOUNT.fullmatch(link.text if link.text != "and" else first.text):
        return bool(is_amount or NUMBER.fullmatch(each.text))
    scales = [word for word in words[each.first : each.end] if word in SCALES or word == "hundred"]
    is_range = link.text in ("to", "or", "and") and NUMBER.fullmatch(first.text)
    return bool(is_range and scales and scales[-1] not in words[first.first : first.end])


def _singulars(word: str) -> set[str]:
    """What a word may be the plural of, and the word."""
    return {word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word)}


def _starts_number(word: str) -> bool:
    return word in DIGITS or word in TEENS or word in TENS


def _lone_as_words(made: Sequence[Written], words: Words) -> Iterator[Written]:
    """Numbers below ten as words again, unless a letter or a number stands beside them; letters beside one as such."""

    def is_code(index: int) -> bool:
        if not 0 <= index < len(made):
            return False
        text, spoken = made[index].text, words[made[index].first]
        return text[0].isdigit() or text.isupper() or (spoken in LETTERS - {"a", "i"} and len(text) == 1)

    for index, each in enumerate(made):
        text, spoken = each.text, words[each.first]
        beside = is_code(index - 1) or is_code(index + 1)
        if text in LETTERS and (text not in "ai" or (is_code(index - 1) and is_code(index + 1))) and beside:
            yield Written(text.upper(), each.first, each.end)
        elif len(text) == 1 and text.isdigit() and not beside:
            yield Written(spoken, each.first, each.end)
        else:
            yield each


RULES: tuple[Callable[[Words, int], Found | None], ...] = (
    _address,
    _date,
    _time,
    _amount,
    _decade,
    _digit_string,
    _position,
    _year_alone,
    _spelled,
    _plain,
)
