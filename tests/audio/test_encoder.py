"""Audio files whose beginning is sent before their end is there."""

import io
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from tritone.audio.encoder import FORMATS, SpeechEncoder, SpeechFormat, encoded, format_of
from tritone.audio.files import read_audio
from tritone.errors import InputError

RATE = 22050
SLACK_S = {"mp3": 0.15, "aac": 0.15}  # frames at both ends


def tone(seconds: float, rate: int = RATE) -> npt.NDArray[np.float32]:
    return (0.4 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def samples_of(data: bytes, format: SpeechFormat) -> npt.NDArray[np.float32]:
    """Decoded by libav, which knows files without a length."""
    if format == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768
    with av.open(io.BytesIO(data)) as container:
        found = av.AudioResampler(format="flt", layout="mono", rate=RATE)
        frames = [each for frame in container.decode(audio=0) for each in found.resample(frame)]
        frames += found.resample(None)
    return np.concatenate([each.to_ndarray().reshape(-1) for each in frames])


@pytest.mark.parametrize("format", FORMATS)
def test_parts_join_to_the_file_that_the_whole_makes(format: SpeechFormat) -> None:
    whole = tone(2.0)
    encoder = SpeechEncoder(format, RATE)
    parts = [encoder.add(each) for each in np.split(whole, 4)] + [encoder.end()]
    assert parts[0], "the beginning can be sent at once"
    for data in (b"".join(parts), encoded(whole, RATE, format)):
        found = samples_of(data, format)
        assert len(found) / RATE == pytest.approx(2.0, abs=SLACK_S.get(format, 0.01))
        middle = found[len(found) // 4 : 3 * len(found) // 4]
        assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.4 / np.sqrt(2), rel=0.1)
        spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
        assert np.argmax(spectrum) * RATE / len(middle) == pytest.approx(440, abs=3)


@pytest.mark.parametrize("format", ["wav", "flac", "mp3", "opus"])
def test_whole_files_state_their_length(format: SpeechFormat) -> None:
    info = soundfile.info(io.BytesIO(encoded(tone(1.5), RATE, format)))
    assert info.duration == pytest.approx(1.5, abs=SLACK_S.get(format, 0.01))
    assert info.samplerate == (24000 if format == "opus" else RATE)


@pytest.mark.parametrize("format", ["wav", "mp3", "opus"])
def test_what_grew_is_read_as_any_other_recording(format: SpeechFormat) -> None:
    encoder = SpeechEncoder(format, RATE)
    data = encoder.add(tone(1.0)) + encoder.add(tone(0.5)) + encoder.end()
    assert read_audio(io.BytesIO(data), 16000).size / 16000 == pytest.approx(1.5, abs=0.15)


def test_loud_samples_are_clipped_and_odd_rates_change() -> None:
    loud = samples_of(encoded(4 * tone(0.5), RATE, "pcm"), "pcm")
    assert loud.max() == pytest.approx(1.0, abs=1e-4)
    assert soundfile.info(io.BytesIO(encoded(tone(0.5, 10000), 10000, "mp3"))).samplerate == 11025
    assert soundfile.info(io.BytesIO(encoded(tone(0.5, 10000), 10000, "wav"))).samplerate == 10000


def test_formats_are_told_by_the_names_of_files() -> None:
    assert [format_of(Path(name)) for name in ("a.MP3", "b.ogg", "c.wav", "d.raw")] == ["mp3", "opus", "wav", "pcm"]
    with pytest.raises(InputError, match=r"a\.doc: the name must end with one of \.wav"):
        format_of(Path("a.doc"))
