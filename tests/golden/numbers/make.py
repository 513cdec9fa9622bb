"""How other packages spell numbers, as `spelled.json`: by language, texts with their values.

pip install num2words==0.5.14 cn2an==0.5.24 && python tests/golden/numbers/make.py
"""

import json
import random
from pathlib import Path

import cn2an
import num2words

LANGUAGES = ("de", "es", "fr", "it", "nl", "pl", "pt", "ru")


def values() -> list[int]:
    """All below a hundred and some of each number of digits."""
    chosen = random.Random(51)
    found = {
        *range(100),
        100,
        101,
        110,
        111,
        121,
        200,
        280,
        555,
        1000,
        1001,
        1100,
        1900,
        1970,
        2000,
        2026,
        21_000,
        100_000,
    }
    found |= {10**6, 2 * 10**6, 10**9, 2 * 10**9}
    for digits in range(3, 11):
        found |= {chosen.randrange(10 ** (digits - 1), 10**digits) for _ in range(12)}
    return sorted(found)


if __name__ == "__main__":
    spelled = {lang: {num2words.num2words(each, lang=lang): each for each in values()} for lang in LANGUAGES}
    spelled["zh"] = {cn2an.an2cn(str(each), "low"): each for each in values()}
    path = Path(__file__).with_name("spelled.json")
    path.write_text(json.dumps(spelled, ensure_ascii=False, indent=0), encoding="utf-8")
