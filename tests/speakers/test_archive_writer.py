"""Kaldi archives as they are written and mended; kaldiio, kaldi_native_io and a few lines of struct read them."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import kaldiio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.errors import InputError, OperatorError
from tritone.speakers.archive import read_vectors
from tritone.speakers.archive_writer import ArchiveWriter, check_key

MODEL = {"kind": "bundle", "model": "toy"}
HOSTILE = [
    "",
    "two words",
    "tab\tbed",
    "line\nbreak",
    "nul\0",
    "\x7f",
    "a\u00a0b",
    "a\u3000b",
    "\u2028",
    "\ud83d",
    "x" * 4097,
]


def vector(key: str, dim: int = 4) -> np.ndarray:
    """One that belongs to the key alone."""
    return np.random.default_rng(list(key.encode())).standard_normal(dim).astype(np.float32)


def write(folder: Path, keys: Sequence[str], *, shard_size: int = 50_000, force: bool = False) -> ArchiveWriter:
    """Write what is missing, and give the closed writer."""
    with ArchiveWriter(folder, made_by=MODEL, shard_size=shard_size, force=force) as writer:
        for key in keys:
            if key not in writer:
                writer.add(key, vector(key))
        writer.write_list(keys)
    return writer


def entries_of(ark: Path) -> list[tuple[str, int, np.ndarray]]:
    """Key, place and vector of every entry, read by the description of the format alone."""
    data, place, found = ark.read_bytes(), 0, []
    while place < len(data):
        key, rest = data[place:].split(b" ", 1)
        place += len(key) + 1
        assert rest[:6] == b"\0BFV \4"
        (dim,) = struct.unpack("<i", rest[6:10])
        found.append((key.decode(), place, np.frombuffer(rest[10 : 10 + 4 * dim], "<f4")))
        place += 10 + 4 * dim
    return found


def check_whole(folder: Path, keys: Sequence[str]) -> None:
    """Archives and lists hold every key once, with its own vector."""
    lines: list[str] = []
    for ark in sorted(folder.glob("*.ark")):
        entries = entries_of(ark)
        for key, _, found in entries:
            np.testing.assert_array_equal(found, vector(key))
        expected = [f"{key} {ark}:{place}" for key, place, _ in entries]
        assert ark.with_suffix(".scp").read_text(encoding="utf-8").splitlines() == expected
        lines += expected
    assert sorted(line.split()[0] for line in lines) == sorted(keys)
    listed = (folder / "xvector.scp").read_text(encoding="utf-8").splitlines()
    assert [line.split()[0] for line in listed] == list(keys)
    assert sorted(listed) == sorted(lines)


def test_an_entry_has_exactly_the_bytes_that_kaldi_writes(tmp_path: Path):
    values = np.arange(192, dtype=np.float32) / 7
    with ArchiveWriter(tmp_path, made_by=MODEL) as writer:
        writer.add("spk000-utt0", values)
        writer.add("spk000-utt1", values + 1)
    data = (tmp_path / "xvector_000.ark").read_bytes()
    assert data[:790] == b"spk000-utt0 \0BFV \4" + struct.pack("<i192f", 192, *values)
    assert len(data) == 2 * 790
    scp = (tmp_path / "xvector_000.scp").read_text(encoding="utf-8")
    assert scp == f"spk000-utt0 {tmp_path}/xvector_000.ark:12\nspk000-utt1 {tmp_path}/xvector_000.ark:802\n"


def test_kaldiio_kaldi_native_io_and_our_own_reader_read_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kaldi_native_io = pytest.importorskip("kaldi_native_io")
    monkeypatch.chdir(tmp_path)
    keys = ["änne/1", "说话人-2", "c", "x" * 4096]
    write(Path("out put"), keys, shard_size=2)
    assert sorted(os.listdir("out put")) == sorted(
        ["embed.json", "xvector.scp", *(f"xvector_00{n}.{kind}" for n in (0, 1) for kind in ("ark", "scp"))]
    )
    ours = read_vectors("out put/xvector.scp")
    assert list(ours.keys) == keys
    lazy = kaldiio.load_scp("out put/xvector.scp")
    with kaldi_native_io.SequentialFloatVectorReader("scp:out put/xvector.scp") as reader:
        native = {key: np.array(value) for key, value in reader}
    with kaldi_native_io.RandomAccessFloatVectorReader("scp:out put/xvector_001.scp") as reader:
        np.testing.assert_array_equal(np.array(reader["c"]), vector("c"))
    for key, row in zip(keys, ours.matrix, strict=True):
        for found in (row, lazy[key], native[key]):
            np.testing.assert_array_equal(found, vector(key))
    assert [key for key, _ in kaldiio.load_ark("out put/xvector_001.ark")] == keys[2:]


@settings(max_examples=examples(40))
@given(data=st.data())
def test_whatever_was_cut_off_nothing_is_lost_and_nothing_is_there_twice(data: st.DataObject):
    keys = data.draw(st.lists(st.text("ab语-0", min_size=1, max_size=6), min_size=1, max_size=12, unique=True))
    size = data.draw(st.integers(1, 5))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out"
        write(folder, keys, shard_size=size)
        for path in sorted(folder.glob("xvector*")):
            if data.draw(st.booleans(), label=f"cut {path.name}"):
                os.truncate(path, data.draw(st.integers(0, path.stat().st_size), label="at"))
                if path.suffix == ".scp" and data.draw(st.booleans(), label="and not written at all"):
                    path.unlink()
        if data.draw(st.booleans(), label="killed while a list was replaced"):
            (folder / ".xvector_000.scp.part").write_bytes(b"half a li")
        write(folder, keys, shard_size=data.draw(st.integers(1, 5)))
        check_whole(folder, keys)
        assert not list(folder.glob(".*"))


def test_a_process_that_is_killed_leaves_whole_entries_and_at_most_a_torn_one(tmp_path: Path):
    code = (
        "import itertools, sys, numpy as np; from pathlib import Path\n"
        "from tritone.speakers.archive_writer import ArchiveWriter\n"
        "writer = ArchiveWriter(Path(sys.argv[1]), made_by={'kind': 'bundle', 'model': 'toy'}, shard_size=100)\n"
        "vector = np.zeros(4, np.float32)\n"
        "for number in itertools.count():\n"
        "    writer.add(f'u{number}', vector)\n"
        "    if number == 250: print('there', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path / "out"], stdout=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with ArchiveWriter(tmp_path / "out", made_by=MODEL, shard_size=100) as writer:
        assert len(writer) > 250
        assert {f"u{number}" for number in range(len(writer))} == set(read_vectors(writer.write_list()).keys)


def test_a_cut_entry_is_told_of_and_the_same_archive_goes_on(tmp_path: Path):
    write(tmp_path, ["a", "b"])
    ark = tmp_path / "xvector_000.ark"
    whole = ark.read_bytes()
    os.truncate(ark, len(whole) - 3)
    writer = write(tmp_path, ["a", "b"])
    assert writer.mended == [f"{ark} ended in the middle of an entry; removed these {len(whole) // 2 - 3} bytes"]
    assert ark.read_bytes() == whole
    # A machine that lost its power may have made a file longer, and not written what was in it.
    for zeros in (100, 10_000):
        ark.write_bytes(whole + bytes(zeros))
        told = [f"{ark} ended in the middle of an entry; removed these {zeros} bytes"]
        assert write(tmp_path, ["a", "b"]).mended == told
        assert ark.read_bytes() == whole


@pytest.mark.parametrize(
    "behind",
    [
        b"key \0BFM \4" + struct.pack("<i", 4) + bytes(16),  # a matrix
        b"key \0BFV \4" + struct.pack("<i", -1),
        b"key \0BFV \4" + struct.pack("<i", 2**30),
        b"key [ 1 2 3 ]\n",
        b"key \0BDV",
        b"li\nne \0BFV",
        b"\xff\xfe \0BFV \4" + struct.pack("<i", 4) + bytes(16),
        b"x" * 5000,
        bytes(5000) + b"x",
        b"c \0BFV \4" + struct.pack("<i", 3) + bytes(12),  # of another dimension
    ],
)
def test_what_nobody_cut_off_is_damage_and_stays_as_it_is(tmp_path: Path, behind: bytes):
    write(tmp_path, ["a", "b"])
    ark = tmp_path / "xvector_000.ark"
    content = ark.read_bytes() + behind
    ark.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(f"{ark} is damaged")):
        ArchiveWriter(tmp_path, made_by=MODEL)
    assert ark.read_bytes() == content


def test_lists_name_the_archives_by_the_folder_as_it_was_given_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "out", ["a"])
    (tmp_path / "out").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    write(Path("moved"), ["a", "b"])
    assert (
        Path("moved/xvector.scp").read_text(encoding="utf-8")
        == "a moved/xvector_000.ark:2\nb moved/xvector_000.ark:30\n"
    )
    assert Path("moved/xvector_000.scp").read_text(encoding="utf-8") == Path("moved/xvector.scp").read_text(
        encoding="utf-8"
    )


def test_the_list_of_all_is_in_the_order_asked_for_and_leaves_nothing_out(tmp_path: Path):
    with ArchiveWriter(tmp_path, made_by=MODEL, shard_size=2) as writer:
        for key in ("c", "other", "a"):
            writer.add(key, vector(key))
        path = writer.write_list(["a", "b", "c"])
    assert [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines()] == ["a", "c", "other"]


def test_what_another_model_made_is_refused_and_only_force_removes_it(tmp_path: Path):
    write(tmp_path, ["a", "b"], shard_size=1)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    other = {"kind": "bundle", "model": "new", "window_s": "2"}
    complaint = re.escape(
        "model was 'toy' and is 'new'; window_s was not given and is '2'. Name another folder; or --fo"
    )
    with pytest.raises(InputError, match=complaint):
        ArchiveWriter(tmp_path, made_by=other)
    with ArchiveWriter(tmp_path, made_by=other, force=True) as writer:
        assert len(writer) == 0
        writer.add("c", vector("c", dim=8))
    assert sorted(os.listdir(tmp_path)) == ["embed.json", "notes.txt", "xvector_000.ark", "xvector_000.scp"]
    assert json.loads((tmp_path / "embed.json").read_text(encoding="utf-8"))["made_by"] == other


def test_force_leaves_what_the_same_model_made(tmp_path: Path):
    write(tmp_path, ["a"])
    assert len(write(tmp_path, ["a"], force=True)) == 1


def test_archives_that_nobody_knows_the_maker_of_are_not_touched(tmp_path: Path):
    kaldiio.save_ark(str(tmp_path / "xvector_000.ark"), {"a": vector("a")})
    content = (tmp_path / "xvector_000.ark").read_bytes()
    for force in (False, True):
        with pytest.raises(InputError, match=r"no embed\.json that records what made them"):
            ArchiveWriter(tmp_path, made_by=MODEL, force=force)
    for state in (b"{", b"[]", b'{"embeddings": 2, "made_by": {}}', b"[" * 100_000):
        (tmp_path / "embed.json").write_bytes(state)
        with pytest.raises(InputError, match=r"embed.json is (not a|of another)"):
            ArchiveWriter(tmp_path, made_by=MODEL, force=True)
    assert (tmp_path / "xvector_000.ark").read_bytes() == content


def test_an_id_in_two_archives_is_an_error(tmp_path: Path):
    write(tmp_path, ["a"])
    (tmp_path / "xvector_001.ark").write_bytes((tmp_path / "xvector_000.ark").read_bytes())
    with pytest.raises(InputError, match=r"a is in .*xvector_000.ark and again in .*xvector_001.ark"):
        ArchiveWriter(tmp_path, made_by=MODEL)


def test_a_list_whose_archive_is_gone_goes_too_and_its_ids_are_missing(tmp_path: Path):
    write(tmp_path, ["a", "b"], shard_size=1)
    (tmp_path / "xvector_001.ark").unlink()
    with ArchiveWriter(tmp_path, made_by=MODEL) as writer:
        assert ("a" in writer, "b" in writer) == (True, False)
    assert not (tmp_path / "xvector_001.scp").exists()


def test_only_one_process_writes_a_folder(tmp_path: Path):
    with ArchiveWriter(tmp_path, made_by=MODEL), pytest.raises(InputError, match="another process is writing"):
        ArchiveWriter(tmp_path, made_by=MODEL)
    ArchiveWriter(tmp_path, made_by=MODEL).close()


@pytest.mark.parametrize("key", HOSTILE)
def test_an_id_that_archives_cannot_hold_is_refused(key: str):
    with pytest.raises(InputError, match=r"an id has 1 to 4096 bytes|has a space or a character|half a character"):
        check_key(key)


def test_a_repeated_id_and_a_vector_of_another_size_are_refused(tmp_path: Path):
    with ArchiveWriter(tmp_path, made_by=MODEL) as writer:
        writer.add("a", vector("a"))
        with pytest.raises(InputError, match=r"a is in .* already"):
            writer.add("a", vector("a"))
        for wrong in (vector("b", dim=5), np.zeros((1, 4), np.float32), np.zeros(0, np.float32)):
            with pytest.raises(OperatorError, match=r"takes 4 values\. Has the model been exchanged"):
                writer.add("b", wrong)
        writer.add("b", vector("b"))
        writer.write_list()
    check_whole(tmp_path, ["a", "b"])


def test_a_piece_that_an_interrupt_left_half_written_is_gone_when_the_folder_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with ArchiveWriter(tmp_path, made_by=MODEL) as writer:
        writer.add("a", vector("a"))
        assert writer._ark is not None
        writer._ark._file.write(b"b \0BFV")
        writer.write_list()
    check_whole(tmp_path, ["a"])


def test_a_folder_that_cannot_be_written_and_one_that_lists_cannot_hold_are_said(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OperatorError, match="cannot write"):
        ArchiveWriter(tmp_path / "file", made_by=MODEL)
    for name in ("|cat", "two\nlines", "end "):
        with pytest.raises(InputError, match="lists of Kaldi cannot hold the folder"):
            ArchiveWriter(Path(name), made_by=MODEL)
