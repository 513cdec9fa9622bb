"""Numbers of spoken Chinese in digits: 三百六十五天 -> 365天, 三月二十日 -> 3月20日, 百分之三点五 -> 3.5%.

A number is written in digits only where these, spelled in the usual way, are that text again. So what leaves something
to be understood stays: 一百二, 十几, 几十万, 四五个, 三点一刻. Single characters stay, too, and idioms: 七七八八.
"""

import re
from collections.abc import Iterator

DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {"〇": 0, "幺": 1}
PLACES = ((1000, "千"), (100, "百"), (10, "十"))
SCALES = ((10**8, "亿"), (10**4, "万"))
SIMPLIFIED = str.maketrans("兩萬億點號", "两万亿点号")
LONGEST = 40  # characters of a number
LONG_ROW = 5  # digits that are read one by one and are no idiom

ONES, ALL = "零〇一二三四五六七八九幺", "零〇一二两三四五六七八九幺十百千万亿"
NUMBER = re.compile(
    f"百分之(?P<percent>[{ALL}]+)(?:点(?P<part>[{ONES}]+))?"
    f"|(?:(?P<year>[{ONES}]{{4}})年)?(?P<month>[{ALL}]{{1,2}})月(?P<day>[{ALL}]{{1,3}})(?=[日号])"
    f"|(?P<alone>[{ONES}]{{4}})(?=年)"
    f"|(?P<whole>[{ALL}]+)点(?P<decimals>[{ONES}]+)(?P<scale>[万亿]?)"
    f"|(?P<plain>[{ALL}]+)"
)
MEASURED = re.compile("[倍米元度秒]|公里|公斤|块钱|百分点")  # what one decimal is of, since 点 is also that of a time
VAGUE_BEFORE, VAGUE_AFTER = ("几", "数", "点", "之", "."), ("几", "点", "分之", "分", "刻", "个", "半")


def replacements(text: str) -> Iterator[tuple[int, int, str]]:
    """What is written of a text: from which character to which, and what stands there instead, in order."""
    plain = text.translate(SIMPLIFIED)
    for found in NUMBER.finditer(plain):
        if (written := _written(found, plain)) is not None:
            yield found.start(), found.end(), written


def _written(found: re.Match[str], text: str) -> str | None:
    part = found.groupdict()
    first, end = found.span()
    is_apart = not text.endswith(VAGUE_BEFORE, 0, first) and not text.startswith(tuple(ALL), end)
    if part["percent"]:
        value, decimals = value_of(part["percent"]), _row(part["part"] or "")
        is_whole = value is not None and not text.startswith((*VAGUE_AFTER[:2], *ALL), end)
        return f"{value}{'.' * bool(decimals)}{decimals}%" if is_whole else None
    if part["month"]:
        month, day = value_of(part["month"]), value_of(part["day"])
        if not month or not day or month > 12 or day > 31 or not is_apart:
            return None
        return f"{_row(part['year']) + '年' if part['year'] else ''}{month}月{day}"
    if part["alone"]:
        return _row(part["alone"]) if is_apart else None
    if part["whole"]:
        value, decimals = value_of(part["whole"]), _row(part["decimals"])
        is_measured = len(decimals) > 1 or MEASURED.match(text, end)
        is_sure = part["scale"] or (is_measured and not text.startswith(VAGUE_AFTER, end))
        return f"{value}.{decimals}{part['scale']}" if value is not None and is_sure and is_apart else None
    is_half = text.startswith((*VAGUE_AFTER[:3], "半"), end) or re.match(f"块[{ONES}]", text[end : end + 2])
    return _number(part["plain"]) if is_apart and not is_half else None


def _number(spelled: str) -> str | None:
    """A number of several characters, or a row of digits that is no idiom."""
    if len(spelled) > LONGEST:
        return None
    if (value := value_of(spelled)) is not None:
        if value < 10 or len(spelled) == 1:
            return None
        scale, name = next(((each, name) for each, name in SCALES if spelled.endswith(name)), (1, ""))
        return f"{value // scale}{name}" if value < 10**4 * scale else str(value)
    if all(each in DIGITS for each in spelled) and (
        len(spelled) >= LONG_ROW or (len(spelled) > 2 and set(spelled) & {*"零〇幺"})
    ):
        return _row(spelled)
    return None


def _row(digits: str) -> str:
    return "".join(str(DIGITS[each]) for each in digits)


def value_of(spelled: str) -> int | None:
    """The number that is spelled so, below 10**12; None if no number is spelled so in the usual way."""
    usual = re.sub("两(?=[百千万亿])", "二", spelled).replace("〇", "零")
    usual = re.sub("(?<![一二三四五六七八九])十", "一十", usual)
    total = section = digit = 0
    for each in usual:
        if each in DIGITS:
            digit = DIGITS[each]
        elif place := next((value for value, character in PLACES if character == each), 0):
            section, digit = section + digit * place, 0
        elif scale := next((value for value, character in SCALES if character == each), 0):
            total, section, digit = total + (section + digit) * scale, 0, 0
        else:
            return None
    total += section + digit
    return total if spelled_of(total) == usual else None


def spelled_of(value: int) -> str:
    """How a number from 0 to 10**12 - 1 is spelled: 205003 -> 二十万五千零三; tens always as 一十."""
    text, above = "", False
    for scale, name in (*SCALES, (1, "")):
        section = value // scale % (10**8 if scale == 10**8 else 10**4)
        if section:
            text += ("零" if above and section < 1000 else "") + _section(section) + name
        above = above or bool(section)
    return text or "零"


def _section(value: int) -> str:
    text, gap = "", False
    for place, name in (*PLACES, (1, "")):
        digit = value // place % 10
        if digit:
            text += ("零" if gap and text else "") + "零一二三四五六七八九"[digit] + name
        gap = not digit
    return text
