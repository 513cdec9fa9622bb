"""Audio that comes through a pipe, which cannot seek.

WAV of plain samples is decoded as it comes. All else is kept in a temporary file first, because its decoders seek.
"""

import struct
import tempfile
from collections.abc import Callable, Generator
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.audio.block import BLOCK, Block, check_rate, cut_off, too_long
from tritone.errors import AudioError, AudioTooLongError
from tritone.paths import explained

UNKNOWN_SIZE = 0x7FFF_0000  # bytes; programs that write WAV to a pipe fill in sizes from here up
MAX_HEADER = 1 << 20  # bytes before the samples; pictures and texts may stand there
MAX_KEPT = 8 << 30  # bytes of a temporary file
EXTENSIBLE = 0xFFFE  # the tag of formats that tell their true tag later
PCM, FLOAT = 1, 3
TYPES = {(PCM, 8): "u1", (PCM, 16): "<i2", (PCM, 24): "u1", (PCM, 32): "<i4", (FLOAT, 32): "<f4", (FLOAT, 64): "<f8"}

Decoder = Callable[[BinaryIO, str, "float | None", "int | None"], Generator[Block, None, None]]


class _Format(NamedTuple):
    tag: int
    bits: int
    channels: int
    rate: int

    @property
    def frame(self) -> int:
        """Bytes of a sample of all channels."""
        return self.channels * self.bits // 8


def decoded(
    file: BinaryIO, name: str, max_audio_s: float | None, pcm_rate: int | None, seeking: Decoder
) -> Generator[Block, None, None]:
    """The blocks of audio in a pipe; arguments and errors as of `files._decoded`, which is `seeking`.

    The length of what has no header to tell it is found by reading: `AudioTooLongError` comes once so much was read.
    """
    head = file.read(12)
    if not head:
        raise AudioError(f"{name} is empty (0 bytes)")
    seen = bytearray(head)
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        found = _header(file, seen, name)
        if found is not None:
            yield from _samples(file, name, *found, max_audio_s, pcm_rate)
            return
    with tempfile.TemporaryFile(prefix="tritone-audio-") as kept:
        try:
            kept.write(seen)
            while block := file.read(1 << 20):
                if kept.tell() + len(block) > MAX_KEPT:
                    raise AudioError(
                        f"{name}: more than {MAX_KEPT >> 30} GiB came through the pipe, and only WAV of plain samples "
                        "is read as it comes. Save the audio to a file, or convert it to WAV on its way."
                    )
                kept.write(block)
            kept.seek(0)
        except OSError as error:
            raise explained(error, f"cannot keep the audio of {name} in {tempfile.gettempdir()}") from error
        yield from seeking(kept, name, max_audio_s, pcm_rate)


def _header(file: BinaryIO, seen: bytearray, name: str) -> tuple[_Format, int | None] | None:
    """Read up to the samples; returns their format and how many bytes there are, None where the header has no number.

    None where they are of no plain format. `seen` gets all that was read.
    """

    def read(size: int) -> bytes:
        if len(seen) + size > MAX_HEADER:
            raise AudioError(f"{name} is WAV without samples in its first {MAX_HEADER >> 20} MiB; convert it again")
        data = file.read(size)
        seen.extend(data)
        if len(data) < size:
            raise cut_off(name, "it ends within its header")
        return data

    form: _Format | None = None
    while True:
        chunk = read(8)
        size = struct.unpack("<I", chunk[4:])[0]
        if chunk[:4] == b"data":
            if form is None:
                raise AudioError(f"{name} is WAV without a format before its samples; convert it again")
            return form, None if size >= UNKNOWN_SIZE or size == 0 else size
        body = read(size + size % 2)
        if chunk[:4] == b"fmt ":
            if size < 16:
                raise AudioError(f"{name} is WAV with a format of {size} bytes, 16 are needed; convert it again")
            tag, channels, rate, _, _, bits = struct.unpack("<HHIIHH", body[:16])
            if tag == EXTENSIBLE and size >= 26:
                tag = struct.unpack("<H", body[24:26])[0]
            check_rate(name, rate)
            if (tag, bits) not in TYPES or not channels:
                return None
            form = _Format(tag, bits, channels, rate)


def _samples(
    file: BinaryIO, name: str, form: _Format, size: int | None, max_audio_s: float | None, pcm_rate: int | None
) -> Generator[Block, None, None]:
    promised_s = 0.0 if size is None else size / form.frame / form.rate
    if max_audio_s is not None and promised_s > max_audio_s:
        raise AudioTooLongError(too_long(name, promised_s, max_audio_s))
    as_pcm = form.channels == 1 and (form.tag, form.bits) == (PCM, 16) and form.rate == pcm_rate
    step = max(1, BLOCK // form.channels) * form.frame
    taken = 0
    while data := file.read(step if size is None else min(step, size - taken)):
        taken += len(data)
        frames = len(data) // form.frame
        if frames:
            yield Block(form.rate, promised_s, _mono(data[: frames * form.frame], form, as_pcm))
        if max_audio_s is not None and taken / form.frame / form.rate > max_audio_s:
            raise AudioTooLongError(too_long(name, taken / form.frame / form.rate, max_audio_s))
    if taken < form.frame:
        raise AudioError(f"{name} has no samples, or is cut off")
    if taken < (size or 0):
        raise cut_off(name, f"its header promises {size} bytes of audio, {taken} came")


def _mono(data: bytes, form: _Format, as_pcm: bool) -> npt.NDArray[np.float32] | npt.NDArray[np.int16]:
    """Samples scaled as libsndfile does, channels averaged."""
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
    return samples if form.channels == 1 else samples.reshape(-1, form.channels).mean(axis=1, dtype=np.float32)
