"""Audio files to waveforms.

    path, bytes or open file  ->  (samples,) float32 at the wanted rate, at once or in blocks

Every format of libsndfile is read (WAV, FLAC, Ogg Vorbis, Opus, ...), and by libav what else it decodes. Channels are
mixed down to their mean. Files come from strangers: durations are checked in the header first, and decoding is done in
blocks, so that no file takes more memory than its mono samples.
"""

import io
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, overload

import numpy as np
import soundfile
import soxr

from tritone.audio import plain
from tritone.audio.block import (
    BLOCK,
    MAX_SAMPLE_RATE,
    MIN_SAMPLE_RATE,
    Block,
    Wanted,
    check_rate,
    cut_off,
    missing_bytes,
    no_samples,
)
from tritone.audio.channels import Mixer
from tritone.audio.layout import NO_LENGTH, SLACK_S, Excerpt, Part, parts_of
from tritone.audio.waveform import Samples, Waveform, check_waveform, widened
from tritone.errors import AudioError, AudioTooLongError, InputError
from tritone.later import later
from tritone.paths import OPEN_PIPES, local

if TYPE_CHECKING:
    from tritone.audio import libav, pipes
else:
    libav, pipes = later("libav"), later("pipes")

MAX_CHANNELS = 16  # of a file of which each is read
UNKNOWN_FRAMES = 2**62  # libsndfile's count is at least this for FLAC without one, which cannot be read
PCM_16 = "PCM_16"  # libsndfile's name, of FLAC with 16 bits too

# What files of these formats are called; a folder holds other files too.
SUFFIXES: frozenset[str] = frozenset(
    {".wav", ".wave", ".w64", ".rf64", ".flac", ".ogg", ".oga", ".opus", ".mp3"}
    | {".aif", ".aiff", ".aifc", ".caf", ".au", ".snd", ".sph", ".nist", ".voc"}
    | {".aac", ".ac3", ".amr", ".ape", ".asf", ".avi", ".flv", ".m4a", ".m4b", ".m4v", ".mka", ".mkv", ".mov", ".mp4"}
    | {".mpeg", ".mpg", ".mts", ".vob", ".webm", ".wma", ".wmv", ".3gp"}  # these by libav alone, as those above
)
TRANSPORT, TRANSPORT_PACKET, TRANSPORT_SYNC = ".ts", 188, b"G"
"""MPEG-TS, whose name programs of torch and TypeScript have, too: its packets, in bytes, and how each begins."""

Source = str | os.PathLike[str] | bytes | BinaryIO


def read_audio(source: Source, sample_rate: int, *, max_audio_s: float | None = None) -> Waveform:
    """Read an audio file as mono at a sample rate.

    Args:
        source: a path, the bytes of a file, or a binary file open for reading that can seek.
        sample_rate: of the result, in Hz; other rates are resampled (soxr, high quality).
        max_audio_s: refuse longer audio, in seconds, before decoding it; None takes any.

    Returns:
        (samples,) float32; integer formats are scaled to [-1, 1], channels are averaged.

    Raises:
        AudioFormatError: it is no audio, or of a format that nothing here decodes.
        AudioError: no such file, cut off, empty, too long, or with samples that `check_waveform` refuses.
    """
    return widened(read_samples(source, sample_rate, max_audio_s=max_audio_s, pcm=False))


def read_samples(source: Source, sample_rate: int, *, max_audio_s: float | None = None, pcm: bool = True) -> Samples:
    """Read an audio file as `read_audio` does, but as (samples,) int16 where the file holds exactly that.

    It does where it has 16 bits, one channel and the wanted rate; nothing is converted then.

    Args:
        pcm: False never returns int16.
    """
    pcm_rate = sample_rate if pcm else None
    file, name, is_own = _opened(source)
    with file if is_own else nullcontext():
        wanted = _wanted(source, name, max_audio_s, pcm_rate)
        blocks = _selected(_decoded(file, wanted), source, name)
        return _read(blocks, wanted._replace(max_audio_s=max_audio_s), sample_rate)


@dataclass(frozen=True)
class StoredAudio(os.PathLike[str]):
    """An audio file that lies elsewhere: its address, and what fetches its bytes, raising a `TritoneError`."""

    name: str
    fetch: Callable[[], bytes]

    def __fspath__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Upload(os.PathLike[str]):
    """A file that somebody sent and that is kept here for a while; messages do not name the place."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return "the file"


@dataclass(frozen=True)
class Selection(os.PathLike[str]):
    """A part of an audio file: one channel, counted from 1, in place of the mean of all; the audio between two times.

    `source`: a path, or what lies elsewhere. `start_s`, `end_s`: in seconds; None goes on to the end.
    """

    source: "str | os.PathLike[str]"
    channel: int | None = None
    start_s: float = 0.0
    end_s: float | None = None

    def __post_init__(self) -> None:
        if self.channel is not None and self.channel < 1:
            raise ValueError(f"channels are counted from 1, got {self.channel}")
        if self.start_s < 0 or (self.end_s is not None and not self.end_s > self.start_s):
            raise ValueError(f"a part ends after its start, got {self.start_s} to {self.end_s} s")

    def __fspath__(self) -> str:
        return os.fspath(self.source)


def channels_of(source: "str | os.PathLike[str]") -> list[Selection]:
    """Each channel of an audio file as a selection of it.

    Args:
        source: a path, or what lies elsewhere; not a pipe, since it is read once for each.

    Raises:
        AudioError: it cannot be read.
        InputError: it has more channels than `MAX_CHANNELS`.
    """
    file, name, is_own = _opened(source)
    with file if is_own else nullcontext():
        wanted = _wanted(source, name, None, None)
        with closing(_decoded(file, wanted)) as blocks:
            next(blocks)
    count = wanted.mixer.channels
    if count > MAX_CHANNELS:
        raise InputError(f"{name} has {count} channels, up to {MAX_CHANNELS} are taken apart; choose one of them")
    return [Selection(source, channel=channel) for channel in range(1, count + 1)]


class AudioBlocks:
    """An audio file of any length as mono at a sample rate, read a block at a time: an iterator to be closed.

    The blocks are (samples,) float32, altogether what `read_audio` returns (to the last bit where the file has this
    rate), or with `pcm` what `read_samples` returns. An error in the middle of a file comes after the blocks before it.
    `name`: as of messages. `duration_s`: of the file, by its header; 0 where it has none, as a pipe may not.
    """

    def __init__(self, source: "Source | StoredAudio", sample_rate: int, *, pcm: bool = False) -> None:
        """Raises `AudioError` as `read_audio` does, if the first block cannot be read."""
        self._sample_rate = sample_rate
        self._file, self.name, self._is_own = _opened(source)
        wanted = _wanted(source, self.name, None, sample_rate if pcm else None)
        self._decoded = _selected(_decoded(self._file, wanted), source, self.name)
        try:
            self._first = next(self._decoded)
        except BaseException:
            self.close()
            raise
        self.duration_s = self._first.duration_s
        self._blocks = self._resampled()

    def __iter__(self) -> Iterator[Samples]:
        return self._blocks

    def whole(self, longest_s: float) -> Samples | None:
        """All of the file if it is no longer than that, in seconds; else None, and the blocks come as they would."""
        read: list[Samples] = []
        left = longest_s * self._sample_rate
        for block in self._blocks:
            read.append(block)
            left -= len(block)
            if left < 0:
                self._blocks = chain(read, self._blocks)
                return None
        return np.concatenate(read)  # type: ignore[return-value]  # all blocks are of one type

    def _resampled(self) -> Iterator[Samples]:
        rate, stream, read_s = 0, None, 0.0
        for each in chain([self._first], self._decoded):
            if each.rate != rate:
                if stream is not None:
                    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
                rate, wanted = each.rate, self._sample_rate
                stream = None if rate == wanted else soxr.ResampleStream(rate, wanted, 1, "float32", "HQ")
            try:
                _check(each.samples, rate)
            except AudioError as error:
                raise AudioError(f"{self.name}: {error}, counted from {read_s:.3f} s") from error
            read_s += len(each.samples) / rate
            yield each.samples if stream is None else stream.resample_chunk(widened(each.samples))
        if stream is not None:
            yield stream.resample_chunk(np.zeros(0, np.float32), last=True)

    def close(self) -> None:
        self._decoded.close()
        if self._is_own:
            self._file.close()


def read_or_blocks(
    source: "Source | StoredAudio", sample_rate: int, longest_s: float, *, pcm: bool = True
) -> "Samples | AudioBlocks":
    """Read an audio file whole, as `read_samples` does, or only open it if it is longer than `longest_s` seconds.

    A file in storage is fetched once. Of a pipe, whose length nobody knows, so much is read first.

    Raises: as `read_audio`.
    """
    if isinstance(source, str | os.PathLike) and not isinstance(source, StoredAudio) and is_pipe(source):
        blocks = AudioBlocks(source, sample_rate, pcm=pcm)
        try:
            whole = blocks.whole(longest_s)
        except BaseException:
            blocks.close()
            raise
        if whole is not None:
            blocks.close()
        return blocks if whole is None else whole
    selection = source if isinstance(source, Selection) else None
    stored = source if selection is None else selection.source
    if isinstance(stored, StoredAudio):  # which is fetched once
        kept = StoredAudio(stored.name, cache(stored.fetch))
        source = kept if selection is None else replace(selection, source=kept)
    start = source.tell() if isinstance(source, io.IOBase) else 0
    try:
        return read_samples(source, sample_rate, max_audio_s=longest_s, pcm=pcm)
    except AudioTooLongError:
        if isinstance(source, io.IOBase):
            source.seek(start)
        return AudioBlocks(source, sample_rate, pcm=pcm)


def is_pipe(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a pipe that this process has open, such as /dev/stdin or what a shell makes of `<(...)`."""
    return os.fspath(path).startswith(OPEN_PIPES) and Path(path).is_fifo()


def find_audio(folder: Path) -> list[Path]:
    """The audio files in a folder and all folders below it, by their names (`SUFFIXES`).

    Sorted: the files of a folder before those of the folders in it. Hidden files and folders are left out, as are the
    shadows that macOS leaves beside every file, and links to folders are not followed.

    Raises:
        AudioError: there is no such folder, one of the folders cannot be read, or there is no audio in them.
    """

    def refuse(error: OSError) -> None:
        raise AudioError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    local(folder, AudioError)
    found: list[Path] = []
    for home, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        audible = (name for name in sorted(names) if _is_audible(Path(home, name)))
        found += [Path(home, name) for name in audible if not name.startswith(".")]
    if not found:
        raise AudioError(
            f"no audio in the folder {folder}. Known are files of the names *{', *'.join(sorted(SUFFIXES))}."
        )
    return found


def _is_audible(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix != TRANSPORT or not path.is_file():
        return suffix in SUFFIXES | {TRANSPORT}
    try:
        with path.open("rb") as file:
            head = file.read(TRANSPORT_PACKET + 1)
    except OSError:
        return True  # who reads it says why it cannot be
    return head[:1] == head[-1:] == TRANSPORT_SYNC


@overload
def resample(waveform: Waveform, from_rate: int, to_rate: int) -> Waveform: ...


@overload
def resample(waveform: Samples, from_rate: int, to_rate: int) -> Samples: ...


def resample(waveform: Samples, from_rate: int, to_rate: int) -> Samples:
    """Resample a waveform; rates in Hz. The same array comes back when the rates agree, float32 otherwise."""
    if from_rate == to_rate:
        return waveform
    result: Waveform = soxr.resample(widened(waveform), from_rate, to_rate, quality="HQ")
    return result.astype(np.float32, copy=False)


def check_sample_rate(sample_rate: int) -> int:
    """Give the sample rate back, in Hz; raises `ValueError` if no audio has such a rate."""
    if not MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE:
        raise ValueError(f"sample_rate must be {MIN_SAMPLE_RATE}-{MAX_SAMPLE_RATE} Hz, got {sample_rate}")
    return sample_rate


def _selected(blocks: Generator[Block, None, None], source: object, name: str) -> Generator[Block, None, None]:
    """The blocks between the times of a selection."""
    if not isinstance(source, Selection) or (not source.start_s and source.end_s is None):
        yield from blocks
        return
    at_s, given = 0.0, 0
    for block in blocks:
        first = max(0, round((source.start_s - at_s) * block.rate))
        last = None if source.end_s is None else max(0, round((source.end_s - at_s) * block.rate))
        at_s += len(block.samples) / block.rate
        if len(found := block.samples[first:last]):
            given += len(found)
            yield block._replace(samples=found, duration_s=0.0)
        if last is not None and last <= len(block.samples):
            break
    blocks.close()
    if not given:
        raise AudioError(f"{name} ends at {at_s:.3f} s, before the part from {source.start_s:g} s on begins")


def _wanted(source: object, name: str, max_audio_s: float | None, pcm_rate: int | None) -> Wanted:
    selection = source if isinstance(source, Selection) else Selection("")
    is_part = selection.start_s > 0 or selection.end_s is not None
    return Wanted(name, None if is_part else max_audio_s, pcm_rate, Mixer(name, selection.channel))


def _opened(source: "Source | StoredAudio") -> tuple[BinaryIO, str, bool]:
    """The open file of a source, its name in messages, and whether it is to be closed here."""
    if isinstance(source, Selection):
        source = source.source
    if isinstance(source, StoredAudio):
        return io.BytesIO(source.fetch()), source.name, True
    if isinstance(source, bytes):
        return io.BytesIO(source), "the audio data", True
    if isinstance(source, str | os.PathLike):
        return _open(local(source, AudioError)), str(source), True
    return source, getattr(source, "name", None) or "the audio data", False


def _open(path: Path) -> BinaryIO:
    try:
        if path.is_dir():
            raise AudioError(f"{path} is a folder; name an audio file")
        if path.exists() and not path.is_file() and not is_pipe(path):
            raise AudioError(f"{path} is not a regular file; save the audio to a file first")
        return path.open("rb")
    except (OSError, ValueError) as error:  # a name with a NUL character is a ValueError
        raise AudioError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error


def _for_soundfile(file: BinaryIO) -> BinaryIO | int:
    """The descriptor of a real file, at its start.

    Of other objects soundfile reads by callbacks into Python, and an exception that comes up in one of them is dropped:
    a Ctrl-C during reading would be lost.
    """
    if not isinstance(file, io.BufferedReader) or not isinstance(file.raw, io.FileIO):
        return file
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    return file.fileno()


def _read(blocks: Iterator[Block], wanted: Wanted, sample_rate: int) -> Samples:
    runs: list[tuple[int, list[Any]]] = []
    read_s = 0.0
    for block in blocks:
        if not runs or runs[-1][0] != block.rate:
            runs.append((block.rate, []))
        runs[-1][1].append(block.samples)
        read_s += len(block.samples) / block.rate
        wanted.check_length(read_s)
    joined: list[tuple[int, Any]] = [(rate, np.concatenate(parts)) for rate, parts in runs]
    del runs
    for rate, samples in joined:
        try:
            _check(samples, rate)
        except AudioError as error:
            raise AudioError(f"{wanted.name}: {error}") from error
    resampled = [resample(samples, rate, sample_rate) for rate, samples in joined]
    return resampled[0] if len(resampled) == 1 else np.concatenate(resampled)


def _check(samples: Samples, rate: int) -> None:
    if samples.dtype != np.int16:  # which cannot hold anything that a waveform may not
        check_waveform(samples, sample_rate=rate)


def _decoded(file: BinaryIO, wanted: Wanted) -> Generator[Block, None, None]:
    """The blocks of a file, at least one; where its rate changes, so does that of the blocks.

    Raises as `read_audio` does.
    """
    if file.seekable():
        yield from _all_parts(file, wanted)
    else:
        yield from pipes.decoded(file, wanted, _decoded)
    wanted.mixer.check()


def _all_parts(file: BinaryIO, wanted: Wanted) -> Generator[Block, None, None]:
    if (plain_wav := _plain_wav(file, wanted)) is not None:
        yield from plain_wav
        return
    parts = parts_of(file, wanted.name)
    if len(parts) == 1:
        (part,) = parts
        whole = part.start == 0 and part.stop == file.seek(0, os.SEEK_END)
        yield from _part(file if whole else _excerpt(file, part), part, wanted)
        return
    every = wanted._replace(pcm_rate=None)  # blocks of one type
    for part in parts:
        for block in _part(_excerpt(file, part), part, every):
            yield block._replace(duration_s=0.0)


def _excerpt(file: BinaryIO, part: Part) -> BinaryIO:
    return io.BufferedReader(Excerpt(file, part.start, part.stop), 1 << 16)


def _plain_wav(file: BinaryIO, wanted: Wanted) -> Generator[Block, None, None] | None:
    """The blocks of a WAV file of plain samples, and of those that follow it; None of any other file."""
    total = file.seek(0, os.SEEK_END)
    file.seek(0)
    tape = plain.Tape(file)
    head = bytearray(tape.read(12))
    if not plain.is_wav(head):
        return None
    found = plain.header(tape, head, wanted.name)
    return None if found is None else _wavs(tape, wanted, found, total - len(head), file)


def _wavs(
    tape: plain.Tape, wanted: Wanted, found: tuple[plain.Format, int], present: int, file: BinaryIO
) -> Generator[Block, None, None]:
    yield from plain.decoded(tape, wanted, *found, present)
    while plain.follows(tape):
        following = plain.header(tape, bytearray(tape.read(12)), wanted.name)
        if following is None:
            raise AudioError(f"{wanted.name} goes on as WAV of another kind; convert its parts to one")
        yield from plain.decoded(tape, wanted, *following, None)


def _part(file: BinaryIO, part: Part, wanted: Wanted) -> Generator[Block, None, None]:
    """The blocks of one recording, by libsndfile, or by libav what that does not read."""
    name, unread = wanted.name, part.unread
    if part.is_mpeg:  # whose decoder in libsndfile writes to the standard error as it likes
        unread = unread or "MPEG audio"
    rate = promised = decoded = 0  # samples, by the header
    file.seek(0)
    try:
        if unread:
            raise _NoLengthError(unread)
        with soundfile.SoundFile(_for_soundfile(file), closefd=False) as sound:
            rate, promised = sound.samplerate, sound.frames
            check_rate(name, rate)
            if promised <= 0:
                raise no_samples(name)
            if promised >= UNKNOWN_FRAMES:
                raise _NoLengthError(NO_LENGTH)
            wanted.check_length(promised / rate)
            if part.missing * promised / rate > SLACK_S * (1 - part.missing):
                raise missing_bytes(name, part.missing)
            step = max(1, BLOCK // sound.channels)
            as_pcm = sound.subtype == PCM_16 and wanted.is_pcm(sound.channels, rate)
            dtype = "int16" if as_pcm else "float32"
            # never more than the header said, whatever the data decodes to
            while decoded < promised and len(
                block := sound.read(min(step, promised - decoded), dtype=dtype, always_2d=True)
            ):
                decoded += len(block)
                yield Block(rate, promised / rate, block[:, 0] if as_pcm else wanted.mixer.mix(block))
    except (
        soundfile.SoundFileError,
        _NoLengthError,
        TypeError,
    ) as error:  # TypeError: soundfile takes *.raw for headerless audio
        reason = (getattr(error, "error_string", None) or str(error)).removeprefix("Error : ").strip().rstrip(".")
        if promised and not isinstance(error, _NoLengthError):
            raise AudioError(f"{name} is damaged or cut off ({reason}). Copy or download it again.") from error
        unread = reason or "it is of no known format"
    if unread:
        yield from libav.decoded(file, wanted, unread, missing=part.missing)
    elif promised - decoded > SLACK_S * rate:
        raise cut_off(name, f"its header promises {promised / rate:.3f} s, it holds {decoded / rate:.3f} s")


class _NoLengthError(Exception):
    """A file that libsndfile opens, but cannot read to its end."""
