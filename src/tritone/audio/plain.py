"""WAV of plain samples, read as it comes: from a file and from a pipe by the same rule; RF64 and BW64 are such, too.

open file  ->  blocks

The rule is that of `layout`: audio goes on to its stated end. Where the header states none, or a little more than
comes, it ends with the file; where something else than a chunk of the format follows, that is more audio.
"""

import struct
from collections.abc import Generator
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.audio.block import BLOCK, Block, Wanted, check_rate, cut_off, no_samples
from tritone.audio.g711 import decode_alaw, decode_mulaw
from tritone.audio.layout import SLACK_S, TAGS, UNKNOWN_SIZE, is_chunk
from tritone.audio.wav import ALAW, FLOAT, MULAW, PCM
from tritone.audio.waveform import widened
from tritone.errors import AudioError

MAX_HEADER = 1 << 20  # bytes before the samples; pictures and texts may stand there
MAX_CHUNK = 1 << 28  # bytes, of what follows the samples
SIGNS = (b"RIFF", b"RF64", b"BW64")  # the latter have sizes of 64 bits in a chunk ds64, EBU Tech 3306 and ITU-R BS.2088
IN_DS64 = 0xFFFF_FFFF  # as the size of a chunk
EXTENSIBLE = 0xFFFE  # the tag of formats that tell their true tag later
TYPES = {(PCM, 8): "u1", (PCM, 16): "<i2", (PCM, 24): "u1", (PCM, 32): "<i4", (FLOAT, 32): "<f4", (FLOAT, 64): "<f8"}
COMPANDED = {(ALAW, 8): decode_alaw, (MULAW, 8): decode_mulaw}


def is_wav(head: bytes | bytearray) -> bool:
    """Whether a file that begins with these 12 bytes is WAV, of any size."""
    return head[:4] in SIGNS and head[8:12] == b"WAVE"


class HeaderEndError(AudioError):
    """A file ends before its samples."""


class Format(NamedTuple):
    """What samples are."""

    tag: int
    bits: int
    channels: int
    rate: int

    @property
    def frame(self) -> int:
        """Bytes of a sample of all channels."""
        return self.channels * self.bits // 8

    @property
    def slack(self) -> int:
        """Bytes that may be missing."""
        return int(SLACK_S * self.rate) * self.frame


class Tape:
    """A file that is read on; what was read may be given back."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._back = file, b""

    def read(self, size: int) -> bytes:
        """As many bytes, fewer at the end alone."""
        data, self._back = self._back[:size], self._back[size:]
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        return data

    def give_back(self, data: bytes) -> None:
        self._back = data + self._back


def header(tape: Tape, seen: bytearray, name: str) -> tuple[Format, int] | None:
    """Read up to the samples; returns their format and how many bytes the header states.

    None where they are of no plain format. `seen` gets all that was read. Raises `HeaderEndError` where that is all.
    """

    def read(size: int) -> bytes:
        if len(seen) + size > MAX_HEADER:
            raise AudioError(f"{name} is WAV without samples in its first {MAX_HEADER >> 20} MiB; convert it again")
        data = tape.read(size)
        seen.extend(data)
        if len(data) < size:
            raise HeaderEndError(str(cut_off(name, "it ends within its header")))
        return data

    form: Format | None = None
    wide = 0  # bytes of samples by ds64; 0 where it does not say
    while True:
        chunk = read(8)
        size = struct.unpack("<I", chunk[4:])[0]
        if chunk[:4] == b"data":
            if form is None:
                raise AudioError(f"{name} is WAV without a format before its samples; convert it again")
            return form, (wide or size) if size in (0, IN_DS64) else size
        body = read(size + size % 2)
        if chunk[:4] == b"ds64" and size >= 16:
            wide = struct.unpack("<Q", body[8:16])[0]
        if chunk[:4] == b"fmt ":
            if size < 16:
                raise AudioError(f"{name} is WAV with a format of {size} bytes, 16 are needed; convert it again")
            tag, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", body[:16])
            if tag == EXTENSIBLE and size >= 26:
                tag = struct.unpack("<H", body[24:26])[0]
            check_rate(name, rate)
            form = Format(tag, bits, channels, rate)
            if (tag, bits) not in {*TYPES, *COMPANDED} or not channels or frame not in (0, form.frame):
                return None


def decoded(tape: Tape, wanted: Wanted, form: Format, stated: int, present: int | None) -> Generator[Block, None, None]:
    """The blocks of all samples that follow.

    Args:
        stated: bytes, by the header.
        present: bytes to the end of the file, None of a pipe, where nobody knows.
    """
    name = wanted.name
    known = 0 < stated < UNKNOWN_SIZE or (present is not None and UNKNOWN_SIZE <= stated <= present)
    if present is not None and known and stated - present > form.slack:
        raise cut_off(name, f"its header promises {stated} bytes of audio, {present} are there")
    if not known and present is not None and not stated and is_chunk(_peek(tape)):
        known = True  # it is empty, and chunks follow
    size = stated if known else None
    promised_s = (min(stated, present or stated) if known else present or 0) / form.frame / form.rate
    wanted.check_length(promised_s)
    as_pcm = (form.tag, form.bits) == (PCM, 16) and wanted.is_pcm(form.channels, form.rate)
    step = max(1, BLOCK // form.channels) * form.frame
    taken = 0
    while data := tape.read(step if size is None else min(step, size - taken)):
        taken += len(data)
        frames = len(data) // form.frame
        if frames:
            yield Block(form.rate, promised_s, _samples(data[: frames * form.frame], form, as_pcm, wanted))
        wanted.check_length(taken / form.frame / form.rate)
        if taken == size and _goes_on(tape, form, taken):
            size = None
    if taken < form.frame:
        raise no_samples(name)
    if (size or 0) - taken > form.slack:
        raise cut_off(name, f"its header promises {size} bytes of audio, {taken} came")


def follows(tape: Tape) -> bool:
    """Whether another WAV file begins behind the samples that were read, chunks and padding between them left out."""
    while len(head := tape.read(12)) == 12:
        if is_wav(head):
            tape.give_back(head)
            return True
        size = struct.unpack("<I", head[4:8])[0]
        if not is_chunk(head) or size > MAX_HEADER:
            return False
        tape.give_back(head[8:])
        tape.read(size + size % 2)
    return False


def _goes_on(tape: Tape, form: Format, taken: int) -> bool:
    """Whether the samples go on behind their stated end; a few bytes that are no chunk are padding."""
    lead = tape.read(max(form.slack, 16))
    more = len(lead) >= form.slack and not _begins_chunk(lead[taken % 2 :])
    if not more and taken % 2 and _begins_chunk(lead[1:]):
        lead = lead[1:]
    tape.give_back(lead)
    return more


def _begins_chunk(head: bytes) -> bool:
    """Whether a chunk or a tag begins; bytes of 8-bit samples may look like a name, but not like a size, too."""
    return is_chunk(head) and (head[:3] in TAGS or head[7:8] < bytes([MAX_CHUNK >> 24]))


def _peek(tape: Tape) -> bytes:
    head = tape.read(4)
    tape.give_back(head)
    return head


def _samples(
    data: bytes, form: Format, as_pcm: bool, wanted: Wanted
) -> npt.NDArray[np.float32] | npt.NDArray[np.int16]:
    """Samples scaled as libsndfile does, as one channel."""
    companded = COMPANDED.get((form.tag, form.bits))
    if companded is not None:
        return wanted.mixer.mix(widened(companded(data)).reshape(-1, form.channels))
    values = np.frombuffer(data, TYPES[form.tag, form.bits])
    if form.bits == 24:
        wide = np.zeros((len(values) // 3, 4), np.uint8)
        wide[:, 1:] = values.reshape(-1, 3)
        values = wide.view("<i4")[:, 0]
    if as_pcm:
        return values.astype(np.int16, copy=False)
    if form.tag == FLOAT:
        samples = values.astype(np.float32)
    elif form.bits == 8:
        samples = (values.astype(np.float32) - 128) / np.float32(128)
    else:
        samples = values.astype(np.float32) / np.float32(1 << (15 if form.bits == 16 else 31))
    return wanted.mixer.mix(samples.reshape(-1, form.channels))
