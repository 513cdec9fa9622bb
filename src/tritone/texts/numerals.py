"""How eight languages spell whole numbers: tables of all spellings below a thousand, and what multiplies them.

    numerals("de").value("zweihundertfünftausenddrei")  ->  205003
    numerals("fr").value("quatre vingt dix sept")       ->  97

A text either is the spelling of one number, or it has no value: nothing is guessed of its parts. Spaces, hyphens and
apostrophes do not count, because recognisers write compounds in one word or in several. English has a grammar of its
own, `numbers.py`, and Chinese has `chinese.py`.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

from tritone.texts.written import row

LONGEST = 200  # letters of a number
Forms = Mapping[int, list[str]]  # of a number: all its spellings, the usual one first


@dataclass(frozen=True, kw_only=True)
class Numerals:
    """The numerals of a language. All texts are folded, see `fold`.

    `below_thousand`: values by spelling. `alone`: of numbers of four digits that are counted in hundreds, such as
    years, and multiply nothing. `scales`: words for a thousand, a million and so on; `one`: those that need no count
    before them. `plus`: what may stand between the parts of a number. `digits`: words that are read one by one.
    `parts`: words within numbers that have no value themselves. `near`: a pattern of words that belong to a number
    before them, and to one after them if `has_cases`, though no cardinal has them: ordinals, fractions, other cases.
    `unread`: one of words that belong to a number on either side: halves and quarters, and doubled digits.
    `ordinals`: of days and years in dates, with the cardinals that they stand for. `split`: words that would make
    another number of a digit before them. `keeps_accents`: whether these tell words apart. `long`: whether a million is
    counted in thousands.
    """

    below_thousand: Mapping[str, int]
    scales: Mapping[str, int]
    one: frozenset[str]
    digits: Mapping[str, int]
    alone: Mapping[str, int] = field(default_factory=dict)
    plus: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    near: re.Pattern[str] = re.compile(r"(?!)")
    unread: re.Pattern[str] = re.compile(r"(?!)")
    ordinals: Mapping[str, str] = field(default_factory=dict)
    split: frozenset[str] = frozenset()
    has_cases: bool = False
    keeps_accents: bool = False
    long: bool = False

    def fold(self, word: str) -> str:
        """A word without case, hyphens, apostrophes and, unless they matter, accents."""
        plain = re.sub("[-'’\u2010\u2011]", "", word.casefold())
        if self.keeps_accents:
            return plain
        return "".join(each for each in unicodedata.normalize("NFD", plain) if not unicodedata.combining(each))

    def value(self, text: str) -> int | None:
        """The number that a text spells; None if it spells none, or anything else beside."""
        return self.spelled(self.fold("".join(text.split())))

    def spelled(self, letters: str) -> int | None:
        """The same of folded letters without spaces."""
        if not letters or len(letters) > LONGEST:
            return None
        found = self.alone.get(letters)
        return self._below(letters, 10**15) if found is None else found

    def is_part(self, folded: str) -> bool:
        """Whether a word may stand in a number."""
        is_known = folded in self.parts or folded in self.scales or self.spelled(folded) is not None
        return is_known or bool(self.unread.fullmatch(folded[:LONGEST]))

    def _below(self, letters: str, limit: int) -> int | None:
        """The value of letters by scales below `limit`, the greatest of them first."""
        for word, scale in self.scales.items():
            before, found, after = letters.partition(word)
            if scale >= limit or not found:
                continue
            if not before:
                count = 1 if word in self.one else None
            elif self.long and scale == 10**6:
                count = self._below(before, scale)
            else:
                count = self.below_thousand.get(before)
            rest = self._rest(after, scale)
            if count and rest is not None:
                return count * scale + rest
        return self.below_thousand.get(letters)

    def _rest(self, letters: str, limit: int) -> int | None:
        if not letters:
            return 0
        for plus in ("", *self.plus):
            if letters.startswith(plus) and (found := self._below(letters[len(plus) :], limit)):
                return found
        return None


@cache
def numerals(language: str) -> Numerals:
    """The numerals of a language, by its code of two letters; `LANGUAGES` has those that there are."""
    return replace(LANGUAGES[language](), unread=re.compile(UNREAD[language]))


def _forms(first: int, words: str, step: int = 1) -> dict[int, list[str]]:
    """Spellings of the numbers from `first` on; `/` stands between those of one number."""
    return {first + step * place: each.split("/") for place, each in enumerate(row(words))}


def _table(*parts: Iterable[tuple[int, str]]) -> dict[str, int]:
    """Values by spelling. The first of two values that are spelled alike is the usual one."""
    found: dict[str, int] = {}
    for part in parts:
        for value, text in part:
            found.setdefault(text, value)
    return found


def _pairs(forms: Forms) -> Iterator[tuple[int, str]]:
    return ((value, text) for value, texts in forms.items() for text in texts)


def _sums(*addends: Iterable[tuple[int, str]], between: str = "") -> Iterator[tuple[int, str]]:
    """All sums of one number of each kind, spelled one after the other."""
    for parts in product(*addends):
        yield sum(value for value, _ in parts), between.join(text for _, text in parts)


def _words(value: int, text: str) -> dict[str, int]:
    return dict.fromkeys(row(text), value)


def _of(small: Forms, first: int, last: int) -> Forms:
    return {value: texts for value, texts in small.items() if first <= value <= last}


def _counted(small: Forms, tens: Forms, link: str, hundred: str, plus: str) -> tuple[dict[str, int], dict[str, int]]:
    """Below a thousand, and in hundreds beyond, where units stand before tens: German and Dutch."""
    usual = {value: [text for text in texts if text in ("zwo", texts[0])] for value, texts in small.items()}
    ones = _of(usual, 1, 9)
    below_hundred = _table(
        _pairs(small),
        _pairs(tens),
        ((ten + one, f"{text}{link}{of_ten}") for one, text in _pairs(ones) for ten, of_ten in _pairs(tens)),
    )
    rests = [
        (0, ""),
        *((value, between + text) for text, value in below_hundred.items() if value for between in ("", plus)),
    ]

    def hundreds(counts: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        return ((100 * n + value, text + hundred + rest) for n, text in counts for value, rest in rests)

    beyond = [(value, text) for text, value in below_hundred.items() if value > 10 and value % 10]
    return below_hundred | _table(hundreds([(1, ""), *_pairs(ones)])), _table(hundreds(beyond))


def german() -> Numerals:
    small = _forms(
        0,
        "null ein/eins/eine/einen/einem/einer zwei/zwo drei vier funf sechs sieben acht neun zehn elf zwolf dreizehn "
        "vierzehn funfzehn sechzehn siebzehn achtzehn neunzehn",
    )
    tens = _forms(20, "zwanzig dreissig vierzig funfzig sechzig siebzig achtzig neunzig", 10)
    below_thousand, alone = _counted(small, tens, "und", "hundert", "und")
    stems = {1: ["erst"], 3: ["dritt"], 7: ["siebt", "siebent"], 8: ["acht"]}
    days = {text: day for text, day in below_thousand.items() if 1 <= day <= 31 and text not in row("eins eine einen")}
    ordinals = {
        stem + ending: text
        for text, day in days.items()
        for stem in stems.get(day, [text + ("t" if day < 20 else "st")])
        for ending in row("e en er es em")
    }
    return Numerals(
        below_thousand=below_thousand,
        alone=alone,
        scales=_words(10**9, "milliarden milliarde") | _words(10**6, "millionen million") | {"tausend": 1000},
        one=frozenset(["tausend"]),
        digits=_table(_pairs({**_of(small, 0, 9), 1: ["eins"]})),
        plus=frozenset(["und"]),
        near=re.compile(
            r".*(?:zehn|zig|hundert|tausend)ste[nrsm]?|.*(?:erst|dritt|zwei?t|viert|funft|sechst|siebt|neunt|"
            r"zehnt|elft|zwolft)e[nrsm]?|.*(?:st|zehn|vier|drit|funf|sechs|sieb|ach|neun)teln?|billion(?:en)?|"
            r".*(?:zig|zehn|hundert)er[ns]?"
        ),
        ordinals=ordinals,
        split=frozenset(["zehn"]),
    )


def dutch() -> Numerals:
    small = _forms(
        0,
        "nul een twee drie vier vijf zes zeven acht negen tien elf twaalf dertien veertien vijftien zestien zeventien "
        "achttien negentien",
    )
    tens = _forms(20, "twintig dertig veertig vijftig zestig zeventig tachtig negentig", 10)
    below_thousand, alone = _counted(small, tens, "en", "honderd", "en")
    return Numerals(
        below_thousand=below_thousand,
        alone=alone,
        scales=_words(10**9, "miljarden miljard") | _words(10**6, "miljoenen miljoen") | {"duizend": 1000},
        one=frozenset(["duizend"]),
        digits=_table(_pairs(_of(small, 0, 9))),
        plus=frozenset(["en"]),
        near=re.compile(
            r".*(?:tig|honderd|duizend|acht|eer)stes?|.*(?:twee|der|vier|vijf|zes|zeven|negen|tien|elf|twaalf)de[ns]?"
            r"|biljoen(?:en)?|.*tigers?"
        ),
        split=frozenset(["tien"]),
    )


def french() -> Numerals:
    small = _forms(
        0,
        "zero un/une deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dixsept "
        "dixhuit dixneuf",
    )
    tens = _forms(20, "vingt trente quarante cinquante soixante septante huitante/octante nonante", 10)
    ones, firsts = _of(small, 2, 9), [(1, "etun"), (1, "etune")]
    below_hundred = _table(
        _pairs(small),
        _pairs(tens),
        _sums(_pairs(tens), [*_pairs(ones), *firsts]),
        _sums([(60, "soixante")], [*_pairs(_of(small, 10, 19)), (11, "etonze")]),
        [(80, "quatrevingt"), (80, "quatrevingts")],
        _sums([(80, "quatrevingt")], _pairs(_of(small, 1, 19))),
    )
    rests = [(0, ""), *((value, text) for text, value in below_hundred.items() if value)]
    cents = [(0, "cent"), (0, "cents")]

    def hundreds(counts: Forms) -> Iterator[tuple[int, str]]:
        return _sums(((100 * n, text) for n, text in _pairs(counts)), cents, rests)

    return Numerals(
        below_thousand=below_hundred | _table(_sums([(100, "cent")], rests), hundreds(ones)),
        alone=_table(hundreds(_of(small, 11, 19))),
        scales=_words(10**9, "milliards milliard") | _words(10**6, "millions million") | _words(1000, "mille mil"),
        one=frozenset(["mille", "mil"]),
        digits=_table(_pairs({**_of(small, 0, 9), 1: ["un"]})),
        plus=frozenset(["et"]),
        parts=frozenset(["cents", "vingts"]),
        near=re.compile(r".*iemes?|billions?"),
    )


def spanish() -> Numerals:
    small = _forms(
        0,
        "cero uno/un/una dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciseis "
        "diecisiete dieciocho diecinueve veinte",
    )
    tens = _forms(30, "treinta cuarenta cincuenta sesenta setenta ochenta noventa", 10)
    below_hundred = _table(
        _pairs(small),
        _pairs(tens),
        _sums([(20, "veinti")], _pairs(_of(small, 1, 9))),
        _sums([(10, "diez"), (20, "veinte"), *_pairs(tens)], _pairs(_of(small, 1, 9)), between="y"),
    )
    return _of_hundreds(
        small,
        below_hundred,
        [(100, "cien")],
        [(100, "ciento")],
        "doscient trescient cuatrocient quinient seiscient setecient ochocient novecient",
        "",
        scales=_words(10**6, "millones millon") | {"mil": 1000},
        plus=frozenset(["y"]),
        parts=frozenset(row("ciento cientos cientas")),
        near=re.compile(r".*avos?|billon(?:es)?"),
    )


def portuguese() -> Numerals:
    small = _forms(
        0,
        "zero um/uma dois/duas tres quatro cinco seis sete oito nove dez onze doze treze quatorze/catorze quinze "
        "dezesseis/dezasseis dezessete/dezassete dezoito dezenove/dezanove",
    )
    tens = _forms(20, "vinte trinta quarenta cinquenta sessenta setenta oitenta noventa", 10)
    below_hundred = _table(_pairs(small), _pairs(tens), _sums(_pairs(tens), _pairs(_of(small, 1, 9)), between="e"))
    return _of_hundreds(
        small,
        below_hundred,
        [(100, "cem")],
        [(100, "cento")],
        "duzent trezent quatrocent quinhent seiscent setecent oitocent novecent",
        "e",
        scales=_words(10**9, "bilhoes bilhao") | _words(10**6, "milhoes milhao") | {"mil": 1000},
        plus=frozenset(["e"]),
        parts=frozenset(["cento"]),
        near=re.compile(r".*avos?|bili(?:ao|oes)|trilh?i?(?:ao|oes)"),
    )


def _of_hundreds(
    small: Forms,
    below_hundred: Mapping[str, int],
    round_hundred: list[tuple[int, str]],
    hundred: list[tuple[int, str]],
    more: str,
    link: str,
    *,
    scales: Mapping[str, int],
    plus: frozenset[str],
    parts: frozenset[str],
    near: re.Pattern[str],
) -> Numerals:
    """Where each hundred is a word of two genders: Spanish and Portuguese, which count a thousand million, too."""
    hundreds = [(100 * n, stem + end) for n, stem in enumerate(row(more), start=2) for end in ("os", "as")]
    rests = [(value, text) for text, value in below_hundred.items() if value]
    return Numerals(
        below_thousand=_table(
            ((value, text) for text, value in below_hundred.items()),
            round_hundred,
            hundreds,
            _sums([*hundred, *hundreds], rests, between=link),
        ),
        scales=scales,
        one=frozenset(["mil"]),
        digits=_table((value, texts[0]) for value, texts in _of(small, 0, 9).items()),
        plus=plus,
        parts=parts,
        near=near,
        long=True,
    )


def italian() -> Numerals:
    small = _forms(
        0,
        "zero uno/un/una due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici "
        "sedici diciassette diciotto diciannove",
    )
    tens = _forms(20, "venti trenta quaranta cinquanta sessanta settanta ottanta novanta", 10)
    elided = [(ten, texts[0][:-1]) for ten, texts in tens.items()]
    below_hundred = _table(
        _pairs(small),
        _pairs(tens),
        _sums(elided, [*_pairs(_of(small, 1, 1)), (8, "otto")]),
        _sums(_pairs(tens), _pairs(_of(small, 2, 9))),
    )
    rests = [(value, text) for text, value in below_hundred.items() if value]
    counts = [(0, ""), *((100 * value - 100, text) for value, text in _pairs(_of(small, 2, 9)))]
    return Numerals(
        below_thousand=below_hundred
        | _table(
            _sums(counts, [(100, "cento")], [(0, ""), *rests]),
            _sums(counts, [(100, "cent")], [each for each in rests if each[1].startswith("o")]),
        ),
        scales=_words(10**9, "miliardi miliardo") | _words(10**6, "milioni milione") | _words(1000, "mila mille"),
        one=frozenset(["mille"]),
        digits=_table((value, texts[0]) for value, texts in _of(small, 0, 9).items()),
        plus=frozenset(["e"]),
        parts=frozenset(["mila"]),
        near=re.compile(r".*esim[oaie]|bilion[ei]"),
    )


def _of_parts(
    small: Forms,
    tens: Forms,
    hundreds: Forms,
    scales: Mapping[str, int],
    one: str,
    ordinals: Mapping[str, str],
    near: str,
) -> Numerals:
    """Where hundreds, tens and units follow each other, in several cases: Polish and Russian."""
    below_hundred = [*_pairs(_of(small, 1, 19)), *_pairs(tens), *_sums(_pairs(tens), _pairs(_of(small, 1, 9)))]
    return Numerals(
        below_thousand=_table(
            _pairs(_of(small, 0, 0)), below_hundred, _sums(_pairs(hundreds), [(0, ""), *below_hundred])
        ),
        scales=scales,
        one=frozenset(row(one)),
        digits=_table((value, texts[0]) for value, texts in _of(small, 0, 9).items()),
        ordinals=ordinals,
        near=re.compile(near),
        has_cases=True,
        keeps_accents="ą" in near,
    )


def _ordinals(first: int, words: str, cardinals: Forms, step: int = 1) -> dict[str, str]:
    return {text: cardinals[value][0] for value, (text,) in _forms(first, words, step).items()}


def polish() -> Numerals:
    small = _forms(
        0,
        "zero jeden/jedna/jedno/jednego/jednej/jedną dwa/dwie/dwóch/dwu/dwaj trzy/trzech/trzej cztery/czterech/czterej "
        "pięć/pięciu sześć/sześciu siedem/siedmiu osiem/ośmiu dziewięć/dziewięciu dziesięć/dziesięciu "
        "jedenaście/jedenastu dwanaście/dwunastu trzynaście/trzynastu czternaście/czternastu "
        "piętnaście/piętnastu szesnaście/szesnastu "
        "siedemnaście/siedemnastu osiemnaście/osiemnastu dziewiętnaście/dziewiętnastu",
    )
    tens = _forms(
        20,
        "dwadzieścia/dwudziestu trzydzieści/trzydziestu czterdzieści/czterdziestu pięćdziesiąt/pięćdziesięciu "
        "sześćdziesiąt/sześćdziesięciu siedemdziesiąt/siedemdziesięciu osiemdziesiąt/osiemdziesięciu "
        "dziewięćdziesiąt/dziewięćdziesięciu",
        10,
    )
    hundreds = _forms(
        100,
        "sto/stu dwieście/dwustu trzysta/trzystu czterysta/czterystu pięćset/pięciuset sześćset/sześciuset "
        "siedemset/siedmiuset osiemset/ośmiuset dziewięćset/dziewięciuset",
        100,
    )
    ordinals = _ordinals(
        1,
        "pierwszego drugiego trzeciego czwartego piątego szóstego siódmego ósmego dziewiątego dziesiątego jedenastego "
        "dwunastego trzynastego czternastego piętnastego szesnastego siedemnastego osiemnastego dziewiętnastego",
        small,
    ) | _ordinals(
        20,
        "dwudziestego trzydziestego czterdziestego pięćdziesiątego sześćdziesiątego siedemdziesiątego osiemdziesiątego "
        "dziewięćdziesiątego",
        tens,
        10,
    )
    scales = (
        _words(10**9, "miliardów miliardy miliarda miliard")
        | _words(10**6, "milionów miliony miliona milion")
        | _words(1000, "tysiąc tysiące tysięcy tysiąca")
    )
    near = (
        r"(?:pierwsz|drug|trzec|czwart|piąt|szóst|siódm|ósm|dziewiąt|.*dziesiąt|.*nast|.*dziest|.*setn|.*tysięczn)"
        r"(?:y|a|e|i|ie|ego|iego|ej|iej|emu|iemu|ym|im|ą|ią|ych|ich|ymi|imi)|dw(?:oma|iema|om|oje|ojga|ukrotn.*)|trzem|trzema|"
        r"czterem|czterema|.*ioma|pół|półtor.*|bilion.*|tysiącach|milionach"
    )
    return _of_parts(small, tens, hundreds, scales, "tysiąc milion miliard", ordinals, near)


def russian() -> Numerals:
    ending = {
        value: f"{stem}ь/{stem}и"
        for value, stem in zip(range(5, 11), row("пят шест сем восем девят десят"), strict=True)
    }
    ending[8] = "восемь/восьми"
    teens = row("один две три четыр пят шест сем восем девят")
    small = _forms(
        0,
        "ноль/нуль один/одна/одно/одного/однои/одну два/две/двух три/трех четыре/четырех "
        + " ".join(ending.values())
        + "".join(f" {stem}надцать/{stem}надцати" for stem in teens),
    )
    fifty = " ".join(
        f"{stem}ьдесят/{mid}идесяти"
        for stem, mid in zip(row("пят шест сем восем"), row("пят шест сем восьм"), strict=True)
    )
    tens = _forms(20, f"двадцать/двадцати тридцать/тридцати сорок/сорока {fifty} девяносто/девяноста", 10)
    five_hundred = " ".join(
        f"{stem}ьсот/{mid}исот"
        for stem, mid in zip(row("пят шест сем восем девят"), row("пят шест сем восьм девят"), strict=True)
    )
    hundreds = _forms(100, f"сто/ста двести/двухсот триста/трехсот четыреста/четырехсот {five_hundred}", 100)
    ordinals = (
        _ordinals(
            1,
            "первого второго третьего четвертого пятого шестого седьмого восьмого девятого десятого"
            + "".join(f" {stem}надцатого" for stem in teens),
            small,
        )
        | _ordinals(
            20,
            "двадцатого тридцатого сорокового пятидесятого шестидесятого семидесятого восьмидесятого девяностого",
            tens,
            10,
        )
        | {"двухтысячного": "дветысячи"}
    )
    scales = (
        _words(10**9, "миллиардов миллиарда миллиард")
        | _words(10**6, "миллионов миллиона миллион")
        | _words(1000, "тысяча тысячи тысячу тысяч")
    )
    near = (
        r"(?:перв|втор|четверт|пят|шест|седьм|восьм|девят|.*десят|.*надцат|двадцат|тридцат|сороков|девяност|.*сот|.*тысячн|"
        r"миллионн)(?:ыи|ои|ая|ое|ого|ому|ым|ом|ую|ые|ых|ыми)|трет(?:ии|ья|ье|ьего|ьему|ьим|ьем|ью|ьеи|ьих)|одн(?:ому|им|ом|ои)|"
        r"дв(?:ум|умя|ое|оих)|тр(?:ем|емя|ое|оих)|четыр(?:ем|ьмя)|.*[птсмв][яь]тью|.*(?:десят|шест|сем|восем|восьм|девят|надцат|"
        r"двадцат|тридцат)ью|.*(?:стам|стах|стами)|пол|полтор.*|триллион.*|тысяч(?:ам|ами|ах)|миллион(?:ам|ами|ах|у)"
    )
    return _of_parts(small, tens, hundreds, scales, "тысяча тысячу миллион миллиард", ordinals, near)


LANGUAGES: Mapping[str, Callable[[], Numerals]] = {
    "de": german,
    "es": spanish,
    "fr": french,
    "it": italian,
    "nl": dutch,
    "pl": polish,
    "pt": portuguese,
    "ru": russian,
}
UNREAD: Mapping[str, str] = {
    "de": "(?:.*ein|andert)?halb(?:e[mnrs]?)?|(?:drei)?viertel|doppelt?e?",
    "es": "medi[oa]s?|cuartos?|tercios?|dobles?|triples?",
    "fr": "demie?s?|quarts?|tiers|doubles?|triples?",
    "it": "mezz[aeio]|quart[io]|terz[io]|doppi[ao]|tripl[ao]",
    "nl": "(?:.*en|ander)?hal(?:f|ve)|(?:drie)?kwart|dubbele?",
    "pl": "w?pół|półtor.*|ćwier.*|podwójn.*",
    "pt": "mei[oa]s?|quartos?|tercos?|dupl[oa]s?|tripl[oa]s?",
    "ru": "пол|полтор.*|половин.*|четверт[ьи]|двоин.*",
}
