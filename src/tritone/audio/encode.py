"""Waveforms to small audio files that every browser plays.

(samples,) float32  ->  bytes of an MP3 (or of a WAV, where this libsndfile writes no MP3), MIME type
"""

import io

import soundfile

from tritone.audio.files import resample
from tritone.audio.waveform import Waveform

PLAYED_RATE = 16000  # Hz; speech needs no more, and every MP3 decoder knows it
MP3_BYTES_PER_S = 7500  # about, at this rate and libsndfile's own quality
WAV_BYTES_PER_S = 2 * PLAYED_RATE


def bytes_per_s() -> int:
    """About how many bytes a second of audio takes."""
    return MP3_BYTES_PER_S if _writes_mp3() else WAV_BYTES_PER_S


def encode_speech(waveform: Waveform, sample_rate: int) -> tuple[bytes, str]:
    """Encode a waveform for listening.

    MP3 is what all browsers play; Ogg is newer in Safari. libsndfile writes MP3 since 1.1.

    Args:
        waveform: (samples,) float32; what is beyond [-1, 1] is clipped.
        sample_rate: in Hz.

    Returns:
        The file, and its MIME type.
    """
    samples = resample(waveform, sample_rate, PLAYED_RATE).clip(-1.0, 1.0)
    file = io.BytesIO()
    if _writes_mp3():
        soundfile.write(file, samples, PLAYED_RATE, format="MP3")
        return file.getvalue(), "audio/mpeg"
    soundfile.write(file, samples, PLAYED_RATE, format="WAV", subtype="PCM_16")
    return file.getvalue(), "audio/wav"


def _writes_mp3() -> bool:
    return "MP3" in soundfile.available_formats()
