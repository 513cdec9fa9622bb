"""Silence is no voice."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from tritone.errors import AudioError
from tritone.speakers.sound import check_sound

RATE = 8000


def test_a_silent_recording_is_refused_and_a_quiet_one_is_not(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    quiet = 0.001 * np.sin(np.arange(3 * RATE) / 5)
    soundfile.write(tmp_path / "quiet.wav", quiet, RATE)
    soundfile.write(tmp_path / "dither.wav", generator.integers(-1, 2, 3 * RATE).astype(np.int16), RATE)
    check_sound([str(tmp_path / "quiet.wav"), str(tmp_path / "missing.wav")])
    with pytest.raises(AudioError, match=r"dither\.wav is silent"):
        check_sound([str(tmp_path / "quiet.wav"), str(tmp_path / "dither.wav")])
