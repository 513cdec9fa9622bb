"""A store of speakers: found again, kept whole, and of one model."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tritone.errors import InputError, OperatorError
from tritone.speakers.store import SpeakerStore

MODEL = {"kind": "bundle", "model": "m", "manifest_sha256": "1" * 64}


def rows(*vectors: list[float]) -> np.ndarray:
    return np.array(vectors, np.float32)


@pytest.fixture
def store(tmp_path: Path) -> SpeakerStore:
    store = SpeakerStore(tmp_path / "voices")
    assert store.enroll("anna", rows([1, 0], [0, 1]), MODEL) == 2
    assert store.enroll("ben", rows([0, 2]), MODEL) == 1
    return store


def test_the_most_similar_speaker_comes_first_by_the_mean_of_its_recordings(store: SpeakerStore) -> None:
    first, second = store.identify(np.array([1, 1], np.float32), MODEL)
    assert (first.name, second.name) == ("anna", "ben")
    assert (first.similarity, second.similarity) == pytest.approx((1, 0.5**0.5), abs=1e-6)
    assert [each.name for each in store.identify(np.array([0, 1], np.float32), MODEL, top=1)] == ["ben"]


def test_more_recordings_are_added_and_old_ones_forgotten_on_request(store: SpeakerStore) -> None:
    assert store.enroll("anna", rows([3, 3]), MODEL) == 3
    contents = store.read()
    assert contents.speakers == {"anna": 3, "ben": 1}
    assert contents.matrix.tolist() == [[1, 0], [0, 1], [3, 3], [0, 2]]
    assert store.enroll("anna", rows([5, 5]), MODEL, anew=True) == 1
    assert store.read().matrix.tolist() == [[5, 5], [0, 2]]


def test_a_speaker_is_forgotten_with_all_its_rows(store: SpeakerStore) -> None:
    store.remove("anna")
    assert (store.read().speakers, store.read().matrix.tolist()) == ({"ben": 1}, [[0, 2]])
    with pytest.raises(InputError, match="has no speaker anna; it has ben"):
        store.remove("anna")
    store.remove("ben")
    with pytest.raises(InputError, match="nobody is enrolled"):
        store.identify(np.ones(2, np.float32), MODEL)
    assert store.enroll("carl", rows([1, 1]), MODEL) == 1
    assert len(list(store.folder.glob("vectors-*"))) == 1


def test_embeddings_of_another_model_are_refused(store: SpeakerStore) -> None:
    retrained = MODEL | {"manifest_sha256": "2" * 64}
    with pytest.raises(InputError, match=r"holds embeddings of m \(111111111111\), these are of m \(222222222222\)"):
        store.enroll("carl", rows([1, 1]), retrained)
    with pytest.raises(InputError, match="cannot be compared"):
        store.identify(np.ones(2, np.float32), {"kind": "server", "model": "other"})
    with pytest.raises(InputError, match="holds embeddings of 2 values, these have 3"):
        store.identify(np.ones(3, np.float32), MODEL)
    assert store.identify(np.ones(2, np.float32), {"kind": "server", "model": "m"})  # all that a server tells fits


def test_a_model_that_was_exported_again_is_the_same_if_its_sources_are(tmp_path: Path) -> None:
    store, sources = SpeakerStore(tmp_path / "s"), {"sources_sha256": "3" * 64}
    store.enroll("anna", rows([1, 0]), MODEL | sources)
    again = MODEL | {"manifest_sha256": "2" * 64}
    assert store.enroll("anna", rows([1, 0]), again | sources) == 2
    with pytest.raises(InputError, match=r"of m \(333333333333\), these are of m \(444444444444\)"):
        store.enroll("anna", rows([1, 0]), MODEL | {"sources_sha256": "4" * 64})


@pytest.mark.parametrize("name", ["", " ", " anna", "a\nb", "a\x1b[2J", "x" * 201])
def test_a_name_that_cannot_be_shown_is_refused(name: str, store: SpeakerStore) -> None:
    with pytest.raises(InputError, match="cannot be a speaker's name"):
        store.enroll(name, rows([1, 1]), MODEL)


def test_embeddings_of_nothing_are_refused(store: SpeakerStore) -> None:
    for wrong in (rows([0, 0]), rows([1, float("nan")])):
        with pytest.raises(InputError, match="zero or not finite; is it silence"):
            store.enroll("carl", wrong, MODEL)
    with pytest.raises(InputError, match="their mean is zero"):
        store.enroll("carl", rows([1, 0], [-1, 0]), MODEL)
    with pytest.raises(InputError, match="zero or not finite"):
        store.identify(np.zeros(2, np.float32), MODEL)


def test_no_store_is_told_with_the_command_that_makes_one(tmp_path: Path) -> None:
    for ask in (SpeakerStore(tmp_path / "x").read, lambda: SpeakerStore(tmp_path / "x").remove("a")):
        with pytest.raises(InputError, match=r"is no store of speakers: it has no index\.json\. `tritone enroll NAME"):
            ask()
    assert not (tmp_path / "x").exists()
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OperatorError, match="cannot write the store"):
        SpeakerStore(tmp_path / "file").enroll("a", rows([1.0]), MODEL)


def test_a_write_that_fails_leaves_the_store_as_it_was(store: SpeakerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = store.read()
    for broken in ("os.fsync", "pathlib.Path.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, full)
            with pytest.raises(OperatorError, match="No space left on device"):
                store.enroll("carl", rows([1, 1]), MODEL)
        assert store.read().speakers == before.speakers
    assert store.enroll("carl", rows([1, 1]), MODEL) == 1
    assert store.read().speakers == {"anna": 2, "ben": 1, "carl": 1}


def test_those_who_enrol_at_once_do_not_lose_one_another(tmp_path: Path) -> None:
    def enroll(number: int) -> int:
        store = SpeakerStore(tmp_path / "s")
        store.enroll(f"n{number}", rows([number + 1, 1]), MODEL)
        return len(store.identify(np.ones(2, np.float32), MODEL, top=100))

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(enroll, range(16))) <= 16
    assert len(SpeakerStore(tmp_path / "s").read().speakers) == 16


@pytest.mark.parametrize(
    "change",
    [
        {"vectors": "../../etc/passwd"},
        {"vectors": "vectors-1.npy/../../x"},
        {"vectors": "vectors-999.npy"},
        {"dim": 3},
        {"dim": -1},
        {"dim": True},
        {"speakers": {"anna": 2}},
        {"speakers": {"anna": 10**12}},
        {"speakers": {"anna": "2"}},
        {"speakers": [1]},
        {"model": None},
        {"version": 0},
    ],
)
def test_a_damaged_index_is_told(change: dict[str, object], store: SpeakerStore) -> None:
    path = store.folder / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(OperatorError, match="is damaged"):
        store.read()


def test_a_store_from_the_future_or_of_no_json_is_told(store: SpeakerStore) -> None:
    path = store.folder / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"version": 2}), encoding="utf-8")
    with pytest.raises(OperatorError, match="written by a newer Tritone"):
        store.read()
    for content in (b"{", b"[]", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(OperatorError, match="not a JSON object"):
            store.read()


def test_vectors_are_never_unpickled(store: SpeakerStore) -> None:
    path = next(store.folder.glob("vectors-*.npy"))
    np.save(path, np.array([{}, {}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(OperatorError, match="is damaged"):
        store.read()


def test_a_backup_is_a_store_that_is_restored_only_on_request(store: SpeakerStore, tmp_path: Path) -> None:
    backup = SpeakerStore(tmp_path / "backup")
    assert backup.copy_from(store).speakers == {}
    assert backup.identify(np.array([1, 1], np.float32), MODEL)[0].name == "anna"
    backup.copy_from(store)  # nothing changed since
    store.remove("ben")
    store.enroll("carl", rows([1, 1]), MODEL)
    store.enroll("anna", rows([1, 1]), MODEL)
    with pytest.raises(
        InputError, match=r"carl would be lost; ben would come back; anna would have other recordings\. --anew replaces"
    ):
        store.copy_from(backup)
    assert list(store.copy_from(backup, anew=True).speakers) == ["anna", "carl"]
    assert (store.read().speakers, store.read().matrix.tolist()) == ({"anna": 2, "ben": 1}, [[1, 0], [0, 1], [0, 2]])


def test_what_a_disk_has_changed_is_told_and_restored(store: SpeakerStore, tmp_path: Path) -> None:
    backup = SpeakerStore(tmp_path / "backup")
    backup.copy_from(store)
    (vectors,) = store.folder.glob("vectors-*")
    content = bytearray(vectors.read_bytes())
    content[-1] ^= 1  # a number that is as finite as before
    vectors.write_bytes(content)
    with pytest.raises(OperatorError, match="its checksum differs"):
        store.read()
    with pytest.raises(OperatorError, match="its checksum differs"):
        SpeakerStore(tmp_path / "another").copy_from(store)
    with pytest.raises(OperatorError, match="its checksum differs"):
        store.copy_from(backup)
    store.copy_from(backup, anew=True)
    assert store.read().speakers == {"anna": 2, "ben": 1}


def test_a_store_that_was_written_before_there_were_checksums_is_read(store: SpeakerStore) -> None:
    index = json.loads((store.folder / "index.json").read_text(encoding="utf-8"))
    del index["vectors_sha256"]
    (store.folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    assert store.read().speakers == {"anna": 2, "ben": 1}
