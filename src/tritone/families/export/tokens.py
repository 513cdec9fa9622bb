"""Tokens of checkpoints as the table of a bundle: lists of characters, and sentencepiece models."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tritone.bundle.vocabulary import SPACE
from tritone.errors import ExportError, MissingDependencyError

BLANK = "<blank>"  # of models whose last class is the blank, which has no label
SHOWN = 5  # tokens in one message
MAX_MODEL_BYTES = 64 * 2**20


def tokens_of(labels: Sequence[str]) -> list[str]:
    """The table of a model with these tokens and a blank after them; a space is written as `SPACE`.

    Raises:
        ExportError: a token cannot stand in it, or is there twice.
    """
    tokens = [SPACE if label == " " else label for label in labels]
    bad = [label for label in tokens if not label or any(character.isspace() for character in label)]
    twice = sorted(label for label, count in Counter(tokens).items() if count > 1)
    if bad or twice or BLANK in tokens:
        raise ExportError(
            f"labels: {(bad or twice or [BLANK])[:SHOWN]} cannot be told apart or written; expected each once, and no "
            "space in any but ' '"
        )
    return [*tokens, BLANK]


def read_pieces(path: Path) -> list[str]:
    """The pieces of a sentencepiece model in the order of their ids; errors as of `pieces_of`."""
    if not path.is_file():
        raise ExportError(f"sentencepiece model not found: {path}")
    if path.stat().st_size > MAX_MODEL_BYTES:
        raise ExportError(
            f"{path} has {path.stat().st_size} bytes; a sentencepiece model has at most {MAX_MODEL_BYTES}"
        )
    return pieces_of(path.read_bytes(), str(path))


def pieces_of(model: bytes, origin: str) -> list[str]:
    """The pieces of a sentencepiece model in the order of their ids; `origin` is for errors.

    Raises:
        ExportError: it is none.
        MissingDependencyError: sentencepiece is not installed.
    """
    try:
        from sentencepiece import SentencePieceProcessor
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"reading {origin} needs sentencepiece: pip install sentencepiece. Where the export takes a table "
            "of tokens (--tokens), give that."
        ) from error
    try:
        read = SentencePieceProcessor(model_proto=model)
    except (RuntimeError, OSError) as error:
        raise ExportError(f"{origin} is not a sentencepiece model ({error})") from error
    return [read.id_to_piece(id) for id in range(read.get_piece_size())]
