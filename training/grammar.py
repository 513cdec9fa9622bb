"""Texts of the demo's domain, made up at random: spelled words, digits, numbers, dates, commands and their mixtures.

    random.Random -> "erase k l m u five two seven four"

Words are lower case, a single letter is a spelled letter, and "o" is the letter while "oh" is the digit.
"""

from __future__ import annotations

import random
from collections.abc import Callable

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ORDINALS = [
    *["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"],
    *["eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth"],
    *["nineteenth", "twentieth"],
]
MONTHS = [
    *["january", "february", "march", "april", "may", "june", "july"],
    *["august", "september", "october", "november", "december"],
]
COMMANDS = ["enter", "erase", "rubout", "repeat", "help", "start", "stop", "go", "yes", "no"]
KEYWORDS = [
    *["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", "bed", "cat", "happy", "bird", "dog"],
    *["house", "marvin", "sheila", "tree", "wow", "backward", "forward", "follow", "learn", "visual"],
]
SPELLED = """
    alan amanda andrew anna arthur barbara benjamin beth bonnie brian carla catherine charles chloe clara daniel
    deborah dennis diana dorothy edgar edward elaine elizabeth eric evelyn felix fiona frances fred gabriel
    george gina gloria grace harold hazel heather helen henry howard ian inez irene isaac ivy jack jacob janet
    jeffrey jenny jerome joan joseph joyce judy julia karen keith kevin kim kurt laura lewis linda louise lucy
    luke margaret maria martin max melvin mike molly nancy naomi neil nina norman olive oscar pamela patrick
    paul peggy peter philip quentin rachel ralph raymond rebecca richard rita robert rose roy ruth sally samuel
    sandra sharon simon sophie stella susan ted theodore thomas tina ursula vera victor vincent virginia walter
    wanda wendy wilfred xavier yolanda yvonne zachary zelda adams baxter bishop brooks calvert chapman cooper
    crawford dixon douglas dunlap ellsworth fletcher forbes fulton gallagher graham griffin hamilton harper
    hobart hutchinson jackson jenkins kowalski lambert lincoln logan madison mcgraw miller monroe murphy newton
    oakley osborne palmer pierce quigley ramsey reynolds sanders schwartz shaw simpson spencer sullivan tucker
    vaughn wagner walnut webster wilkins xiong young zimmerman akron albany atlanta austin baltimore boston
    buffalo chicago cleveland dallas dayton denver detroit erie fresno houston jersey kansas lansing memphis
    miami nashville oakland omaha orlando philadelphia phoenix portland quebec reno richmond salem seattle
    tacoma toledo tucson tulsa utica wichita yonkers avenue boulevard court drive highway lane place road street
    terrace
""".split()  # noqa: SIM905


def number_words(value: int) -> list[str]:
    """Say 0..9999 in words, American style but with the "and" that many speakers put after the hundreds left out."""
    if value < 10:
        return [DIGITS[value]]
    if value < 20:
        return [TEENS[value - 10]]
    if value < 100:
        return [TENS[value // 10 - 2]] + ([DIGITS[value % 10]] if value % 10 else [])
    if value < 1000:
        return [DIGITS[value // 100], "hundred"] + (number_words(value % 100) if value % 100 else [])
    if value < 10000:
        return [DIGITS[value // 1000], "thousand"] + (number_words(value % 1000) if value % 1000 else [])
    raise ValueError(f"numbers from 0 to 9999 can be said, got {value}")


def digits(random_: random.Random, count: int) -> list[str]:
    """A digit string whose zeros are all said "oh" or all "zero"."""
    zero = random_.choice(["oh", "zero"])
    return [zero if digit == "zero" else digit for digit in random_.choices(DIGITS, k=count)]


def digit_string(random_: random.Random) -> list[str]:
    return digits(random_, random_.choice([1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 8]))


def phone_number(random_: random.Random) -> list[str]:
    area = digits(random_, 3)
    lead = random_.choice([[], [], ["area", "code", *area], area])
    return lead + digits(random_, 7)


def number(random_: random.Random) -> list[str]:
    style = random_.randrange(4)
    if style == 0:
        return number_words(random_.randrange(10, 100))
    if style == 1:
        value = random_.randrange(100, 10000)
        words = number_words(value)
        if "hundred" in words and words[-1] != "hundred" and random_.random() < 0.4:
            words.insert(words.index("hundred") + 1, "and")
        return words
    if style == 2:  # house numbers are said in pairs
        last = random_.randrange(1, 100)
        return number_words(random_.randrange(10, 100)) + (["oh"] if last < 10 else []) + number_words(last)
    return [*number_words(random_.randrange(0, 100)), *random_.choice([["and", "a", "half"], []])]


def date(random_: random.Random) -> list[str]:
    day = random_.randrange(31)
    ordinal = [ORDINALS[day]] if day < 20 else ["thirtieth"] if day == 29 else []
    if not ordinal:
        ordinal = ["thirty", "first"] if day == 30 else ["twenty", ORDINALS[day - 20]]
    month = random_.choice(MONTHS)
    start = [*ordinal, "of", month] if random_.random() < 0.15 else [month, *ordinal]
    year = random_.randrange(100)
    end = ["hundred"] if year == 0 else (["oh"] if year < 10 else []) + number_words(year)
    return start + random_.choice(
        [[], ["nineteen", *end], ["nineteen", *end], [*random_.choice([["eighteen"], ["twenty"]]), *end]]
    )


def letters(random_: random.Random) -> list[str]:
    return random_.choices(LETTERS, k=random_.choice([1, 2, 3, 4, 5, 6]))


def spelled_word(random_: random.Random) -> list[str]:
    return list(random_.choice(SPELLED))


def spelled_name(random_: random.Random) -> list[str]:
    word = list(random_.choice(SPELLED))
    return ["o", "apostrophe", *word] if random_.random() < 0.05 else word + list(random_.choice(SPELLED))[:5]


def mixture(random_: random.Random) -> list[str]:
    tail = random_.choice([digits(random_, random_.randrange(1, 5)), number(random_)])
    return letters(random_) + tail


def command(random_: random.Random) -> list[str]:
    if random_.random() < 0.3:
        return [random_.choice(COMMANDS)]
    if random_.random() < 0.15:
        return random_.sample(COMMANDS, k=random_.choice([2, 3]))
    object_ = random_.choice([mixture, mixture, digit_string, number, letters])
    return [random_.choice(["enter", "erase", "rubout"]), *object_(random_)]


def keywords(random_: random.Random) -> list[str]:
    return random_.choices(KEYWORDS + DIGITS, k=random_.choice([1, 2, 3, 3, 4, 5]))


KINDS: dict[str, tuple[float, Callable[[random.Random], list[str]]]] = {
    "digits": (0.16, digit_string),
    "phone": (0.07, phone_number),
    "number": (0.12, number),
    "date": (0.14, date),
    "letters": (0.06, letters),
    "spelled": (0.13, spelled_word),
    "name": (0.05, spelled_name),
    "mixture": (0.09, mixture),
    "command": (0.10, command),
    "keywords": (0.08, keywords),
}


def sentence(random_: random.Random, kind: str | None = None) -> str:
    """One text, of the given kind or of a random one."""
    if kind is None:
        kind = random_.choices(list(KINDS), weights=[weight for weight, _ in KINDS.values()])[0]
    return " ".join(KINDS[kind][1](random_))
