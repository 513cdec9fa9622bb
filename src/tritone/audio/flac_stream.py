"""FLAC as it comes over a stream, decoded by libav (PyAV) frame by frame.

bytes of a file, cut anywhere  ->  (samples,), several channels averaged

Where a frame begins is certain when ten of them fit together, so the samples come some 2.5 s of audio late. Source of
the layout: RFC 9639.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tritone.audio.inputs import mono
from tritone.audio.waveform import Samples
from tritone.errors import AudioError

MAX_METADATA = 1 << 20  # bytes of tags and pictures before the audio
MAX_PIECE_S = 300.0  # of audio; silence takes a few bytes a second
STREAMINFO = 0  # type of the metadata block that libav needs, section 8.2

NOTHING: Samples = np.zeros(0, np.int16)


class FlacStream:
    """A FLAC file; `sample_rate` (Hz) and `channels` are 0 while its header has not come."""

    def __init__(self) -> None:
        import av

        self._av = av
        self._seen = b""
        self._codec: Any = None
        self.sample_rate = self.channels = 0

    def push(self, data: bytes) -> Samples:
        """Take some bytes and return what they complete; raises `AudioError` if they are no FLAC."""
        if self._codec is None:
            self._seen += data
            frames = self._read_metadata()
            if frames is None:
                return NOTHING
            data = frames
        # Empty bytes would mean the end to the parser, which must not be used after it.
        return _samples(self._frames(self._codec.parse(data)), self.sample_rate) if data else NOTHING

    def finish(self) -> Samples:
        """The rest, after the last bytes."""
        if self._codec is None:
            raise AudioError("the audio ends in the middle of its FLAC header")
        return _samples(self._frames(self._rest()), self.sample_rate)

    def _rest(self) -> Iterator[Any]:
        while packets := self._codec.parse(None):  # which returns what it holds, a frame at a time
            yield from packets
        yield None

    def _read_metadata(self) -> bytes | None:
        """What follows the metadata, when all of it has come."""
        at, seen = 4, self._seen
        details = b""
        while len(seen) >= at + 4:
            size = int.from_bytes(seen[at + 1 : at + 4], "big")
            last, kind = seen[at] >> 7, seen[at] & 0x7F
            if at + size > MAX_METADATA:
                raise AudioError(f"the FLAC audio has more than {MAX_METADATA} bytes of metadata")
            if len(seen) < at + 4 + size:
                return None
            if kind == STREAMINFO:
                details = seen[at + 4 : at + 4 + size]
            at += 4 + size
            if last:
                self._open(details)
                self._seen = b""
                return seen[at:]
        return None

    def _open(self, details: bytes) -> None:
        if len(details) != 34:
            raise AudioError("the FLAC audio has no STREAMINFO block, which is needed to decode it")
        packed = int.from_bytes(details[10:18], "big")
        self.sample_rate, self.channels = packed >> 44, ((packed >> 41) & 7) + 1
        self._codec = self._av.CodecContext.create("flac", "r")
        self._codec.extradata = details

    def _frames(self, packets: Iterable[Any]) -> Iterator[Any]:
        try:
            for packet in packets:
                yield from self._codec.decode(packet)
        except self._av.error.FFmpegError as error:
            raise AudioError(f"the FLAC audio is damaged: {error.strerror}") from error


def _samples(frames: Iterable[Any], sample_rate: int) -> Samples:
    """The frames' samples; int16 of 16 bits and one channel, else float32."""
    parts: list[Samples] = []
    length = 0
    for frame in frames:
        if frame.sample_rate != sample_rate:
            raise AudioError(f"the audio changes from {sample_rate} to {frame.sample_rate} Hz on its way")
        length += frame.samples
        if length > MAX_PIECE_S * sample_rate:
            raise AudioError(f"a message has more than {MAX_PIECE_S:g} s of audio; send it in smaller ones")
        array = frame.to_ndarray()
        shaped = array.T if frame.format.is_planar else array.reshape(-1, frame.layout.nb_channels)
        parts.append(mono(shaped.astype(np.float32) * 2**-31 if shaped.dtype == np.int32 else shaped))
    found: Any = np.concatenate(parts) if parts else NOTHING
    return found
