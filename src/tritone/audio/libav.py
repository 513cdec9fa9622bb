"""Audio that libsndfile does not read: that of video files, and of whatever else libav decodes, by PyAV.

    open file  ->  blocks of its first audio stream, mono

Files come from strangers: only formats that hold their audio in themselves are opened, so that no list of addresses in
a file is followed.
"""

import os
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tritone.audio.block import BLOCK, Block, check_rate, cut_off, too_long
from tritone.errors import AudioError, AudioTooLongError, MissingDependencyError

FORMATS = (
    "aac,ac3,aiff,amr,ape,asf,au,avi,caf,dts,eac3,flac,flv,matroska,mov,mp3,mpc,mpc8,mpeg,mpegts,mxf,nut,ogg,rm,tak,tta,"
    "voc,w64,wav,wv"
)
"""Demuxers of libav that may open a file. Playlists such as HLS, DASH and concat are not among them."""
SUFFIXES = frozenset(
    {".aac", ".ac3", ".amr", ".ape", ".asf", ".avi", ".flv", ".m4a", ".m4b", ".m4v", ".mka", ".mkv", ".mov", ".mp4"}
    | {".mpeg", ".mpg", ".mts", ".ts", ".vob", ".webm", ".wma", ".wmv", ".3gp"}
)
"""What files are called that libav reads and libsndfile does not."""
SIGNS = {
    4: (b"ftyp", b"moov", b"mdat"),  # MP4, MOV, M4A
    0: (b"\x1aE\xdf\xa3", b"0&\xb2u", b"FLV", b"\x00\x00\x01\xba", b"#!AMR", b"\xff\xf1", b"\xff\xf9", b"fLaC"),
    8: (b"AVI ",),
}
"""First bytes by their position: Matroska and WebM, ASF, FLV, MPEG, AMR, AAC; and FLAC without a length."""
INSTALL = "pip install 'tritone[video]'"
MISSING_S, MISSING_PART = 1.0, 0.02  # audio that may be missing at the end of what tells its length


def pyav(what: str) -> ModuleType:
    """PyAV, for what cannot do without.

    Args:
        what: needs it, in the message.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError(f"{what} needs PyAV: {INSTALL}") from error
    return av


def decoded(file: BinaryIO, name: str, max_audio_s: float | None, reason: str) -> Generator[Block, None, None]:
    """The blocks of an open file that can seek, from its start.

    Args:
        name: of the file, in messages.
        max_audio_s: refuse longer audio, in seconds; None takes any.
        reason: why libsndfile does not read it.

    Raises:
        AudioError: not audio, without audio, damaged or cut off; `AudioTooLongError` as soon as the length is known.
        MissingDependencyError: PyAV is not installed, and it looks like a file that needs it.
    """
    # libsndfile may have moved the descriptor, which the buffer of the file does not know.
    file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        import av
    except ImportError as error:
        head = file.read(16)
        if any(head[at:].startswith(sign) for at, signs in SIGNS.items() for sign in signs):
            raise MissingDependencyError(
                f"{name} is not audio that libsndfile reads ({reason}); video and such formats need PyAV: {INSTALL}"
            ) from error
        raise _unread(name, reason) from error
    try:
        container = av.open(
            file,
            mode="r",
            options={"format_whitelist": FORMATS, "protocol_whitelist": "none"},
            io_open=_refuse,
            **_lenient(av.__version__),
        )
    except (av.error.FFmpegError, ValueError, OSError) as error:
        raise _unread(name, reason) from error
    with container:
        if not container.streams.audio:
            kinds = ", ".join(sorted({each.type for each in container.streams})) or "nothing"
            raise AudioError(f"{name} has no audio: it holds {kinds}")
        try:
            yield from _blocks(container, name, max_audio_s)
        except (av.error.FFmpegError, ValueError) as error:
            raise AudioError(f"{name} is damaged or cut off ({_told(error)}). Copy or download it again.") from error


def _lenient(version: str) -> dict[str, Any]:
    """Arguments with which PyAV takes metadata that is no UTF-8; since version 19 it does so by itself."""
    return {"metadata_errors": "ignore"} if int(version.split(".")[0]) < 19 else {}


def _blocks(container: Any, name: str, max_audio_s: float | None) -> Iterator[Block]:
    from av import AudioResampler

    stream = container.streams.audio[0]
    own_s = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
    duration_s = max(own_s or (container.duration or 0) / 1e6, 0.0)
    if max_audio_s is not None and duration_s > max_audio_s:
        raise AudioTooLongError(too_long(name, duration_s, max_audio_s))
    resampler: Any = None
    rate = read = waiting = 0
    parts: list[npt.NDArray[np.float32]] = []

    def block() -> Block:
        nonlocal waiting
        joined = np.concatenate(parts)
        parts.clear()
        waiting = 0
        return Block(rate, duration_s, joined)

    for frame in container.decode(stream):
        if resampler is None:
            rate = frame.sample_rate
            check_rate(name, rate)
            resampler = AudioResampler(format="fltp", rate=rate)  # which keeps the channels, to average them as ever
        for each in resampler.resample(frame):
            parts.append(each.to_ndarray().mean(axis=0, dtype=np.float32))
            waiting += len(parts[-1])
            read += len(parts[-1])
        if max_audio_s is not None and read > max_audio_s * rate:
            raise AudioTooLongError(too_long(name, read / rate, max_audio_s))
        if waiting >= BLOCK:
            yield block()
    if resampler is not None:
        for each in resampler.resample(None):
            parts.append(each.to_ndarray().mean(axis=0, dtype=np.float32))
            read += len(parts[-1])
    if not read:
        raise AudioError(f"{name} has no samples, or is cut off")
    if parts:
        yield block()
    if container.format.name.startswith("mov") and read / rate < own_s * (1 - MISSING_PART) - MISSING_S:
        raise cut_off(name, f"its header promises {own_s:.3f} s, it holds {read / rate:.3f} s")


def _refuse(url: object, flags: object, options: object) -> Any:
    """Open no other file that one names."""
    raise PermissionError(f"{os.fspath(url) if isinstance(url, str) else url} is named in a file and not opened")


def _unread(name: str, reason: str) -> AudioError:
    from tritone.audio.files import KNOWN_FORMATS

    return AudioError(f"{name} is not audio that can be read ({reason}). Known are {KNOWN_FORMATS}.")


def _told(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).rstrip(".")
