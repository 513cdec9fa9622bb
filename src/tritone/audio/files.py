"""Audio files to waveforms.

    path, bytes or open file  ->  (samples,) float32 at the wanted rate, at once or in blocks

Every format of libsndfile is read (WAV, FLAC, Ogg Vorbis, Opus, MP3, ...). Channels are mixed down to their mean. Files
come from strangers: durations are checked in the header first, and decoding is done in blocks, so that no file takes
more memory than its mono samples.
"""

import io
import os
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
import soundfile
import soxr

from tritone.audio import libav, pipes
from tritone.audio.block import (
    BLOCK,
    MAX_SAMPLE_RATE,
    MIN_SAMPLE_RATE,
    Block,
    absurd_rate,
    check_rate,
    cut_off,
    too_long,
)
from tritone.audio.pipes import UNKNOWN_SIZE
from tritone.audio.waveform import Samples, Waveform, check_waveform, widened
from tritone.errors import AudioError, AudioTooLongError
from tritone.paths import OPEN_PIPES, local

CHUNKED = {
    (b"RIFF", b"WAVE"): ("<I", b"data"),
    (b"FORM", b"AIFF"): (">I", b"SSND"),
    (b"FORM", b"AIFC"): (">I", b"SSND"),
}
UNKNOWN_FRAMES = 2**62  # libsndfile's count is at least this for FLAC without one, which cannot be read
OGG_MAX_PAGE = 65307  # bytes
OGG_LAST_PAGE = 4  # flag in the page header
PCM_16 = "PCM_16"  # libsndfile's name, of FLAC with 16 bits too
KNOWN_FORMATS = "WAV, FLAC, Ogg Vorbis, Opus, MP3 and what else libsndfile reads"

# What files of these formats are called; a folder holds other files too.
SUFFIXES: frozenset[str] = frozenset(
    {".wav", ".wave", ".w64", ".rf64", ".flac", ".ogg", ".oga", ".opus", ".mp3"}
    | {".aif", ".aiff", ".aifc", ".caf", ".au", ".snd", ".sph", ".nist", ".voc"}
)

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
        AudioError: no such file, not audio, cut off, empty, too long, or with samples that `check_waveform` refuses.
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
        return _read(file, name, sample_rate, max_audio_s, pcm_rate)


@dataclass(frozen=True)
class StoredAudio(os.PathLike[str]):
    """An audio file that lies elsewhere: its address, and what fetches its bytes, raising a `TritoneError`."""

    name: str
    fetch: Callable[[], bytes]

    def __fspath__(self) -> str:
        return self.name


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
        self._decoded = _decoded(self._file, self.name, None, sample_rate if pcm else None)
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
        rate = self._first.rate
        stream = None if rate == self._sample_rate else soxr.ResampleStream(rate, self._sample_rate, 1, "float32", "HQ")
        read = 0
        for each in chain([self._first], self._decoded):
            try:
                _check(each.samples, rate)
            except AudioError as error:
                raise AudioError(f"{self.name}: {error}, counted from {read / rate:.3f} s") from error
            read += len(each.samples)
            yield each.samples if stream is None else stream.resample_chunk(each.samples)
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
    if isinstance(source, StoredAudio):
        fetched = io.BytesIO(source.fetch())
        fetched.name = source.name  # as open files have
        source = fetched
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
        audible = (name for name in sorted(names) if Path(name).suffix.lower() in SUFFIXES)
        found += [Path(home, name) for name in audible if not name.startswith(".")]
    if not found:
        raise AudioError(
            f"no audio in the folder {folder}. Known are files of the names *{', *'.join(sorted(SUFFIXES))}."
        )
    return found


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


def _opened(source: "Source | StoredAudio") -> tuple[BinaryIO, str, bool]:
    """The open file of a source, its name in messages, and whether it is to be closed here."""
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


def _read(file: BinaryIO, name: str, sample_rate: int, max_audio_s: float | None, pcm_rate: int | None) -> Samples:
    blocks = list(_decoded(file, name, max_audio_s, pcm_rate))
    rate, samples = blocks[0].rate, np.concatenate([block.samples for block in blocks])
    del blocks
    try:
        _check(samples, rate)
    except AudioError as error:
        raise AudioError(f"{name}: {error}") from error
    return resample(samples, rate, sample_rate)


def _check(samples: Samples, rate: int) -> None:
    if samples.dtype != np.int16:  # which cannot hold anything that a waveform may not
        check_waveform(samples, sample_rate=rate)


def _decoded(
    file: BinaryIO, name: str, max_audio_s: float | None, pcm_rate: int | None = None
) -> Generator[Block, None, None]:
    """The blocks of a file, at least one; int16 where it has 16 bits, one channel and the rate `pcm_rate` (Hz).

    Raises as `read_audio` does.
    """
    if not file.seekable():
        yield from pipes.decoded(file, name, max_audio_s, pcm_rate, _decoded)
        return
    _refuse_damaged(file, name)
    rate = promised = decoded = 0  # samples, by the header
    unread = ""  # why libsndfile does not read it
    try:
        with soundfile.SoundFile(_for_soundfile(file), closefd=False) as sound:
            rate, promised = sound.samplerate, sound.frames
            check_rate(name, rate)
            if promised <= 0:
                raise AudioError(f"{name} has no samples, or is cut off")
            if promised >= UNKNOWN_FRAMES:
                raise _NoLengthError("its header does not tell its length (was it written to a pipe?)")
            if max_audio_s is not None and promised > max_audio_s * rate:
                raise AudioTooLongError(too_long(name, promised / rate, max_audio_s))
            step = max(1, BLOCK // sound.channels)
            as_pcm = sound.subtype == PCM_16 and sound.channels == 1 and rate == pcm_rate
            dtype = "int16" if as_pcm else "float32"
            # never more than the header said, whatever the data decodes to
            while decoded < promised and len(
                block := sound.read(min(step, promised - decoded), dtype=dtype, always_2d=True)
            ):
                decoded += len(block)
                samples = block[:, 0] if as_pcm else block.mean(axis=1, dtype=np.float32)
                yield Block(rate, promised / rate, samples)
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
        yield from libav.decoded(file, name, max_audio_s, unread)
    elif decoded < promised:
        raise cut_off(name, f"its header promises {promised / rate:.3f} s, it holds {decoded / rate:.3f} s")


class _NoLengthError(Exception):
    """A file that libsndfile opens, but cannot read to its end."""


def _refuse_damaged(file: BinaryIO, name: str) -> None:
    """Compare what WAV, AIFF and Ogg files promise with what they hold; libsndfile takes them as they are.

    A FLAC file of 0 Hz is refused too, for which libsndfile may read all of it.
    """
    start = file.tell()
    total = file.seek(0, os.SEEK_END)
    if total == start:
        raise AudioError(f"{name} is empty (0 bytes)")
    file.seek(start)
    head = file.read(12)
    if (head[:4], head[8:]) in CHUNKED:
        order, audio = CHUNKED[head[:4], head[8:]]
        while len(chunk := file.read(8)) == 8:
            size = struct.unpack(order, chunk[4:])[0]
            present = total - file.tell()
            if chunk[:4] == audio:
                if present < size < UNKNOWN_SIZE:
                    raise cut_off(name, f"its header promises {size} bytes of audio, {present} are there")
                break
            file.seek(size + size % 2, os.SEEK_CUR)
    elif head[:4] == b"fLaC":
        details = file.read(9)  # the last bytes of its sizes, and 20 bits of the sample rate
        if len(details) == 9 and head[4] & 0x7F == 0 and not (rate := int.from_bytes(details[6:9], "big") >> 4):
            raise absurd_rate(name, rate)
    elif head[:4] == b"OggS":
        file.seek(max(start, total - OGG_MAX_PAGE))
        tail = file.read(OGG_MAX_PAGE)
        page = tail[max(tail.rfind(b"OggS"), 0) :]
        # A page is 27 bytes, the last of which counts its segments, then their sizes, then the segments.
        whole = len(page) >= 27 and len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])
        if not whole or not page[5] & OGG_LAST_PAGE:
            raise cut_off(name, "its last page is missing")
    file.seek(start)
