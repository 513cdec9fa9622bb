"""Speech as an audio file whose beginning can be sent before its end is there.

    encoder = SpeechEncoder("mp3", 22050)
    encoder.add(waveform), encoder.add(waveform), encoder.end()   ->  bytes each, which make one file

What a format would write at the beginning of a file when its end is known, such as its length, stays as it was then:
unknown. libsndfile writes all formats but AAC, for which libav is asked.
"""

import io
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import soundfile

from tritone.audio.files import resample
from tritone.audio.pcm import to_pcm
from tritone.audio.waveform import Waveform
from tritone.errors import InputError

SpeechFormat = Literal["wav", "mp3", "opus", "flac", "aac", "pcm"]
FORMATS: tuple[SpeechFormat, ...] = get_args(SpeechFormat)
MIME_TYPES: Mapping[str, str] = {
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "aac": "audio/aac",
    "pcm": "audio/pcm",
}
OF_LIBSNDFILE = {"mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS"), "flac": ("FLAC", "PCM_16")}
OPUS_RATE = 24000  # Hz; Opus has a few rates, and speech needs no higher one
MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
UNKNOWN = 0xFFFFFFFF  # as the length of a WAV file: up to its end
AAC_BITS_PER_S = 96_000
MP3_COMPRESSION = 0.5  # of libsndfile's 0 to 1: 80 kbit/s at 22,050 Hz


def format_of(path: Path) -> SpeechFormat:
    """The format that the name of a file ends with; raises `InputError` if there is none of that name."""
    ending = path.suffix.lower().removeprefix(".")
    ending = {"ogg": "opus", "raw": "pcm"}.get(ending, ending)
    for each in FORMATS:
        if each == ending:
            return each
    raise InputError(f"{path.name}: the name must end with one of .{', .'.join(FORMATS)}, or a format be given")


def encoded(waveform: Waveform, sample_rate: int, format: SpeechFormat) -> bytes:
    """A whole waveform as a file, with its length where the format has one; as `SpeechEncoder` otherwise."""
    encoder = SpeechEncoder(format, sample_rate, num_samples=len(waveform))
    return encoder.add(waveform) + encoder.end()


class SpeechEncoder:
    """One file that is being written."""

    def __init__(
        self, format: SpeechFormat, sample_rate: int, *, rate: int | None = None, num_samples: int | None = None
    ) -> None:
        """Begin a file.

        Args:
            format: of `FORMATS`; `opus` is in an Ogg, `aac` in ADTS, `pcm` has 16-bit samples, little-endian.
            sample_rate: of the waveforms, in Hz.
            rate: of the file, in Hz; None is the waveforms' own, or the next that the format has.
            num_samples: of all waveforms together, where that is known.
        """
        self._own_rate = sample_rate
        self._rate = rate or sample_rate
        if format == "opus":
            self._rate = OPUS_RATE
        elif format in ("mp3", "aac") and self._rate not in MP3_RATES:
            self._rate = next((each for each in MP3_RATES if each > self._rate), MP3_RATES[-1])
        self._format = format
        self._head = b""
        self._bytes = _Growing()
        self._file: Any = None
        if format == "wav":
            self._head = _wav_head(self._rate, num_samples)
        elif format == "aac":
            import av

            self._av = av
            self._file = self._av.open(self._bytes, mode="w", format="adts")
            self._stream = self._file.add_stream("aac", rate=self._rate, layout="mono")
            self._stream.bit_rate = AAC_BITS_PER_S
        elif format != "pcm":
            container, subtype = OF_LIBSNDFILE[format]
            if num_samples is not None:  # then there is a whole file, in which lengths can be written
                self._bytes = _Growing(whole=True)
            # Readers tell the length of an MP3 without one by its size, which needs frames of one size.
            constant = {"bitrate_mode": "CONSTANT", "compression_level": MP3_COMPRESSION} if format == "mp3" else {}
            self._file = soundfile.SoundFile(
                self._bytes, "w", samplerate=self._rate, channels=1, format=container, subtype=subtype, **constant
            )

    def add(self, waveform: Waveform) -> bytes:
        """The next bytes of the file, after more audio: (samples,) float32; what is beyond [-1, 1] is clipped."""
        samples = waveform if self._rate == self._own_rate else resample(waveform, self._own_rate, self._rate)
        head, self._head = self._head, b""
        if self._format in ("wav", "pcm"):
            return head + to_pcm(samples).astype("<i2").tobytes()
        if self._format == "aac":
            frame = self._av.AudioFrame.from_ndarray(samples.clip(-1.0, 1.0)[None], format="fltp", layout="mono")
            frame.sample_rate = self._rate
            self._mux(frame)
        else:
            self._file.write(samples.clip(-1.0, 1.0))
        return self._bytes.taken()

    def end(self) -> bytes:
        """The last bytes of the file."""
        if self._format in ("wav", "pcm"):
            head, self._head = self._head, b""
            return head
        if self._format == "aac":
            self._mux(None)
        self._file.close()
        return self._bytes.taken(all_of_it=True)

    def _mux(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._file.mux(packet)


class _Growing(io.RawIOBase):
    """A file of which bytes are taken as they are written; what is taken is not changed any more.

    With `whole` nothing is taken before its end.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._data = bytearray()
        self._taken = 0
        self._at = 0
        self._whole = whole

    def taken(self, *, all_of_it: bool = False) -> bytes:
        """What was written since the last call."""
        if self._whole and not all_of_it:
            return b""
        found = bytes(self._data[self._taken :])
        self._taken = len(self._data)
        return found

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = bytes(data)
        begin = max(self._at, self._taken)  # what is before was sent
        if self._at + len(view) > begin:
            self._data.extend(bytes(max(0, begin - len(self._data))))
            self._data[begin : self._at + len(view)] = view[begin - self._at :]
        self._at += len(view)
        return len(view)

    def readinto(self, buffer: Any) -> int:
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at


def _wav_head(sample_rate: int, num_samples: int | None) -> bytes:
    size = UNKNOWN if num_samples is None else 2 * num_samples
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    whole = UNKNOWN if num_samples is None else 4 + len(about) + 8 + size
    return struct.pack("<4sI4s", b"RIFF", whole, b"WAVE") + about + struct.pack("<4sI", b"data", size)
