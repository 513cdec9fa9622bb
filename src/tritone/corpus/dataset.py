"""Lists of utterances: Kaldi's `wav.scp` with `text`, JSON manifests, or a folder of recordings.

    wav.scp, trans  or  manifest.json, ...  or  a data folder  ->  [Utterance, ...]

wav.scp and trans have a line `id path` or `id words` for each utterance, with a space or a tab after the id. Paths
may hold spaces. What manifests and folders look like is described in `manifest.py` and `folder.py`.

Relative paths are relative to `data_dir`, without one to the folder of the list that names them (not to the working
directory, as Kaldi has it: a list means the same wherever it is read from). Addresses such as s3://bucket/a.wav stay
what they are. With `data_dir`, a manifest names nothing
outside of it. Files are UTF-8, a byte order mark and CRLF are fine. The lists may come from anywhere: nothing in them
is ever run.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tritone.corpus.folder import LISTS, folder_utterances
from tritone.corpus.list_file import entries, read_list
from tritone.corpus.manifest import manifest_utterances
from tritone.corpus.utterance import Listed, Place, Utterance, check_text, shown
from tritone.errors import InputError
from tritone.paths import stored

SEGMENTS = "segments"

__all__ = ["Utterance", "read_utterances"]


def read_utterances(
    *,
    wavscp: Path | None = None,
    trans: Path | None = None,
    manifest: Path | Sequence[Path] | None = None,
    data_dir: Path | None = None,
    need_text: bool = True,
    need_audio: bool = True,
    segments: bool = False,
    min_duration_s: float = 0.0,
    max_duration_s: float = math.inf,
) -> list[Utterance]:
    """Read the utterances that a wav.scp, manifests or a folder hold, in their order.

    Args:
        wavscp: Kaldi list of audio files.
        trans: Kaldi list of references for it. An utterance may have an empty one.
        manifest: JSON lines or a JSON array, or several such files; without `id`, the path as it is written there names
            an utterance.
        data_dir: the folder that relative paths start from, instead of that of the list. Without a list, all recordings
            in it are taken.
        need_text: whether an utterance without a reference is an error; else its `text` is None.
        need_audio: whether an audio file that is missing is an error; else who reads it will find out.
        segments: whether Kaldi's `segments` beside the wav.scp is read where references are of its utterances: a line
            `id recording start end` for each, in seconds. Who passes it reads `Utterance.source`.
        min_duration_s, max_duration_s: leave out what manifests say is shorter or longer.

    Raises:
        InputError: a list or an audio file is missing, damaged or empty, an id comes twice, a reference is missing,
            one has no audio, a manifest leads out of the data folder, or has no duration to choose by. The message
            names file and line.
        ValueError: neither list nor folder, or both lists, `trans` without `wavscp`, or durations that make no sense.
    """
    manifests = [manifest] if isinstance(manifest, Path) else list(manifest or ())
    if wavscp is not None and manifests:
        raise ValueError("give either a wav.scp or a manifest")
    if wavscp is None and not manifests and data_dir is None:
        raise ValueError("give either a wav.scp or a manifest, or a data folder")
    if trans is not None and wavscp is None:
        raise ValueError("a manifest holds its own references; trans goes with a wav.scp")
    if not 0 <= min_duration_s <= max_duration_s:
        raise ValueError(f"durations must be 0 <= min <= max, got {min_duration_s:g} and {max_duration_s:g} s")
    chooses = min_duration_s > 0 or max_duration_s < math.inf
    if chooses and not manifests:
        raise ValueError("only manifests state durations; list the recordings in one to choose by them")

    texts = {} if trans is None else _references(trans)
    seen: dict[str, Place] = {}
    utterances: list[Utterance] = []
    for folder, (place, utterance) in _listed(wavscp, texts, manifests, data_dir, segments):
        if utterance.id in seen:
            earlier = seen[utterance.id]
            where = earlier.within if earlier.path == place.path else str(earlier)
            raise InputError(f"{place}: {utterance.id!r} was listed in {where} already")
        seen[utterance.id] = place
        if chooses:
            if utterance.duration_s is None:
                raise InputError(f"{place}: {utterance.id!r} has no 'duration' to choose by")
            if not min_duration_s <= utterance.duration_s <= max_duration_s:
                continue
        if utterance.text is None and need_text:
            alone = wavscp is None and not manifests
            expected = f" in {trans}" if trans else f" beside it ({LISTS}, or {Path(utterance.id).stem}.txt)" * alone
            raise InputError(
                f"{place}: {utterance.id!r} has no reference{expected}. "
                "Scoring needs one for every utterance; it may be empty."
            )
        utterances.append(_located(place, utterance, folder, data_dir is not None, need_audio))
    if not utterances:
        source = ", ".join(map(str, [wavscp] if wavscp is not None else manifests))
        raise InputError(
            f"{source} lists no utterances" + (f" of {min_duration_s:g} to {max_duration_s:g} s" if chooses else "")
        )
    for name, (place, _) in texts.items():
        if name not in seen:
            raise InputError(f"{place}: {name!r} has a reference but no audio in {wavscp}")
    return utterances


def _listed(
    wavscp: Path | None,
    texts: Mapping[str, tuple[Place, str]],
    manifests: Sequence[Path],
    data_dir: Path | None,
    segments: bool,
) -> Iterator[tuple[Path, Listed]]:
    """Every utterance with the folder that its path starts from."""
    confined = data_dir is not None
    if wavscp is not None:
        folder = wavscp.parent if data_dir is None else data_dir
        whole = _kaldi(wavscp, read_list(wavscp), texts)
        parts = wavscp.with_name(SEGMENTS)
        if segments and parts.is_file() and any(name in texts for _, name, _ in entries(parts, read_list(parts))):
            whole = _segments(parts, whole, texts)
        for each in whole:
            yield folder, each
    for manifest in manifests:
        folder = manifest.parent if data_dir is None else data_dir
        for each in manifest_utterances(manifest, read_list(manifest), folder, confined=confined):
            yield folder, each
    if wavscp is None and not manifests and data_dir is not None:
        for each in folder_utterances(data_dir):
            yield data_dir, each


def _kaldi(path: Path, content: str, texts: Mapping[str, tuple[Place, str]]) -> Iterator[Listed]:
    for place, name, rest in entries(path, content):
        if not rest:
            raise InputError(f"{place}: {name!r} has no path; a line is 'id path'")
        if rest.endswith("|") or rest.startswith("|"):
            raise InputError(
                f"{place}: {name!r} is the command {shown(rest)}. Commands are never run; write their output to files "
                "and list these (in Kaldi: wav-copy)."
            )
        if re.search(r"\.(ark|scp):\d+$", rest):
            raise InputError(f"{place}: {name!r} is in a Kaldi archive, {shown(rest)}; extract it (wav-copy) first")
        yield place, Utterance(name, Path(rest), texts[name][1] if name in texts else None)


def _segments(path: Path, whole: Iterator[Listed], texts: Mapping[str, tuple[Place, str]]) -> Iterator[Listed]:
    """The utterances of a `segments`, parts of the recordings of a wav.scp."""
    recordings = {utterance.id: utterance for _, utterance in whole}
    for place, name, rest in entries(path, read_list(path)):
        fields = rest.split()
        try:
            recording, start_s, end_s = fields[0], *map(float, fields[1:])
        except (IndexError, ValueError):
            recording, start_s, end_s = "", 0.0, 0.0
        if not 0 <= start_s < end_s < math.inf:
            raise InputError(
                f"{place}: {shown(rest)} is no 'recording start end' with seconds, the end after the start"
            )
        if recording not in recordings:
            raise InputError(f"{place}: the recording {recording!r} is not in the wav.scp")
        text = texts[name][1] if name in texts else None
        yield (
            place,
            replace(recordings[recording], id=name, text=text, duration_s=end_s - start_s, span=(start_s, end_s)),
        )


def _references(path: Path) -> dict[str, tuple[Place, str]]:
    texts: dict[str, tuple[Place, str]] = {}
    for place, name, rest in entries(path, read_list(path)):
        if name in texts:
            raise InputError(f"{place}: {name!r} has a reference in line {texts[name][0].line} already")
        texts[name] = place, check_text(place, rest)
    if not texts:
        raise InputError(f"{path} holds no references; a line is 'id words'")
    return texts


def _located(place: Place, utterance: Utterance, folder: Path, given: bool, need_audio: bool) -> Utterance:
    try:
        (utterance.id + str(utterance.audio) + (utterance.text or "")).encode()
    except UnicodeEncodeError as error:  # JSON can name half a character: "\ud83d"
        raise InputError(f"{place}: half a character, {error.object[error.start]!a}, which no file can hold") from error
    if not utterance.id.strip():
        raise InputError(f"{place}: an empty id")
    path = utterance.audio if stored(utterance.audio) else folder / utterance.audio
    if not need_audio or stored(path):  # who reads it will find out
        return replace(utterance, audio=path)
    try:
        usable, there = path.is_file(), path.exists()  # neither a pipe nor a device, which might never end
    except OSError as error:
        raise InputError(f"{place}: {shown(str(path))} cannot be read: {error.strerror}") from error
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
    return replace(utterance, audio=path)
