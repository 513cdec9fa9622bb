"""The first step: sentences to token ids."""

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

MAX_TOKENS = 256  # of the model; the rest of a sentence is not looked at

Ids = Annotated[NDArray[np.int64], ("tokens",)]

TOKENIZER = Tokenizer.from_file(str(Path(__file__).with_name("tokenizer.json")))
TOKENIZER.enable_truncation(MAX_TOKENS)
TOKENIZER.enable_padding()  # to the longest sentence of a batch


class Tokens(NamedTuple):
    """`attention_mask` is 0 where a sentence is padded."""

    input_ids: Ids
    attention_mask: Ids


def tokenize(text: list[str]) -> Tokens:
    """Token ids of sentences."""
    found = TOKENIZER.encode_batch(text)
    return Tokens(
        np.array([each.ids for each in found], np.int64), np.array([each.attention_mask for each in found], np.int64)
    )
