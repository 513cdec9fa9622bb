"""The vocabulary of a CTC model of transformers, as its tokenizer writes it.

    vocab.json, added_tokens.json, tokenizer_config.json, special_tokens_map.json  ->  TokenTable
    tokenizer.json, tokenizer_config.json, special_tokens_map.json                 ->  TokenTable

Of the former the pad token is the blank; the word delimiter, `|` as a rule, is written as a space. Of the latter the
config names the blank, and what stands for a space is sentencepiece's sign. Source of the rules:
models/wav2vec2/tokenization_wav2vec2.py and models/wav2vec2_phoneme/tokenization_wav2vec2_phoneme.py.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tritone.bundle.vocabulary import SPACE
from tritone.errors import ExportError
from tritone.families.export.hf_folder import TOKENIZER, read_pieces_by_id
from tritone.families.export.json_files import read_json, read_json_if_there

VOCAB = "vocab.json"
CONNECT = {"Wav2Vec2CTCTokenizer": "", "Wav2Vec2PhonemeCTCTokenizer": " "}  # what stands between two tokens
SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
SHOWN = 5


@dataclass(frozen=True)
class TokenTable:
    """The tokens by id as a bundle writes them, and the ids that mean something else than text.

    `nameless`: ids that the head has and the tokenizer does not. `origin`: the file that has the tokens.
    """

    tokens: list[str]
    blank_id: int
    unk_id: int | None
    sos_id: int | None
    eos_id: int | None
    connect_symbol: str
    nameless: list[int]
    origin: Path
    units: Literal["char", "bpe"] = "char"


def read_tokenizer(folder: Path, size: int, language: str | None = None) -> TokenTable:
    """Read the tokenizer of a folder for a head of `size` outputs.

    Args:
        language: which vocabulary, if vocab.json has one for each language (MMS); None takes the tokenizer's own.

    Raises:
        ExportError: files are missing or damaged, the tokenizer is of another kind, there is no blank, or tokens cannot
            be distinguished.
    """
    settings = _settings(folder)
    kind = settings.get("tokenizer_class") or "Wav2Vec2CTCTokenizer"
    if kind not in CONNECT:
        raise ExportError(f"{folder} has a {kind}; supported are {' and '.join(CONNECT)}")
    ids = _ids(folder, settings, language)
    if not ids or max(ids.values()) < 0:
        raise ExportError(f"{folder / VOCAB} has no tokens")
    special = _special(settings)
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

    def spelled(token: str) -> str:
        token = written.get(token, token)
        return token.lower() if lower else token

    tokens, nameless = _table({id: spelled(token) for id, token in by_id.items()}, size, folder)
    found = _meanings(special, ids, size, blank)
    return TokenTable(tokens, blank, *found, CONNECT[kind], nameless, folder / VOCAB)


def read_pieces(folder: Path, size: int, blank: int) -> TokenTable:
    """Read the tokenizer.json of a folder for a head of `size` outputs, of which `blank` is that of CTC.

    Raises:
        ExportError: files are missing or damaged, the tokenizer is of another kind, or tokens cannot be told apart.
    """
    by_id = read_pieces_by_id(folder / TOKENIZER)
    if blank >= size or blank not in by_id:
        raise ExportError(
            f"the blank of {folder} is {blank} by its config, which is no token of {TOKENIZER} among {size} outputs; "
            "its tokenizer and its weights do not belong together"
        )
    tokens, nameless = _table(by_id, size, folder)
    special = _special(_settings(folder))
    ids = {token: id for id, token in by_id.items()}
    found = _meanings(special, ids, size, blank)
    return TokenTable(tokens, blank, *found, "", nameless, folder / TOKENIZER, "bpe")


def _table(by_id: Mapping[int, str], size: int, folder: Path) -> tuple[list[str], list[int]]:
    """The tokens of `size` outputs as a bundle writes them, and the ids that have none."""
    nameless = [id for id in range(size) if id not in by_id]
    tokens = [by_id.get(id, f"<unused-{id}>").replace(" ", SPACE) for id in range(size)]
    bad = [token for token in tokens if not token or any(character.isspace() for character in token)]
    twice = sorted(token for token, count in Counter(tokens).items() if count > 1)
    if bad or twice:
        raise ExportError(
            f"tokens of {folder}: {(bad or twice)[:SHOWN]} cannot be told apart or written; each must be there once, "
            "without spaces"
        )
    return tokens, nameless


def _settings(folder: Path) -> dict[str, Any]:
    return {
        **read_json_if_there(folder / "special_tokens_map.json"),
        **read_json_if_there(folder / "tokenizer_config.json"),
    }


def _special(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """The special tokens by what they are for."""
    return {name: _content(settings.get(name, default)) for name, default in SPECIAL.items()}


def _meanings(
    special: Mapping[str, str | None], ids: Mapping[str, int], size: int, blank: int
) -> tuple[int | None, int | None, int | None]:
    """The ids of the unknown token, and of those that begin and end a text."""
    found = (ids.get(special[name] or "") for name in ("unk_token", "bos_token", "eos_token"))
    unk, sos, eos = (id if id is not None and id < size and id != blank else None for id in found)
    return unk, sos, eos


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
