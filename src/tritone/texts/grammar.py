"""Numbers, amounts and dates in written form: German, French, Spanish, Italian, Portuguese, Dutch, Polish and Russian.

    written_numbers(row("das kostet zweihundert fünf euro"), "de")  ->  das | kostet | 205 €

Words that may be of one number form a stretch, and a stretch is written only if all of it was understood: of `zwanzig
dreißig`, `deux mille trois millions` or `двадцать пятый` nothing is. What stands alone and is below ten, or is a round
`hundert`, stays a word unless a unit follows, and so does a stretch that has such a number in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tritone.texts.numerals import Numerals, numerals
from tritone.texts.written import Written, row

LONGEST = 32  # words of a number
DIGITS_FROM = 3  # digits that are read one by one and are written as one, unless the first of them is zero
RANGES = frozenset(row("bis oder a o ou tot of do lub albo до или"))  # between numbers of these languages
SHARED = {100: 10, 1000: 1000}  # of scales that a number may share with one before it: below what this one is
ROUND = {10**places for places in (2, 3, 6, 9)}
PHONE_DIGITS = 10  # of a number that is read in pairs, as in France


@dataclass(frozen=True, kw_only=True)
class Style:
    """Words around numbers, and how they are written. All texts are folded.

    `points`: words for the decimal sign, with it. `fractions`: words after a second number that say how many decimals
    it has. `percent`: its words. `currencies`: words with their sign and the words for a hundredth. `links`: words that
    join numbers in a way that is not understood. `minus`: words before a negative number. `clock`: the word between
    hours and minutes, with what is written there and after them.
    """

    points: Mapping[str, str]
    percent: Sequence[str]
    percent_sign: str = " %"
    currencies: Mapping[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    before: frozenset[str] = frozenset()  # signs of currencies that stand before the number
    fractions: Mapping[str, int] = field(default_factory=dict)
    links: frozenset[str] = frozenset()
    minus: frozenset[str] = frozenset()
    months: frozenset[str] = frozenset()
    day_end: str = ""  # after the number of a day
    clock: tuple[str, str, str] | None = None
    has_pairs: bool = False  # whether telephone numbers are read in pairs of digits


def _currencies(*lines: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Of lines like `€ euro euros : cent cents`."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for line in lines:
        sign, *words = row(line.partition(":")[0])
        found |= dict.fromkeys(words, (sign, frozenset(row(line.partition(":")[2]))))
    return found


STYLES: Mapping[str, Style] = {
    "de": Style(
        points={"komma": ","},
        percent=["prozent"],
        currencies=_currencies("€ euro : cent", "$ dollar : cent"),
        minus=frozenset(["minus"]),
        months=frozenset(
            row("januar janner februar marz april mai juni juli august september oktober november dezember")
        ),
        day_end=".",
        clock=("uhr", ":", " Uhr"),
        links=frozenset(row("vor nach mark pfund")),
    ),
    "es": Style(
        points={"coma": ",", "punto": "."},
        percent=["por ciento"],
        currencies=_currencies("€ euro euros : centimo centimos", "$ dolar dolares : centavo centavos"),
        links=frozenset(row("con menos libras pesos")),
    ),
    "fr": Style(
        points={"virgule": ","},
        percent=["pour cent", "pourcent"],
        currencies=_currencies("€ euro euros : centime centimes", "$ dollar dollars : centime centimes"),
        clock=("heures", " h ", ""),
        has_pairs=True,
        links=frozenset(row("moins livres francs")),
    ),
    "it": Style(
        points={"virgola": ","},
        percent=["per cento", "percento"],
        percent_sign="%",
        currencies=_currencies("€ euro : centesimo centesimi", "$ dollaro dollari : centesimo centesimi cent"),
        links=frozenset(row("meno")),
    ),
    "nl": Style(
        points={"komma": ","},
        percent=["procent"],
        percent_sign="%",
        currencies=_currencies("€ euro : cent", "$ dollar : cent"),
        before=frozenset("€$"),
        minus=frozenset(["minus", "min"]),
        clock=("uur", ":", " uur"),
        links=frozenset(row("voor over")),
    ),
    "pl": Style(
        points={"przecinek": ","},
        percent=["procent", "procenta", "procentów"],
        percent_sign="%",
        currencies=_currencies(
            "zł złoty złote złotych : grosz grosze groszy",
            "€ euro : cent centy centów",
            "$ dolar dolary dolarów dolara : cent centy centów",
        ),
        minus=frozenset(["minus"]),
        months=frozenset(
            row(
                "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia"
            )
        ),
    ),
    "pt": Style(
        points={"virgula": ","},
        percent=["por cento"],
        percent_sign="%",
        currencies=_currencies(
            "€ euro euros : cent cents centimo centimos",
            "R$ real reais : centavo centavos",
            "$ dolar dolares : centavo centavos cent cents",
        ),
        before=frozenset(["R$"]),
        links=frozenset(row("menos")),
    ),
    "ru": Style(
        points={"запятая": ",", "целых": "", "целая": "", "целые": ""},
        percent=["процент", "процента", "процентов"],
        currencies=_currencies(
            "₽ рубль рубля рублеи : копеика копеики копеек",
            "€ евро : цент цента центов",
            "$ доллар доллара долларов : цент цента центов",
        ),
        fractions={"десятых": 1, "десятая": 1, "сотых": 2, "сотая": 2, "тысячных": 3, "тысячная": 3},
        minus=frozenset(["минус"]),
        months=frozenset(
            row("января февраля марта апреля мая июня июля августа сентября октября ноября декабря")
        ),
    ),
}  # fmt: skip


def written_numbers(words: Sequence[str], language: str) -> list[Written]:
    """Write the numbers in some spoken words of a language of `STYLES`, by its code."""
    numbers = numerals(language)
    stretches = _Stretches(numbers, STYLES[language], words, [numbers.fold(word) for word in words])
    made: list[Written] = []
    at = 0
    while at < len(words):
        end = stretches.end(at)
        found = stretches.understood(at, end) if end > at else None
        end = max(end, at + 1)
        made += (Written(words[index], index, index + 1) for index in range(at, end)) if found is None else found
        at = end
    return made


@dataclass(frozen=True)
class _Stretches:
    """Words that may be of one number, and what they mean."""

    numbers: Numerals
    style: Style
    words: Sequence[str]
    folded: Sequence[str]

    def end(self, at: int) -> int:
        """Where the stretch that begins at a word ends; there, if none does."""
        minus = self._has(self.style.minus, at) and not (at and self._is_number(at - 1))
        end = first = at + minus
        if not (self._is_number(first) or (self.numbers.has_cases and self._is_near(first)) or self._is_day(first)):
            return at
        while end < len(self.folded):
            later = end > first
            if self._is_number(end) or self._is_day(end) or ((later or self.numbers.has_cases) and self._is_near(end)):
                end += 1
            elif later and (unit := self._unit(end)):
                end += unit
            elif later and (
                (self._has(self.style.months, end) and self._has(self.numbers.ordinals, end - 1))
                or self._is_range(first, end)
                or (self._is_link(end) and (self._is_number(end + 1) or self._is_day(end + 1)))
                or self._is_before_half(end)
            ):
                end += 1
            else:
                break
        return end

    def understood(self, at: int, end: int) -> list[Written] | None:
        """The written form of a stretch; None if some of it was not understood, or stays words."""
        made: list[Written] = []
        while at < end:
            found = next(filter(None, (rule(at, end) for rule in (self._date, self._digits, self._amount))), None)
            if found is None:
                return None
            made.append(found)
            at = found.end
            if at < end:
                if not self._has(self.numbers.plus, at) or at + 1 == end:
                    return None
                made.append(Written(self.words[at], at, at + 1))
                at += 1
        return made

    # What a word may be.

    def _has(self, words: "frozenset[str] | Mapping[str, object]", at: int) -> bool:
        return 0 <= at < len(self.folded) and self.folded[at] in words

    def _is_number(self, at: int) -> bool:
        return at < len(self.folded) and self.numbers.is_part(self.folded[at])

    def _is_near(self, at: int) -> bool:
        return at < len(self.folded) and bool(self.numbers.near.fullmatch(self.folded[at][:100]))

    def _is_day(self, at: int) -> bool:
        """Whether it is an ordinal before a month."""
        return self._has(self.numbers.ordinals, at) and self._has(self.style.months, at + 1)

    def _is_link(self, at: int) -> bool:
        clock = self.style.clock
        return (
            self._has(self.numbers.plus, at)
            or self._has(self.style.links, at)
            or self._has(self.style.points, at)
            or (clock is not None and self.folded[at] == clock[0])
        )

    def _is_before_half(self, at: int) -> bool:
        """Whether it is "und", "et", "с" before a half, or hours before these."""
        at += self.style.clock is not None and self.folded[at] == self.style.clock[0]
        link, half = [*self.folded[at : at + 2], "", ""][:2]
        return len(link) <= len("und") and bool(self.numbers.unread.fullmatch(half))

    def _is_range(self, first: int, at: int) -> bool:
        """Whether a word stands between numbers that may share a scale, as in "zehn bis fünfzehntausend"."""
        if not self._has(RANGES, at) or not (found := self._number(at + 1, len(self.folded))):
            return False
        least = self.numbers.spelled("".join(self.folded[first:at]))
        return least is not None and any(
            found[0] % scale == 0 and found[0] > scale and least < most for scale, most in SHARED.items()
        )

    def _unit(self, at: int) -> int:
        """How many words a percent, a currency or its hundredth has here; 0: none of them is here."""
        if percent := self._percent(at):
            return percent
        return int(
            self._has(self.style.currencies, at)
            or any(self.folded[at] in coins for _, coins in self.style.currencies.values())
        )

    def _percent(self, at: int) -> int:
        for phrase in self.style.percent:
            parts = row(phrase)
            if list(self.folded[at : at + len(parts)]) == parts:
                return len(parts)
        return 0

    # What is made of them.

    def _number(self, at: int, end: int) -> tuple[int, int] | None:
        """The longest number that begins here: its value, and where it ends."""
        for stop in range(min(end, at + LONGEST), at, -1):
            if (
                not self._is_split(at, stop)
                and (value := self.numbers.spelled("".join(self.folded[at:stop]))) is not None
            ):
                return value, stop
        return None

    def _is_split(self, at: int, stop: int) -> bool:
        """Whether words stand apart in it that are one word if they are one number: acht zehn is no 18."""
        return any(
            self._has(self.numbers.split, place) and self._has(self.numbers.digits, place - 1)
            for place in range(at + 1, stop)
        )

    def _digits(self, at: int, end: int) -> Written | None:
        """Digits that are read one by one, or in pairs."""
        stop = at
        while stop < end and self._has(self.numbers.digits, stop):
            stop += 1
        is_zero = self._has(self.numbers.digits, at) and self.numbers.digits[self.folded[at]] == 0
        ends = stop == end or self._has(self.numbers.plus, stop)
        if ends and stop - at >= (2 if is_zero else DIGITS_FROM):
            return Written("".join(str(self.numbers.digits[word]) for word in self.folded[at:stop]), at, stop)
        return self._pairs(at, end) if is_zero and self.style.has_pairs else None

    def _pairs(self, at: int, end: int) -> Written | None:
        """A telephone number: only the right number of digits says that its pairs were understood."""
        text, stop = "", at
        while stop < end and (found := self._number(stop, end)) and found[0] < 100:
            text, stop = text + str(found[0]), found[1]
        if len(text) != PHONE_DIGITS or stop != end:
            return None
        return Written(" ".join(text[place : place + 2] for place in range(0, len(text), 2)), at, stop)

    def _date(self, at: int, end: int) -> Written | None:
        """A day before its month, and perhaps a year: zwanzigsten märz neunzehnhundertsiebzig."""
        day = self._ordinal(at, end)
        if day is None or not 1 <= day[0] <= 31 or not self._has(self.style.months, day[1]):
            return None
        stop = day[1] + 1
        text = f"{day[0]}{self.style.day_end} {self.words[stop - 1]}"
        year = (self._ordinal if self.numbers.has_cases else self._number)(stop, end)
        if year and 1000 <= year[0] < 3000:
            text, stop = f"{text} {year[0]}", year[1]
        return Written(text, at, stop)

    def _ordinal(self, at: int, end: int) -> tuple[int, int] | None:
        """The longest number here that ends as an ordinal does."""
        for stop in range(min(end, at + LONGEST), at, -1):
            if self._has(self.numbers.ordinals, stop - 1):
                spelled = "".join(self.numbers.ordinals.get(word, word) for word in self.folded[at:stop])
                if (value := self.numbers.spelled(spelled)) is not None:
                    return value, stop
        return None

    def _amount(self, at: int, end: int) -> Written | None:
        """A number with its sign, decimals, scale and unit."""
        minus = self._has(self.style.minus, at)
        number = self._number(at + minus, end)
        if number is None:
            return None
        value, stop = number
        text = str(value)
        is_lone = not minus and (value < 10 or (stop == at + 1 and value in ROUND))
        if decimals := self._decimals(stop, end):
            text, stop, is_lone = f"{text}{decimals[0]}", decimals[1], False
            if self.numbers.scales.get(self.folded[stop] if stop < end else "", 0) >= 10**6:
                text, stop = f"{text} {self.words[stop]}", stop + 1
        elif (scale := self.numbers.scales.get(self.folded[stop - 1], 0)) >= 10**6 and value % scale == 0:
            text = f"{value // scale} {self.words[stop - 1]}"
        if with_unit := self._with_unit(text, value, stop, end, plain=not decimals):
            text, stop = with_unit
        elif is_lone:
            return None
        return Written(f"{'-' * minus}{text}", at, stop)

    def _decimals(self, at: int, end: int) -> tuple[str, int] | None:
        """The decimal sign and the decimals: digits one by one, and perhaps a number at their end."""
        if at >= end or (sign := self.style.points.get(self.folded[at])) is None:
            return None
        digits, stop = "", at + 1
        while stop < end and (found := self._number(stop, end)):
            if found[0] >= 1000:  # a scale belongs to the whole, as in "zwei komma fünf millionen"
                found = self._number(stop, stop + 1)
            if found is None or found[0] >= 1000:
                break
            digits, stop = digits + str(found[0]), found[1]
            if found[0] >= 10:
                break
        if not digits:
            return None
        if sign:
            return sign + digits, stop
        places = self.style.fractions.get(self.folded[stop] if stop < end else "", 0)
        return (f",{digits.zfill(places)}", stop + 1) if len(digits) <= places else None

    def _with_unit(self, text: str, value: int, at: int, end: int, *, plain: bool) -> tuple[str, int] | None:
        """A number with the percent, the currency or the hours after it; `plain`: it has no decimals."""
        if at >= end:
            return None
        if percent := self._percent(at):
            return f"{text}{self.style.percent_sign}", at + percent
        clock = self.style.clock
        if clock and self.folded[at] == clock[0] and plain and value <= 24 and (minute := self._number(at + 1, end)):
            return (f"{text}{clock[1]}{minute[0]:02}{clock[2]}", minute[1]) if minute[0] < 60 else None
        if self.folded[at] not in self.style.currencies:
            coins = any(self.folded[at] in coins for _, coins in self.style.currencies.values())
            return (f"{text} {self.words[at]}", at + 1) if coins else None
        sign, coins_of = self.style.currencies[self.folded[at]]
        stop = at + 1
        first = stop + self._has(self.numbers.plus, stop)
        small = self._number(first, end) if plain else None
        if small and small[0] < 100 and small[1] < end and self.folded[small[1]] in coins_of:
            text, stop = f"{text},{small[0]:02}", small[1] + 1
        return (f"{sign} {text}" if sign in self.style.before else f"{text} {sign}"), stop
