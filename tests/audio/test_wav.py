"""Headers of WAV, as libsndfile reads them."""

import io

import numpy as np
import pytest
import soundfile

from tritone.audio.wav import ALAW, FLOAT, MULAW, PCM, wav_file


@pytest.mark.parametrize(
    ("tag", "width", "subtype"), [(PCM, 2, "PCM_16"), (FLOAT, 4, "FLOAT"), (ALAW, 1, "ALAW"), (MULAW, 1, "ULAW")]
)
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_with_a_header_are_those_without_one(tag: int, width: int, subtype: str, channels: int) -> None:
    values = np.linspace(-0.9, 0.9, 60)
    samples = {1: np.arange(60, dtype="u1"), 2: (values * 32768).astype("<i2"), 4: values.astype("<f4")}[
        width
    ].tobytes()
    raw, _ = soundfile.read(io.BytesIO(samples), samplerate=8000, channels=channels, format="RAW", subtype=subtype)
    file = io.BytesIO(wav_file(memoryview(samples), tag=tag, width=width, sample_rate=8000, channels=channels))
    assert soundfile.info(file).subtype == subtype
    file.seek(0)
    found, rate = soundfile.read(file)
    np.testing.assert_array_equal(found, raw)
    assert (found.shape, rate) == ((60,) if channels == 1 else (30, 2), 8000)
