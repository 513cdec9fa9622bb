"""Audio through pipes: WAV as it comes, all else kept first."""

import io
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tritone.audio import pipes, read_audio
from tritone.audio.files import AudioBlocks, is_pipe, read_or_blocks
from tritone.errors import AudioError

RATE = 8000
TONE = (0.5 * np.sin(np.arange(3 * RATE) / 5)).astype(np.float32)


def encoded(samples: np.ndarray, format: str = "WAV", subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, RATE, format=format, subtype=subtype)
    return buffer.getvalue()


@contextmanager
def piped(data: bytes) -> Iterator[str]:
    """The path of a pipe that this process has open, into which another thread writes."""
    reading, writing = os.pipe()

    def write() -> None:
        try:
            with os.fdopen(writing, "wb") as end:
                end.write(data)
        except BrokenPipeError:
            pass

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
        thread.join()


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW"])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_through_a_pipe_is_what_the_file_is(subtype: str, channels: int) -> None:
    data = encoded(np.stack([TONE, -TONE / 2][:channels], axis=1), subtype=subtype)
    with piped(data) as path:
        assert is_pipe(path)
        found = read_audio(path, RATE)
    np.testing.assert_array_equal(found, read_audio(data, RATE))


@pytest.mark.parametrize("format", ["FLAC", "OGG", "MP3", "AIFF"])
def test_what_needs_to_seek_is_kept_first(format: str) -> None:
    data = encoded(TONE, format)
    with piped(data) as path:
        np.testing.assert_array_equal(read_audio(path, RATE), read_audio(data, RATE))


def test_wav_of_unknown_length_is_read_to_its_end() -> None:
    data = bytearray(encoded(TONE))
    place = data.index(b"data") + 4
    data[place : place + 4] = struct.pack("<I", 0xFFFFFFFF)
    with piped(bytes(data)) as path:
        np.testing.assert_array_equal(read_audio(path, RATE), read_audio(encoded(TONE), RATE))


def test_a_pipe_is_opened_whole_where_it_is_short_and_in_blocks_where_it_is_long() -> None:
    data = encoded(np.concatenate([TONE] * 10))
    with piped(data) as path:
        whole = read_or_blocks(path, RATE, 60.0)
    assert isinstance(whole, np.ndarray)
    with piped(data) as path:
        blocks = read_or_blocks(path, RATE, 10.0)
        assert isinstance(blocks, AudioBlocks)
        np.testing.assert_array_equal(np.concatenate(list(blocks)), whole)
        blocks.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"RIFF", "is not audio that can be read"),
        (encoded(TONE)[:30], "is cut off: it ends within its header"),
        (encoded(TONE)[:20000], "its header promises 48000 bytes of audio, 19956 came"),
        (encoded(TONE)[:44], "has no samples"),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", "WAV without a format before its samples"),
        (b"RIFF\0\0\0\0WAVEfmt \4\0\0\0abcd", "a format of 4 bytes"),
        (b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\x7f", "without samples in its first 1 MiB"),
        (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + struct.pack("<HHIIHH", 1, 1, 5, 0, 2, 16), "a sample rate of 5 Hz"),
        (b"no audio at all, but some text", "is not audio that can be read"),
    ],
)
def test_what_is_wrong_in_a_pipe_is_said(data: bytes, message: str) -> None:
    with piped(data) as path, pytest.raises(AudioError, match=message):
        read_audio(path, RATE)


def test_a_pipe_that_never_ends_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "MAX_KEPT", 1 << 16)
    with piped(bytes(3 << 20)) as path, pytest.raises(AudioError, match="came through the pipe, and only WAV"):
        read_audio(path, RATE)


def test_pipes_of_others_are_refused_as_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert not is_pipe(tmp_path / "fifo")
    with pytest.raises(AudioError, match="is not a regular file"):
        read_audio(tmp_path / "fifo", RATE)
