"""What an evaluation has found so far, one JSON object a line, so that an interrupted run can go on.

    {"journal": 1, "inputs": digest, "utterances": 130, "system": {...}}     whose results these are
    {"session": 0, "concurrency": 8}                                         a run began or went on
    {"id": ..., "text": ... | "error": ..., "elapsed_s": ..., ...}           an utterance, in the order of answering

Only what was recognised is kept, no scores: another normalisation, or corrected references, need no new run.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tritone.corpus.dataset import Utterance
from tritone.errors import InputError, OperatorError

VERSION = 1
BEGINNING = b'{"journal": '
ADVICE = "Remove it to start again, or name another --journal."


def fingerprint(utterances: Iterable[Utterance]) -> str:
    """A digest of ids and audio files (path, size, time of change); references do not count."""
    digest = hashlib.sha256()
    for utterance in utterances:
        try:
            status = utterance.audio.stat()
            stamp = f"{status.st_size} {status.st_mtime_ns}"
        except (OSError, ValueError):
            stamp = "missing"
        fields = json.dumps([utterance.id, os.fspath(utterance.audio), stamp])
        digest.update(fields.encode("ascii"))
    return digest.hexdigest()


class Journal:
    """A journal open for writing, by one process at a time. A line is on its way to the disk before `add` returns."""

    def __init__(
        self, path: Path, *, inputs: str, utterances: int, system: Mapping[str, str], resume: bool = False
    ) -> None:
        """Start a journal, or go on with one.

        Without `resume` an unfinished journal is kept beside as `<name>.old`; a finished one is written over.

        Args:
            inputs: `fingerprint` of the utterances, of which there are `utterances`.
            system: what transcribes, as `System.describe` returns it.
            resume: go on with the journal at `path`, if there is one.

        Raises:
            InputError: the journal is of other utterances or of another system, another process is writing it, or it
                is no journal.
            OperatorError: it cannot be written.
        """
        self.path = path
        self.kept: Path | None = None
        """Where an unfinished journal went that was not gone on with."""
        self._header: dict[str, Any] = {
            "journal": VERSION,
            "inputs": inputs,
            "utterances": utterances,
            "system": dict(system),
        }
        self._sessions = 0
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is a folder or a device; a journal is a file")
        self._file = self._open()
        try:
            # A process that ended before its first line was written has left nothing to go on with.
            if resume and next(self._lines(), None) is not None:
                self._check()
                self._sessions = sum("session" in line for line in self._lines())
                self._cut_torn_line()
            else:
                self._start()
        except BaseException:
            self.close()
            raise

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """What earlier sessions noted: session, utterance. A later record of an utterance replaces an earlier one."""
        session = 0
        for line in self._lines():
            if "session" in line:
                session = int(line["session"])
            elif "id" in line:
                yield session, line

    def concurrencies(self) -> list[int]:
        """Concurrency of each session so far."""
        return [int(line["concurrency"]) for line in self._lines() if "session" in line]

    def begin(self, concurrency: int) -> int:
        """Write that a session begins; returns its number."""
        self._write({"session": self._sessions, "concurrency": concurrency})
        self._sessions += 1
        return self._sessions - 1

    def add(self, record: Mapping[str, Any]) -> None:
        """Note an utterance; `record` has its `id`."""
        self._write(record)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lines(self) -> Iterator[dict[str, Any]]:
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(file, start=1):
                if not text.endswith("\n"):
                    return  # the process ended while it was being written
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise InputError(f"{self.path}:{number} is not a line of a journal ({error}). {ADVICE}") from error
                if not isinstance(line, dict):
                    raise InputError(f"{self.path}:{number} is not a line of a journal. {ADVICE}")
                yield line

    def _check(self) -> None:
        found: dict[str, Any] = next(self._lines(), {})
        if found.get("journal") != VERSION or not isinstance(found.get("system"), dict):
            raise InputError(f"{self.path} is not a journal of this version of `tritone evaluate`. {ADVICE}")
        differences = []
        if found.get("inputs") != self._header["inputs"]:
            before, now = found.get("utterances"), self._header["utterances"]
            counted = f" ({before} utterances then, {now} now)" if before != now else ""
            differences.append(f"ids, paths or audio files have changed{counted}")
        then, now = found["system"], self._header["system"]
        for key in {**then, **now}:
            if then.get(key) != now.get(key):
                differences.append(f"the system's {key} was {then.get(key)!r} and is {now.get(key)!r}")
        if differences:
            raise InputError(f"{self.path} is of another run: {'; '.join(differences)}. {ADVICE}")

    def _start(self) -> None:
        """Begin with an empty file and its header."""
        try:
            if not self._is_journal():
                raise ValueError
            wanted = int(next(self._lines(), {}).get("utterances", 0))
            done = {record["id"] for _, record in self.records() if record.get("error") is None}
        except (InputError, TypeError, ValueError, OverflowError):
            raise InputError(f"{self.path} is there and is no journal; name another --journal") from None
        if 0 < len(done) < wanted:
            self.kept = self.path.with_name(self.path.name + ".old")
            os.replace(self.path, self.kept)
            self.close()
            self._file = self._open()
        self._file.truncate(0)
        self._write(self._header)

    def _is_journal(self) -> bool:
        """Whether the file begins as a journal does, as far as it goes; not even a torn line of others is lost."""
        with self.path.open("rb") as file:
            return BEGINNING.startswith(file.read(len(BEGINNING)))

    def _open(self) -> IO[str]:
        """Open for appending. Two processes would write a journal of nothing, so there is a lock on the file."""
        try:
            file = self.path.open("a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise OperatorError(f"cannot write the journal {self.path}: {error.strerror}") from error
        try:
            _lock(file)
            if not os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                raise BlockingIOError  # who had it open before has just put it aside
        except (BlockingIOError, FileNotFoundError) as error:
            file.close()
            raise InputError(
                f"another process is writing the journal {self.path}; wait for it, or name another --journal"
            ) from error
        return file

    def _cut_torn_line(self) -> None:
        with self.path.open("rb") as file:
            whole = sum(len(line) for line in file if line.endswith(b"\n"))
        self._file.truncate(whole)

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise OperatorError(f"cannot write the journal {self.path}: {error.strerror}") from error


def _lock(file: IO[str]) -> None:
    """Lock a file until it is closed; raises `BlockingIOError` if somebody else has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return  # a file system without locks, such as some network folders
