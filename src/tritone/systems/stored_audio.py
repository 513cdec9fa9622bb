"""Recordings in object stores: what models get for paths such as s3://bucket/a.wav, and the recordings of a folder.

["a.wav", "s3://bucket/b.wav"]  ->  ["a.wav", StoredAudio], read when there is room for it, as all audio is
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import PurePosixPath

from tritone.audio.files import SUFFIXES, Selection, StoredAudio
from tritone.errors import AudioError, TritoneError
from tritone.paths import stored
from tritone.storage import Address, Store, open_store, parse

MAX_BYTES = 2 << 30  # of a file, which is held in memory


def audio_inputs(paths: Iterable[str | Selection]) -> Iterator[str | Selection | StoredAudio]:
    """The paths; in place of those in object stores, what fetches them. What is wrong with one is found when it is."""
    opened = cache(open_store)  # one client of each bucket, with its connections, for all of them
    for each in paths:
        path = each if isinstance(each, Selection) else str(each)
        address = stored(path)
        if address is None:
            yield path
            continue
        found = StoredAudio(address, partial(_fetch, address, opened))
        yield replace(path, source=found) if isinstance(path, Selection) else found


def recordings_in(folder: str) -> list[str]:
    """The addresses of all audio in a folder of an object store, by their names, sorted as `find_audio` does.

    Raises:
        AudioError: there is none.
        StorageError: the folder cannot be listed.
    """
    address = parse(folder)
    assert address is not None
    names = [PurePosixPath(entry.name) for entry in open_store(address).entries()]
    audio = [name for name in names if name.suffix.lower() in SUFFIXES and not any(p[0] == "." for p in name.parts)]
    if not audio:
        known = ", *".join(sorted(SUFFIXES))
        raise AudioError(f"no audio in the folder {address}. Known are files of the names *{known}.")
    return [str(address / str(name)) for name in sorted(audio, key=lambda name: (name.parent.parts, name.name))]


def _fetch(text: str, opened: Callable[[Address], Store]) -> bytes:
    try:
        address = parse(text)
        assert address is not None
        content = opened(replace(address, path="")).read(address.path, MAX_BYTES) if address.path else None
    except TritoneError as error:
        raise error if text in str(error) else error.saying(f"{text}: {error}") from error
    if content is None:
        raise AudioError(f"cannot read {text}: there is no such file")
    return content
