"""Lists of utterances: Kaldi's `wav.scp` with `text`, or a JSON manifest.

    wav.scp, trans  or  manifest.jsonl  or  manifest.json  ->  [Utterance, ...]

wav.scp and trans have a line `id path` or `id words` for each utterance, with a space or a tab after the id. Paths
may hold spaces. A manifest is either one JSON object per line, as NeMo, WeNet and Hugging Face write them, or one
JSON array, as NVIDIA's Jasper scripts write it for LibriSpeech:

    {"audio_filepath": "a.wav", "text": "words", "duration": 1.5, "id": "a"}
    [{"transcript": "words", "files": [{"fname": "a.wav", "speed": 1}], "original_duration": 1.5}, ...]

Relative paths are relative to `data_dir`, without one to the folder of the list that names them (not to the working
directory, as Kaldi has it: a list means the same wherever it is read from). Files are UTF-8, a byte order mark and
CRLF are fine. The lists may come from anywhere: nothing in them is ever run.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.errors import InputError

MAX_LIST_MB = 256  # more than a million utterances
MAX_TEXT = 1_000_000  # characters of one reference, 18 hours of speech

# The names that manifests have for a thing; one of each is enough.
AUDIO_KEYS = ("audio_filepath", "audio", "path", "wav", "file")
TEXT_KEYS = ("text", "transcript", "txt")
ID_KEYS = ("id", "key")


@dataclass(frozen=True)
class Utterance:
    """A recording: its name, its file, what is said in it and how long it is in seconds, as far as the lists tell."""

    id: str
    audio: Path
    text: str | None = None
    duration_s: float | None = None


@dataclass(frozen=True)
class _Place:
    """Where something was read, for messages."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def read_utterances(
    *,
    wavscp: Path | None = None,
    trans: Path | None = None,
    manifest: Path | None = None,
    data_dir: Path | None = None,
    need_text: bool = True,
) -> list[Utterance]:
    """Read the utterances that a wav.scp or a manifest lists, in its order.

    Args:
        wavscp: Kaldi list of audio files.
        trans: Kaldi list of references for it. An utterance may have an empty one.
        manifest: JSON lines or a JSON array; without `id`, the path as it is written there names an utterance.
        data_dir: the folder that relative paths start from, instead of that of the list.
        need_text: whether an utterance without a reference is an error; else its `text` is None.

    Raises:
        InputError: a list or an audio file is missing, damaged or empty, an id comes twice, a reference is missing,
            or one has no audio. The message names file and line.
        ValueError: neither or both of `wavscp` and `manifest`, or `trans` without `wavscp`.
    """
    if (wavscp is None) == (manifest is None):
        raise ValueError("give either a wav.scp or a manifest")
    if trans is not None and wavscp is None:
        raise ValueError("a manifest holds its own references; trans goes with a wav.scp")
    source = wavscp if wavscp is not None else manifest
    assert source is not None
    content = _read(source)
    folder = source.parent if data_dir is None else data_dir
    if wavscp is not None:
        texts = {} if trans is None else _references(trans)
        listed = _kaldi(wavscp, content, trans, texts)
    else:
        listed = _manifest(source, content)

    seen: dict[str, _Place] = {}
    utterances: list[Utterance] = []
    for place, utterance in listed:
        if utterance.id in seen:
            raise InputError(f"{place}: {utterance.id!r} was listed in line {seen[utterance.id].line} already")
        seen[utterance.id] = place
        if utterance.text is None and need_text:
            raise InputError(
                f"{place}: {utterance.id!r} has no reference{f' in {trans}' if trans else ''}. "
                "Scoring needs one for every utterance; it may be empty."
            )
        utterances.append(_located(place, utterance, folder, data_dir is not None))
    if not utterances:
        raise InputError(f"{source} lists no utterances")
    if wavscp is not None:
        for name, (place, _) in texts.items():
            if name not in seen:
                raise InputError(f"{place}: {name!r} has a reference but no audio in {wavscp}")
    return utterances


def _kaldi(
    path: Path, content: str, trans: Path | None, texts: dict[str, tuple[_Place, str]]
) -> Iterator[tuple[_Place, Utterance]]:
    for place, name, rest in _entries(path, content):
        if not rest:
            raise InputError(f"{place}: {name!r} has no path; a line is 'id path'")
        if rest.endswith("|") or rest.startswith("|"):
            raise InputError(
                f"{place}: {name!r} is the command {_shown(rest)}. Commands are never run; write their output to files "
                "and list these (in Kaldi: wav-copy)."
            )
        if re.search(r"\.(ark|scp):\d+$", rest):
            raise InputError(f"{place}: {name!r} is in a Kaldi archive, {_shown(rest)}; extract it (wav-copy) first")
        yield place, Utterance(name, Path(rest), texts[name][1] if name in texts else None)


def _references(path: Path) -> dict[str, tuple[_Place, str]]:
    texts: dict[str, tuple[_Place, str]] = {}
    for place, name, rest in _entries(path, _read(path)):
        if name in texts:
            raise InputError(f"{place}: {name!r} has a reference in line {texts[name][0].line} already")
        texts[name] = place, _checked_text(place, rest)
    if not texts:
        raise InputError(f"{path} holds no references; a line is 'id words'")
    return texts


def _entries(path: Path, content: str) -> Iterator[tuple[_Place, str, str]]:
    """`id rest` of every line that is not blank; `rest` may be empty."""
    for number, line in enumerate(content.split("\n"), start=1):
        name, _, rest = re.sub(r"[ \t]+", " ", line.strip(" \t\r"), count=1).partition(" ")
        if name:
            yield _Place(path, number), name, rest


def _manifest(path: Path, content: str) -> Iterator[tuple[_Place, Utterance]]:
    if content.lstrip()[:1] == "[":
        # Where the items of an array stand is not known: they are counted.
        rows = _parsed(_Place(path, 1), content)
        for number, row in enumerate(rows, start=1):
            item = _Item(path, number)
            yield item, _utterance(item, row)
        return
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            place = _Place(path, number)
            yield place, _utterance(place, _parsed(place, line))


class _Item(_Place):
    def __str__(self) -> str:
        return f"{self.path}, item {self.line}"


def _parsed(place: _Place, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = place.line + error.lineno - 1
        raise InputError(
            f"{_Place(place.path, line)}: not JSON ({error.msg} at column {error.colno}). "
            "A manifest holds one JSON object per line, or one JSON array."
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise InputError(f"{place}: JSON that cannot be read ({error})") from error


def _utterance(place: _Place, row: Any) -> Utterance:
    if not isinstance(row, dict):
        raise InputError(f"{place}: expected a JSON object, got {_shown(row)}")
    duration = _number(place, row, "duration")
    if "files" in row:
        audio, own = _unperturbed(place, row["files"])
        duration = next(
            (each for each in (own, _number(place, row, "original_duration"), duration) if each is not None), None
        )
    else:
        named = _text(place, row, AUDIO_KEYS)
        if named is None:
            raise InputError(f"{place}: no audio; its path goes by one of {', '.join(AUDIO_KEYS)}")
        audio = named
    if _number(place, row, "offset"):
        raise InputError(f"{place}: 'offset' makes this a part of a recording; cut the audio into files first")
    text = _text(place, row, TEXT_KEYS)
    if text is None and "text_filepath" in row:
        raise InputError(f"{place}: 'text_filepath' is not read; put the words themselves under 'text'")
    name = _text(place, row, ID_KEYS)
    return Utterance(
        audio if name is None else name, Path(audio), None if text is None else _checked_text(place, text), duration
    )


def _unperturbed(place: _Place, files: Any) -> tuple[str, float | None]:
    """Path and duration of the file with the original speed."""
    if not isinstance(files, list) or not all(isinstance(each, dict) for each in files):
        raise InputError(f"{place}: 'files' must be a list of objects with 'fname', got {_shown(files)}")
    for each in files:
        if _number(place, each, "speed") in (None, 1.0):
            path = _text(place, each, ("fname",))
            if path is None:
                raise InputError(f"{place}: a file without 'fname'")
            return path, _number(place, each, "duration")
    raise InputError(f"{place}: 'files' has none with speed 1.0, the recording as it was made")


def _text(place: _Place, row: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    found = {key: row[key] for key in keys if row.get(key) is not None}
    for key, value in found.items():
        if not isinstance(value, str):
            raise InputError(f"{place}: '{key}' must be a text, got {_shown(value)}")
    if len(set(found.values())) > 1:
        raise InputError(f"{place}: {' and '.join(map(repr, found))} differ; keep the right one")
    return next(iter(found.values()), None)


def _number(place: _Place, row: dict[str, Any], key: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"{place}: '{key}' must be a number, 0 or more, got {_shown(value)}")
    return float(value)


def _checked_text(place: _Place, text: str) -> str:
    if len(text) > MAX_TEXT:
        raise InputError(f"{place}: a reference of {len(text):,} characters; at most {MAX_TEXT:,} are scored")
    return text


def _located(place: _Place, utterance: Utterance, folder: Path, given: bool) -> Utterance:
    try:
        (utterance.id + str(utterance.audio) + (utterance.text or "")).encode()
    except UnicodeEncodeError as error:  # JSON can name half a character: "\ud83d"
        raise InputError(f"{place}: half a character, {error.object[error.start]!a}, which no file can hold") from error
    if not utterance.id.strip():
        raise InputError(f"{place}: an empty id")
    path = folder / utterance.audio
    try:
        usable, there = path.is_file(), path.exists()  # neither a pipe nor a device, which might never end
    except OSError as error:
        raise InputError(f"{place}: {_shown(str(path))} cannot be read: {error.strerror}") from error
    if not usable:
        where = (
            ""
            if utterance.audio.is_absolute()
            else (
                f" Relative paths start from {folder}, "
                + (
                    "the data folder that was given."
                    if given
                    else "the folder of the list; give a data folder if they are elsewhere."
                )
            )
        )
        raise InputError(f"{place}: {path} is {'not a file' if there else 'missing'}.{where}")
    return Utterance(utterance.id, path, utterance.text, utterance.duration_s)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read((MAX_LIST_MB << 20) + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > MAX_LIST_MB << 20:
        raise InputError(f"{path} is larger than {MAX_LIST_MB} MB. Is it a list of utterances? If so, split it.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not UTF-8 (byte 0x{content[error.start]:02x}); convert the file") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
