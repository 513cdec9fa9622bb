
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritone import Models
from tritone.errors import InputError

Lengths = Annotated[NDArray[np.float32], ("words",)]
Counts = Annotated[NDArray[np.int64], ()]
Mean = Annotated[NDArray[np.float32], ()]


class Tokens(NamedTuple):
    lengths: Lengths
    counts: Counts


def tokenize(text: list[str]) -> Tokens:
    if "" in text:
        raise InputError("a text is empty")
    rows = [[len(word) for word in each.split()] for each in text]
    return Tokens(np.array(rows, np.float32), np.array([len(row) for row in rows]))


def pool(scaled: Lengths, counts: Counts) -> Mean:
    return (scaled.sum(axis=1) / counts).astype(np.float32)


def deciding(scaled: Lengths, counts: Counts, models: Models) -> Mean:
    small = pool(scaled, counts) < 10
    if small.any():
        scaled = scaled.copy()
        scaled[small] = models["scaled"](x=scaled[small])["y"]
    return pool(scaled, counts)


def upper(text: list[str]) -> list[str]:
    return [each.upper() for each in text]


def spell(text: list[str]) -> Iterator[list[str]]:
    for letters in zip(*text):
        if "!" in letters:
            raise InputError("no shouting")
        yield list(letters)


def norm(vector: Annotated[NDArray[np.float32], ("dim",)]) -> Mean:
    return np.linalg.norm(vector, axis=1).astype(np.float32)
