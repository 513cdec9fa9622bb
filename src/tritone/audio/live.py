"""Audio of a live stream as clients send it: samples, Opus packets, or a container as browsers record it.

    binary messages  ->  (samples,) int16 or float32, one channel

A container's demuxer asks for bytes when it wants them, so it runs in a
thread of its own, which sleeps until the next message comes; packets are decoded where they arrive.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritone.audio.libav import Converter
from tritone.audio.waveform import Samples
from tritone.errors import AudioError, AudioFormatError

DECODED_RATE = 16000
"""Of what was compressed, in Hz."""

SAMPLE_TYPES: Mapping[str, npt.DTypeLike] = {"pcm_s16le": "<i2", "pcm_f32le": "<f4"}
# As libav names the demuxer. It is never guessed: some of libav's formats open other files and addresses.
CONTAINERS: Mapping[str, str] = {"ogg": "ogg", "webm": "matroska", "mp4": "mp4"}
PACKETS = "opus"
FORMATS = (*SAMPLE_TYPES, PACKETS, *CONTAINERS)

# A byte of Opus may stand for 0.12 s, so the size of a message says little of what it unpacks to.
MAX_MESSAGE_S = 300.0
MAX_SILENT_BYTES = 1 << 20  # of a container that has not shown any audio
# Containers are read as they come: without looking ahead for what their header says already.
OPENING = {"fflags": "nobuffer", "probesize": "32", "analyzeduration": "0"}


class LiveAudio(Protocol):
    """Turns the messages of one stream into samples."""

    @property
    def rate(self) -> int:
        """Of these samples, in Hz."""
        ...

    async def push(self, message: bytes) -> Samples:
        """Return the samples that can be decoded with this message; maybe none. Raises `AudioError`."""
        ...

    async def finish(self) -> Samples:
        """Return what was held back. Raises `AudioError`."""
        ...

    def close(self) -> None:
        """Free what the stream has; may be called again."""
        ...


def live_audio(form: str, sample_rate: int) -> LiveAudio:
    """The reader of a stream's messages.

    Args:
        form: one of `FORMATS`.
        sample_rate: of samples, in Hz; compressed audio states its own.

    Raises:
        AudioFormatError: there is no such format.
    """
    if form in SAMPLE_TYPES:
        return PlainSamples(SAMPLE_TYPES[form], sample_rate)
    if form == PACKETS:
        return OpusPackets()
    if form in CONTAINERS:
        return ContainerStream(form)
    raise AudioFormatError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")


class SampleStream:
    """Samples of one type whose bytes come in messages that are cut anywhere: half a sample waits for its rest."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._rest = b""

    def push(self, message: bytes) -> npt.NDArray[Any]:
        """The samples that are whole with this message, (samples,)."""
        data = self._rest + message if self._rest else message
        whole = len(data) // self._dtype.itemsize
        self._rest = bytes(data[whole * self._dtype.itemsize :])
        return np.frombuffer(data, self._dtype, whole)


class PlainSamples:
    """Messages of samples: numbers of one type, one channel. Half a sample at the very end is none.

    Args:
        decode: makes samples of the bytes of numbers that are codes.
    """

    def __init__(self, dtype: npt.DTypeLike, rate: int, decode: Callable[[bytes], Samples] | None = None) -> None:
        self.rate = rate
        self._decode = decode
        self._dtype = np.dtype(dtype)
        self._stream = SampleStream(dtype)

    async def push(self, message: bytes) -> Samples:
        samples: Samples = self._stream.push(message)
        return samples if self._decode is None else self._decode(samples.tobytes())

    async def finish(self) -> Samples:
        return np.zeros(0, self._dtype)

    def close(self) -> None:
        pass


class OpusPackets:
    """Messages that are one Opus packet each (RFC 6716), as WebRTC and RTP carry them."""

    rate = DECODED_RATE

    def __init__(self) -> None:
        import av

        self._av = av
        self._codec = av.CodecContext.create("libopus" if "libopus" in av.codecs_available else "opus", "r")
        self._codec.sample_rate = 48000  # what every Opus packet decodes to
        self._codec.layout = "mono"
        self._mono = _Mono()

    async def push(self, message: bytes) -> Samples:
        if not message:  # libav would take it for the end
            return _NOTHING
        try:
            return _joined([self._mono.of(frame) for frame in self._codec.decode(self._av.Packet(message))])
        except (self._av.FFmpegError, ValueError) as error:
            raise AudioError(
                f"a message of {len(message)} bytes is no Opus packet ({error}). With format 'opus' each message is "
                "one packet; recordings of browsers are 'webm' or 'ogg'"
            ) from error

    async def finish(self) -> Samples:
        return self._mono.rest()

    def close(self) -> None:
        pass


class ContainerStream:
    """Messages that are the next bytes of one file: Ogg, WebM or fragmented MP4, cut anywhere."""

    rate = DECODED_RATE

    def __init__(self, form: str) -> None:
        self._form = form
        self._changed = threading.Condition()  # over what follows
        self._unread = bytearray()
        self._ended = False  # no more bytes come
        self._decoded: list[npt.NDArray[np.int16]] = []
        self._num_decoded = 0  # of this message
        self._read = 0  # bytes in all
        self._has_audio = False  # any audio in all
        self._error: BaseException | None = None
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._finished = False  # the thread
        self._thread = threading.Thread(target=self._run, name=f"decode-{form}", daemon=True)
        self._thread.start()

    async def push(self, message: bytes) -> Samples:
        return await self._exchange(message, ended=False) if message else _NOTHING

    async def finish(self) -> Samples:
        return await self._exchange(b"", ended=True)

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._unread.clear()
            self._changed.notify()

    def join(self) -> None:
        """Wait until the thread of a closed stream has ended."""
        self._thread.join()

    async def _exchange(self, message: bytes, *, ended: bool) -> Samples:
        """Give the thread bytes, and wait until it has decoded what is in them."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        with self._changed:
            if not self._finished:
                self._unread += message
                self._ended = self._ended or ended
                self._num_decoded = 0
                self._waiter = (loop, done)
                self._changed.notify()
            else:
                done.set_result(None)
        await done
        with self._changed:
            decoded, self._decoded = self._decoded, []
            error = self._error
        if error is not None:
            raise error
        return _joined(decoded)

    def read(self, size: int) -> bytes:
        """The next bytes of the file, for libav; b"" at its end."""
        with self._changed:
            if not self._unread and not self._ended:  # at the end, what comes of it is waited for
                self._answer()
            while not self._unread and not self._ended:
                self._changed.wait()
            taken = bytes(self._unread[:size])
            del self._unread[: len(taken)]
            self._read += len(taken)
            if self._has_audio or self._read <= MAX_SILENT_BYTES:
                return taken
        # An exception would have to find its way through libav.
        message = f"no audio in the first {MAX_SILENT_BYTES:,} bytes of what should be '{self._form}'"
        self._error = AudioFormatError(message)
        return b""

    def _answer(self) -> None:
        if self._waiter is not None:
            (loop, done), self._waiter = self._waiter, None
            # The loop may be closed, and whoever waited may be gone.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, done)

    def _run(self) -> None:
        try:
            self._decode()
        except AudioError as error:
            self._error = self._error or error
        except Exception as error:  # whatever libav makes of foreign bytes belongs to this stream alone
            kind = AudioError if self._has_audio else AudioFormatError
            self._error = self._error or kind(
                f"the audio cannot be read as '{self._form}': {error}. Formats are {', '.join(FORMATS)}"
            )
        finally:
            with self._changed:
                self._finished = True
                self._answer()

    def _decode(self) -> None:
        import av

        with av.open(self, "r", format=CONTAINERS[self._form], buffer_size=4096, options=OPENING) as container:
            if not container.streams.audio:
                raise AudioFormatError(f"the '{self._form}' recording has no audio")
            mono = _Mono()
            for packet in container.demux(container.streams.audio[0]):
                for frame in packet.decode():
                    self._add(mono.of(frame))
            self._add(mono.rest())

    def _add(self, samples: npt.NDArray[np.int16]) -> None:
        with self._changed:
            self._has_audio = True
            self._num_decoded += samples.size
            if self._num_decoded > MAX_MESSAGE_S * DECODED_RATE:
                raise AudioError(f"a message unpacks to more than {MAX_MESSAGE_S:g} s of audio; send shorter ones")
            self._decoded.append(samples)


class _Mono:
    """Frames of any rate and number of channels as (samples,) int16 at `DECODED_RATE`."""

    def __init__(self) -> None:
        from av import AudioResampler

        self._frames = Converter(lambda _: AudioResampler(format="s16", layout="mono", rate=DECODED_RATE))

    def of(self, frame: Any) -> npt.NDArray[np.int16]:
        return _joined([part.to_ndarray()[0] for part in self._frames.of(frame)])

    def rest(self) -> npt.NDArray[np.int16]:
        return _joined([part.to_ndarray()[0] for part in self._frames.rest()])


def _settle(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)


_NOTHING: npt.NDArray[np.int16] = np.zeros(0, np.int16)


def _joined(parts: list[npt.NDArray[np.int16]]) -> npt.NDArray[np.int16]:
    return np.concatenate(parts) if parts else _NOTHING
