"""Kaldi archives of vectors: what Kaldi's own libraries wrote is read, and nothing that a list says is run."""

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.errors import InputError
from tritone.speakers import archive
from tritone.speakers.archive import read_vectors

kaldiio = pytest.importorskip("kaldiio")
native = pytest.importorskip("kaldi_native_io")

VECTORS = {"a": np.array([1.5, -2, 0.25], np.float32), "b-2": np.array([3, 4, 1e-8], np.float32)}


def entry(key: str, values: list[float], mark: bytes = b"FV ", size: int | None = None) -> bytes:
    head = key.encode() + b" \0B" + mark + b"\4" + struct.pack("<i", len(values) if size is None else size)
    return head + struct.pack(f"<{len(values)}{'d' if mark[:1] == b'D' else 'f'}", *values)


def same(found: archive.Vectors, expected: dict[str, np.ndarray]) -> bool:
    return found.keys == tuple(expected) and np.array_equal(found.matrix, np.stack(list(expected.values())))


def written(folder: Path, by: str, name: str = "x") -> Path:
    """The vectors as a library writes them; the list names its archive by an absolute path."""
    ark, scp = folder / f"{name}.ark", folder / f"{name}.scp"
    if by == "kaldiio":
        kaldiio.save_ark(str(ark), VECTORS, scp=str(scp))
    elif by == "kaldiio-text":
        kaldiio.save_ark(str(ark), VECTORS, scp=str(scp), text=True)
    else:
        kind = "" if by == "kaldi" else ",t"
        with native.FloatVectorWriter(f"ark,scp{kind}:{ark},{scp}") as writer:
            for key, vector in VECTORS.items():
                writer.write(key, vector)
    return scp


@pytest.mark.parametrize("by", ["kaldiio", "kaldi", "kaldiio-text", "kaldi-text"])
def test_lists_and_archives_of_both_libraries_are_read(by: str, tmp_path: Path) -> None:
    scp = written(tmp_path, by)
    assert same(read_vectors(scp), VECTORS)
    assert same(read_vectors(scp.with_suffix(".ark")), VECTORS)


def test_doubles_are_read_as_floats(tmp_path: Path) -> None:
    kaldiio.save_ark(str(tmp_path / "d.ark"), {"a": np.array([1.0, 1 / 3])}, scp=str(tmp_path / "d.scp"))
    assert read_vectors(tmp_path / "d.scp").matrix.tolist() == [[1.0, np.float32(1 / 3)]]


def test_an_offset_may_be_left_out_of_a_file_with_one_vector_and_no_key(tmp_path: Path) -> None:
    (tmp_path / "one.vec").write_bytes(entry("", [5, 6])[1:])
    (tmp_path / "x.scp").write_text(f"a {tmp_path}/one.vec\n", encoding="utf-8")
    assert read_vectors(tmp_path / "x.scp").matrix.tolist() == [[5, 6]]


def test_relative_paths_count_from_here_then_from_the_list_then_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, value in ((here, 1), (there, 2)):
        folder.mkdir()
        (folder / "x.ark").write_bytes(entry("a", [value]))
    monkeypatch.chdir(here)
    (there / "x.scp").write_text("a x.ark:2\n", encoding="utf-8")
    assert read_vectors(there / "x.scp").matrix.item() == 1  # as Kaldi
    (here / "x.ark").unlink()
    assert read_vectors(there / "x.scp").matrix.item() == 2
    (there / "x.scp").write_text("a /gone/exp/x.ark:2\n", encoding="utf-8")
    assert read_vectors(there / "x.scp").matrix.item() == 2
    (there / "x.scp").write_text("a /gone/exp/y.ark:2\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"there/x\.scp:1: there is no archive /gone/exp/y\.ark; looked for"):
        read_vectors(there / "x.scp")


def test_a_folder_is_its_list_or_all_lists_of_its_parts(tmp_path: Path) -> None:
    for part, (key, vector) in enumerate(VECTORS.items()):
        kaldiio.save_ark(
            str(tmp_path / f"xvector_00{part}.ark"), {key: vector}, scp=str(tmp_path / f"xvector_00{part}.scp")
        )
    assert same(read_vectors(tmp_path), VECTORS)
    (tmp_path / "xvector.scp").write_text((tmp_path / "xvector_001.scp").read_text(encoding="utf-8"), encoding="utf-8")
    assert read_vectors(tmp_path).keys == ("b-2",)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"neither xvector\.scp nor"):
        read_vectors(tmp_path / "empty")


@pytest.mark.parametrize("target", ["touch {mark} |", "| touch {mark}", "touch {mark}|", "-", "{ark}:2[0:1]"])
def test_commands_standard_input_and_parts_are_refused_and_not_run(target: str, tmp_path: Path) -> None:
    (tmp_path / "x.ark").write_bytes(entry("a", [1]))
    line = target.format(mark=tmp_path / "mark", ark=tmp_path / "x.ark")
    (tmp_path / "x.scp").write_text(f"a {line}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"x\.scp:1: a is a (command|part)"):
        read_vectors(tmp_path / "x.scp")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "has no vectors"),
        (b"not an archive at all", "neither a binary vector nor"),
        (b"\xff\xfe\0\0", "no id and vector here"),
        (entry("a", [1, 2])[:-3], "ends within the vector of a; it is cut off"),
        (entry("a", [1, 2])[:8], "something that Kaldi does not write"),
        (entry("a", [1], size=1 << 30), "a vector of 1,073,741,824 values"),
        (entry("a", [1], size=-1), "a vector of 4,294,967,295 values"),
        (entry("a", [], size=0), "a vector of 0 values"),
        (entry("a", [1, 2], mark=b"FM "), "holds a matrix here"),
        (entry("a", [1, 2], mark=b"CM "), "holds a compressed matrix here"),
        (entry("a", [1]) + entry("a", [2]), "a is there twice"),
        (entry("a", [1]) + entry("b", [2, 3]), "the vector of b has 2 values, those before it 1"),
        (entry("a", [1, float("nan")]), "1 of 1 vectors have values that are not finite: a"),
        (entry("a", [float("inf"), float("-inf")]), "not finite: a"),
        (entry("a", [1e300, 1], b"DV "), "not finite: a"),  # not as float32
        (b"a [ 1e300 1 ]\n", "not finite: a"),
        (b"a PKL" + b"cos\nsystem\n(S'true'\ntR.", "neither a binary vector nor"),
        (b"a [ 1 2 x ]\n", "neither a binary vector nor"),
        (b"a [ 1 2\n", "neither a binary vector nor"),
    ],
)
def test_what_is_no_archive_of_vectors_is_told_from_one(content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "x.ark").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_vectors(tmp_path / "x.ark")
    assert complaint in str(caught.value)
    if content.startswith(b"a ") and "twice" not in complaint and "those before" not in complaint:
        (tmp_path / "x.scp").write_text(f"a {tmp_path}/x.ark:2\n", encoding="utf-8")
        with pytest.raises(InputError):
            read_vectors(tmp_path / "x.scp")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("a", "is not 'id path:offset'"),
        ("a x.ark:999", "offset 999 is beyond the end of"),
        ("a x.ark:3", "there is no vector at 3 in"),
        ("a /dev/zero:2", "/dev/zero is not a file"),
        ("a .:2", "is not a file"),
        ("a " + "x" * 5000, "cannot open"),
    ],
)
def test_a_wrong_line_is_named_with_its_number(
    line: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.ark").write_bytes(entry("a", [1]))
    (tmp_path / "x.scp").write_text(f"\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_vectors(tmp_path / "x.scp")
    assert complaint in str(caught.value)
    assert "x.scp:2: " in str(caught.value) or "/dev/zero" in line or line == "a .:2"


def test_a_list_cannot_make_the_reader_take_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_VECTORS_BYTES", 1000)
    (tmp_path / "x.ark").write_bytes(entry("a", [1] * 100))
    (tmp_path / "x.scp").write_text(
        "".join(f"{n} {tmp_path}/x.ark:2\n" for n in range(3)), encoding="utf-8"
    )  # one place, many names
    with pytest.raises(InputError, match="3 vectors of 100 values"):
        read_vectors(tmp_path / "x.scp")


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_vectors_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes, head: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.ark"
    path.write_bytes((b"a \0BFV \4" if head else b"") + tail)
    with contextlib.suppress(InputError):
        assert read_vectors(path).dim > 0
