"""Numbers of other languages than English: what is written, and what stays words because it is not sure."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.errors import InputError
from tritone.texts import TextOptions, chinese, grammar, tidy
from tritone.texts.numerals import LANGUAGES, numerals
from tritone.texts.options import LANGUAGES as OFFERED
from tritone.texts.written import row
from tritone.transcript import Alternative, Segment, Span, Transcript

SPELLED = Path(__file__).parents[1] / "golden" / "numbers" / "spelled.json"  # by num2words and cn2an, see its maker
NUMBERS = TextOptions(numbers=True)

WRITTEN = {
    "de": {
        "das kostet zweihundertfünf euro": "das kostet 205 €",
        "zwei hundert fünf": "205",
        "fünf euro und zwanzig cent": "5,20 €",
        "zwei komma fünf millionen euro": "2,5 millionen €",
        "drei komma eins vier prozent": "3,14 %",
        "am fünfundzwanzigsten märz neunzehnhundertsiebzig": "am 25. märz 1970",
        "um fünf uhr dreißig": "um 5:30 Uhr",
        "minus zwanzig": "-20",
        "eins zwei drei": "123",
        "zwanzig und dreißig": "20 und 30",
        "eine million zweihunderttausend": "1200000",
        "die ersten zwanzig": "die ersten 20",
        "zwanzig oder dreißig": "20 oder 30",
        "hundert bis zweihundert": "hundert bis 200",
        "die achtziger jahre": "die achtziger jahre",
    },
    "fr": {
        "quatre vingt dix sept": "97",
        "soixante et onze": "71",
        "septante deux": "72",
        "cent pour cent": "100 %",
        "deux millions d'euros": "2 millions d'euros",
        "cinq euros et vingt centimes": "5,20 €",
        "cinq heures trente": "5 h 30",
        "les années quatre vingt": "les années 80",
        "deux virgule zéro cinq": "2,05",
        "zéro six douze trente quatre cinquante six soixante dix huit": "06 12 34 56 78",
        "le vingt mars mille neuf cent soixante dix": "le 20 mars 1970",
    },
    "es": {
        "veintiún mil": "21000",
        "treinta y uno": "31",
        "mil millones": "1000 millones",
        "mil una noches": "1001 noches",
        "tres coma catorce": "3,14",
        "veinte por ciento": "20 %",
        "doscientas veinte": "220",
    },
    "it": {
        "duecento cinque": "205",
        "ventotto": "28",
        "tre virgola quattordici": "3,14",
        "venti per cento": "20%",
        "due milioni cinquecentomila": "2500000",
        "cinque euro e venti centesimi": "5,20 €",
    },
    "pt": {
        "duzentos e cinco": "205",
        "dezasseis": "16",
        "dezesseis": "16",
        "vinte e trinta": "20 e 30",
        "cinco reais e vinte centavos": "R$ 5,20",
        "vinte por cento": "20%",
    },
    "nl": {
        "tweeëntwintig": "22",
        "vijfentwintighonderd": "2500",
        "vijf euro en twintig cent": "€ 5,20",
        "vijf uur dertig": "5:30 uur",
        "min twintig": "-20",
    },
    "pl": {
        "tysiąc dziewięćset siedemdziesiąt": "1970",
        "dwudziestego piątego marca tysiąc dziewięćset siedemdziesiątego roku": "25 marca 1970 roku",
        "pięć złotych dwadzieścia groszy": "5,20 zł",
        "dwadzieścia procent": "20%",
        "trzy przecinek czternaście": "3,14",
        "dwa miliony": "2 miliony",
    },
    "ru": {
        "тысяча девятьсот семьдесят": "1970",
        "двадцать пятого марта тысяча девятьсот семидесятого года": "25 марта 1970 года",
        "три целых пять сотых": "3,05",
        "пять рублей двадцать копеек": "5,20 ₽",
        "сто одна тысяча двести": "101200",
        "около двухсот пяти": "около 205",
        "минус двадцать": "-20",
    },
    "zh": {
        "小王捡了一百块钱": "小王捡了100块钱",
        "二零二四年三月二十日": "2024年3月20日",
        "百分之三点五": "3.5%",
        "三点五倍": "3.5倍",
        "一万两千": "12000",
        "五点六亿": "5.6亿",
        "三亿五千万": "350000000",
        "幺三八零零": "13800",
        "第二十三": "第23",
        "兩百三十萬": "230万",
    },
}

STAYS = {
    "de": [
        "zwanzig dreißig",
        "tausend zweihundert millionen",
        "acht zehn",
        "fünf euro zwanzig",
        "zwanzig viertel",
        "hundert zweite",
        "hundert dank",
        "ein hund",
        "habt acht",
        "zwei drei leute",
        "zwanzigster",
        "anderthalb millionen",
        "zweieinhalb tausend euro",
        "anderthalb tausend euro",
        "halb zwölf",
        "zwanzig einhalb",
        "doppel null sieben",
        "neunzehn hundert achtziger",
        "zwanzig mark fünfzig",
        "viertel vor zwölf",
        "zwei bis drei hundert",
        "zehn bis fünfzehntausend",
    ],
    "fr": [
        "deux mille trois millions",
        "vingt pour cent euros",
        "vingt deuxième",
        "un livre neuf",
        "mille mercis",
        "vingt trente",
        "zéro six douze trente quatre cinquante",
        "deux millions et demi",
        "douze heures et demie",
        "cinq euros et demi",
        "vingt trois tiers",
        "double zéro sept",
        "un demi mille euros",
        "deux ou trois cents",
    ],
    "es": [
        "veinte treinta",
        "cinco euros con veinte",
        "a las cinco y treinta",
        "cien gracias",
        "una casa",
        "dos millones y medio",
        "doce y media",
        "doce euros y medio",
        "doble cero siete",
        "veinte tercios",
        "diez o quince mil",
    ],
    "it": [
        "venti trenta",
        "sei bello",
        "mille grazie",
        "venti ventesimi",
        "mila",
        "due milioni e mezzo",
        "dodici e mezza",
        "venti euro e mezzo",
        "doppio zero sette",
        "venti terzi",
        "dieci o quindicimila",
    ],
    "pt": [
        "vinte trinta",
        "três meia cinco",
        "mil vezes",
        "um milhão mil milhões",
        "dois milhões e meio",
        "doze e meia",
        "vinte reais e meio",
        "duplo zero sete",
        "dez ou quinze mil",
    ],
    "nl": [
        "twintig dertig",
        "honderd eerste",
        "één huis",
        "acht tien",
        "tweeënhalf duizend euro",
        "half twaalf",
        "drie kwart duizend euro",
        "dubbel nul zeven",
        "negentien tachtiger jaren",
        "tien tot vijftien duizend",
    ],
    "pl": [
        "dwadzieścia pięcioma",
        "sto pierwszy",
        "dwadzieścia trzydzieści",
        "milion ludzi",
        "piec",
        "dwadzieścia i pół",
        "dwadzieścia trzy i pół procent",
        "podwójne zero siedem",
        "dziesięć do piętnastu tysięcy",
    ],
    "ru": [
        "тысяч двадцать",
        "двадцать пятый",
        "двадцатью пять",
        "двумястами двадцать",
        "двадцать двадцать",
        "сто раз",
        "две тысячи пятого года",
        "двадцать два с половиной",
        "двадцать с половиной тысяч рублей",
        "двойной ноль семь",
    ],
    "zh": [
        "一百二",
        "十几个",
        "几十万",
        "四五个人",
        "三五成群",
        "七七八八",
        "不管三七二十一",
        "三点一刻",
        "九点一个人",
        "三点二十分",
        "十两",
        "三分之一",
        "二十分之一",
        "千万不要",
        "百分之百",
        "一百零二十",
        "一百万半",
        "十二块五",
    ],
}


def written(text: str, language: str) -> str:
    return tidy(Transcript(text, language=language), NUMBERS).text


@pytest.mark.parametrize(("language", "spoken"), [(code, text) for code, texts in WRITTEN.items() for text in texts])
def test_written_form(language: str, spoken: str) -> None:
    assert written(spoken, language) == WRITTEN[language][spoken]


@pytest.mark.parametrize(("language", "spoken"), [(code, text) for code, texts in STAYS.items() for text in texts])
def test_what_is_not_sure_stays_words(language: str, spoken: str) -> None:
    assert written(spoken, language) == spoken


def test_tests_have_all_languages_that_are_offered() -> None:
    assert {"en", *WRITTEN} == {"en", *STAYS} == {"en", "zh", *LANGUAGES} == set(OFFERED)
    assert set(grammar.STYLES) == set(LANGUAGES)


@cache
def spelled() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(SPELLED.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("language", [*LANGUAGES, "zh"])
def test_what_other_packages_spell_is_read(language: str) -> None:
    read = chinese.value_of if language == "zh" else numerals(language).value
    # num2words writes "dicotto" for 18 within Italian compounds.
    texts = {text.replace(",", ""): value for text, value in spelled()[language].items() if "dicotto" not in text}
    assert len(texts) > 200
    assert {text: read(text) for text in texts} == texts


@pytest.mark.parametrize("language", LANGUAGES)
def test_numbers_in_a_row_are_never_read_as_others(language: str) -> None:
    """Two numbers without a word between them are one that is spelled so, or stay words."""
    known = {text: value for text, value in spelled()[language].items() if 10 <= value < 1000 and "," not in text}
    for one, first in known.items():
        for two, second in list(known.items())[::7]:
            text = f"{one} {two}"
            made = written(text, language)
            both = numerals(language).value(text)
            assert made in (text, str(both)), (first, second)


@pytest.mark.parametrize("language", LANGUAGES)
@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_every_spoken_word_is_in_one_written_word(language: str, data: st.DataObject) -> None:
    style, numbers = grammar.STYLES[language], numerals(language)
    percent = " ".join(style.percent)
    around = [*row(f"und et y e en uhr heures con x {percent}"), *style.points, *style.currencies, *style.months]
    known = [*list(numbers.below_thousand)[:40], *numbers.scales, *numbers.ordinals, *style.minus, *style.fractions]
    words = data.draw(st.lists(st.sampled_from([*known, *around]), max_size=10))
    made = grammar.written_numbers(words, language)
    assert [index for each in made for index in range(each.first, each.end)] == list(range(len(words)))
    assert all(each.text for each in made)


@settings(max_examples=examples(100), deadline=None)
@given(st.text(alphabet="零〇一二两三九幺十百千万亿点年月日号分之几个第 a", max_size=30))
def test_chinese_beside_numbers_stays(text: str) -> None:
    rest, at = "", 0
    for first, end, made in chinese.replacements(text):
        assert at <= first < end <= len(text)
        assert re.fullmatch(r"[\d.%年月万亿]+", made)
        rest, at = rest + text[at:first], end


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 10**12 - 1))
def test_chinese_numbers_are_read_back(value: int) -> None:
    assert chinese.value_of(chinese.spelled_of(value)) == value


def test_spoken_words_keep_their_times_in_every_language() -> None:
    words = tuple(Span(each, at, at + 0.5, 0.8) for at, each in enumerate(row("es kostet zwei hundert euro")))
    after = tidy(Transcript("es kostet zwei hundert euro", words=words, language="de-DE"), NUMBERS)
    assert [(each.text, each.start_s, each.end_s) for each in after.words][2:] == [("200 €", 2.0, 4.5)]


def test_chinese_words_are_joined_by_their_characters_and_speakers() -> None:
    pieces = ["我", "有一", "百二十", "三天", "和", "三十", "四十", "年"]
    words = tuple(Span(each, at, at + 1.0, 0.5, "a" if at < 6 else "b") for at, each in enumerate(pieces))
    after = tidy(Transcript("".join(pieces), words=words, language="zh"), NUMBERS)
    assert after.text == "我有123天和3040年"
    assert [(each.text, each.start_s, each.end_s) for each in after.words] == [
        ("我", 0, 1),
        ("有123天", 1, 4),
        ("和", 4, 5),
        ("30", 5, 6),
        ("40", 6, 7),
        ("年", 7, 8),
    ]
    strange = Transcript("一百二十三", words=(Span("other", 0, 1, 1.0),), language="zh")
    assert tidy(strange, NUMBERS) == strange


def test_the_language_is_the_models_or_the_requests() -> None:
    options = TextOptions().changed({"numbers": "true", "text_language": "fr"})
    assert tidy(Transcript("vingt et un"), options).text == "21"
    assert tidy(Transcript("twenty one", language="en"), options).text == "21"
    assert tidy(Transcript("tjugo", language="sv"), options).text == "tjugo"
    assert tidy(Transcript("twenty one", language="zh"), options).text == "twenty one"
    before = Transcript(
        "vingt",
        alternatives=(Alternative("trente", -1.0),),
        segments=(Segment("vingt", 0, 1), Segment("zwanzig", 1, 2, language="de")),
        history="quarante",
    )
    after = tidy(before, options)
    assert [after.alternatives[0].text, after.history] == ["30", "40"]
    assert [each.text for each in after.segments] == ["20", "20"]
    for wrong in ("xx", "deu", "../de", "e" * 10_000):
        with pytest.raises(InputError, match="text_language"):
            TextOptions(text_language=wrong)
    with pytest.raises(InputError, match="text_language"):
        TextOptions().changed({"text_language": 7})


@pytest.mark.parametrize("language", [*LANGUAGES, "zh"])
def test_hostile_texts_take_their_time_alone(language: str) -> None:
    numbers = list(spelled()[language])
    for text in (
        " ".join(numbers[20:60] * 50),
        "".join(numbers[20:60] * 50),
        "٣ ٤ ५ \u0301\u0301 \ud800 -- ' 12 3,5",
        " ".join([numbers[2]] * 2000),
        "x" * 100_000,
        "一" * 100_000,
    ):
        made = written(text, language)
        assert len(made) <= len(text)
