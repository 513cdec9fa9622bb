"""Where a line may end in scripts that are written without spaces: Chinese, Japanese, Thai and others.

    "今天很好，我们用Python写。"  ->  今 天 很 好， 我 们 用 Python 写。   units; joined they are the text

A simple form of the rules of Unicode's annex 14, without its dictionaries of words. What belongs to a letter stays with
it: marks and small kana behind, opening brackets before it, vowels of Thai on either side, a number before its counter.
"""

import re
import unicodedata
from functools import lru_cache

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f0b-\u0f14\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff"
    "\uaa60-\uaadf\u3001-\u303f\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff9f"
    "\U0001b000-\U0001b2ff\U00020000-\U0003ffff]"
)
"""Thai, Lao, Burmese, Khmer and smaller scripts, Tibetan's marks between syllables; kana, bopomofo, ideographs, and
marks of their width. Hangul has spaces."""
BOUND = frozenset("ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶｧｨｩｪｫｬｭｮｯะาำฯๅະາຳຯ")
"""Letters that no line begins with."""
LEADING = frozenset("เแโใไເແໂໃໄ")
"""Vowels that are written before their consonant."""
VIRAMA = 9  # combining class of marks below which the next consonant is written


def units(text: str) -> list[str]:
    """The parts of a text without spaces between which a line may end; one, where the script has spaces."""
    parts: list[str] = []
    for letter in text:
        if parts and not _may_break(parts[-1][-1], letter):
            parts[-1] += letter
        else:
            parts.append(letter)
    return parts


@lru_cache(1 << 14)
def _may_break(before: str, after: str) -> bool:
    first, second = unicodedata.category(before), unicodedata.category(after)
    if before in LEADING or first in ("Ps", "Pi", "Nd", "Sc", "Cf") or unicodedata.combining(before) == VIRAMA:
        return False
    if after in BOUND or second[0] == "M" or second in ("Pe", "Pf", "Po", "Pd", "Lm", "Cf"):
        return False
    return UNSPACED.match(before) is not None or UNSPACED.match(after) is not None
