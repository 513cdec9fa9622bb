"""What a file holds by its own structure: the recordings in it, where each ends, and which of them are cut off.

open file that can seek  ->  parts, one after the other

One rule decides for all readers:

* A recording ends where its data ends. Counts that a header only estimates, or states too small, end nothing, and a
  file of several recordings in a row is all of them.
* A file is cut off where its container states a length (of the file, of its audio, of the element, page or box that is
  its last) or an end, and more than `SLACK_S` of it is missing. A length of 0, or the largest, states nothing.
"""

import io
import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from tritone.audio.block import absurd_rate, cut_off
from tritone.errors import AudioError

SLACK_S = 0.03
"""Audio that may be missing: writers that count their own header or round up are no audible cut."""
UNKNOWN_SIZE = 0x7FFF_0000  # bytes; programs that write WAV to a pipe fill in sizes from here up
CHUNKED = {
    (b"RIFF", b"WAVE"): ("<I", b"data"),
    (b"FORM", b"AIFF"): (">I", b"SSND"),
    (b"FORM", b"AIFC"): (">I", b"SSND"),
}
TAGS = (b"ID3", b"TAG")
FLAC_START = b"fLaC"
FLAC_TAIL = 1 << 18  # bytes in which the last frame of a FLAC file begins
OGG_HEAD, OGG_FIRST_PAGE, OGG_LAST_PAGE = 27, 2, 4  # bytes, and flags, of a page's header
NO_LENGTH = "its header does not state its length (was it written to a pipe?)"
WRONG_LENGTH = "its header states another length than its frames"
PIECE = 1 << 20  # bytes searched at a time

# Bits per frame and samples of MPEG audio, ISO 11172-3 and 13818-3: kbit/s by (version 1, layer).
BITRATES = {
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
MPEG_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}  # Hz, by the version's bits


class Part(NamedTuple):
    """A recording in a file: its first byte and the one behind its last.

    `unread`: why libsndfile must not read it, empty where it may.
    """

    start: int
    stop: int
    unread: str = ""
    is_mpeg: bool = False
    missing: float = 0.0  # part of the file that its container states and that is not there


class Excerpt(io.RawIOBase):
    """A part of an open file as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, stop: int) -> None:
        self._file, self._start, self._size, self._at = file, start, stop - start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = (0, self._at, self._size)[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        self._file.seek(self._start + self._at)
        data = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def parts_of(file: BinaryIO, name: str) -> list[Part]:
    """The recordings in a file, at least one.

    Raises:
        AudioError: empty, cut off, or with a header of 0 Hz.
    """
    total = file.seek(0, os.SEEK_END)
    if not total:
        raise AudioError(f"{name} is empty (0 bytes)")
    start = _tagged(file, 0)
    if start >= total:
        raise cut_off(name, f"its tags promise {start} bytes, {total} are there")
    head = _at(file, start, 16)
    if (head[:4], head[8:12]) in CHUNKED:
        return [_chunked(file, name, head, total)]
    if head[:4] == FLAC_START:
        return [_flac(file, name, *span) for span in _flac_spans(file, start, total)]
    if head[:4] == b"OggS":
        return _ogg(file, name, start, total)
    if _frame(head) is not None or (start and _frame(_at(file, _synced(file, start, total), 4)) is not None):
        return [_mpeg(file, name, start, total)]
    for at, sign, measure in MEASURES:
        if head[at : at + 4] == sign:
            return [_whole(total, measure(file, total))]
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"styp"):
        return [_whole(total, _boxes(file, name, total))]
    return [Part(0, total)]


def is_chunk(head: bytes) -> bool:
    """Whether bytes behind the stated end of audio begin a chunk (a tag, too), rather than more audio."""
    return head[:3] in TAGS or (len(head) >= 4 and all(0x20 <= each < 0x7F for each in head[:4]))


def find(file: BinaryIO, sign: bytes, start: int, stop: int) -> int:
    """Where these bytes are next in a part of a file; -1 where they are not."""
    while start < stop:
        place = _at(file, start, PIECE + len(sign) - 1).find(sign)
        if place >= 0:
            return start + place
        start += PIECE
    return -1


def _at(file: BinaryIO, place: int, size: int) -> bytes:
    file.seek(place)
    return file.read(max(0, size))


def _whole(total: int, stated: int) -> Part:
    return Part(0, total, missing=max(0.0, 1 - total / stated) if stated else 0.0)


def _tagged(file: BinaryIO, place: int) -> int:
    """Where the first byte behind ID3 tags at a place is."""
    while (head := _at(file, place, 10))[:3] == b"ID3" and len(head) == 10:
        size = 0
        for each in head[6:]:
            size = size << 7 | each & 0x7F
        place += 10 + size + (10 if head[5] & 0x10 else 0)
    return place


def _chunked(file: BinaryIO, name: str, head: bytes, total: int) -> Part:
    """WAV and AIFF; WAV of plain samples has its own reader and does not come here."""
    order, audio = CHUNKED[head[:4], head[8:12]]
    at, per_second = 12, 0
    while len(chunk := _at(file, at, 8)) == 8:
        size = struct.unpack(order, chunk[4:])[0]
        present = total - at - 8
        if chunk[:4] == b"fmt ":
            per_second = struct.unpack("<I", _at(file, at + 16, 4).ljust(4, b"\0"))[0]
        elif chunk[:4] == b"COMM":
            channels, _, bits = struct.unpack(">hIh", _at(file, at + 8, 8).ljust(8, b"\0"))
            exponent, mantissa = struct.unpack(">HQ", _at(file, at + 16, 10).ljust(10, b"\0"))
            rate = mantissa >> max(0, 63 - (exponent - 16383))
            per_second = max(0, channels) * ((bits + 7) // 8) * rate
        elif chunk[:4] == audio:
            if size == 0 or size >= UNKNOWN_SIZE > present:
                return Part(0, total, NO_LENGTH if present > (8 if order == ">I" else 0) else "")
            if size - present > SLACK_S * per_second:
                raise cut_off(name, f"its header promises {size} bytes of audio, {present} are there")
            break
        at += 8 + size + size % 2
    return Part(0, total)


def _flac_spans(file: BinaryIO, start: int, total: int) -> list[tuple[int, int]]:
    """Where the FLAC files in a file begin and end."""
    found, at = [start], start + 4
    while at < total:
        block = _at(file, at, PIECE + 42)
        place = block.find(FLAC_START)
        while 0 <= place < PIECE:
            # A header block of 34 bytes is the first one of every FLAC file, RFC 9639, section 8.2.
            if block[place + 4 : place + 5] in (b"\0", b"\x80") and block[place + 5 : place + 8] == b"\0\0\x22":
                found.append(at + place)
            place = block.find(FLAC_START, place + 1)
        at += PIECE
    return list(zip(found, [*found[1:], total], strict=True))


def _flac(file: BinaryIO, name: str, start: int, stop: int) -> Part:
    head = _at(file, start, 42)
    if len(head) < 42 or head[4] & 0x7F:
        return Part(start, stop)
    rate = int.from_bytes(head[18:21], "big") >> 4
    if not rate:
        raise absurd_rate(name, rate)
    stated = int.from_bytes(head[21:26], "big") & (1 << 36) - 1
    if not stated:
        return Part(start, stop, NO_LENGTH)
    return Part(start, stop, WRONG_LENGTH if _flac_samples(file, head, start, stop) > stated else "")


def _flac_samples(file: BinaryIO, head: bytes, start: int, stop: int) -> int:
    """Samples of a FLAC file by its last frame; 0 where none is found."""
    at = start + 4
    while True:
        block = _at(file, at, 4)
        if len(block) < 4:
            return 0
        at += 4 + int.from_bytes(block[1:], "big")
        if block[0] & 0x80:
            break
    first = _at(file, at, 4)
    if len(first) < 4 or first[0] != 0xFF or first[1] & 0xFE != 0xF8:
        return 0
    tail = _at(file, max(at, stop - FLAC_TAIL), min(FLAC_TAIL, stop - at))
    place = tail.rfind(first[:2])
    while place >= 0:
        samples = _flac_frame(tail[place : place + 16], first, int.from_bytes(head[8:10], "big"))
        if samples:
            return samples
        place = tail.rfind(first[:2], 0, place)
    return 0


def _flac_frame(head: bytes, first: bytes, block: int) -> int:
    """Samples up to the end of the frame of this header; 0 where it is none. RFC 9639, section 9.1."""
    if len(head) < 16 or head[3] != first[3] or head[2] & 15 != first[2] & 15:
        return 0
    code = head[2] >> 4
    ones = 8 - (head[4] ^ 0xFF).bit_length()  # the number is written as UTF-8 would write it
    if ones == 1 or ones == 8:
        return 0
    length = max(1, ones)
    number = head[4] & (1 << 7 - ones) - 1
    for each in head[5 : 4 + length]:
        number = number << 6 | each & 0x3F
    at = 4 + length
    if code in (6, 7):
        size = int.from_bytes(head[at : at + code - 5], "big") + 1
        at += code - 5
    elif code == 1:
        size = 192
    elif 2 <= code <= 5:
        size = 144 << code
    else:
        size = (1 << code) if code >= 8 else 0
    at += {12: 1, 13: 2, 14: 2}.get(head[2] & 15, 0)
    if not size or at >= len(head) or _crc8(head[:at]) != head[at]:
        return 0
    return number + size if head[1] & 1 else number * block + size


def _crc8(data: bytes) -> int:
    value = 0
    for each in data:
        value ^= each
        for _ in range(8):
            value = (value << 1 ^ (0x07 if value & 0x80 else 0)) & 0xFF
    return value


def _ogg(file: BinaryIO, name: str, start: int, total: int) -> list[Part]:
    """The links of a chain, each of which begins with the first pages of its streams. RFC 3533."""
    begins, ended, has_audio, holes = [start], False, False, False
    at = start
    while at < total:
        page = _at(file, at, OGG_HEAD + 255)
        if page[:4] != b"OggS":
            if page[:3] == b"TAG" and total - at <= 128:
                break
            place = find(file, b"OggS", at, total)
            if place < 0:
                break
            at, holes = place, True
            continue
        size = OGG_HEAD + page[26] + sum(page[OGG_HEAD : OGG_HEAD + page[26]]) if len(page) >= OGG_HEAD else OGG_HEAD
        if at + size > total:
            raise cut_off(name, "its last page is missing")
        flags = page[5]
        if flags & OGG_FIRST_PAGE:
            if has_audio:
                if not ended:
                    raise cut_off(name, f"the last page of the stream before byte {at} is missing")
                begins.append(at)
            has_audio = False
        else:
            has_audio = True
        ended = bool(flags & OGG_LAST_PAGE)
        at += size
    if not ended:
        raise cut_off(name, "its last page is missing")
    reason = "pages are missing" if holes else ""
    return [Part(*span, reason) for span in zip(begins, [*begins[1:], total], strict=True)]


class _Frame(NamedTuple):
    size: int  # bytes
    samples: int
    rate: int
    info: int  # where a Xing frame has its name


def _frame(head: bytes) -> _Frame | None:
    """The frame of MPEG audio that begins with these bytes, if one does."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer, bitrate, rate = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3), head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or layer == 4 or bitrate in (0, 15) or rate == 3:
        return None
    one = version == 3
    bits = 1000 * BITRATES[one, layer if one or layer == 1 else 2][bitrate - 1]
    hertz = MPEG_RATES[version][rate]
    padding = head[2] >> 1 & 1
    samples = 384 if layer == 1 else 576 if layer == 3 and not one else 1152
    size = (12 * bits // hertz + padding) * 4 if layer == 1 else samples // 8 * bits // hertz + padding
    mono = head[3] >> 6 == 3
    side = (17 if mono else 32) if one else (9 if mono else 17)
    return _Frame(size, samples, hertz, 4 + side)


def _synced(file: BinaryIO, at: int, total: int) -> int:
    """Where the next of two frames in a row begins; `total` where there is none in the next piece."""
    block = _at(file, at, min(PIECE, total - at))
    place = block.find(b"\xff")
    while place >= 0:
        frame = _frame(block[place : place + 4])
        if frame is not None and _frame(block[place + frame.size : place + frame.size + 4]) is not None:
            return at + place
        place = block.find(b"\xff", place + 1)
    return total


def _mpeg(file: BinaryIO, name: str, start: int, total: int) -> Part:
    """MPEG audio, whose frames are counted; a Xing frame states how many there are."""
    at = _synced(file, start, total)
    first = _frame(_at(file, at, 4))
    if first is None:
        return Part(0, total, is_mpeg=True)
    about = _at(file, at + first.info, 12)
    stated = -1
    if about[:4] in (b"Xing", b"Info"):
        at += first.size
        if about[7] & 1:
            stated = struct.unpack(">I", about[8:12])[0]
    counted, odd = 0, False
    window, base = b"", at
    while at < total:
        if at - base + 4 > len(window):
            window, base = _at(file, at, PIECE), at
        head = window[at - base : at - base + 4]
        frame = _frame(head)
        if frame is None:
            if head[:3] in TAGS or head == b"APET":
                rest = _tagged(file, at)
                at = rest if rest != at else _synced(file, at, total)
            else:
                at = _synced(file, at, total)
            odd |= at < total
            window, base = b"", at
            continue
        odd |= frame.rate != first.rate
        if at + frame.size > total:
            break
        counted += 1
        at += frame.size
    if stated > 0 and (stated - counted) * first.samples > SLACK_S * first.rate:
        raise cut_off(
            name,
            f"its header promises {stated * first.samples / first.rate:.3f} s, "
            f"it holds {counted * first.samples / first.rate:.3f} s",
        )
    return Part(0, total, WRONG_LENGTH if odd or stated != counted else "", is_mpeg=True)


def _boxes(file: BinaryIO, name: str, total: int) -> int:
    """The length that the boxes of an MP4 file state, ISO 14496-12."""
    at, kinds = 0, set()
    while len(head := _at(file, at, 16)) >= 8 and is_chunk(head[4:8]):
        size, kind = struct.unpack(">I", head[:4])[0], head[4:8]
        kinds.add(kind)
        if size == 1 and len(head) == 16:
            size = struct.unpack(">Q", head[8:])[0]
        elif size == 0:
            size = total - at
        if size < 8:
            break
        at += size
    if b"moov" not in kinds:  # libav's words are "moov atom not found"
        raise cut_off(name, f"its index is missing, the moov atom; it states {at} bytes, {total} are there")
    return at


def _matroska(file: BinaryIO, total: int) -> int:
    """The length that the elements of a Matroska file state, RFC 8794 and 9559; of live ones, their clusters."""
    end = 0
    for identity, begin, size in _elements(file, 0, total):
        if identity != 0x18538067 or size is not None:  # Segment
            end = total if size is None else begin + size
            continue
        end = total
        for _, inner, length in _elements(file, begin, total):
            end = total if length is None else inner + length
    return end


def _elements(file: BinaryIO, at: int, total: int) -> Iterator[tuple[int, int, int | None]]:
    """Id, first byte and size of elements in a row; one without a size is the last."""
    while at < total:
        head = _at(file, at, 12)
        if len(head) < 2 or head[0] < 0x10:
            return
        width = 9 - head[0].bit_length()
        identity, rest = int.from_bytes(head[:width], "big"), head[width:]
        if not rest or not rest[0]:
            return
        length = 9 - rest[0].bit_length()
        size = int.from_bytes(rest[:length], "big") & (1 << 7 * length) - 1
        begin = at + width + length
        if size == (1 << 7 * length) - 1:
            yield identity, begin, None
            return
        yield identity, begin, size
        at = begin + size


def _asf(file: BinaryIO, total: int) -> int:
    """The length that the objects of an ASF file state; one that is broadcast states none."""
    at = 0
    while len(head := _at(file, at, 24)) == 24:
        size = struct.unpack("<Q", head[16:])[0]
        if size < 24:
            break
        at += size
    return at


def _avi(file: BinaryIO, total: int) -> int:
    """The length that the RIFF chunks of an AVI file state."""
    at = 0
    while (head := _at(file, at, 8))[:4] == b"RIFF" and len(head) == 8:
        size = struct.unpack("<I", head[4:])[0]
        if size == 0 or size >= UNKNOWN_SIZE:
            return 0
        at += 8 + size + size % 2
    return at


def _au(file: BinaryIO, total: int) -> int:
    offset, size = struct.unpack(">II", _at(file, 4, 8).ljust(8, b"\0"))
    return 0 if size in (0, 0xFFFFFFFF) else int(offset + size)


def _w64(file: BinaryIO, total: int) -> int:
    size = int(struct.unpack("<Q", _at(file, 16, 8).ljust(8, b"\0"))[0])
    return size if size < 1 << 62 else 0


def _caf(file: BinaryIO, total: int) -> int:
    """The length that the chunks of a CAF file state; one whose audio has the size -1 states none."""
    at = 8
    while len(head := _at(file, at, 12)) == 12 and is_chunk(head):
        size = int(struct.unpack(">q", head[4:])[0])
        if size < 0:
            return 0
        at += 12 + size
    return at


MEASURES = (
    (0, b"\x1aE\xdf\xa3", _matroska),
    (0, b"0&\xb2u", _asf),
    (8, b"AVI ", _avi),
    (0, b".snd", _au),
    (0, b"riff", _w64),
    (0, b"caff", _caf),
)
"""What measures the length that a container states, by the first bytes and their place."""
