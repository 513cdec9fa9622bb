"""The token table of an icefall model, from `tokens.txt` or `bpe.model`.

tokens.txt | bpe.model, vocabulary size of the tensors  ->  tokens in the order of their ids, how they are written
"""

import re
from collections.abc import Sequence
from pathlib import Path

from tritone.bundle.bytewise import is_byte_level
from tritone.bundle.manifest import Vocabulary
from tritone.bundle.vocabulary import SPACE, read_tokens
from tritone.errors import BundleError, ExportError
from tritone.families.export.tokens import read_pieces

DISAMBIGUATION = re.compile(r"#\d+")  # of lexicons, at the end of some tables: the network knows nothing of them
BLANK_ID = 0  # in every recipe
BLANKS = ("<blk>", "<blank>", "<eps>", "<b>", "<pad>")
STARTS, ENDS = ("<sos/eos>", "<sos>", "<s>"), ("<sos/eos>", "<eos>", "</s>")
UNKNOWNS = ("<unk>", "<UNK>")


def read_table(tokens: Path | None, bpe_model: Path | None, vocab_size: int) -> list[str]:
    """Read the tokens of a model.

    Args:
        tokens: `token id` a line; disambiguation symbols (#0, #1, …) after the last token are left out.
        bpe_model: a sentencepiece model, where there is no such table. Exactly one of the two.
        vocab_size: what the tensors say.

    Raises:
        ExportError: the file is missing or malformed, or is of another size than the model.
        MissingDependencyError: sentencepiece is needed and not installed.
    """
    if (tokens is None) == (bpe_model is None):
        raise ExportError("give the model's tokens: either tokens.txt (--tokens) or bpe.model (--bpe-model)")
    if bpe_model is not None:
        path, found = bpe_model, read_pieces(bpe_model)
    else:
        assert tokens is not None
        path = tokens
        try:
            found = read_tokens(tokens)
        except BundleError as error:
            raise ExportError(str(error)) from error
        while found and DISAMBIGUATION.fullmatch(found[-1]):
            found.pop()
    if len(found) != vocab_size:
        raise ExportError(
            f"{path} has {len(found)} tokens, but the model's tensors are for {vocab_size}. Give the table that the "
            "model was trained with."
        )
    if found[BLANK_ID] not in BLANKS:
        raise ExportError(
            f"{path}: token {BLANK_ID} is {found[BLANK_ID]!r}, but this network takes it for the blank "
            f"({', '.join(BLANKS)}). Is it the table that the model was trained with?"
        )
    return found


def describe(tokens: Sequence[str]) -> Vocabulary:
    """How a table's tokens are written, recognised by its content."""

    def find(names: Sequence[str]) -> int | None:
        return next((tokens.index(name) for name in names if name in tokens), None)

    units = "byte-bpe" if is_byte_level(tokens) else "bpe" if any(SPACE in token for token in tokens) else "char"
    return Vocabulary(
        size=len(tokens),
        units=units,  # type: ignore[arg-type]  # one of the three
        blank_id=BLANK_ID,
        unk_id=find(UNKNOWNS),
        sos_id=find(STARTS),
        eos_id=find(ENDS),
    )
