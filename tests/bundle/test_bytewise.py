"""Tokens that stand for bytes: told from others, and written as the characters that their bytes make."""

from hypothesis import given
from hypothesis import strategies as st

from tritone.bundle import manifest
from tritone.bundle.bytewise import BYTE_CHARACTERS, byte_piece, fallback_byte, is_byte_level
from tritone.bundle.vocabulary import Speller, Vocabulary, Word

SPECIAL = ["<blk>", "<sos/eos>", "<unk>"]

# The mapping of icefall/byte_utils.py, by the code points that it lists.
LISTED = [*range(256, 288), *range(32, 127), *range(288, 306), *range(308, 319), *range(321, 329), *range(330, 383)]
LISTED += range(384, 423)

ALPHABET = [*SPECIAL, *(character if character != " " else "▁" for character in map(chr, LISTED))]


def vocabulary(tokens: list[str], units: str = "byte-bpe") -> Vocabulary:
    settings = manifest.Vocabulary(size=len(tokens), units=units, blank_id=0, unk_id=2, sos_id=1, eos_id=1)
    return Vocabulary(tokens, settings)


def pieces(text: str) -> str:
    """A text as byte-level BPE sees it."""
    return "".join(chr(LISTED[byte]) for byte in text.encode()).replace(" ", "▁")


BYTES = vocabulary(ALPHABET)


def test_byte_characters_are_those_of_upstream() -> None:
    assert list(map(ord, BYTE_CHARACTERS)) == LISTED


def test_byte_level_tables_are_told_by_their_content() -> None:
    chinese = [*SPECIAL, pieces(" 你好"), pieces("世"), "▁H", "e"]
    assert is_byte_level(chinese)
    assert not is_byte_level([*SPECIAL, "▁HE", "LLO", "你"])
    assert not is_byte_level([*SPECIAL, "▁the", "s", "č"]), "ASCII and Latin letters alone are what they are"
    assert not is_byte_level([*chinese, "é"]), "which no byte is written as"
    assert not is_byte_level(SPECIAL)
    assert byte_piece(pieces(" 你")) == " 你".encode()
    assert [fallback_byte(token) for token in ("<0xE4>", "<0xe4>", "<0xE>", "E4")] == [b"\xe4", b"\xe4", None, None]


@given(text=st.text(alphabet="ab é你好ß☃", max_size=12))
def test_a_text_survives_being_cut_into_bytes(text: str) -> None:
    """Every character is written as soon as its last byte is there, and never in part."""
    ids = [ALPHABET.index(character) for character in pieces(text)]
    speller, wanted = Speller(BYTES), b""
    for id, byte in zip(ids, text.encode(), strict=True):
        speller.add(id)
        wanted += bytes([byte])
        complete = wanted.decode(errors="ignore")
        assert speller.text.replace(" ", "") == complete.replace(" ", "")
    assert BYTES.text(ids).split() == [w for w in _unspaced(text).split() if w]


def _unspaced(text: str) -> str:
    """Without the spaces between Chinese characters, which training puts there."""
    for _ in range(len(text)):
        for one in "你好":
            for other in "你好":
                for gap in range(1, 12):
                    text = text.replace(one + " " * gap + other, one + other)
    return text


def test_a_word_begins_with_the_token_of_its_first_byte() -> None:
    ids = [ALPHABET.index(character) for character in pieces("a 你é")]
    assert BYTES.words(ids) == [Word("a", 0, 0), Word("你", 2, 4), Word("é", 5, 6)]


def test_bytes_that_make_no_character_are_dropped() -> None:
    first, second, third = (ALPHABET.index(chr(LISTED[byte])) for byte in "你".encode())
    letter = ALPHABET.index("a")
    assert BYTES.text([first, second, letter]) == "a"
    assert BYTES.text([third, letter, first]) == "a"
    assert BYTES.text([first, second, 2, third]) == "<unk>", "another kind of token comes between"
    assert BYTES.text([first, second, third]) == "你"


def test_fallback_bytes_stand_among_sentencepiece_tokens() -> None:
    tokens = [*SPECIAL, "▁I", "▁", "<0xE2>", "<0x98>", "<0x83>", "▁ok"]
    words = vocabulary(tokens, "bpe").words([3, 4, 5, 6, 7, 8])
    assert words == [Word("I", 0, 0), Word("☃", 2, 4), Word("ok", 5, 5)]
    assert vocabulary(tokens, "bpe").spellings[5:8] == ("\ufffd",) * 3, "a part of a character is none"


@given(
    spoken=st.lists(st.integers(3, len(ALPHABET) - 1), max_size=10),
    tail=st.lists(st.integers(3, len(ALPHABET) - 1), max_size=5),
)
def test_a_partial_result_in_the_middle_of_a_character_changes_nothing_after_it(
    spoken: list[int], tail: list[int]
) -> None:
    speller = Speller(BYTES)
    for id in spoken:
        speller.add(id)
    mark, text, words = speller.mark(), speller.text, list(speller.words)
    for id in tail:
        speller.add(id)
    speller.rewind(mark)
    assert (speller.text, speller.words) == (text, words)
    for id in tail:
        speller.add(id)
    assert speller.text == BYTES.text([*spoken, *tail])
    assert speller.words == BYTES.words([*spoken, *tail])
