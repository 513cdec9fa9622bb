"""Audio whose encoding was announced: headers, pieces cut anywhere, and the encodings, without a server."""

import asyncio
import io
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
import soundfile

from tritone.errors import AudioError
from tritone.gateway.announced_audio import ALAW, FLAC, MULAW, PCM, AudioFormat, Encoding, StreamAudio, recording

RATE = 16000
SAMPLES = (np.random.default_rng(0).standard_normal(20_000) * 3000).astype(np.int16)
TONE = (np.sin(np.arange(2 * RATE) * 2 * np.pi * 300 / RATE) * 8000).astype(np.int16)


def file_of(samples: Any, form: str, subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=form, subtype=subtype)
    return file.getvalue()


def streamed(told: AudioFormat, data: bytes, piece: int) -> Any:
    async def stream() -> Any:
        with closing(StreamAudio(told)) as audio:
            parts = [await audio.push(data[begin : begin + piece]) for begin in range(0, len(data), piece)]
            parts.append(await audio.finish())
            assert audio.rate == RATE
            return np.concatenate(parts)

    return asyncio.run(stream())


@pytest.mark.parametrize("piece", [61, 1000, 1_000_000])
def test_samples_are_the_same_however_the_bytes_are_cut(piece: int) -> None:
    raw = AudioFormat(encoding=PCM, sample_rate=RATE)
    for told, data in (
        (raw, SAMPLES.tobytes()),
        (raw, file_of(SAMPLES, "WAV")),
        (AudioFormat(), file_of(SAMPLES, "WAVEX")),
        (AudioFormat(), file_of(SAMPLES, "FLAC")),
        (AudioFormat(encoding=FLAC, sample_rate=RATE, channels=1), file_of(SAMPLES, "FLAC")),
    ):
        np.testing.assert_array_equal(streamed(told, data, piece), SAMPLES)
    stereo = np.stack([SAMPLES, SAMPLES], axis=1)
    told = AudioFormat(encoding=PCM, sample_rate=RATE, channels=2)
    np.testing.assert_array_equal(streamed(told, stereo.tobytes(), piece) * 32768, SAMPLES)


@pytest.mark.parametrize(("encoding", "subtype"), [(MULAW, "ULAW"), (ALAW, "ALAW")])
def test_samples_of_telephones_are_those_that_libsndfile_reads(encoding: Encoding, subtype: str) -> None:
    codes = bytes(range(256))
    told = AudioFormat(encoding=encoding, sample_rate=RATE)
    wanted, _ = soundfile.read(
        io.BytesIO(codes), dtype="int16", samplerate=RATE, channels=1, format="RAW", subtype=subtype
    )
    np.testing.assert_array_equal(streamed(told, codes, 100), wanted)
    whole, rate = soundfile.read(io.BytesIO(recording(told, codes)), dtype="int16")
    np.testing.assert_array_equal(whole, wanted)
    assert rate == RATE
    np.testing.assert_array_equal(streamed(AudioFormat(), recording(told, codes), 100), wanted)


def test_opus_in_ogg_is_what_was_encoded() -> None:
    if "OPUS" not in soundfile.available_subtypes("OGG"):
        pytest.skip("this libsndfile writes no Opus")
    heard = streamed(AudioFormat(), file_of(TONE, "OGG", "OPUS"), 500)
    assert len(heard) > 0.95 * len(TONE)
    middle = heard[5000:20_000]
    assert max(np.corrcoef(middle, TONE[lag : lag + len(middle)])[0, 1] for lag in range(60)) > 0.99


@pytest.mark.parametrize(
    ("told", "data", "part"),
    [
        (AudioFormat(sample_rate=8000), file_of(SAMPLES, "WAV"), "sample_rate_hertz is 8000"),
        (AudioFormat(channels=2), file_of(SAMPLES, "WAV"), "audio_channel_count is 2"),
        (AudioFormat(), file_of(SAMPLES, "WAV", "PCM_24"), "samples of 24 bits"),
        (AudioFormat(), file_of(SAMPLES, "WAV")[:30], "in the middle of its WAV header"),
        (AudioFormat(), b"RIFF0000JUNKfmt 00000000", "is no WAV file"),
        (AudioFormat(), b"RIFF\0\0\0\0WAVEdata\0\0\0\0" + bytes(100), "without a format before its samples"),
        (AudioFormat(), b"RIFF\0\0\0\0WAVELIST\xff\xff\xff\0" + bytes(100), "without samples in its first"),
        (AudioFormat(encoding=PCM, sample_rate=RATE), b"12", "2 bytes"),
        (AudioFormat(encoding=PCM, sample_rate=RATE), b"12345", "1 bytes into a sample"),
        (AudioFormat(encoding=PCM), b"12345", "needs sample_rate_hertz"),
        (AudioFormat(), file_of(SAMPLES, "FLAC")[:40], "in the middle of its FLAC header"),
        (AudioFormat(), b"fLaC\x81\0\0\x02ab" + bytes(50), "no STREAMINFO"),
        (AudioFormat(), b"fLaC\x04\xff\xff\xff" + bytes(50), "bytes of metadata"),
        (AudioFormat(), b"OggS" + bytes(2000), "ogg"),
    ],
)
def test_audio_that_is_not_what_it_says_is_refused(told: AudioFormat, data: bytes, part: str) -> None:
    with pytest.raises(AudioError, match=part):
        streamed(told, data, 1000)


def test_a_message_that_unpacks_to_hours_is_refused() -> None:
    silence = np.zeros(RATE * 400, np.int16)
    with pytest.raises(AudioError, match="send it in smaller ones"):
        streamed(AudioFormat(), file_of(silence, "FLAC"), 1_000_000)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_audio_gives_samples_or_an_error_and_nothing_else(seed: int) -> None:
    rng = np.random.default_rng(seed)
    files = [file_of(SAMPLES, "WAV"), file_of(SAMPLES, "FLAC")]
    for _ in range(50):
        data = bytearray(files[rng.integers(len(files))])
        for place in rng.integers(0, len(data), int(rng.integers(1, 20))):
            data[place] = int(rng.integers(256))
        with suppress(AudioError):
            assert streamed(AudioFormat(), bytes(data), 3000).ndim == 1
