"""Manifests in JSON: a list of recordings, each with its text and its length.

    {"audio_filepath": "a.wav", "text": "words", "duration": 1.5, "id": "a"}      one object a line
    [{"transcript": "words", "files": [{"fname": "a.wav", "speed": 1.0}], "original_duration": 1.5}, ...]

The first form is that of NeMo, WeNet and Hugging Face, the second one that of NVIDIA's scripts for LibriSpeech: of the
files of an item, the one with speed 1.0 is the recording as it was made. Either form takes the names of the other.
`text_filepath` in place of the text names a file that holds it.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tritone.corpus.list_file import read_text
from tritone.corpus.utterance import Item, Listed, Place, Utterance, check_text, shown
from tritone.errors import InputError
from tritone.paths import stored

# The names that manifests have for a thing; one of each is enough.
AUDIO_KEYS = ("audio_filepath", "audio", "path", "wav", "file")
TEXT_KEYS = ("text", "transcript", "txt")
TEXT_FILE = "text_filepath"
ID_KEYS = ("id", "key")


def manifest_utterances(path: Path, content: str, folder: Path, *, confined: bool) -> Iterator[Listed]:
    """The utterances of a manifest, each with its place.

    Args:
        path: of the manifest, for messages.
        content: its text.
        folder: where relative paths of references start; those of audio are left as they are.
        confined: refuse audio that is not below a data folder, see `check_below`.

    Raises:
        InputError: something is wrong with it; the message names the line, or the item of an array.
    """
    if content.lstrip()[:1] == "[":
        for number, row in enumerate(_parsed(Place(path, 1), content), start=1):
            item = Item(path, number)
            yield item, _utterance(item, row, folder, confined)
        return
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            place = Place(path, number)
            yield place, _utterance(place, _parsed(place, line), folder, confined)


def check_below(place: Place, what: str, name: str, why: str) -> str:
    """Give the name of a file back; raises `InputError` if it may lead out of the folder that it belongs to.

    Links are followed: they belong to the maker of the folder, not to the writer of the list.
    """
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or stored(name) is not None:
        reason = "an address" if stored(name) else "an absolute path" if pure.is_absolute() else "a path with '..'"
        raise InputError(f"{place}: {what} is {reason}, {shown(name)}; {why}")
    return name


def _parsed(place: Place, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = place.line + error.lineno - 1
        raise InputError(
            f"{Place(place.path, line)}: not JSON ({error.msg} at column {error.colno}). "
            "A manifest holds one JSON object per line, or one JSON array."
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise InputError(f"{place}: JSON that cannot be read ({error})") from error


def _utterance(place: Place, row: Any, folder: Path, confined: bool) -> Utterance:
    if not isinstance(row, dict):
        raise InputError(f"{place}: expected a JSON object, got {shown(row)}")
    duration = _number(place, row, "duration")
    if "files" in row:
        audio, own = _unperturbed(place, row["files"])
        lengths = (own, _number(place, row, "original_duration"), duration)
        duration = next((each for each in lengths if each is not None), None)
    else:
        named = _text(place, row, AUDIO_KEYS)
        if named is None:
            raise InputError(f"{place}: no audio; its path goes by one of {', '.join(AUDIO_KEYS)}")
        audio = named
    if confined:
        check_below(place, "the audio", audio, "it must be in the data folder; leave that away, or write a path in it")
    if _number(place, row, "offset"):
        raise InputError(f"{place}: 'offset' makes this a part of a recording; cut the audio into files first")
    name = _text(place, row, ID_KEYS)
    return Utterance(audio if name is None else name, Path(audio), _reference(place, row, folder), duration)


def _reference(place: Place, row: dict[str, Any], folder: Path) -> str | None:
    text = _text(place, row, TEXT_KEYS)
    if text is None and (name := _text(place, row, (TEXT_FILE,))) is not None:
        # Always: the text goes into reports, and a stranger's list shall not choose which file of this machine does.
        check_below(place, f"'{TEXT_FILE}'", name, "it must be in the data folder, or else in that of the manifest")
        try:
            text = read_text(folder / name)
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
    return None if text is None else check_text(place, text)


def _unperturbed(place: Place, files: Any) -> tuple[str, float | None]:
    """Path and duration of the file with the original speed."""
    if not isinstance(files, list) or not all(isinstance(each, dict) for each in files):
        raise InputError(f"{place}: 'files' must be a list of objects with 'fname', got {shown(files)}")
    for each in files:
        if _number(place, each, "speed") in (None, 1.0):
            path = _text(place, each, ("fname",))
            if path is None:
                raise InputError(f"{place}: a file without 'fname'")
            return path, _number(place, each, "duration")
    raise InputError(f"{place}: 'files' has none with speed 1.0, the recording as it was made")


def _text(place: Place, row: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    found = {key: row[key] for key in keys if row.get(key) is not None}
    for key, value in found.items():
        if not isinstance(value, str):
            raise InputError(f"{place}: '{key}' must be a text, got {shown(value)}")
    if len(set(found.values())) > 1:
        raise InputError(f"{place}: {' and '.join(map(repr, found))} differ; keep the right one")
    return next(iter(found.values()), None)


def _number(place: Place, row: dict[str, Any], key: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise InputError(f"{place}: '{key}' must be a number, 0 or more, got {shown(value)}")
    return float(value)
