"""Audio that a client announces with an encoding, as Riva's and Deepgram's do, and the bytes that then come.

AudioFormat(encoding="MULAW", sample_rate=8000)  what the client announced
recording(format, bytes)  ->  bytes of a file  for whole recordings, which are decoded elsewhere
await StreamAudio(format).push(bytes)  ->  samples   for streams, as they come
"""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Final, Literal, Protocol

import numpy as np

from tritone.audio import plain, wav
from tritone.audio.files import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE
from tritone.audio.flac_stream import NOTHING, FlacStream
from tritone.audio.g711 import decode_alaw, decode_mulaw
from tritone.audio.inputs import mono
from tritone.audio.live import ContainerStream
from tritone.audio.waveform import Samples
from tritone.errors import AudioError, AudioFormatError, InputError

MAX_CHANNELS = 8
MAX_WAV_HEADER = 1 << 16  # bytes before the samples; recorders write a few chunks of text there
UNKNOWN_SIZES = {0, 0x7FFFFFFF, 0xFFFFFFFF}  # of samples, in headers that were written before the audio
Encoding = Literal["", "LINEAR_PCM", "FLAC", "MULAW", "OGGOPUS", "ALAW"]  # of Riva; "": the header of the audio says it
PCM: Final = "LINEAR_PCM"
FLAC: Final = "FLAC"
MULAW: Final = "MULAW"
OGG_OPUS: Final = "OGGOPUS"
ALAW: Final = "ALAW"
G711 = {MULAW: decode_mulaw, ALAW: decode_alaw}
RAW = {PCM: 2, MULAW: 1, ALAW: 1}  # bytes of a sample
MAGIC = {b"RIFF": "a WAV file", b"fLaC": "FLAC", b"OggS": "Ogg", b"\x1aE\xdf\xa3": "WebM", b"ftyp": "MP4"}
MP4_AT = 4  # where its name is; that of all others is at the start
CONTAINERS = {b"OggS": "ogg", b"\x1aE\xdf\xa3": "webm", b"ftyp": "mp4"}
WAV_TAGS: Mapping[int, Encoding] = {wav.PCM: PCM, wav.ALAW: ALAW, wav.MULAW: MULAW}
TAG_OF = {encoding: tag for tag, encoding in WAV_TAGS.items()}


@dataclass(frozen=True, kw_only=True)
class AudioFormat:
    """What a client says of its audio; "" and 0 leave something to the header of the audio.

    `fields`: what the protocol calls sample rate and channels, for messages.

    Raises:
        InputError: no audio is like that.
    """

    encoding: Encoding = ""
    sample_rate: int = 0  # in Hz
    channels: int = 0
    fields: tuple[str, str] = ("sample_rate_hertz", "audio_channel_count")

    def __post_init__(self) -> None:
        rate, channels = self.fields
        if self.sample_rate and not MIN_SAMPLE_RATE <= self.sample_rate <= MAX_SAMPLE_RATE:
            raise InputError(f"{rate} is {self.sample_rate}; {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} are possible")
        if not 0 <= self.channels <= MAX_CHANNELS:
            raise InputError(f"{channels} is {self.channels}; 1 to {MAX_CHANNELS} are possible")

    @property
    def name(self) -> str:
        return self.encoding or "not named"

    def check_header(self, sample_rate: int, channels: int) -> None:
        """Compare with what the audio itself says; raises `AudioError` where they differ."""
        for declared, found, field in (
            (self.sample_rate, sample_rate, self.fields[0]),
            (self.channels, channels, self.fields[1]),
        ):
            if declared and declared != found:
                raise AudioError(
                    f"{field} is {declared}, but the audio's own header says {found}. Leave {field} out, or correct it."
                )

    def check_start(self, start: bytes) -> bytes:
        """What names the kind of file in `MAGIC`, by the first eight bytes; b"" for samples without a header.

        Raises:
            AudioError: they are not of this encoding, or it is not known of what.
        """
        found = _kind(start)
        fits = {"": set(MAGIC), FLAC: {b"fLaC"}, OGG_OPUS: {b"OggS"}}
        if found not in fits.get(self.encoding, {b"RIFF", b""}):
            seen = MAGIC.get(found, "no WAV, FLAC, Ogg, WebM or MP4")
            advice = (
                f"Name the encoding of samples without a header, and their {self.fields[0]}."
                if not self.encoding
                else "Send what the encoding says, or name none for audio with a header."
            )
            kind = AudioError if found else AudioFormatError
            raise kind(f"the encoding is {self.name}, but the audio begins like {seen}. {advice}")
        if not found and not self.sample_rate:
            raise AudioError(f"{self.name} without a header needs {self.fields[0]}, such as 16000")
        return found


def recording(declared: AudioFormat, audio: bytes) -> bytes:
    """A whole recording as a file: samples without a header get one of WAV, everything else stays as it is.

    Raises:
        AudioError: the audio is not what `declared` says.
    """
    if not audio:
        raise AudioError("the request has no audio")
    if not declared.encoding and not _kind(audio):
        return audio  # of another format that is decoded, or none
    magic = declared.check_start(audio)
    if magic == b"RIFF" and (header := _wav_header(audio[:MAX_WAV_HEADER])) is not None:
        declared.check_header(header[0].sample_rate, header[0].channels)
    if magic:
        return audio
    size, channels = RAW[declared.encoding], declared.channels or 1
    width = size * channels
    if len(audio) % width:
        raise AudioError(f"{len(audio)} bytes are no whole number of {declared.name} samples of {width} bytes")
    tag = TAG_OF[declared.encoding]
    return wav.wav_file(audio, tag=tag, width=size, sample_rate=declared.sample_rate, channels=channels)


def _kind(start: bytes) -> bytes:
    return next((each for each in (start[:4], start[MP4_AT : MP4_AT + 4]) if each in MAGIC), b"")


class _Decoder(Protocol):
    sample_rate: int  # in Hz; 0 while it is not known
    channels: int

    def push(self, data: bytes) -> Samples: ...
    def finish(self) -> Samples: ...


class StreamAudio:
    """The audio of a stream, decoded as it comes. Several channels are averaged."""

    def __init__(self, declared: AudioFormat) -> None:
        self._declared = declared
        self._start = b""
        self._decoder: _Decoder | None = None
        self._container: ContainerStream | None = None

    @property
    def rate(self) -> int:
        """In Hz; 0 while it is not known."""
        if self._container is not None:
            return self._container.rate
        return 0 if self._decoder is None else self._decoder.sample_rate

    async def push(self, data: bytes) -> Samples:
        """Take some bytes, cut anywhere, and return what they complete: (samples,), mono.

        Raises:
            AudioError: they are not what was announced.
        """
        if self._decoder is None and self._container is None:
            self._start += data
            if len(self._start) < (4 if self._declared.encoding else MP4_AT + 4):
                return NOTHING
            data, self._start = self._start, b""
            self._choose(self._declared.check_start(data))
        if self._container is not None:
            return await self._container.push(data)
        assert self._decoder is not None
        known = self._decoder.sample_rate
        samples = self._decoder.push(data)
        if not known and self._decoder.sample_rate:
            self._declared.check_header(self._decoder.sample_rate, self._decoder.channels)
        return samples

    async def finish(self) -> Samples:
        """The rest, after the last bytes.

        Raises:
            AudioError: the audio ends in the middle of a sample or of its header.
        """
        if self._start:
            raise AudioError(f"the audio has {len(self._start)} bytes; send more, or none at all")
        if self._container is not None:
            return await self._container.finish()
        return NOTHING if self._decoder is None else self._decoder.finish()

    def close(self) -> None:
        if self._container is not None:
            self._container.close()

    def _choose(self, magic: bytes) -> None:
        if magic in CONTAINERS:
            self._container = ContainerStream(CONTAINERS[magic])
        elif magic == b"fLaC":
            self._decoder = FlacStream()
        elif magic == b"RIFF":
            self._decoder = _Wav()
        else:
            self._decoder = _Samples(self._declared)


class _Samples:
    """PCM, mu-law or A-law without a header."""

    def __init__(self, declared: AudioFormat) -> None:
        self.sample_rate, self.channels = declared.sample_rate, declared.channels or 1
        self._decode = G711.get(declared.encoding)
        self._width = RAW[declared.encoding] * self.channels
        self._rest = b""

    def push(self, data: bytes) -> Samples:
        data = self._rest + data if self._rest else data
        whole = len(data) // self._width * self._width
        self._rest = data[whole:]
        samples = np.frombuffer(data, "<i2", whole // 2) if self._decode is None else self._decode(data[:whole])
        return mono(samples.reshape(-1, self.channels))

    def finish(self) -> Samples:
        if self._rest:
            raise AudioError(f"the audio ends {len(self._rest)} bytes into a sample of {self._width}")
        return NOTHING


class _Wav:
    """A WAV file as it is sent; whatever follows its samples is left out."""

    def __init__(self) -> None:
        self._seen = b""
        self._left = 0
        self._samples: _Samples | None = None
        self.sample_rate, self.channels = 0, 1

    def push(self, data: bytes) -> Samples:
        if self._samples is None:
            self._seen += data
            if (header := _wav_header(self._seen)) is None:
                return NOTHING
            declared, self._left, data = header
            self._seen, self._samples = b"", _Samples(declared)
            self.sample_rate, self.channels = declared.sample_rate, declared.channels
        data, self._left = data[: self._left], max(self._left - len(data), 0)
        return self._samples.push(data)

    def finish(self) -> Samples:
        if self._samples is None:
            raise AudioError("the audio ends in the middle of its WAV header")
        return self._samples.finish()


def _wav_header(seen: bytes) -> tuple[AudioFormat, int, bytes] | None:
    """What the header of a WAV file says, how many bytes of samples it states, and those seen; None while it goes on.

    Raises:
        AudioError: it is no WAV file, or one of another kind than can be streamed.
    """
    if len(seen) >= 12 and seen[8:12] != b"WAVE":
        raise AudioError("the audio begins like RIFF, but is no WAV file")
    tape = plain.Tape(BytesIO(seen[12:]))
    try:
        found = plain.header(tape, bytearray(), "the audio")
    except plain.HeaderEndError:
        if len(seen) > MAX_WAV_HEADER:
            raise AudioError(f"the WAV header has more than {MAX_WAV_HEADER} bytes before its samples") from None
        return None
    form, size = found or (None, 0)
    encoding = None if form is None else WAV_TAGS.get(form.tag)
    if form is None or encoding is None or form.bits != 8 * RAW[encoding] or form.channels > MAX_CHANNELS:
        what = "another form" if form is None else f"{form.bits} bits in format {form.tag}, {form.channels} channels"
        raise AudioError(
            f"the WAV has samples of {what}; 16-bit PCM, or mu-law or A-law, of up to {MAX_CHANNELS} channels is "
            "needed here"
        )
    declared = AudioFormat(encoding=encoding, sample_rate=form.rate, channels=form.channels)
    return declared, 1 << 62 if size in UNKNOWN_SIZES else size, tape.read(len(seen))
