from pathlib import Path

import numpy as np
import pytest
import soundfile

from tritone.audio.files import AudioBlocks, read_audio, read_samples
from tritone.audio.inputs import StreamResampler, load, load_samples, mono, narrow
from tritone.audio.pcm import is_16_bit, to_pcm
from tritone.errors import AudioError

RATE = 16000
ALL = np.arange(-32768, 32768, dtype=np.int16)


def test_every_number_of_16_bits_comes_back() -> None:
    waveform = (ALL / 32768).astype(np.float32)
    assert np.array_equal(to_pcm(waveform), ALL)
    assert to_pcm(ALL) is ALL
    assert is_16_bit(waveform)
    assert is_16_bit(ALL)


def test_what_lies_between_is_rounded_and_what_lies_beyond_is_clipped() -> None:
    waveform = np.array([0.4, 0.6, -0.6, 40000, -40000], np.float32) / np.float32(32768)
    assert to_pcm(waveform).tolist() == [0, 1, -1, 32767, -32768]
    assert not is_16_bit(waveform)


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_file_of_16_bits_is_read_as_it_is(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, ALL, RATE, subtype="PCM_16")
    found = read_samples(path, RATE)
    assert found.dtype == np.int16
    assert np.array_equal(found, ALL)
    assert np.array_equal(read_audio(path, RATE), (ALL / 32768).astype(np.float32))
    blocks = AudioBlocks(path, RATE, pcm=True)
    pieces = list(blocks)
    blocks.close()
    assert {each.dtype for each in pieces} == {np.dtype(np.int16)}
    assert np.array_equal(np.concatenate(pieces), ALL)


@pytest.mark.parametrize(
    ("rate", "channels", "subtype"),
    [(8000, 1, "PCM_16"), (RATE, 2, "PCM_16"), (RATE, 1, "PCM_24"), (RATE, 1, "FLOAT")],
)
def test_other_files_are_read_as_float32(tmp_path: Path, rate: int, channels: int, subtype: str) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.stack([ALL / 32768] * channels, axis=1), rate, subtype=subtype)
    found = read_samples(path, RATE)
    assert found.dtype == np.float32
    assert np.array_equal(found, read_audio(path, RATE))


def test_arrays_of_16_bits_mean_the_same_everywhere() -> None:
    waveform = (ALL / 32768).astype(np.float32)
    assert np.array_equal(load(ALL, None, RATE), waveform)
    assert load_samples(ALL, None, RATE, pcm=None) is ALL
    assert np.array_equal(load_samples(ALL, None, RATE, pcm=False), waveform)
    assert np.array_equal(load_samples(waveform, None, RATE, pcm=True), ALL)
    assert load_samples(ALL, 8000, RATE, pcm=None).dtype == np.float32
    assert np.array_equal(mono(np.stack([ALL, ALL], axis=1)), waveform)
    assert mono(ALL[:, None]).dtype == np.int16
    assert np.array_equal(StreamResampler(RATE, RATE).push(ALL), ALL)
    assert StreamResampler(8000, RATE).push(ALL).dtype == np.float32
    with pytest.raises(AudioError, match=r"of type int32 and shape .* is ambiguous"):
        mono(ALL.astype(np.int32))


def test_what_is_no_audio_is_not_hidden_by_rounding() -> None:
    with pytest.raises(AudioError, match="sample 1"):
        narrow(np.array([0, np.nan], np.float32), RATE, pcm=True)
