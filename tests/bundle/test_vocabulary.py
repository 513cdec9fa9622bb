"""Token tables, and tokens as text and words."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.bundle import manifest
from tritone.bundle.vocabulary import RunningText, Speller, Vocabulary, Word, read_tokens, write_tokens
from tritone.errors import BundleError

TABLE = ["<blank>", "<unk>", "▁", "a", "b", "你", "好", "▁HE", "LLO", "▁你", "-", "<sos/eos>"]


def vocabulary(units: str = "bpe", connect: str = "", tokens: list[str] = TABLE) -> Vocabulary:
    settings = manifest.Vocabulary(
        size=len(tokens), units=units, connect_symbol=connect, blank_id=0, unk_id=1, sos_id=11, eos_id=11
    )
    return Vocabulary(tokens, settings)


def ids(*tokens: str) -> list[int]:
    return [TABLE.index(token) for token in tokens]


def test_pieces_join_to_words_at_the_space_sign() -> None:
    spoken = ids("▁HE", "LLO", "▁HE", "a")
    assert vocabulary().text(spoken) == "HELLO HEa"
    assert vocabulary().words(spoken) == [Word("HELLO", 0, 1), Word("HEa", 2, 3)]


def test_characters_with_a_space_token_make_words() -> None:
    spoken = ids("▁", "a", "b", "▁", "b", "▁")
    assert vocabulary("char").text(spoken) == "ab b"
    assert vocabulary("char").words(spoken) == [Word("ab", 1, 2), Word("b", 4, 4)]


@pytest.mark.parametrize("units", ["char", "bpe"])
def test_spaces_in_a_row_are_written_as_one(units: str) -> None:
    spoken = ids("▁", "▁", "a", "▁", "▁", "b", "▁", "▁HE", "LLO", "▁", "▁你", "▁", "▁")
    assert vocabulary(units).text(spoken) == "a b HELLO 你"
    assert [word.text for word in vocabulary(units).words(spoken)] == ["a", "b", "HELLO", "你"]


def test_a_connect_symbol_that_is_a_space_makes_no_double_spaces() -> None:
    assert vocabulary("char", " ").text(ids("a", "▁", "b", "▁HE")) == "a b HE"


@pytest.mark.parametrize("units", ["char", "bpe"])
def test_every_ideograph_is_a_word_even_beside_latin(units: str) -> None:
    spoken = ids("你", "好", "a", "b", "▁你", "b")
    assert vocabulary(units).text(spoken) == "你好ab 你b"
    words = [Word("你", 0, 0), Word("好", 1, 1), Word("ab", 2, 3), Word("你", 4, 4), Word("b", 5, 5)]
    assert vocabulary(units).words(spoken) == words


def test_a_connect_symbol_stands_between_characters_but_not_between_pieces() -> None:
    spoken = ids("a", "b", "a")
    assert vocabulary("char", " ").text(spoken) == "a b a"
    assert vocabulary("char", " ").words(spoken) == [Word("a", 0, 0), Word("b", 1, 1), Word("a", 2, 2)]
    assert vocabulary("char", "-").text(spoken) == "a-b-a"
    assert vocabulary("char", "-").words(spoken) == [Word("a-b-a", 0, 2)]
    assert vocabulary("bpe", " ").text(spoken) == "aba"


def test_blank_and_sentence_ends_are_silent_and_unknown_is_written() -> None:
    spoken = ids("<blank>", "<sos/eos>", "a", "<unk>", "<blank>", "b", "<sos/eos>")
    assert vocabulary().text(spoken) == "a<unk>b"
    assert vocabulary().words(spoken) == [Word("a<unk>b", 2, 5)]


def test_no_tokens_are_no_text() -> None:
    assert vocabulary().text([]) == ""
    assert vocabulary().words([]) == []
    assert vocabulary().text(ids("▁", "▁")) == ""


@given(st.sampled_from(["char", "bpe"]), st.sampled_from(["", " ", "-"]), st.lists(st.integers(0, len(TABLE) - 1)))
def test_words_in_order_make_up_the_text(units: str, connect: str, spoken: list[int]) -> None:
    table = vocabulary(units, connect)
    words = table.words(spoken)
    position = 0
    text = table.text(spoken)
    between = ""
    for word in words:
        found = text.index(word.text, position)
        between += text[position:found]
        position = found + len(word.text)
        assert 0 <= word.first <= word.last < len(spoken)
    assert set(between + text[position:]) <= set(" " + connect)
    assert text == " ".join(text.split())
    assert [word.first for word in words] == sorted(word.first for word in words)


@given(st.lists(st.sampled_from(["▁", "a", "b", "▁HE", "LLO", "-"])))
def test_the_text_of_scripts_with_spaces_is_its_words_joined_by_single_spaces(spoken: list[str]) -> None:
    table = vocabulary("char")
    words = "".join(spoken).replace("▁", " ").split()
    assert table.text(ids(*spoken)) == " ".join(words)
    assert [word.text for word in table.words(ids(*spoken))] == words


@given(st.lists(st.integers(0, len(TABLE) - 1)), st.integers(0, 20))
def test_spelling_can_be_read_midway_without_changing_the_end(spoken: list[int], pause: int) -> None:
    table = vocabulary("char")
    speller = Speller(table)
    for position, id in enumerate(spoken):
        if position == pause:
            assert speller.text == table.text(spoken[:pause])
            assert speller.words == table.words(spoken[:pause])
        speller.add(id)
    assert speller.text == table.text(spoken)
    assert speller.words == table.words(spoken)


@given(
    st.sampled_from(["char", "bpe"]),
    st.sampled_from(["", " ", "-"]),
    st.lists(st.lists(st.integers(0, len(TABLE) + 3), max_size=8), max_size=4),
)
def test_tokens_are_spelled_alike_however_many_come_at_once(units: str, connect: str, groups: list[list[int]]) -> None:
    table = vocabulary(units, connect, [*TABLE, "<0xC3>", "<0xA9>", "<0x20>", "▁a▁▁你b"])
    together, apart = Speller(table), Speller(table)
    for group in groups:
        together.extend(group)
        for id in group:
            apart.add(id)
        assert (together.text, together.words) == (apart.text, apart.words)


BYTES = ["<0xC3>", "<0xA9>", "<0x20>", "<0xE4>", "<0xBD>", "<0xA0>", "▁a▁▁你b", "\u3000", "\x85a"]
# Byte-level BPE: pieces of characters that stand for bytes, "你" among them, and a space
BYTE_LEVEL = ["<blk>", "<unk>", "▁", "a", "Ƌţ", "Ņ", "ƋţŅ", "▁ƌŋţ", "ƌŋţ▁", "ƌŅ", "#0", "<sos/eos>"]


@given(
    st.sampled_from(["char", "bpe", "byte-bpe"]),
    st.sampled_from(["", " ", "-", "\t", " -"]),
    st.lists(st.integers(0, len(TABLE) + len(BYTES) - 1)),
)
def test_text_joined_at_once_is_that_of_a_speller(units: str, connect: str, spoken: list[int]) -> None:
    tokens = [*TABLE, *BYTES]
    if units == "byte-bpe":
        tokens, spoken = BYTE_LEVEL, [id % len(BYTE_LEVEL) for id in spoken]
    table = vocabulary(units, connect, tokens)
    speller = Speller(table)
    speller.extend(spoken)
    assert table.text(spoken) == table.text(iter(spoken)) == speller.text


def test_a_table_survives_the_disk_with_unusual_characters(tmp_path: Path) -> None:
    tokens = ["<blank>", "\u3000", "\x85", "\u2028", "\xa0", "▁", "'", "0", "é", "𠀀"]
    write_tokens(tmp_path / "tokens.txt", tokens)
    assert read_tokens(tmp_path / "tokens.txt") == tokens


def test_a_table_may_be_out_of_order_with_tabs_and_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_bytes("\ufeffb\t1\r\na  0\r\n".encode())
    assert read_tokens(tmp_path / "tokens.txt") == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 0\nb\n", "line 2: expected a token and its id, two fields, got 'b'"),
        (b"a 0\nb c 1\n", "line 2: expected"),
        (b"a 0\n\nb 1\n", "line 2: expected"),
        (b"a 0\nb -1\n", "line 2: expected"),
        (b"a 0\nb 0\n", "line 2: id 0 was already given to 'a'"),
        (b"a 0\nb 2\n", "from 0 to 1 without gaps, but 1 is missing"),
        (b"", "line 1: expected"),
        (b"\xff\xfe 0\n", "not UTF-8"),
    ],
)
def test_a_malformed_table_is_refused_with_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tokens.txt").write_bytes(content)
    with pytest.raises(BundleError, match=message):
        read_tokens(tmp_path / "tokens.txt")


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"cannot read the token table .*tokens\.txt: No such file"):
        read_tokens(tmp_path / "tokens.txt")


@pytest.mark.parametrize("token", ["", "a b", "a\n", "\t"])
def test_a_token_that_a_table_cannot_hold_is_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(ValueError, match="token 1 is"):
        write_tokens(tmp_path / "tokens.txt", ["a", token])


def test_settings_that_do_not_fit_the_table_are_refused() -> None:
    with pytest.raises(BundleError, match=r"holds 1 tokens, but vocabulary\.size in the manifest is 2"):
        Vocabulary(["a"], manifest.Vocabulary(size=2, units="char", blank_id=0))
    with pytest.raises(BundleError, match=r"vocabulary\.blank_id is 7, but the largest token id is 0"):
        Vocabulary(["a"], manifest.Vocabulary(size=1, units="char", blank_id=7))


SPACED = ["<blank>", "<unk>", "<sos/eos>", "▁", "▁▁", "▁a", "b▁", "c", "中", "▁文", "d\u3000", "<0x41>"[:2]]


@given(st.lists(st.lists(st.integers(0, len(SPACED) - 1), max_size=4), max_size=6), st.lists(st.integers(3, 8)))
def test_a_running_text_is_that_of_the_speller(parts: list[list[int]], more: list[int]) -> None:
    table = vocabulary(tokens=SPACED)
    assert RunningText.fits(table)
    running, speller = RunningText(table), Speller(table)
    for part in parts:
        running.extend(part)
        speller.extend(part)
        assert running.text == speller.text
    longer = running.extended(more)
    assert running.text == speller.text, "it does not keep them"
    speller.extend(more)
    assert longer == speller.text


def test_a_running_text_is_not_for_signs_between_tokens_or_bytes() -> None:
    assert not RunningText.fits(vocabulary("char", "|"))
    assert not RunningText.fits(vocabulary("byte-bpe"))
    assert not RunningText.fits(vocabulary(tokens=[*TABLE, "<0x41>"]))
