"""Byte-level BPE: text cut and merged as by the package tokenizers, and read back."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from effort import examples
from tritone.bundle.byte_level import ByteLevelBpe, piece_bytes, split

TEXTS = st.text(
    alphabet=st.sampled_from("  \t\n'sltrevmd'thean1é漢字²Ⅳ٣\u00a0\u2003.,!?-(\x1c\u0085𝒜🙂\u0301\u3000"), max_size=20
)
LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = LEVEL
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=LEVEL.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(["the hen and the tenth man aren't there, 11 漢字 漢字 éé"] * 9, trainer)
    return tokenizer


THEIRS = trained()
OURS = ByteLevelBpe([*(token for token, _ in sorted(THEIRS.get_vocab().items(), key=lambda each: each[1])), "<|end|>"])


@given(TEXTS)
@settings(max_examples=examples(150), deadline=None)
def test_text_is_cut_and_merged_as_by_tokenizers_and_read_back(text: str) -> None:
    assert list(split(text)) == [text[start:end] for _, (start, end) in LEVEL.pre_tokenize_str(text)]
    ids = OURS.encode(text)
    assert ids == THEIRS.encode(text).ids
    assert OURS.decode(ids) == text


def test_special_tokens_have_no_text_and_torn_characters_are_replaced() -> None:
    assert piece_bytes("<|endoftext|>") is None
    assert piece_bytes("Ġthe") == b" the"
    end = THEIRS.get_vocab_size()
    first, *_ = OURS.encode("🙂")
    assert OURS.decode([*OURS.encode("the"), end, first]) == "the\ufffd"
