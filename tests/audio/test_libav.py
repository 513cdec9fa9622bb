"""Video files and other formats of libav, by PyAV."""

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tritone.audio import read_audio
from tritone.audio.files import AudioBlocks, find_audio, read_or_blocks
from tritone.errors import AudioError, AudioTooLongError

RATE = 16000
TONE = (0.3 * np.sin(2 * np.pi * 440 * np.arange(3 * RATE) / RATE)).astype(np.float32)


def video(format: str, codec: str = "aac", *, channels: int = 1, picture: bool = True, sound: bool = True) -> bytes:
    """A file with a tone of 3 s and a few pictures."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=format) as container:
        stream: Any = container.add_stream("mpeg4", rate=5) if picture else None
        if stream is not None:
            stream.width = stream.height = 32
            stream.pix_fmt = "yuv420p"
        audio: Any = container.add_stream(codec, rate=RATE) if sound else None
        if audio is not None:
            audio.layout = "mono" if channels == 1 else "stereo"
        for index in range(15 if picture else 0):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 9 * index, np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        if stream is not None:
            for packet in stream.encode(None):
                container.mux(packet)
        for start in range(0, len(TONE) if sound else 0, 1024):
            part = np.stack([TONE[start : start + 1024]] * channels)
            sound_frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono" if channels == 1 else "stereo")
            sound_frame.sample_rate, sound_frame.pts = RATE, start
            for packet in audio.encode(sound_frame):
                container.mux(packet)
        if audio is not None:
            for packet in audio.encode(None):
                container.mux(packet)
    return buffer.getvalue()


@pytest.mark.parametrize(("format", "channels"), [("mp4", 1), ("matroska", 2), ("mpegts", 1)])
def test_the_sound_of_a_video_is_read(format: str, channels: int, tmp_path: Path) -> None:
    (tmp_path / "video").write_bytes(video(format, channels=channels))
    found = read_audio(tmp_path / "video", RATE)
    assert len(found) == pytest.approx(len(TONE), abs=3 * 1024)
    middle = found[RATE : 2 * RATE]
    spectrum = np.abs(np.fft.rfft(middle))
    assert int(np.argmax(spectrum)) == 440
    assert np.abs(middle).max() == pytest.approx(0.3, abs=0.06)
    assert len(read_audio(tmp_path / "video", 8000)) == pytest.approx(len(found) / 2, abs=1)
    with pytest.raises(AudioTooLongError, match="the limit is 2 s"):
        read_audio(tmp_path / "video", RATE, max_audio_s=2.0)
    blocks = read_or_blocks(tmp_path / "video", RATE, 2.0)
    assert isinstance(blocks, AudioBlocks)
    assert sum(map(len, blocks)) == len(found)
    blocks.close()


def test_a_video_without_sound_says_so() -> None:
    with pytest.raises(AudioError, match="has no audio: it holds video"):
        read_audio(video("mp4", sound=False), RATE)


def test_a_video_that_is_cut_off_is_an_error() -> None:
    data = video("matroska")
    with pytest.raises(AudioError, match=r"is cut off: 9\d.\d % of the bytes that its container states are not there"):
        read_audio(data[:300], RATE)


@pytest.mark.parametrize(
    "playlist",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{path}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{path}'\n",
        "<?xml version='1.0'?><MPD xmlns='urn:mpeg:dash:schema:mpd:2011'><BaseURL>{path}</BaseURL></MPD>",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    ],
)
def test_a_playlist_opens_no_other_file(playlist: str, tmp_path: Path) -> None:
    (tmp_path / "secret.ts").write_bytes(video("mpegts"))
    with pytest.raises(AudioError, match="is not audio that can be read"):
        read_audio(playlist.format(path=tmp_path / "secret.ts").encode(), RATE)


def test_noise_behind_a_good_beginning_harms_nobody() -> None:
    generator = np.random.default_rng(0)
    for format in ("mp4", "matroska"):
        data = bytearray(video(format))
        for _ in range(8):
            place = int(generator.integers(200, len(data) - 200))
            data[place : place + 50] = generator.bytes(50)
            try:
                found = read_audio(bytes(data), RATE)
            except AudioError:
                continue
            assert np.isfinite(found).all()


def test_a_folder_stands_for_all_that_can_be_read(tmp_path: Path) -> None:
    for name, format in (("a.m4a", "mp4"), ("b.webm", "webm"), ("c.ts", "mpegts")):
        codec = {"webm": "libopus"}.get(format, "aac")
        (tmp_path / name).write_bytes(video(format, codec, picture=False))
    (tmp_path / "program.ts").write_bytes(b"PK" + bytes(400))
    assert [path.name for path in find_audio(tmp_path)] == ["a.m4a", "b.webm", "c.ts"]


def test_a_webm_that_is_cut_off_is_refused_and_the_reason_of_libav_is_told() -> None:
    data = video("webm", "libopus", picture=False)
    with pytest.raises(AudioError, match=r"is cut off: 50 % of the bytes that its container states"):
        read_audio(data[: len(data) // 2], RATE)
    with pytest.raises(AudioError, match=r"libav: Invalid data found"):
        read_audio(b"\x1aE\xdf\xa3" + bytes(500), RATE)
