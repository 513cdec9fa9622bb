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
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, overload

import numpy as np
import soundfile
import soxr

from tritone.audio.waveform import Samples, Waveform, check_waveform, widened
from tritone.errors import AudioError
from tritone.paths import local

BLOCK = 65536  # samples decoded at a time, of all channels together
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 1000, 768_000  # Hz; outside of this a header is damaged or malicious
UNKNOWN_SIZE = 0x7FFF_0000  # bytes; programs that write WAV to a pipe fill in sizes from here up
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
    if isinstance(source, StoredAudio):
        return _read(io.BytesIO(source.fetch()), source.name, sample_rate, max_audio_s, pcm_rate)
    if isinstance(source, bytes):
        return _read(io.BytesIO(source), "the audio data", sample_rate, max_audio_s, pcm_rate)
    if isinstance(source, str | os.PathLike):
        with _open(local(source, AudioError)) as file:
            return _read(file, str(source), sample_rate, max_audio_s, pcm_rate)
    name = getattr(source, "name", None) or "the audio data"
    return _read(source, name, sample_rate, max_audio_s, pcm_rate)


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
    `duration_s`: of the file, by its header.
    """

    def __init__(self, source: str | os.PathLike[str], sample_rate: int, *, pcm: bool = False) -> None:
        """Raises `AudioError` as `read_audio` does, if the first block cannot be read."""
        self._name = str(source)
        self._sample_rate = sample_rate
        self._file = _open(local(source, AudioError))
        self._decoded = _decoded(self._file, self._name, None, sample_rate if pcm else None)
        try:
            self._first = next(self._decoded)
        except BaseException:
            self.close()
            raise
        self.duration_s = self._first.duration_s

    def __iter__(self) -> Iterator[Samples]:
        rate = self._first.rate
        stream = None if rate == self._sample_rate else soxr.ResampleStream(rate, self._sample_rate, 1, "float32", "HQ")
        read = 0
        for each in chain([self._first], self._decoded):
            try:
                _check(each.samples, rate)
            except AudioError as error:
                raise AudioError(f"{self._name}: {error}, counted from {read / rate:.3f} s") from error
            read += len(each.samples)
            yield each.samples if stream is None else stream.resample_chunk(each.samples)
        if stream is not None:
            yield stream.resample_chunk(np.zeros(0, np.float32), last=True)

    def close(self) -> None:
        self._decoded.close()
        self._file.close()


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


def _open(path: Path) -> BinaryIO:
    try:
        if path.is_dir():
            raise AudioError(f"{path} is a folder; name an audio file")
        if path.exists() and not path.is_file():
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


class _Block(NamedTuple):
    """Some samples of a file, mono, with its sample rate in Hz and its duration by the header."""

    rate: int
    duration_s: float
    samples: Samples


def _decoded(
    file: BinaryIO, name: str, max_audio_s: float | None, pcm_rate: int | None = None
) -> Generator[_Block, None, None]:
    """The blocks of a file, at least one; int16 where it has 16 bits, one channel and the rate `pcm_rate` (Hz).

    Raises as `read_audio` does.
    """
    _refuse_damaged(file, name)
    rate = promised = decoded = 0  # samples, by the header
    try:
        with soundfile.SoundFile(_for_soundfile(file), closefd=False) as sound:
            rate, promised = sound.samplerate, sound.frames
            if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
                raise _absurd_rate(name, rate)
            if promised <= 0:
                raise AudioError(f"{name} has no samples, or is cut off")
            if promised >= UNKNOWN_FRAMES:
                raise AudioError(
                    f"the header of {name} does not tell its length (was it written to a pipe?); rewrite it"
                )
            if max_audio_s is not None and promised > max_audio_s * rate:
                raise AudioError(
                    f"{name} is {promised / rate:.3f} s long, the limit is {max_audio_s:g} s. "
                    "Cut it, stream it, or raise the limit (max_audio_s)."
                )
            step = max(1, BLOCK // sound.channels)
            as_pcm = sound.subtype == PCM_16 and sound.channels == 1 and rate == pcm_rate
            dtype = "int16" if as_pcm else "float32"
            # never more than the header said, whatever the data decodes to
            while decoded < promised and len(
                block := sound.read(min(step, promised - decoded), dtype=dtype, always_2d=True)
            ):
                decoded += len(block)
                samples = block[:, 0] if as_pcm else block.mean(axis=1, dtype=np.float32)
                yield _Block(rate, promised / rate, samples)
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: soundfile takes *.raw for headerless audio
        reason = (getattr(error, "error_string", None) or str(error)).removeprefix("Error : ").strip().rstrip(".")
        if promised:
            raise AudioError(f"{name} is damaged or cut off ({reason}). Copy or download it again.") from error
        raise AudioError(f"{name} is not audio that can be read ({reason}). Known are {KNOWN_FORMATS}.") from error
    if decoded < promised:
        raise _cut_off(name, f"its header promises {promised / rate:.3f} s, it holds {decoded / rate:.3f} s")


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
                    raise _cut_off(name, f"its header promises {size} bytes of audio, {present} are there")
                break
            file.seek(size + size % 2, os.SEEK_CUR)
    elif head[:4] == b"fLaC":
        details = file.read(9)  # the last bytes of its sizes, and 20 bits of the sample rate
        if len(details) == 9 and head[4] & 0x7F == 0 and not (rate := int.from_bytes(details[6:9], "big") >> 4):
            raise _absurd_rate(name, rate)
    elif head[:4] == b"OggS":
        file.seek(max(start, total - OGG_MAX_PAGE))
        tail = file.read(OGG_MAX_PAGE)
        page = tail[max(tail.rfind(b"OggS"), 0) :]
        # A page is 27 bytes, the last of which counts its segments, then their sizes, then the segments.
        whole = len(page) >= 27 and len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])
        if not whole or not page[5] & OGG_LAST_PAGE:
            raise _cut_off(name, "its last page is missing")
    file.seek(start)


def _absurd_rate(name: str, rate: int) -> AudioError:
    return AudioError(f"{name} claims a sample rate of {rate} Hz; expected {MIN_SAMPLE_RATE}-{MAX_SAMPLE_RATE} Hz")


def _cut_off(name: str, detail: str) -> AudioError:
    return AudioError(f"{name} is cut off: {detail}. Copy or download it again.")
