"""Reading audio files: formats, rates, channels, and files that are not what they seem."""

import io
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fresh import in_fresh_process
from tritone.audio import read_audio, resample
from tritone.audio.files import AudioBlocks, Selection
from tritone.audio.inputs import is_single, load, mono
from tritone.errors import AudioError

RATE = 16000


def tone(seconds: float, rate: int, hz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples: np.ndarray, rate: int, format: str = "WAV", subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=format, subtype=subtype)
    return buffer.getvalue()


def test_sixteen_bit_wav_is_scaled_to_one(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([0, 16384, -32768, 32767], np.int16), RATE)
    np.testing.assert_array_equal(
        read_audio(tmp_path / "a.wav", RATE), np.array([0, 0.5, -1, 32767 / 32768], np.float32)
    )


def test_channels_are_averaged() -> None:
    stereo = np.stack((np.full(100, 0.5), np.full(100, -0.25)), axis=1)
    samples = read_audio(encoded(stereo, RATE, subtype="FLOAT"), RATE)
    assert samples.shape == (100,)
    np.testing.assert_array_equal(samples, np.float32(0.125))


def peak_of_many_channels() -> tuple[int, int]:
    """Samples that were read of a second of silence in 256 channels, and the most bytes that this took."""
    data = encoded(np.zeros((RATE, 256), np.int16), RATE)
    read_audio(encoded(tone(0.1, RATE), RATE), RATE)  # what is loaded once shall not count
    tracemalloc.start()
    samples = read_audio(data, RATE)
    return len(samples), tracemalloc.get_traced_memory()[1]


def test_many_channels_take_no_more_memory_than_their_mean() -> None:
    count, peak = in_fresh_process(peak_of_many_channels)
    assert count == RATE
    assert peak < 1_000_000, "16 MB if all channels were decoded at once"


@pytest.mark.parametrize(
    ("format", "subtype", "rate"),
    [
        ("WAV", "PCM_24", 8000),
        ("WAV", "ULAW", 8000),
        ("FLAC", "PCM_16", 44100),
        ("OGG", "VORBIS", 16000),
        ("OGG", "OPUS", 48000),
        ("MP3", None, 22050),
        ("AIFF", "PCM_16", 16000),
    ],
)
def test_every_format_and_rate_gives_the_same_tone(format: str, subtype: str | None, rate: int) -> None:
    samples = read_audio(encoded(tone(2, rate), rate, format, subtype), RATE)
    assert samples.dtype == np.float32
    assert abs(len(samples) - 2 * RATE) <= 1
    middle = samples[RATE // 2 : -RATE // 2]  # away from the edges, where codecs and resamplers settle
    spectrum = np.abs(np.fft.rfft(middle))
    assert np.argmax(spectrum) == 440
    assert 2 * spectrum[440] / len(middle) == pytest.approx(0.5, rel=0.05)  # lossy codecs change the level a little


def test_resampling_keeps_the_duration_and_is_skipped_at_equal_rates() -> None:
    wave = tone(1, 8000)
    assert len(resample(wave, 8000, 16000)) == 16000
    assert resample(wave, 8000, 8000) is wave


def test_an_open_file_and_bytes_read_like_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    path.write_bytes(encoded(tone(0.1, RATE), RATE, "FLAC"))
    expected = read_audio(path, RATE)
    np.testing.assert_array_equal(read_audio(path.read_bytes(), RATE), expected)
    with path.open("rb") as file:
        np.testing.assert_array_equal(read_audio(file, RATE), expected)


@pytest.mark.parametrize(
    ("format", "subtype"),
    [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("AIFF", "PCM_16"), ("MP3", None)],
)
@pytest.mark.parametrize("part", [0.5, 0.98])
def test_a_file_that_was_cut_off_is_refused(format: str, subtype: str | None, part: float) -> None:
    # Noise, so that every part of a compressed file carries sound.
    noise = np.random.default_rng(0).normal(scale=0.1, size=2 * RATE)
    data = encoded(noise, RATE, format, subtype)
    with pytest.raises(AudioError, match=r"the audio data is (damaged or cut off|cut off|not audio)"):
        read_audio(data[: int(len(data) * part)], RATE)


def test_a_wav_written_to_a_pipe_is_read_to_its_end() -> None:
    data = bytearray(encoded(tone(0.5, RATE), RATE))
    position = data.index(b"data") + 4
    data[position : position + 4] = struct.pack("<I", 0xFFFFFFFF)
    assert len(read_audio(bytes(data), RATE)) == RATE // 2


def test_flac_without_a_length_is_read_by_pyav() -> None:
    data = bytearray(encoded(tone(0.5, RATE), RATE, "FLAC"))
    data[21] &= 0xF0  # the 36 bits of the sample count in STREAMINFO
    data[22:26] = bytes(4)
    assert len(read_audio(bytes(data), RATE)) == RATE // 2


def test_text_named_wav_is_called_not_audio(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_text("hello, I am a text\n" * 100, encoding="utf-8")
    with pytest.raises(AudioError, match=r"a\.wav is not audio that can be read \(Format not recognised.*FLAC"):
        read_audio(tmp_path / "a.wav", RATE)


def test_headerless_audio_is_refused_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_bytes(bytes(1000))
    with pytest.raises(AudioError, match=r"a\.raw is not audio"):
        read_audio(tmp_path / "a.raw", RATE)


def test_missing_files_folders_and_empty_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"cannot read .*nothing\.wav.*No such file"):
        read_audio(tmp_path / "nothing.wav", RATE)
    with pytest.raises(AudioError, match="is a folder"):
        read_audio(tmp_path, RATE)
    (tmp_path / "empty.wav").touch()
    with pytest.raises(AudioError, match=r"empty\.wav is empty \(0 bytes\)"):
        read_audio(tmp_path / "empty.wav", RATE)
    with pytest.raises(AudioError, match="not a regular file"):
        read_audio("/dev/null", RATE)
    with pytest.raises(AudioError, match="null"):
        read_audio("a\0b.wav", RATE)


def test_a_header_without_samples_is_refused() -> None:
    with pytest.raises(AudioError, match="has no samples"):
        read_audio(encoded(np.zeros(0), RATE), RATE)


def test_the_limit_is_checked_in_the_header_and_names_both_durations() -> None:
    data = encoded(tone(2, RATE), RATE)
    assert len(read_audio(data, RATE, max_audio_s=2)) == 2 * RATE
    with pytest.raises(AudioError, match=r"is 2\.000 s long, the limit is 1\.5 s"):
        read_audio(data, RATE, max_audio_s=1.5)


def test_an_absurd_sample_rate_is_refused_before_resampling() -> None:
    data = bytearray(encoded(tone(1, RATE), RATE))
    data[24:28] = struct.pack("<I", 2)  # a second of audio that claims to last two hours
    with pytest.raises(AudioError, match="claims a sample rate of 2 Hz"):
        read_audio(bytes(data), RATE)


def test_a_flac_of_zero_hertz_is_refused_by_its_header() -> None:
    data = bytearray(encoded(tone(0.1, RATE), RATE, "FLAC"))
    data[18:21] = bytes([0, 0, data[20] & 0x0F])  # 20 bits of STREAMINFO
    with pytest.raises(AudioError, match=r"claims a sample rate of 0 Hz; expected 1000-768000 Hz"):
        read_audio(bytes(data), RATE)


@pytest.mark.parametrize(("rate", "tolerance"), [(RATE, 0.0), (44100, 1e-6), (8000, 1e-6)])
def test_blocks_of_a_file_are_what_is_read_of_it_at_once(tmp_path: Path, rate: int, tolerance: float) -> None:
    soundfile.write(tmp_path / "a.flac", tone(11.3, rate), rate)
    blocks = AudioBlocks(tmp_path / "a.flac", RATE)
    assert blocks.duration_s == pytest.approx(11.3)
    pieces = list(blocks)
    blocks.close()
    assert len(pieces) > 1
    whole = read_audio(tmp_path / "a.flac", RATE)
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=tolerance, rtol=0)


def peak_of_blocks(path: Path) -> tuple[int, int]:
    """Samples of a file, and the most bytes that reading it in blocks took."""
    tracemalloc.start()
    blocks = AudioBlocks(path, RATE)
    count = sum(len(block) for block in blocks)
    blocks.close()
    return count, tracemalloc.get_traced_memory()[1]


def test_a_long_file_in_blocks_takes_the_memory_of_a_few(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "silence.flac", np.zeros(600 * RATE, np.int16), RATE)
    count, peak = in_fresh_process(peak_of_blocks, tmp_path / "silence.flac")
    assert count == 600 * RATE
    assert peak < 4_000_000, "38 MB if it were read at once"


def test_blocks_end_in_an_error_where_a_file_is_damaged_and_begin_with_it_where_it_cannot_be_read(
    tmp_path: Path,
) -> None:
    samples = tone(20, RATE)
    samples[15 * RATE] = np.nan
    soundfile.write(tmp_path / "nan.wav", samples, RATE, subtype="FLOAT")
    blocks = AudioBlocks(tmp_path / "nan.wav", RATE)
    with pytest.raises(AudioError, match=r"nan\.wav: sample \d+ .* is nan.*counted from 12\.288 s"):
        list(blocks)
    blocks.close()
    (tmp_path / "text.wav").write_text("no audio, not at all", encoding="utf-8")
    with pytest.raises(AudioError, match="is not audio that can be read"):
        AudioBlocks(tmp_path / "text.wav", RATE)


def test_a_sample_that_is_not_finite_is_named_by_its_time() -> None:
    samples = tone(1, RATE)
    samples[8000] = np.nan
    with pytest.raises(AudioError, match=r"the audio data: sample 8000 \(0\.500 s\) is nan"):
        read_audio(encoded(samples, RATE, subtype="FLOAT"), RATE)


def test_a_float_file_in_the_range_of_16_bits_is_refused_with_the_fix() -> None:
    with pytest.raises(AudioError, match=r"the audio data: samples reach 16384; .*divide by 32768"):
        read_audio(encoded(32768 * tone(1, RATE), RATE, subtype="FLOAT"), RATE)


def test_a_flac_cut_in_the_middle_is_told_from_a_file_that_is_no_audio() -> None:
    whole = encoded(np.random.default_rng(0).uniform(-0.5, 0.5, 4 * RATE), RATE, format="FLAC", subtype="PCM_16")
    with pytest.raises(AudioError, match=r"the audio data is (damaged or )?cut off"):
        read_audio(whole[: len(whole) // 2], RATE)


def test_recordings_in_a_row_are_all_read_each_at_its_rate() -> None:
    for format, subtype in (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS")):
        joined = encoded(tone(1, RATE), RATE, format, subtype) + encoded(tone(2, 44100), 44100, format, subtype)
        found = read_audio(joined, RATE)
        assert len(found) == pytest.approx(3 * RATE, abs=2)
        assert int(np.argmax(np.abs(np.fft.rfft(found[-RATE - 4000 : -4000])))) == 440
        blocks = AudioBlocks(joined, RATE)
        assert sum(map(len, blocks)) == pytest.approx(3 * RATE, abs=2)
        blocks.close()


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, RATE + 44, RATE - 44, RATE // 2])
def test_a_wav_whose_length_is_not_there_or_slightly_wrong_is_read_to_its_end(size: int) -> None:
    data = bytearray(encoded(tone(0.5, RATE), RATE))
    position = data.index(b"data") + 4
    data[position : position + 4] = struct.pack("<I", size)
    assert len(read_audio(bytes(data), RATE)) == pytest.approx(RATE // 2, abs=22)


def test_chunks_and_tags_behind_the_samples_are_no_audio() -> None:
    data = encoded(tone(0.5, RATE), RATE)
    for behind in (b"LIST" + struct.pack("<I", 4000) + bytes(4000), b"TAG" + bytes(4000), bytes(100)):
        assert len(read_audio(data + behind, RATE)) == RATE // 2


def test_channels_that_cancel_each_other_are_refused_and_one_can_be_chosen(tmp_path: Path) -> None:
    wave = tone(1, RATE)
    soundfile.write(tmp_path / "turned.wav", np.stack((wave, -0.98 * wave), axis=1), RATE, subtype="FLOAT")
    with pytest.raises(AudioError, match=r"turned\.wav: its channels cancel each other.*--channels 1"):
        read_audio(tmp_path / "turned.wav", RATE)
    np.testing.assert_array_equal(read_audio(Selection(tmp_path / "turned.wav", channel=1), RATE), wave)
    with pytest.raises(AudioError, match="has 2 channels; there is no channel 3"):
        read_audio(Selection(tmp_path / "turned.wav", channel=3), RATE)
    soundfile.write(tmp_path / "silent.wav", np.zeros((RATE, 2)), RATE)
    assert not read_audio(tmp_path / "silent.wav", RATE).any()


def test_the_part_between_two_times_is_read(tmp_path: Path) -> None:
    wave = tone(20, RATE)
    soundfile.write(tmp_path / "a.wav", wave, RATE, subtype="FLOAT")
    part = Selection(tmp_path / "a.wav", start_s=9.5, end_s=12.25)
    np.testing.assert_array_equal(read_audio(part, RATE, max_audio_s=3), wave[152000:196000])
    blocks = AudioBlocks(part, RATE)
    np.testing.assert_array_equal(np.concatenate(list(blocks)), wave[152000:196000])
    blocks.close()
    with pytest.raises(AudioError, match=r"ends at 20\.000 s, before the part from 30 s on"):
        read_audio(Selection(tmp_path / "a.wav", start_s=30), RATE)


def test_arrays_are_taken_by_the_written_rule() -> None:
    wave = tone(1, RATE)
    stereo = np.stack((wave, 0.5 * wave))
    for given in (wave, wave[None], wave[:, None], wave.tolist(), wave.astype(np.float64)):
        np.testing.assert_array_equal(mono(given), wave)
    for given in (stereo, stereo.T):
        np.testing.assert_allclose(mono(given), 0.75 * wave, atol=1e-6)
    assert mono((32767 * wave).astype(np.int16)[None]).dtype == np.int16
    memory = io.BytesIO(encoded(wave, RATE, subtype="FLOAT"))
    memory.seek(0, io.SEEK_END)  # as one leaves it who has written it
    np.testing.assert_array_equal(load(memory, None, RATE), wave)
    np.testing.assert_array_equal(load(memory.getvalue(), None, RATE), wave)
    for wrong, seen in (
        (np.zeros((100, 100)), r"\(100, 100\)"),
        (np.zeros((2, 2, 9)), r"\(2, 2, 9\)"),
        (np.float32(1), r"\(\)"),
        ([1, 2, 3], "int64 and shape"),
        (wave > 0, "bool and shape"),
        ([[1.0], [1.0, 2.0]], "list"),
    ):
        with pytest.raises(AudioError, match=seen):
            mono(wrong)
    with pytest.raises(AudioError, match="cancel each other"):
        load(np.stack((wave, -wave)), None, RATE)
    assert is_single(wave.tolist())
    assert is_single(memory)
    assert is_single(stereo.T)
    assert not is_single([wave])


def test_tensors_are_taken_as_arrays_are() -> None:
    torch = pytest.importorskip("torch")
    wave = torch.linspace(-1, 1, 1000)
    np.testing.assert_array_equal(mono(wave[None].requires_grad_()), wave.numpy())
    np.testing.assert_allclose(mono(wave.bfloat16()), wave.numpy(), atol=0.01)
