"""Numbers, signs and abbreviations as the English words that they are read as.

    "Dr. Bell paid $250 on the 2nd"  ->  "doctor Bell paid two hundred fifty dollars on the second"

By the rules of `english_cleaners`, which came with Keith Ito's Tacotron and which NVIDIA's speech scripts score with: a
number from 1001 to 2999 is read as a year (1905: nineteen oh five), what stands after a decimal point as a number
(3.14: three point fourteen), and letters lose their accents. Other than there, % is percent, and not dropped.

Source: tacotron, text/cleaners.py and text/numbers.py; the words of numbers are those of `inflect` without "and".
"""

import re
import unicodedata

TO_TEN = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
TEENS = ("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
ONES = TO_TEN + TEENS
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
THOUSANDS = ("", "thousand", "million", "billion", "trillion", "quadrillion")
MOST_DIGITS = 3 * len(THOUSANDS)  # longer ones are read digit by digit
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
ABBREVIATIONS = {
    "mrs": "misess",
    "mr": "mister",
    "dr": "doctor",
    "st": "saint",
    "co": "company",
    "jr": "junior",
    "maj": "major",
    "gen": "general",
    "drs": "doctors",
    "rev": "reverend",
    "lt": "lieutenant",
    "hon": "honorable",
    "sgt": "sergeant",
    "capt": "captain",
    "esq": "esquire",
    "ltd": "limited",
    "col": "colonel",
    "ft": "fort",
}
SIGNS = {"&": "and", "+": "plus", "%": "percent"}

# In the order in which they are applied.
_commas = re.compile(r"(?<=[0-9]),(?=[0-9])")
_pounds = re.compile(r"£([0-9]+)")
_dollars = re.compile(r"\$([0-9]*)(?:\.([0-9]+))?(?!\.?[0-9])")
# Not from the middle of a number on: trying that takes quadratic time, hours for a million digits.
_decimal = re.compile(r"(?<![0-9])([0-9]+)\.([0-9]+)")
_ordinal = re.compile(r"(?<![0-9])([0-9]+)(?:st|nd|rd|th)\b", re.IGNORECASE)
_number = re.compile(r"[0-9]+")
_abbreviation = re.compile(rf"\b({'|'.join(ABBREVIATIONS)})\.", re.IGNORECASE)
_sign = re.compile(f"[{re.escape(''.join(SIGNS))}]")


def spell_out(text: str) -> str:
    """Write a text in words, with spaces where it takes several; a text of plain words stays as it is."""
    if text.isascii() and text.isalpha():
        return text
    text = "".join(map(_unaccented, unicodedata.normalize("NFC", text)))
    text = _commas.sub("", text)
    text = _pounds.sub(r" \1 pounds ", text)
    text = _dollars.sub(_money, text)
    text = _decimal.sub(r" \1 point \2 ", text)
    text = _ordinal.sub(lambda match: f" {ordinal_words(match[1])} ", text)
    text = _number.sub(lambda match: f" {number_words(match[0])} ", text)
    text = _abbreviation.sub(lambda match: ABBREVIATIONS[match[1].lower()], text)
    return _sign.sub(lambda match: f" {SIGNS[match[0]]} ", text)


def number_words(digits: str) -> str:
    """A whole number in words: "1905" is "nineteen oh five", "3001" is "three thousand one"."""
    if len(digits) > MOST_DIGITS:
        return " ".join(ONES[int(digit)] for digit in digits)
    value = int(digits)
    if not 1000 < value < 3000 or value == 2000:
        return _cardinal(value)
    century, year = divmod(value, 100)
    if century == 20 and year < 10:
        return f"two thousand {_cardinal(year)}"
    if not year:
        return f"{_cardinal(century)} hundred"
    return f"{_cardinal(century)} {'oh ' if year < 10 else ''}{_cardinal(year)}"


def ordinal_words(digits: str) -> str:
    """The place of a number in a row: "22" is "twenty second"."""
    *before, last = (number_words(digits) if len(digits) > MOST_DIGITS else _cardinal(int(digits))).split()
    regular = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return " ".join([*before, ORDINALS.get(last, regular)])


def _cardinal(value: int) -> str:
    words: list[str] = []
    for scale in reversed(range(len(THOUSANDS))):
        part = value // 1000**scale % 1000
        if part:
            words += _hundreds(part) + [THOUSANDS[scale]] * bool(scale)
    return " ".join(words) or ONES[0]


def _hundreds(value: int) -> list[str]:
    hundreds, rest = divmod(value, 100)
    words = [ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        words.append(TENS[rest // 10 - 2])
        rest %= 10
    return words + ([ONES[rest]] if rest else [])


def _money(match: re.Match[str]) -> str:
    """Dollars and cents; a sign without a number stays."""
    if not match[1] and not match[2]:
        return match[0]
    amounts = ((match[1] or "").lstrip("0"), "dollar"), ((match[2] or "").lstrip("0"), "cent")
    spoken = [f"{amount} {name}{'' if amount == '1' else 's'}" for amount, name in amounts if amount]
    return f" {', '.join(spoken) or 'zero dollars'} "


def _unaccented(character: str) -> str:
    """A Latin letter or a digit as ASCII has it; accents of other scripts are no ornaments."""
    base, *marks = list(unicodedata.normalize("NFKD", character))
    return base if base.isascii() and base.isalnum() and all(map(unicodedata.combining, marks)) else character
