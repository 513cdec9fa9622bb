"""Compressed audio of live streams: a tone is encoded with libav, cut anywhere, and found again."""

import asyncio
import io
from collections.abc import Iterable

import av
import numpy as np
import pytest

from tritone.audio.live import DECODED_RATE, ContainerStream, live_audio
from tritone.audio.waveform import Samples
from tritone.errors import AudioError

TONE_HZ, LEVEL, SECONDS = 440.0, 8000, 2.0
# What browsers record, and how libav writes the like.
CONTAINERS = {
    "ogg": ("ogg", "libopus", {}),
    "webm": ("webm", "libopus", {}),
    "mp4": ("mp4", "aac", {"movflags": "frag_keyframe+empty_moov+default_base_moof", "frag_duration": "100000"}),
}
LOST_S = 0.05  # that encoders add or drop at the ends


def encoded(form: str, *, levels: tuple[int, ...] = (LEVEL,), rate: int = 48000) -> bytes:
    """A tone, of its own level in each channel."""
    muxer, codec, options = CONTAINERS[form]
    layout = "stereo" if len(levels) == 2 else "mono"
    file = io.BytesIO()
    tone = np.sin(2 * np.pi * TONE_HZ * np.arange(int(rate * SECONDS)) / rate)
    with av.open(file, "w", format=muxer, options=options) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        resampler = av.AudioResampler(format=stream.format, layout=layout, rate=rate, frame_size=960)
        channels = np.array(levels)[:, None] / 32768 * tone
        frame = av.AudioFrame.from_ndarray(channels.astype(np.float32), format="fltp", layout=layout)
        frame.sample_rate = rate
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return file.getvalue()


def decoded(form: str, messages: Iterable[bytes]) -> list[Samples]:
    async def work() -> list[Samples]:
        audio = live_audio(form, 0)
        try:
            return [await audio.push(message) for message in messages] + [await audio.finish()]
        finally:
            audio.close()
            if isinstance(audio, ContainerStream):
                audio.join()

    return asyncio.run(work())


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def check_tone(samples: Samples) -> None:
    assert samples.dtype == np.int16
    assert abs(samples.size / DECODED_RATE - SECONDS) < LOST_S
    middle = samples[4000:20000].astype(np.float64)
    spectrum = np.abs(np.fft.rfft(middle))
    assert np.argmax(spectrum) == round(TONE_HZ * middle.size / DECODED_RATE)
    assert abs(middle.std() * np.sqrt(2) / LEVEL - 1) < 0.1


@pytest.mark.parametrize(("form", "size"), [("ogg", 100), ("webm", 100), ("webm", 7), ("mp4", 1000), ("ogg", 1 << 20)])
def test_a_recording_of_a_browser_is_heard_as_it_comes(form: str, size: int) -> None:
    found = decoded(form, pieces(encoded(form), size))
    check_tone(np.concatenate(found))


def test_webm_is_heard_with_the_message_that_has_it() -> None:
    found = decoded("webm", pieces(encoded("webm"), 1000))
    heard_s = np.cumsum([each.size for each in found])[len(found) // 2] / DECODED_RATE
    assert heard_s > SECONDS / 2 - 0.3


def test_two_channels_are_averaged() -> None:
    check_tone(np.concatenate(decoded("webm", [encoded("webm", levels=(2 * LEVEL, 0))])))


def test_packets_of_opus_are_heard_one_by_one() -> None:
    with av.open(io.BytesIO(encoded("ogg"))) as container:
        packets = [bytes(packet) for packet in container.demux(container.streams.audio[0]) if packet.size]
    found = decoded("opus", [*packets[:50], b"", *packets[50:]])
    assert [each.size for each in found[10:50]] == [320] * 40  # 20 ms each
    check_tone(np.concatenate(found))


BAD = [
    ("opus", b"\xff" * 50, "no Opus packet"),
    ("ogg", b"RIFF" * 1000, "cannot be read as 'ogg'"),
    ("webm", b"OggS" * 1000, "cannot be read as 'webm'"),
    ("webm", b"\x1aE\xdf\xa3" + bytes(100), "cannot be read as 'webm'"),
    ("mp4", bytes(range(256)) * 8000, "mp4"),
    ("ogg", b"", "cannot be read as 'ogg'"),
]


@pytest.mark.parametrize(("form", "data", "said"), BAD)
def test_what_is_no_audio_is_an_error(form: str, data: bytes, said: str) -> None:
    with pytest.raises(AudioError, match=said):
        decoded(form, [data])


def test_a_recording_without_audio_is_given_up_after_a_megabyte() -> None:
    with pytest.raises(AudioError, match="no audio in the first 1,048,576 bytes"):
        decoded("mp4", [b"\0\0\0\x08free" * 10_000] * 20)


def test_a_small_message_cannot_unpack_to_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritone.audio.live.MAX_MESSAGE_S", 1.0)
    with pytest.raises(AudioError, match="unpacks to more than 1 s"):
        decoded("webm", [encoded("webm")])
    decoded("webm", pieces(encoded("webm"), 1000))


def test_a_stream_that_is_left_ends_its_thread() -> None:
    async def leave() -> ContainerStream:
        audio = ContainerStream("webm")
        await audio.push(encoded("webm")[:2000])
        audio.close()
        return audio

    asyncio.run(leave()).join()
