"""Keys in texts of servers, in every way that somebody may write them."""

import base64
import codecs
import time
import urllib.parse
from collections.abc import Callable

import pytest

from tritone.gateway.upstreams.quoting import MAX_CHARS, quotes

KEYS = (
    "sk-SECRETKEY0123456789abcdefghijklmnopqrstuvwxyz",
    "sk-proj-Zt5_R9wQ2-xYvB7nK1mLpC8dF3gH6jU4aE0sO",
    "9f86d081884c7d659a2feaa0c55ad015",
)
WAYS: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "in the middle of a word": lambda key: f"xx{key}xx",
    "upper case": str.upper,
    "other case": str.swapcase,
    "spaced": " ".join,
    "a line each": "\n".join,
    "commas": ", ".join,
    "zero-width spaces": "\u200b".join,
    "one zero-width space": lambda key: f"{key[:20]}\u200b{key[20:]}",
    "accents": "\u0301".join,
    "wide letters": lambda key: "".join(chr(ord(each) + 0xFEE0) for each in key),
    "its start": lambda key: key[:12],
    "its end": lambda key: key[-8:],
    "masked in the middle": lambda key: f"{key[:10]}****{key[-4:]}",
    "in pieces": lambda key: " and ".join(key[start : start + 5] for start in range(0, len(key), 5)),
    "backwards": lambda key: key[::-1],
    "backwards and spaced": lambda key: " ".join(key[::-1]),
    "a list": lambda key: repr(list(key)),
    "of an address": lambda key: "".join(f"%{ord(each):02X}" for each in key),
    "of an address, twice": lambda key: urllib.parse.quote("".join(f"%{ord(each):02X}" for each in key)),
    "HTML": lambda key: "".join(f"&#{ord(each)};" for each in key),
    "HTML, hexadecimal": lambda key: "".join(f"&#x{ord(each):x};" for each in key),
    "JSON": lambda key: "".join(f"\\u{ord(each):04x}" for each in key),
    "octal": lambda key: "".join(f"\\{ord(each):03o}" for each in key),
    "hexadecimal": lambda key: key.encode().hex(),
    "hexadecimal, spaced": lambda key: key.encode().hex(" ").upper(),
    "hexadecimal numbers": lambda key: " ".join(hex(ord(each)) for each in key),
    "numbers": lambda key: str(list(key.encode())),
    "bits": lambda key: " ".join(f"{ord(each):08b}" for each in key),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of the header": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "base64 of an address": lambda key: base64.urlsafe_b64encode(key.encode()).decode().rstrip("="),
    "base64, cut": lambda key: base64.b64encode(key.encode()).decode()[:17],
    "base64, spaced": lambda key: " ".join(base64.b64encode(key.encode()).decode()),
    "base64, backwards": lambda key: base64.b64encode(key.encode()).decode()[::-1],
    "base64 of base64": lambda key: base64.b64encode(base64.b64encode(key.encode())).decode(),
    "base32": lambda key: base64.b32encode(key.encode()).decode(),
    "base85": lambda key: base64.b85encode(key.encode()).decode(),
    "rot13": lambda key: codecs.encode(key, "rot13"),
}
HARMLESS = (
    "no such language 'xx'",
    "The model `whisper-9` does not exist or you do not have access to it.",
    "timestamp_granularities[] 'word' is only valid for response_format verbose_json",
    "Invalid file format. Supported formats: ['flac', 'm4a', 'mp3', 'mp4', 'mpeg', 'mpga', 'oga', 'ogg', 'wav']",
    "Rate limit reached for whisper-1 on requests per min. Limit: 3 / min. Please try again in 20s. Visit "
    "https://platform.openai.com/account/rate-limits to learn more.",
    "mistralai/Voxtral-Mini-3B-2507 has a context of 32768 tokens, and this request has 40112",
    "request 123e4567-e89b-12d3-a456-426614174000: CUDA out of memory. Tried to allocate 2.00 GiB",
    "Input should be less than or equal to 1 [type=less_than_equal, input_value=3.0, input_type=float]",
    "x" * 400,
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_seen_however_it_is_written(key: str, way: str) -> None:
    assert quotes(f"Incorrect API key provided: {WAYS[way](key)}. You can have another one.", key)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_errors_are_no_quotations(text: str) -> None:
    assert not any(quotes(text, key) for key in KEYS)


@pytest.mark.parametrize(
    ("key", "text"), [("token-abc123", "bad: t o k e n abc"), ("x", "an x"), ("!?!?", "no ! ? ! ?")]
)
def test_short_and_odd_keys_are_looked_for_too(key: str, text: str) -> None:
    assert quotes(text, key)


@pytest.mark.parametrize("part", ["ab ", "QUJD", "6162", "%25", "\\u0025", "&amp;", "1234567", "\u0301"])
def test_looking_through_any_text_takes_little(part: str) -> None:
    began = time.process_time()
    quotes((MAX_CHARS * part)[:MAX_CHARS], KEYS[0])
    assert time.process_time() - began < 1
    assert quotes((MAX_CHARS + 1) * "a", KEYS[0])
