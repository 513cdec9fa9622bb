"""A block of decoded audio, which every decoder yields, and what they refuse alike."""

from typing import NamedTuple

from tritone.audio.waveform import Samples
from tritone.errors import AudioError

BLOCK = 65536  # samples decoded at a time, of all channels together
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 1000, 768_000  # Hz; outside of this a header is damaged or malicious


class Block(NamedTuple):
    """Some samples of a file, mono, with its sample rate in Hz and its duration by the header, 0 where it has none."""

    rate: int
    duration_s: float
    samples: Samples


def check_rate(name: str, rate: int) -> None:
    """Make sure that a file's rate (Hz) is one that audio has; raises `AudioError` if not."""
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        raise absurd_rate(name, rate)


def absurd_rate(name: str, rate: int) -> AudioError:
    return AudioError(f"{name} claims a sample rate of {rate} Hz; expected {MIN_SAMPLE_RATE}-{MAX_SAMPLE_RATE} Hz")


def cut_off(name: str, detail: str) -> AudioError:
    return AudioError(f"{name} is cut off: {detail}. Copy or download it again.")


def too_long(name: str, duration_s: float, max_audio_s: float) -> str:
    """The message about a file that is longer than the limit; both in seconds."""
    return (
        f"{name} is {duration_s:.3f} s long, the limit is {max_audio_s:g} s. Cut it, stream it, or raise the limit "
        "(max_audio_s)."
    )
