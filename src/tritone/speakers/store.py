"""A store of enrolled speakers: one folder with a few voices to compare with.

    index.json        who is enrolled, with which model, which rows of the vectors are whose, and the vectors' checksum
    vectors-<n>.npy   (recordings, dim) float32, one row for each enrolled recording

    store.enroll("anna", vectors)   ->  one more speaker, or more recordings of one
    store.identify(vector, top=5)   ->  the most similar speakers, best first
    store.copy_from(backup)         ->  what the other store holds; a backup is a store too

A change writes new vectors under a new name and then puts the new index in place of the old one, so a reader at
that moment, or a machine that stops, sees the store before or after it. Only embeddings are kept, no audio: but they
are data of persons all the same.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tritone.bundle.npy import read_array
from tritone.errors import InputError, OperatorError
from tritone.paths import local, sha256_of
from tritone.report.table import visible
from tritone.speakers.archive import MAX_DIM, Floats, some
from tritone.speakers.scoring import unit_length

VERSION = 1
INDEX = "index.json"
LOCK = ".lock"
MAX_INDEX_BYTES = 64 << 20
MAX_NAME = 200  # characters
MAX_ROWS = 10_000_000
HEADER_ROOM = 4096  # bytes of a .npy beside its numbers
VECTORS_NAME = re.compile(r"vectors-[0-9]{1,12}\.npy")
DECIDES = ("sources_sha256", "manifest_sha256", "model")  # what shows that two models are the same, the surest first


class Candidate(NamedTuple):
    """An enrolled speaker and the cosine with its model, the mean of its recordings' embeddings."""

    name: str
    similarity: float


@dataclass(frozen=True)
class Contents:
    """What a store holds.

    `model`: which model made the vectors, as its system describes it. `speakers`: the number of recordings of each, in
    the order of enrolment, which is that of the rows of `matrix` (recordings, dim).
    """

    model: Mapping[str, str]
    speakers: Mapping[str, int]
    matrix: Floats

    def models(self) -> Floats:
        """One vector for each speaker, the mean of its recordings: (speakers, dim)."""
        edges = np.cumsum([0, *self.speakers.values()]).tolist()
        means = [self.matrix[first:last].mean(axis=0, dtype=np.float64) for first, last in pairwise(edges)]
        return np.array(means, dtype=np.float32).reshape(len(self.speakers), self.matrix.shape[1])


class SpeakerStore:
    """A folder of enrolled speakers. Several processes may use it: writers wait for one another, readers never."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Name the folder; it is made when the first speaker is enrolled."""
        self.folder = local(folder)

    def read(self) -> Contents:
        """Everything in the store.

        Raises:
            InputError: there is none.
            OperatorError: it cannot be read, or is damaged.
        """
        contents = self._read()
        if contents is None:
            raise InputError(
                f"{self.folder} is no store of speakers: it has no {INDEX}. `tritone enroll NAME a.wav --store "
                f"{self.folder}` makes one"
            )
        return contents

    def enroll(self, name: str, vectors: Floats, model: Mapping[str, str], *, anew: bool = False) -> int:
        """Add recordings of a speaker.

        Args:
            name: of the speaker.
            vectors: (recordings, dim), their embeddings.
            model: what made them, see `tritone.systems.System.describe`.
            anew: forget the recordings of that speaker which the store has.

        Returns:
            How many recordings of the speaker the store has now.

        Raises:
            InputError: the name or the vectors cannot be used, or the store is of another model.
            OperatorError: the store cannot be written, or is damaged.
        """
        check_name(name)
        vectors = np.asarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or not len(vectors) or not 0 < vectors.shape[1] <= MAX_DIM:
            raise InputError(f"vectors are (recordings, dim), got {vectors.shape}")
        if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
            raise InputError(f"a recording of {name} has an embedding that is zero or not finite; is it silence?")
        with self._writing():
            old = self._read() or Contents(dict(model), {}, np.empty((0, vectors.shape[1]), np.float32))
            self._check_model(old, model, vectors.shape[1])
            speakers = dict(old.speakers)
            # One who is new is put behind the others.
            index = list(speakers).index(name) if name in speakers else len(speakers)
            first = sum(list(speakers.values())[:index])
            last = first + speakers.get(name, 0)
            rows = vectors if anew else np.concatenate([old.matrix[first:last], vectors])
            if not rows.mean(axis=0, dtype=np.float64).any():
                raise InputError(
                    f"the recordings of {name} are opposite and their mean is zero; are all of one person?"
                )
            matrix = np.concatenate([old.matrix[:first], rows, old.matrix[last:]])
            speakers[name] = len(rows)
            self._write(replace(old, speakers=speakers, matrix=matrix))
        return speakers[name]

    def remove(self, name: str) -> None:
        """Forget a speaker.

        Raises:
            InputError: there is no such speaker, or no store.
            OperatorError: the store cannot be written, or is damaged.
        """
        self.read()
        with self._writing():
            old = self.read()
            if name not in old.speakers:
                raise InputError(f"{self.folder} has no speaker {visible(name)}; it has {some(old.speakers) or 'none'}")
            first = sum(list(old.speakers.values())[: list(old.speakers).index(name)])
            rows = slice(first, first + old.speakers[name])
            speakers = {each: number for each, number in old.speakers.items() if each != name}
            self._write(replace(old, speakers=speakers, matrix=np.delete(old.matrix, rows, axis=0)))

    def copy_from(self, source: "SpeakerStore", *, anew: bool = False) -> Contents:
        """Make this store hold what another one holds now: a backup, or what is restored from one.

        Args:
            anew: replace what this store holds. Without it, the store must be new, empty, or equal already.

        Returns:
            What this store held before.

        Raises:
            InputError: there is no such source, or this store holds something else; the message names who would be
                lost and who would come back.
            OperatorError: one of them is damaged, or this one cannot be written.
        """
        new = source.read()
        with self._writing():
            try:
                old = self._read()
            except OperatorError:
                if not anew:
                    raise
                old = None  # what is damaged is what a backup is for
            if old is not None and old.speakers and not anew and not _equal(old, new):
                raise InputError(
                    f"{self.folder} holds other speakers already. With those of {source.folder} in their "
                    f"place, {_difference(old, new)}. --anew replaces them"
                )
            self._write(new)
        return old or Contents(new.model, {}, new.matrix[:0])

    def identify(self, vector: Floats, model: Mapping[str, str], *, top: int = 5) -> list[Candidate]:
        """The speakers most similar to an embedding (dim,), best first.

        Raises:
            InputError: no store, nobody in it, or another model.
            OperatorError: the store is damaged.
        """
        contents = self.read()
        self._check_model(contents, model, len(vector))
        if not contents.speakers:
            raise InputError(f"nobody is enrolled in {self.folder}")
        if not np.isfinite(vector).all() or not vector.any():
            raise InputError("the embedding is zero or not finite; is the recording silence?")
        similarities = unit_length(contents.models()) @ unit_length(vector[None])[0]
        best = np.argsort(-similarities, kind="stable")[:top]
        names = list(contents.speakers)
        return [Candidate(names[index], float(np.clip(similarities[index], -1, 1))) for index in best]

    def voices(self, model: Mapping[str, str]) -> dict[str, Floats]:
        """The voice of each speaker, the mean of the recordings' embeddings (dim,), by name.

        Args:
            model: whose embeddings they are compared with.

        Raises:
            InputError: no store, nobody in it, or another model.
            OperatorError: the store is damaged.
        """
        contents = self.read()
        self._check_model(contents, model, contents.matrix.shape[1])
        if not contents.speakers:
            raise InputError(f"nobody is enrolled in {self.folder}")
        return dict(zip(contents.speakers, contents.models(), strict=True))

    def _check_model(self, contents: Contents, model: Mapping[str, str], dim: int) -> None:
        """Embeddings of different models are not comparable, even if they are as long."""
        for key in DECIDES:
            stored, now = contents.model.get(key), model.get(key)
            if stored and now:
                if stored != now:
                    raise InputError(
                        f"{self.folder} holds embeddings of {_name(contents.model)}, these are of {_name(model)}; "
                        "embeddings of different models cannot be compared. Use that model, or another --store"
                    )
                break
        if contents.matrix.shape[1] != dim:
            raise InputError(
                f"{self.folder} holds embeddings of {contents.matrix.shape[1]} values, these have {dim}: they are of "
                "different models. Use the model that the store was made with, or another --store"
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / LOCK).open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise OperatorError(f"cannot write the store {self.folder}: {error.strerror or error}") from error

    def _read(self) -> Contents | None:
        """The contents, or None if there are none; again as long as writers have just removed those of an old index."""
        missing = ""
        while True:
            try:
                with (self.folder / INDEX).open("rb") as file:
                    text = file.read(MAX_INDEX_BYTES + 1)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise OperatorError(f"cannot read the store {self.folder}: {error.strerror}") from error
            index = self._parsed(text)
            path = self.folder / index["vectors"]
            try:
                expected = index.get("vectors_sha256")
                rows, dim = sum(index["speakers"].values()), index["dim"]
                matrix = read_array(path, 4 * rows * dim + HEADER_ROOM)
                if expected is not None and sha256_of(path) != expected:
                    raise self._damaged(f"{path.name} is not what was written: its checksum differs")
            except FileNotFoundError:
                if path.name == missing:
                    raise self._damaged(f"{path.name} is missing") from None
                missing = path.name
                continue
            except (OSError, ValueError) as error:
                raise self._damaged(f"{path.name}: {error}") from error
            if matrix.shape != (rows, dim) or matrix.dtype != np.float32 or not np.isfinite(matrix).all():
                raise self._damaged(
                    f"{path.name} has {matrix.dtype} {matrix.shape}, {INDEX} says float32 {(rows, dim)}"
                )
            return Contents(index["model"], index["speakers"], matrix)

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            index = json.loads(text) if len(text) <= MAX_INDEX_BYTES else None
        except (ValueError, RecursionError):
            index = None
        if not isinstance(index, dict):
            raise self._damaged(f"{INDEX} is not a JSON object")
        if isinstance(version := index.get("version"), int) and version > VERSION:
            raise OperatorError(f"{self.folder} was written by a newer Tritone (version {version}); update this one")
        speakers, model = index.get("speakers"), index.get("model")
        fits = (
            index.get("version") == VERSION
            and isinstance(speakers, dict)
            and all(_is_count(number) for number in speakers.values())
            and sum(speakers.values()) <= MAX_ROWS
            and isinstance(model, dict)
            and all(isinstance(value, str) for value in model.values())
            and _is_count(index.get("dim"))
            and index["dim"] <= MAX_DIM
            and isinstance(index.get("vectors"), str)
            and VECTORS_NAME.fullmatch(index["vectors"])
        )
        if not fits:
            raise self._damaged(f"{INDEX} lacks something, or has what does not belong there")
        return index

    def _write(self, contents: Contents) -> None:
        used = [int(path.stem.split("-")[1]) for path in self.folder.iterdir() if VECTORS_NAME.fullmatch(path.name)]
        vectors = self.folder / f"vectors-{max(used, default=0) + 1}.npy"
        index = {
            "version": VERSION,
            "model": dict(contents.model),
            "dim": int(contents.matrix.shape[1]),
            "vectors": vectors.name,
            "vectors_sha256": "",
            "speakers": dict(contents.speakers),
        }
        partial = self.folder / f"{INDEX}.partial"
        with vectors.open("xb") as file:
            np.save(file, contents.matrix, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        index["vectors_sha256"] = sha256_of(vectors)
        with partial.open("wb") as file:
            file.write(json.dumps(index, ensure_ascii=False, indent=1).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.folder / INDEX)
        for path in self.folder.iterdir():
            if VECTORS_NAME.fullmatch(path.name) and path != vectors:
                path.unlink()

    def _damaged(self, why: str) -> OperatorError:
        return OperatorError(
            f"the store {self.folder} is damaged: {visible(why)}. Bring a backup back (`tritone enroll --store "
            f"{self.folder} --restore BACKUP --anew`), or enrol again elsewhere"
        )


def check_name(name: str) -> None:
    """Raises InputError if a speaker cannot be called so."""
    if not name.strip() or name != name.strip() or not name.isprintable() or len(name) > MAX_NAME:
        raise InputError(
            f"{visible(name)[:80]!r} cannot be a speaker's name: 1 to {MAX_NAME} visible characters, no blanks around"
        )


def _equal(one: Contents, other: Contents) -> bool:
    same = (dict(one.model), one.speakers) == (dict(other.model), other.speakers)
    return same and list(one.speakers) == list(other.speakers) and np.array_equal(one.matrix, other.matrix)


def _difference(old: Contents, new: Contents) -> str:
    """Who is lost and who comes back where `new` takes the place of `old`."""
    lost = [name for name in old.speakers if name not in new.speakers]
    back = [name for name in new.speakers if name not in old.speakers]
    changed = [name for name in new.speakers if old.speakers.get(name, new.speakers[name]) != new.speakers[name]]
    effects = [f"{some(names)} {what}" for names, what in ((lost, "would be lost"), (back, "would come back")) if names]
    effects += [f"{some(changed)} would have other recordings"] if changed else []
    return "; ".join(effects) or "the same speakers would have other embeddings"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_ROWS


def _name(model: Mapping[str, str]) -> str:
    digest = model.get("sources_sha256") or model.get("manifest_sha256", "")
    return visible(model.get("model", "an unnamed model")) + (f" ({visible(digest[:12])})" if digest else "")
