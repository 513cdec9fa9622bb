"""WAV with sizes of 64 bits: RF64 and BW64, and what recorders leave in their sizes."""

import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from tritone.audio import read_audio
from tritone.errors import AudioError

RATE, OPEN = 16000, 0xFFFF_FFFF
SAMPLES = np.arange(-8000, 8000, dtype=np.int16)
DATA = SAMPLES.tobytes()
SIZE = len(DATA)


def ds64(data: int, samples: int, riff: int = SIZE + 72) -> bytes:
    return struct.pack("<4sIQQQI", b"ds64", 28, riff, data, samples, 0)


def file_of(sign: bytes, first: bytes, *, data_size: int = OPEN, data: bytes = DATA) -> bytes:
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, RATE * 2, 2, 16)
    head = sign + struct.pack("<I", OPEN) + b"WAVE" + first + about
    return head + b"data" + struct.pack("<I", data_size) + data


def read_both_ways(content: bytes, folder: Path) -> list[np.ndarray]:
    """The samples of a file, and of a pipe."""
    (folder / "x.wav").write_bytes(content)
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb") as pipe:
            pipe.write(content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with open(reading, "rb") as pipe:
            piped = read_audio(pipe, RATE)
    finally:
        writer.join()
    return [read_audio(folder / "x.wav", RATE), piped]


@pytest.mark.parametrize("sign", [b"RF64", b"BW64"])
@pytest.mark.parametrize(
    ("first", "data_size"),
    [
        (ds64(SIZE, len(SAMPLES)), OPEN),
        (ds64(SIZE, 0), OPEN),
        (ds64(SIZE, len(SAMPLES)), 0),
        (ds64(SIZE, len(SAMPLES)), SIZE),
        (ds64(0, 0, 0), OPEN),
        (ds64(0, 0, 0), SIZE),
        (ds64(2**64 - 1, 2**64 - 1, 2**64 - 1), OPEN),
        (ds64(SIZE + 44, len(SAMPLES) + 22), OPEN),
        (struct.pack("<4sI", b"ds64", 0), OPEN),
        (struct.pack("<4sIQ", b"ds64", 8, SIZE + 72), OPEN),
        (struct.pack("<4sIQQ", b"ds64", 16, SIZE + 72, SIZE), OPEN),
        (b"JUNK" + struct.pack("<I", 28) + bytes(28), OPEN),
        (b"", OPEN),
    ],
)
def test_all_samples_are_read_whatever_a_recorder_left_in_the_sizes(
    tmp_path: Path, sign: bytes, first: bytes, data_size: int
) -> None:
    for found in read_both_ways(file_of(sign, first, data_size=data_size), tmp_path):
        np.testing.assert_array_equal(found, SAMPLES / np.float32(32768))


@pytest.mark.parametrize("sign", [b"RF64", b"BW64"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (file_of(b"....", ds64(SIZE, len(SAMPLES)), data=DATA[: SIZE // 2]), "is cut off: its header promises"),
        (file_of(b"....", ds64(SIZE, len(SAMPLES)))[:30], "is cut off: it ends within its header"),
        (file_of(b"....", ds64(0, 0, 0), data=b""), "has no samples"),
    ],
)
def test_what_is_cut_off_is_refused_and_no_shorter_recording(
    tmp_path: Path, sign: bytes, content: bytes, told: str
) -> None:
    with pytest.raises(AudioError, match=told):
        read_both_ways(sign + content[4:], tmp_path)


def test_what_follows_the_stated_samples_is_no_audio_if_it_is_a_chunk(tmp_path: Path) -> None:
    after = b"LIST" + struct.pack("<I", 4) + b"INFO"
    for found in read_both_ways(file_of(b"RF64", ds64(SIZE, len(SAMPLES)), data=DATA + after), tmp_path):
        assert len(found) == len(SAMPLES)
