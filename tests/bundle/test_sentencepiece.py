"""Our text of sentencepiece pieces against sentencepiece's own, on a BPE model that is trained here."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.bundle import manifest
from tritone.bundle.vocabulary import Vocabulary

sentencepiece = pytest.importorskip("sentencepiece", reason="needs .[export]")

WORDS = ["the", "quick", "brown", "fox", "it's", "ninety-nine", "don't", "HELLO", "world", "über", "naïve", "你好", "a"]
CHARS = "".join(sorted(set("".join(WORDS))))


@pytest.fixture(scope="module")
def model() -> Any:
    rng = np.random.default_rng(0)
    corpus = [" ".join(rng.choice(WORDS, 8)) for _ in range(300)]
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_writer=written,
        model_type="bpe",
        vocab_size=80,
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


@pytest.fixture(scope="module")
def table(model: Any) -> Vocabulary:
    """The model's pieces as WeNet lays them out: a blank first, then the unknown, the pieces, a sentence end."""
    pieces = [model.id_to_piece(id) for id in range(model.get_piece_size())]
    tokens = ["<blank>", "<unk>", *(piece for piece in pieces if not piece.startswith("<")), "<sos/eos>"]
    settings = manifest.Vocabulary(
        size=len(tokens), units="bpe", blank_id=0, unk_id=1, sos_id=len(tokens) - 1, eos_id=len(tokens) - 1
    )
    return Vocabulary(tokens, settings)


def test_the_trained_model_has_pieces_longer_than_a_character(table: Vocabulary) -> None:
    assert sum(len(token.strip("▁")) > 1 for token in table.tokens[2:-1]) >= 20


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(CHARS, min_size=1, max_size=6)), max_size=12))
def test_sentences_come_back_as_sentencepiece_writes_them(model: Any, table: Vocabulary, words: list[str]) -> None:
    sentence = " ".join(words)
    pieces = model.encode(sentence, out_type=str)
    ids = [table.tokens.index(piece) for piece in pieces]
    assert table.text(ids) == model.decode(pieces) == sentence


@given(st.data())
def test_pieces_in_any_order_are_written_as_sentencepiece_does_but_for_double_spaces(
    model: Any, table: Vocabulary, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(2, len(table) - 2), max_size=20))
    decoded = model.decode([table.tokens[id] for id in ids])
    assert table.text(ids) == " ".join(decoded.split())
