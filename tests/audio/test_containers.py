"""Containers, codecs and damages: ffmpeg is the judge of what is whole, the written rule of what is cut off."""

import shutil
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tritone.audio import read_audio
from tritone.audio.files import AudioBlocks
from tritone.errors import AudioError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg, the judge, is not installed"),
]
RATE = 16000
KINDS = {
    "wav": [],
    "mulaw.wav": ["-c:a", "pcm_mulaw"],
    "adpcm.wav": ["-c:a", "adpcm_ima_wav"],
    "w64": [],
    "aiff": [],
    "au": [],
    "caf": [],
    "flac": [],
    "mp3": ["-c:a", "libmp3lame", "-q:a", "4"],
    "cbr.mp3": ["-c:a", "libmp3lame", "-b:a", "64k", "-write_xing", "0"],
    "vbr.mp3": ["-c:a", "libmp3lame", "-q:a", "2", "-write_xing", "0"],
    "tagged.mp3": [
        *("-c:a", "libmp3lame", "-b:a", "64k", "-write_xing", "0"),
        *("-id3v2_version", "3", "-write_id3v1", "1", "-metadata", "comment=" + "x" * 4000),
    ],
    "mp2": [],
    "vorbis.ogg": ["-c:a", "libvorbis"],
    "opus": ["-c:a", "libopus"],
    "flac.ogg": ["-c:a", "flac"],
    "aac": ["-f", "adts"],
    "m4a": ["-c:a", "aac"],
    "faststart.m4a": ["-c:a", "aac", "-movflags", "faststart"],
    "fragmented.mp4": ["-c:a", "aac", "-movflags", "frag_keyframe+empty_moov", "-frag_duration", "500000"],
    "alac.m4a": ["-c:a", "alac"],
    "webm": ["-c:a", "libopus"],
    "live.webm": ["-c:a", "libopus", "-f", "webm", "-live", "1"],
    "mka": ["-c:a", "flac"],
    "ts": ["-c:a", "aac", "-f", "mpegts"],
    "avi": ["-c:a", "pcm_s16le"],
    "wma": ["-c:a", "wmav2"],
    "flv": ["-c:a", "aac", "-f", "flv"],
    "ac3": ["-ac", "2"],
}
STATES_AN_END = {
    *("wav", "mulaw.wav", "adpcm.wav", "w64", "aiff", "au", "caf", "flac", "mp3", "vorbis.ogg", "opus", "flac.ogg"),
    *("m4a", "faststart.m4a", "fragmented.mp4", "alac.m4a", "webm", "mka", "avi", "wma", "flv"),
}


def ffmpeg(*arguments: object, data: bytes | None = None) -> bytes:
    command = ["ffmpeg", "-nostdin" if data is None else "-y", "-v", "error", "-y", *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def judged(path: Path) -> np.ndarray:
    """What ffmpeg reads of a file: (samples,) at `RATE`, silence where its clock says so."""
    filters = f"aresample={RATE}:async=1:first_pts=0:min_hard_comp=0.05,pan=mono|c0=c0"
    return np.frombuffer(ffmpeg("-i", path, "-vn", "-af", filters, "-f", "f32le", "-"), np.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kinds")
    generator = np.random.default_rng(0)
    smooth = np.convolve(generator.normal(scale=0.2, size=4 * RATE), np.ones(6) / 6, "same")  # below 1.3 kHz, mostly
    noise = smooth * np.repeat(generator.uniform(0.1, 1, 40), RATE // 10)
    ffmpeg("-f", "f32le", "-ar", RATE, "-ac", 1, "-i", "-", folder / "x.wav", data=noise.astype(np.float32).tobytes())
    paths = {}
    for kind, options in KINDS.items():
        paths[kind] = folder / f"x.{kind}" if kind != "wav" else folder / "x.wav"
        if kind != "wav":
            ffmpeg("-i", folder / "x.wav", *options, paths[kind])
    return paths


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the edges, where codecs and resamplers settle."""
    assert abs(len(found) - len(expected)) <= 0.03 * RATE, (len(found) / RATE, len(expected) / RATE)
    size = min(len(found), len(expected))
    best = max(
        np.corrcoef(found[1600 + shift : size - 1600 + shift], expected[1600 : size - 1600])[0, 1]
        for shift in range(-480, 481)
    )
    assert best > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_file_is_what_ffmpeg_reads(kind: str, made: dict[str, Path]) -> None:
    found = read_audio(made[kind], RATE)
    close(found, judged(made[kind]))
    blocks = AudioBlocks(made[kind], RATE)
    assert abs(sum(map(len, blocks)) - len(found)) <= 1
    blocks.close()


@pytest.mark.parametrize("part", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_file_is_refused_where_an_end_is_stated_and_else_read_to_its_end(
    kind: str, part: float, made: dict[str, Path], tmp_path: Path
) -> None:
    data = made[kind].read_bytes()
    path = tmp_path / f"cut.{kind}"
    path.write_bytes(data[: int(part * len(data))])
    if kind in STATES_AN_END:
        with pytest.raises(AudioError, match=r"cut off"):
            read_audio(path, RATE)
    elif kind != "live.webm":  # of which the last cluster may state its length
        assert len(read_audio(path, RATE)) == pytest.approx(len(judged(path)), abs=0.06 * RATE)


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "cbr.mp3", "vbr.mp3", "vorbis.ogg", "opus", "aac", "ts", "mp2"])
def test_of_files_in_a_row_all_are_read(kind: str, made: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "both").write_bytes(2 * made[kind].read_bytes())
    once = len(read_audio(made[kind], RATE))
    assert len(read_audio(tmp_path / "both", RATE)) == pytest.approx(2 * once, abs=0.15 * RATE)


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "vorbis.ogg", "aac", "mp2"])
def test_a_change_of_rate_goes_on_at_the_new_rate(kind: str, made: dict[str, Path], tmp_path: Path) -> None:
    options = [each for each in KINDS[kind] if each != "-write_xing"]
    ffmpeg("-i", made["wav"], "-ar", 44100, "-ac", 2, *options, tmp_path / f"fast.{kind}")
    (tmp_path / "both").write_bytes(made[kind].read_bytes() + (tmp_path / f"fast.{kind}").read_bytes())
    assert len(read_audio(tmp_path / "both", RATE)) == pytest.approx(8 * RATE, abs=0.2 * RATE)


@pytest.mark.parametrize("kind", ["mp4", "mkv", "ts", "flv", "webm"])
def test_late_audio_begins_where_the_clock_says(kind: str, made: dict[str, Path], tmp_path: Path) -> None:
    codecs = {"flv": ("flv", "aac"), "webm": ("libvpx", "libopus")}
    video, sound = codecs.get(kind, ("mpeg4", "aac"))
    picture = ("-f", "lavfi", "-i", "testsrc=size=64x48:rate=5:duration=8")
    late = ("-itsoffset", "2", "-i", made["wav"], "-map", "0:v", "-map", "1:a", "-c:v", video, "-c:a", sound)
    ffmpeg(*picture, *late, tmp_path / f"late.{kind}")
    found = read_audio(tmp_path / f"late.{kind}", RATE)
    begin = int(np.argmax(np.abs(found) > 0.02)) / RATE
    if kind != "ts":  # whose late audio ffmpeg's command moves to the beginning
        reference = judged(tmp_path / f"late.{kind}")
        assert begin == pytest.approx(int(np.argmax(np.abs(reference) > 0.02)) / RATE, abs=0.06)
    assert begin == pytest.approx(2, abs=0.15)


def with_flac_count(data: bytearray, count: int) -> None:
    data[21] = data[21] & 0xF0 | count >> 32
    data[22:26] = struct.pack(">I", count & 0xFFFFFFFF)


@pytest.mark.parametrize("count", [0, 1, RATE, 4 * RATE - 1])
def test_a_flac_with_a_small_count_is_read_to_its_end(count: int, made: dict[str, Path]) -> None:
    data = bytearray(made["flac"].read_bytes())
    with_flac_count(data, count)
    assert len(read_audio(bytes(data), RATE)) == 4 * RATE


HEADERS: dict[str, Callable[[int], int]] = {
    "zero": lambda size: 0,
    "unknown": lambda size: 0xFFFFFFFF,
    "its own header more": lambda size: size + 44,
    "its own header less": lambda size: size - 44,
    "half": lambda size: size // 2,
}


@pytest.mark.parametrize("kind", ["wav", "mulaw.wav", "adpcm.wav"])
@pytest.mark.parametrize("wrong", HEADERS)
def test_a_wav_whose_length_is_wrong_is_read_to_its_end(kind: str, wrong: str, made: dict[str, Path]) -> None:
    data = bytearray(made[kind].read_bytes())
    if kind == "adpcm.wav" and wrong == "half":
        pytest.skip("where samples are in blocks, libsndfile ends at a length that is stated")
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", HEADERS[wrong](struct.unpack("<I", data[at : at + 4])[0]))
    whole = len(read_audio(made[kind], RATE))
    assert len(read_audio(bytes(data), RATE)) == pytest.approx(whole, abs=0.03 * RATE)


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes_write_nothing_to_the_standard_error(
    kind: str, made: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(1)
    for _ in range(3):
        data = bytearray(made[kind].read_bytes())
        for place in generator.integers(len(data) // 10, len(data) - 50, 6).tolist():
            data[place : place + 40] = generator.bytes(40)
        with suppress(AudioError):
            assert np.isfinite(read_audio(bytes(data), RATE)).all()
    assert capfd.readouterr() == ("", "")
