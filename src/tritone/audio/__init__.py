"""Audio: files to waveforms, checks, and the constants of acoustic features."""

from tritone.audio.files import read_audio, resample
from tritone.audio.waveform import Waveform, check_waveform

__all__ = ["Waveform", "check_waveform", "read_audio", "resample"]
