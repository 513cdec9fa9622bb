"""Paths of this machine in sentences that go to others."""

import tempfile
from pathlib import Path

import pytest

from tritone.paths import without_paths


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("/tmp/tritone-g9wwwhqx is damaged (at 3).", "the audio data is damaged (at 3)."),
        ("cannot read '/tmp/tritone-g9wwwhqx': No such file", "cannot read the audio data: No such file"),
        ("cannot read '/home/my user/x y/a.wav': No such file", "cannot read 'a.wav': No such file"),
        ("Load model from /srv/m/1/model.onnx failed:no", "Load model from model.onnx failed:no"),
        ("No space left on device: '/tmp'", "No space left on device: 'tmp'"),
        ("unable to open file:///var/x/y.txt, or ~/.cache/z.bin.", "unable to open y.txt, or z.bin."),
        ('File "/usr/lib/x.py", line 3', 'File "x.py", line 3'),
        ("r/m/1/model.py and ../up/config.pbtxt", "model.py and config.pbtxt"),
        ("(/dev/shm/region_1) path:/data/b/", "(region_1) path:b"),
    ],
)
def test_files_are_named_without_their_folders(message: str, shown: str) -> None:
    assert without_paths(message) == shown


@pytest.mark.parametrize(
    "message",
    [
        "see https://example.com/docs/errors/x.html and http://localhost:8000/v2/models/x",
        "GET /v1/audio/transcriptions is for /health/live",
        "audio/wav, text/plain; and/or 16/s",
        "mistralai/Voxtral-Mini-3B-2507 of s3://bucket/key/x.txt",
        "3 / 4 is 1/2/3.5 // no",
    ],
)
def test_addresses_routes_and_media_types_are_no_paths(message: str) -> None:
    assert without_paths(message) == message


def test_folders_with_spaces_are_known_where_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "my files"))
    assert without_paths(f"{tmp_path}/my files/tritone-g9wwwhqx is empty") == "the audio data is empty"
