"""FLAC and Opus in Ogg as they come over a stream, decoded by libav (PyAV) packet by packet.

Both take the bytes of a file, cut anywhere, and return (samples,), several channels averaged.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tritone.audio.inputs import mono
from tritone.audio.waveform import Samples
from tritone.errors import AudioError, MissingDependencyError

MAX_METADATA = 1 << 20  # bytes of tags and pictures before the audio
MAX_CHANNELS = 8
MAX_DECODED_S = 60  # of a message
STREAMINFO = 0  # type of the metadata block that libav needs, RFC 9639, section 8
OPUS_RATE = 48000  # Hz; what Opus decodes to, RFC 7845
PAGE_HEAD = 27  # bytes of an Ogg page before the sizes of its segments, RFC 3533
CONTINUED, BEGINS = 1, 2  # flags of a page

NOTHING: Samples = np.zeros(0, np.int16)


class FlacStream:
    """A FLAC file. Source of its layout: RFC 9639."""

    def __init__(self, told: object) -> None:
        self._av = _libav("FLAC")
        self._seen = b""
        self._codec: Any = None
        self.sample_rate = self.channels = 0

    def push(self, data: bytes) -> Samples:
        if self._codec is None:
            self._seen += data
            frames = self._read_metadata()
            if frames is None:
                return NOTHING
            data = frames
        # Empty bytes would mean the end to the parser, which must not be used after it.
        return _samples(self._frames(self._codec.parse(data)), self.sample_rate) if data else NOTHING

    def finish(self) -> Samples:
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


class OggOpusStream:
    """Opus in an Ogg file. Sources of its layout: RFC 3533 and RFC 7845."""

    def __init__(self, told: object) -> None:
        self._av = _libav("Opus")
        self._seen = b""
        self._packet = b""
        self._headers = 0  # packets that were no audio
        self._codec: Any = None
        self._serial = b""
        self.sample_rate = self.channels = 0

    def push(self, data: bytes) -> Samples:
        self._seen += data
        return _samples((frame for packet in self._packets() for frame in self._take(packet)), OPUS_RATE)

    def finish(self) -> Samples:
        if self._codec is None:
            raise AudioError("the audio ends in the middle of its Opus header")
        return NOTHING

    def _packets(self) -> Iterator[bytes]:
        while True:
            page = self._seen
            if len(page) < PAGE_HEAD or len(page) < PAGE_HEAD + page[26]:
                return
            if page[:4] != b"OggS":
                raise AudioError("the Ogg audio is damaged: a page is missing its start")
            sizes = page[PAGE_HEAD : PAGE_HEAD + page[26]]
            at = PAGE_HEAD + page[26]
            if len(page) < at + sum(sizes):
                return
            self._seen = page[at + sum(sizes) :]
            serial, flags = page[14:18], page[5]
            if self._serial and serial != self._serial:
                raise AudioError("the Ogg audio has several streams; send one of Opus alone")
            self._serial = serial
            if not flags & CONTINUED:
                self._packet = b""
            for size in sizes:
                self._packet += page[at : at + size]
                at += size
                if size < 255:  # the last segment of a packet
                    packet, self._packet = self._packet, b""
                    yield packet
            if len(self._packet) > MAX_METADATA:
                raise AudioError(f"the Ogg audio has a packet of more than {MAX_METADATA} bytes")

    def _take(self, packet: bytes) -> list[Any]:
        self._headers += 1
        if self._headers == 1:
            self._open(packet)
        if self._headers <= 2:  # its head and its tags
            return []
        try:
            return self._codec.decode(self._av.Packet(packet))
        except self._av.error.FFmpegError as error:
            raise AudioError(f"the Opus audio is damaged: {error.strerror}") from error

    def _open(self, head: bytes) -> None:
        if len(head) < 19 or head[:8] != b"OpusHead":
            raise AudioError("the Ogg audio is not Opus; of Ogg, Opus alone can be streamed")
        if not 1 <= head[9] <= MAX_CHANNELS:
            raise AudioError(f"the Opus audio claims {head[9]} channels; 1 to {MAX_CHANNELS} are possible")
        self.sample_rate, self.channels = OPUS_RATE, head[9]
        self._codec = self._av.CodecContext.create("opus", "r")
        self._codec.extradata = head  # also says which samples at the start are left out


def _libav(encoding: str) -> Any:
    try:
        import av
        import av.error
    except ImportError as error:
        raise MissingDependencyError(
            f"streams of {encoding} are decoded by PyAV, which is not installed on this gateway: pip install av. "
            "Send LINEAR_PCM, MULAW or ALAW, or a whole recording."
        ) from error
    return av


def _samples(frames: Iterable[Any], sample_rate: int) -> Samples:
    """The frames' samples; int16 of 16 bits and one channel, else float32."""
    parts: list[Samples] = []
    length = 0
    for frame in frames:
        if frame.sample_rate != sample_rate:
            raise AudioError(f"the audio changes from {sample_rate} to {frame.sample_rate} Hz on its way")
        length += frame.samples
        if length > MAX_DECODED_S * sample_rate:  # silence takes a few bytes a second
            raise AudioError(f"a message has more than {MAX_DECODED_S} s of audio; send it in smaller ones")
        array = frame.to_ndarray()
        shaped = array.T if frame.format.is_planar else array.reshape(-1, frame.layout.nb_channels)
        parts.append(mono(shaped.astype(np.float32) * 2**-31 if shaped.dtype == np.int32 else shaped))
    found: Any = np.concatenate(parts) if parts else NOTHING
    return found
