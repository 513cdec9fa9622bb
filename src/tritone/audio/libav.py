"""Audio that libsndfile does not read: that of video files, and of whatever else libav decodes, by PyAV.

    open file  ->  blocks of its first audio stream, mono

Files come from strangers: only formats that hold their audio in themselves are opened, so that no list of addresses in
a file is followed.
"""

import os
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tritone.audio.block import BLOCK, Block, Wanted, check_rate, cut_off, missing_bytes, no_samples, unread
from tritone.audio.layout import SLACK_S, find
from tritone.errors import AudioError

FORMATS = (
    "aac,ac3,aiff,amr,ape,asf,au,avi,caf,dts,eac3,flac,flv,matroska,mov,mp3,mpc,mpc8,mpeg,mpegts,mxf,nut,ogg,rm,tak,tta,"
    "voc,w64,wav,wv"
)
"""Demuxers of libav that may open a file. Playlists such as HLS, DASH and concat are not among them."""
ESTIMATED = frozenset({"mp3", "aac", "ac3", "eac3", "dts", "amr", "amrnb", "amrwb", "mpeg", "mpegts", "flac"})
"""Demuxers whose duration libav estimates, by the size of the file or by its last packet."""
CLOCKED = frozenset({"mov", "matroska", "mpegts", "mpeg", "avi", "asf", "flv", "nut", "mxf", "ogg", "rm"})
"""Demuxers whose files have a clock; of all others libav counts samples."""
PROTECTED = b"\0\0\0\x0cfrma"  # of an MP4 whose samples are encrypted: which format they have without, ISO 14496-12
TS_DISCONT = 0x0200  # libav's flag of demuxers whose clock may be reset
GAP_S = 0.05  # what the clock runs ahead of the samples by, before it is a gap
RESTART_S = 10.0  # a jump of a clock that may be reset, as of ffmpeg's -dts_delta_threshold
MAX_SILENCE_S = 12 * 3600.0  # that gaps of a file may make, all together
END_SLACK_S = 1.0  # of a stated duration, which may be that of pictures or rounded


def decoded(file: BinaryIO, wanted: Wanted, reason: str, *, missing: float = 0.0) -> Generator[Block, None, None]:
    """The blocks of an open file that can seek, from its start.

    Args:
        reason: why libsndfile does not read it.
        missing: part of the file that its container states and that is not there.

    Raises:
        AudioFormatError: not audio, without audio, or of a codec that nothing here decodes.
        AudioError: damaged or cut off; `AudioTooLongError` as soon as the length is known.
    """
    import av  # which takes longer than all else here

    name = wanted.name
    # libsndfile may have moved the descriptor, which the buffer of the file does not know.
    file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        container = av.open(
            file,
            mode="r",
            options={"format_whitelist": FORMATS, "protocol_whitelist": "none"},
            io_open=_refuse,
            **_lenient(av.__version__),
        )
    except (av.error.FFmpegError, ValueError, OSError) as error:
        if missing:
            raise missing_bytes(name, missing) from error
        raise unread(name, f"is not audio that can be read ({reason}; libav: {_reason(error)})") from error
    with container:
        if not container.streams.audio:
            kinds = ", ".join(sorted({each.type for each in container.streams})) or "nothing"
            raise unread(name, f"has no audio: it holds {kinds}")
        try:
            yield from _blocks(container, wanted, missing)
        except (av.error.FFmpegError, ValueError) as error:
            if isinstance(error, av.error.DecoderNotFoundError):
                raise unread(name, "has audio of a codec that libav does not decode") from error
            if find(file, PROTECTED, 0, file.seek(0, os.SEEK_END)) >= 0:
                raise unread(name, "is encrypted (DRM), and the key is not there") from error
            raise AudioError(f"{name} is damaged or cut off ({_reason(error)}). Copy or download it again.") from error


def _lenient(version: str) -> dict[str, Any]:
    """Arguments with which PyAV takes metadata that is no UTF-8; since version 19 it does so by itself."""
    return {"metadata_errors": "ignore"} if int(version.split(".")[0]) < 19 else {}


class Converter:
    """Frames of a stream as planar floats, each at its own rate; a stream may change its rate and its channels."""

    def __init__(self, resampler: Callable[[Any], Any]) -> None:
        """`resampler` makes one for frames like the one that it is given."""
        self._make = resampler
        self._resampler: Any = None
        self._key: tuple[Any, ...] = ()

    def of(self, frame: Any) -> list[Any]:
        """What is finished with this frame."""
        key, done = (frame.sample_rate, frame.format.name, frame.layout.name, frame.layout.nb_channels), []
        if key != self._key:
            done, self._key = self.rest(), key
            self._resampler = self._make(frame)
        frame.pts = None  # of what a filter makes of them nothing is asked
        return [*done, *self._resampler.resample(frame)]

    def rest(self) -> list[Any]:
        """What was held back."""
        return [] if self._resampler is None else list(self._resampler.resample(None))


def _blocks(container: Any, wanted: Wanted, missing: float) -> Iterator[Block]:
    from av import AudioResampler

    name, stream = wanted.name, container.streams.audio[0]
    kind = container.format.name.split(",")[0]
    own_s = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
    stated_s = 0.0 if kind in ESTIMATED else max((container.duration or 0) / 1e6, 0.0)
    duration_s = own_s if own_s and kind not in ESTIMATED else stated_s
    wanted.check_length(duration_s)
    if missing * duration_s > SLACK_S or (missing and not duration_s):
        raise missing_bytes(name, missing)
    clock = _Clock(name, stream, container, has_clock=kind in CLOCKED, survives=kind in ESTIMATED)
    converter = Converter(lambda frame: AudioResampler(format="fltp", rate=frame.sample_rate))  # which keeps channels
    rate = waiting = 0
    decoded_s = 0.0  # before the samples that wait
    parts: list[npt.NDArray[np.float32]] = []
    frames = chain(((each, clock.silence(each)) for each in clock.frames()), [(None, 0.0)])
    for frame, silent_s in frames:
        for each in converter.rest() if frame is None else converter.of(frame):
            if parts and (each.sample_rate != rate or waiting >= BLOCK):
                yield Block(rate, duration_s, np.concatenate(parts))
                decoded_s += waiting / rate
                parts.clear()
                waiting = 0
            rate = each.sample_rate
            check_rate(name, rate)
            for length in _steps(round(silent_s * rate)):
                parts.append(np.zeros(length, np.float32))
                waiting += length
                wanted.check_length(decoded_s + waiting / rate)
                if waiting >= BLOCK:
                    yield Block(rate, duration_s, np.concatenate(parts))
                    decoded_s += waiting / rate
                    parts.clear()
                    waiting = 0
            silent_s = 0.0
            parts.append(wanted.mixer.mix(each.to_ndarray().T))
            waiting += len(parts[-1])
            wanted.check_length(decoded_s + waiting / rate)
    if not decoded_s and not waiting:
        raise no_samples(name)
    if parts:
        yield Block(rate, duration_s, np.concatenate(parts))
    if stated_s and clock.end_s < stated_s - END_SLACK_S:
        raise cut_off(name, f"its header promises {stated_s:.3f} s, it holds {clock.end_s:.3f} s")


class _Clock:
    """The times of a container's packets: silence where its audio begins late or stops for a while, and its end."""

    def __init__(self, name: str, stream: Any, container: Any, *, has_clock: bool, survives: bool) -> None:
        self._name, self._stream, self._container = name, stream, container
        self._has_clock, self._survives = has_clock, survives
        self._zero_s = (container.start_time or 0) / 1e6
        self._at_s = 0.0  # of the samples so far
        self._shift_s = 0.0  # by which a clock was reset
        self._silent_s = 0.0
        self._taken = self._skipped = 0  # packets
        self._restarts = bool(container.format.flags & TS_DISCONT)
        self.end_s = 0.0  # of all streams, from the beginning

    def frames(self) -> Iterator[Any]:
        """The decoded frames of the audio; the other streams' packets tell how far the file goes."""
        for packet in self._container.demux():
            if packet.pts is not None and packet.time_base:
                end_s = float((packet.pts + (packet.duration or 0)) * packet.time_base) - self._zero_s
                self.end_s = max(self.end_s, end_s)
            if packet.stream is self._stream or packet.stream.index == self._stream.index:
                yield from self._decoded(packet)
        if self._skipped > self._taken:
            raise AudioError(
                f"{self._name} is damaged: {self._skipped} of its frames cannot be decoded. Copy or download it again."
            )

    def _decoded(self, packet: Any) -> list[Any]:
        """Its frames. In streams of frames that were joined or cut one may not be whole: ffmpeg leaves it out, too."""
        from av.error import InvalidDataError

        try:
            found: list[Any] = packet.decode()
        except InvalidDataError:
            if not self._survives:
                raise
            self._skipped += 1
            return []
        self._taken += 1
        return found

    def silence(self, frame: Any) -> float:
        """Seconds of silence before a frame."""
        lasts_s = frame.samples / frame.sample_rate
        gap_s = 0.0
        if self._has_clock and frame.pts is not None and frame.time_base:
            gap_s = float(frame.pts * frame.time_base) - self._zero_s + self._shift_s - self._at_s
            if self._restarts and abs(gap_s) > RESTART_S and self._at_s:
                self._shift_s -= gap_s
                gap_s = 0.0
            gap_s = gap_s if gap_s > GAP_S else 0.0
        self._silent_s += gap_s
        if self._silent_s > MAX_SILENCE_S:
            raise AudioError(f"{self._name}: its clock jumps by {gap_s:.0f} s at {self._at_s:.3f} s; convert it again")
        self._at_s += gap_s + lasts_s
        return gap_s


def _steps(length: int) -> Iterator[int]:
    while length > 0:
        yield min(length, BLOCK)
        length -= BLOCK


def _refuse(url: object, flags: object, options: object) -> Any:
    """Open no other file that one names."""
    raise PermissionError(f"{os.fspath(url) if isinstance(url, str) else url} is named in a file and not opened")


def _reason(error: Exception) -> str:
    """libav's own words."""
    return (getattr(error, "strerror", None) or str(error)).rstrip(".")
