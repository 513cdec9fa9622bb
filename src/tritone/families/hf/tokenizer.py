"""The vocabulary of a CTC model of transformers, as its tokenizer writes it.

    vocab.json, added_tokens.json, tokenizer_config.json, special_tokens_map.json  ->  TokenTable

The pad token is the blank; the word delimiter, `|` as a rule, is written as a space. Source of the rules:
models/wav2vec2/tokenization_wav2vec2.py and models/wav2vec2_phoneme/tokenization_wav2vec2_phoneme.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.bundle.vocabulary import SPACE
from tritone.errors import ExportError
from tritone.families.export.json_files import read_json, read_json_if_there

VOCAB = "vocab.json"
CONNECT = {"Wav2Vec2CTCTokenizer": "", "Wav2Vec2PhonemeCTCTokenizer": " "}  # what stands between two tokens
SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
SHOWN = 5


@dataclass(frozen=True)
class TokenTable:
    """The tokens by id as a bundle writes them, and the ids that mean something else than text.

    `nameless`: ids that the head has and the tokenizer does not.
    """

    tokens: list[str]
    blank_id: int
    unk_id: int | None
    sos_id: int | None
    eos_id: int | None
    connect_symbol: str
    nameless: list[int]


def read_tokenizer(folder: Path, size: int, language: str | None = None) -> TokenTable:
    """Read the tokenizer of a folder for a head of `size` outputs.

    Args:
        language: which vocabulary, if vocab.json has one for each language (MMS); None takes the tokenizer's own.

    Raises:
        ExportError: files are missing or damaged, the tokenizer is of another kind, there is no blank, or tokens cannot
            be distinguished.
    """
    settings = {
        **read_json_if_there(folder / "special_tokens_map.json"),
        **read_json_if_there(folder / "tokenizer_config.json"),
    }
    kind = settings.get("tokenizer_class") or "Wav2Vec2CTCTokenizer"
    if kind not in CONNECT:
        raise ExportError(f"{folder} has a {kind}; supported are {' and '.join(CONNECT)}")
    ids = _ids(folder, settings, language)
    if not ids or max(ids.values()) < 0:
        raise ExportError(f"{folder / VOCAB} has no tokens")
    special = {name: _content(settings.get(name, default)) for name, default in SPECIAL.items()}
    blank = ids.get(special["pad_token"] or "")
    if blank is None or blank >= size:
        raise ExportError(
            f"the pad token {special['pad_token']!r}, which is the blank of CTC, is not among the {size} outputs of "
            f"{folder}; its tokenizer and its weights do not belong together"
        )
    delimiter = _content(settings.get("word_delimiter_token", "|" if not CONNECT[kind] else None))
    written = {} if delimiter is None else {delimiter: settings.get("replace_word_delimiter_char", " ")}
    by_id = {id: token for token, id in ids.items()}
    lower = bool(settings.get("do_lower_case"))
    nameless = [id for id in range(size) if id not in by_id]

    def spelled(id: int) -> str:
        if id in nameless:
            return f"<unused-{id}>"
        token = written.get(by_id[id], by_id[id])
        return (token.lower() if lower else token).replace(" ", SPACE)

    tokens = [spelled(id) for id in range(size)]
    bad = [token for token in tokens if not token or any(character.isspace() for character in token)]
    twice = sorted({token for token in tokens if tokens.count(token) > 1}) if len(set(tokens)) < size else []
    if bad or twice:
        raise ExportError(
            f"tokens of {folder}: {(bad or twice)[:SHOWN]} cannot be told apart or written; each must be there once, "
            "without spaces"
        )
    known = {name: ids.get(token or "") for name, token in special.items()}
    unk, sos, eos = (id if id is not None and id < size and id != blank else None for id in list(known.values())[1:])
    return TokenTable(tokens, blank, unk, sos, eos, CONNECT[kind], nameless)


def _ids(folder: Path, settings: Mapping[str, Any], language: str | None) -> dict[str, int]:
    """Tokens and their ids; those of the vocabulary take precedence, as upstream's do."""
    path = folder / VOCAB
    content = read_json(path)
    languages = [name for name, value in content.items() if isinstance(value, dict)]
    if languages:
        chosen = language or settings.get("target_lang")
        if chosen not in languages:
            shown = ", ".join(sorted(languages)[:20]) + (", …" if len(languages) > 20 else "")
            raise ExportError(f"{path} has a vocabulary for each language; choose one of {shown}; got {chosen!r}")
        content = content[chosen]
    elif language is not None:
        raise ExportError(f"{path} has one vocabulary for all languages; leave out the language {language!r}")
    added = read_json_if_there(folder / "added_tokens.json")
    decoder = settings.get("added_tokens_decoder")
    for id, token in decoder.items() if isinstance(decoder, dict) else ():
        if id.isdecimal() and (text := _content(token)) is not None:
            added.setdefault(text, int(id))
    taken = set(content.values()) if all(isinstance(id, int) for id in content.values()) else set()
    found = {token: id for token, id in added.items() if id not in taken} | content
    wrong = [token for token, id in found.items() if not isinstance(id, int) or isinstance(id, bool) or id < 0]
    if wrong:
        raise ExportError(f"{path}: expected an id for each token; {wrong[:SHOWN]} have something else")
    return found


def _content(token: Any) -> str | None:
    """The text of a special token, which files write in two ways."""
    return token.get("content") if isinstance(token, dict) else token
