"""Whisper's token tables, from transformers' files and OpenAI's, and the special tokens in them.

    vocab.json + added_tokens.json, or tokenizer.json    ->  tokens in the order of their ids
    vocabulary.json, vocabulary.txt                      ->  the same, of CTranslate2's folders
    multilingual.tiktoken, gpt2.tiktoken                 ->  the same, with the special tokens that OpenAI appends
    tokens                                               ->  ids of special tokens by name, of symbols not to be written

Source: openai/whisper whisper/tokenizer.py.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tritone.bundle.byte_level import ByteLevelBpe, piece_of
from tritone.errors import ExportError
from tritone.families.export.json_files import read_json
from tritone.paths import plain_text

MAX_TABLE_BYTES = 64 * 2**20
# In the order of their tokens; the first 99 in models before large-v3.
# fmt: off
LANGUAGES = (
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr", "pl", "ca", "nl", "ar", "sv", "it", "id", "hi", "fi",
    "vi", "he", "uk", "el", "ms", "cs", "ro", "da", "hu", "ta", "no", "th", "ur", "hr", "bg", "lt", "la", "mi", "ml",
    "cy", "sk", "te", "fa", "lv", "bn", "sr", "az", "sl", "kn", "et", "mk", "br", "eu", "is", "hy", "ne", "mn", "bs",
    "kk", "sq", "sw", "gl", "mr", "pa", "si", "km", "sn", "yo", "so", "af", "oc", "ka", "be", "tg", "sd", "gu", "am",
    "yi", "lo", "uz", "fo", "ht", "ps", "tk", "nn", "mt", "sa", "lb", "my", "bo", "tl", "mg", "as", "tt", "haw", "ln",
    "ha", "ba", "jw", "su", "yue",
)
# fmt: on
EOT, SOT = "<|endoftext|>", "<|startoftranscript|>"
PREVIOUS, NO_TIMESTAMPS = "<|startofprev|>", "<|notimestamps|>"
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")  # today's name and transformers' older one
TASKS = ("translate", "transcribe")
LANGUAGE = re.compile(r"<\|([a-z]{2,8})\|>")
NO_LANGUAGES = {"nospeech", "nocaptions", "endoftext", *TASKS}
TIME_STEP = 0.02  # seconds, of the tokens that are times
# Speaker tags and sounds that are no speech. Of the miscellaneous ones, which may be several tokens, the first counts.
SYMBOLS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("'),
    *("((", "))", "(((", ")))", "[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
MISCELLANEOUS = "♩♪♫♬♭♮♯"
AT_WORD_STARTS = (" -", " '")


def time_token(step: int) -> str:
    """How the token of a time is called."""
    return f"<|{step * TIME_STEP:.2f}|>"


def read_transformers_tokens(folder: Path, size: int) -> tuple[list[str], Path]:
    """The tokens of a transformers folder and the file that they are from.

    Ids without a name, which older tokenizers leave to times, get the names that OpenAI gives them.

    Raises:
        ExportError: there is no table, or one that does not fit the model.
    """
    whole, plain = folder / "tokenizer.json", folder / "vocab.json"
    if whole.is_file():
        content = read_json(whole)
        model = content.get("model")
        table = dict(model["vocab"]) if isinstance(model, Mapping) and isinstance(model.get("vocab"), Mapping) else {}
        table |= {
            each["content"]: each["id"]
            for each in content.get("added_tokens", ())
            if isinstance(each, Mapping) and {"content", "id"} <= set(each)
        }
        origin = whole
    elif plain.is_file():
        table, origin = dict(read_json(plain)), plain
        if (added := folder / "added_tokens.json").is_file():
            table |= read_json(added)
    else:
        raise ExportError(f"{folder} has neither tokenizer.json nor vocab.json; copy the whole folder of the model")
    tokens = [""] * size
    for token, id in table.items():
        if not isinstance(id, int) or not 0 <= id < size:
            raise ExportError(f"{origin}: token {token!r} has id {id!r}; ids of this model are 0 to {size - 1}")
        tokens[id] = token
    if NO_TIMESTAMPS in table:
        begin = table[NO_TIMESTAMPS] + 1
        for id in range(begin, size):
            tokens[id] = tokens[id] or time_token(id - begin)
    return [token or f"<|unused-{id}|>" for id, token in enumerate(tokens)], origin


def read_ctranslate2_tokens(folder: Path, size: int) -> tuple[list[str], Path]:
    """The tokens of a folder of CTranslate2's and the file that they are from: tokenizer.json, or its vocabulary.

    Raises:
        ExportError: there is no table, or one that does not fit the model.
    """
    lines, listed = folder / "vocabulary.txt", folder / "vocabulary.json"
    if (folder / "tokenizer.json").is_file():
        return read_transformers_tokens(folder, size)
    if listed.is_file():
        tokens, origin = read_json(listed, list), listed
    elif lines.is_file():
        tokens, origin = _read_text(lines).removesuffix("\n").split("\n"), lines
    else:
        raise ExportError(
            f"{folder} has no tokens: copy tokenizer.json, or vocabulary.json, beside {folder.name}'s model"
        )
    if len(tokens) != size or not all(isinstance(token, str) for token in tokens):
        raise ExportError(f"{origin} has {len(tokens)} tokens, the model {size}; take the table that belongs to it")
    return tokens, origin


def read_tiktoken(path: Path, size: int, times: int) -> list[str]:
    """The tokens of a model of OpenAI's: the pieces of a `.tiktoken` file, and behind them the special tokens.

    Args:
        size: tokens of the model.
        times: how many of them are times.

    Raises:
        ExportError: the file cannot be read, or its number of pieces does not fit the model.
    """
    pieces: dict[int, str] = {}
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            encoded, rank = line.split()
            pieces[int(rank)] = piece_of(base64.b64decode(encoded, validate=True))
        except (ValueError, binascii.Error) as error:
            raise ExportError(
                f"{path}, line {number}: expected a piece in base64 and its rank, got {line[:60]!r}"
            ) from (error)
    if sorted(pieces) != list(range(len(pieces))):
        raise ExportError(f"{path}: ranks must run from 0 without gaps")
    others = (*(f"<|{task}|>" for task in TASKS), "<|startoflm|>", PREVIOUS, NO_SPEECH[0], NO_TIMESTAMPS)
    languages = size - len(pieces) - 2 - len(others) - times
    if not 0 <= languages <= len(LANGUAGES):
        raise ExportError(
            f"{path} has {len(pieces)} pieces, which is the table of another model: this one has {size} tokens. Take "
            "multilingual.tiktoken, or gpt2.tiktoken for models of English alone"
        )
    codes = (f"<|{code}|>" for code in LANGUAGES[:languages])
    return [*(pieces[id] for id in range(len(pieces))), EOT, SOT, *codes, *others, *map(time_token, range(times))]


def special_tokens(tokens: Sequence[str], origin: str) -> dict[str, Any]:
    """The fields of the manifest's part `whisper` that are ids of tokens.

    Raises:
        ExportError: a token that every Whisper model has is missing.
    """
    ids = {token: id for id, token in enumerate(tokens) if token.startswith("<|")}
    missing = [token for token in (EOT, SOT, NO_TIMESTAMPS) if token not in ids]
    if missing:
        raise ExportError(f"{origin} has no token {', '.join(missing)}; is it the table of a Whisper model?")
    found = {token: LANGUAGE.fullmatch(token) for token in ids}
    return {
        "sot": ids[SOT],
        "eot": ids[EOT],
        "sot_prev": ids.get(PREVIOUS),
        "no_timestamps": ids[NO_TIMESTAMPS],
        "timestamp_begin": ids[NO_TIMESTAMPS] + 1,
        "no_speech": next((ids[name] for name in NO_SPEECH if name in ids), None),
        "languages": {
            match[1]: ids[token]
            for token, match in found.items()
            if match
            and match[1] not in NO_LANGUAGES
            and ids[SOT] < ids[token] < ids[NO_TIMESTAMPS]
            and match[1] in LANGUAGES
        },
        "tasks": {task: ids[f"<|{task}|>"] for task in TASKS if f"<|{task}|>" in ids},
    }


def suppressed_tokens(tokens: Sequence[str]) -> tuple[int, ...]:
    """The ids that OpenAI never writes: symbols that nobody speaks, and special tokens that are part of prompts."""
    bpe = ByteLevelBpe(tokens)
    found = {bpe.encode(start)[0] for start in AT_WORD_STARTS}
    for symbol in (*SYMBOLS, *MISCELLANEOUS):
        for ids in (bpe.encode(symbol), bpe.encode(f" {symbol}")):
            if len(ids) == 1 or symbol in MISCELLANEOUS:
                found.add(ids[0])
    named = (SOT, PREVIOUS, "<|startoflm|>", *(f"<|{task}|>" for task in TASKS), *NO_SPEECH)
    return tuple(sorted(found | {id for id, token in enumerate(tokens) if token in named}))


def first_suppressed(tokens: Sequence[str]) -> tuple[int, ...]:
    """The ids that OpenAI lets no text begin with: a lone space, and its end."""
    return (*ByteLevelBpe(tokens).encode(" "), list(tokens).index(EOT))


def _read_text(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > MAX_TABLE_BYTES:
            raise ExportError(f"{path} has {size} bytes; a token table has at most {MAX_TABLE_BYTES}")
        return plain_text(path.read_bytes())
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ExportError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
