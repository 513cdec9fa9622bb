"""A block of decoded audio, which every decoder yields, what is wanted of all of them, and what they refuse alike."""

from typing import NamedTuple

from tritone.audio.channels import Mixer
from tritone.audio.waveform import Samples
from tritone.errors import AudioError, AudioFormatError, AudioTooLongError

BLOCK = 65536  # samples decoded at a time, of all channels together
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 1000, 768_000  # Hz; outside of this a header is damaged or malicious

KNOWN_FORMATS = (
    "WAV, FLAC, Ogg Vorbis, Opus, MP3, M4A, AAC, MP4, MOV, WebM, MKV and what else libsndfile or libav (FFmpeg) decodes"
)


class Block(NamedTuple):
    """Some samples of a file, mono, with its sample rate in Hz and its duration by the header, 0 where it has none."""

    rate: int
    duration_s: float
    samples: Samples


class Wanted(NamedTuple):
    """What a decoder is to make of a file.

    `name`: of the file, in messages. `max_audio_s`: refuse longer audio, in seconds; None takes any. `pcm_rate`: int16
    where it has 16 bits, one channel and this rate (Hz); None makes float32 of all.
    """

    name: str
    max_audio_s: float | None
    pcm_rate: int | None
    mixer: Mixer

    def check_length(self, duration_s: float) -> None:
        """Raises `AudioTooLongError` if the file is longer than the limit."""
        if self.max_audio_s is not None and duration_s > self.max_audio_s:
            raise AudioTooLongError(
                f"{self.name} is {duration_s:.3f} s long, the limit is {self.max_audio_s:g} s. Cut it, stream it, or "
                "raise the limit (max_audio_s)."
            )

    def is_pcm(self, channels: int, rate: int) -> bool:
        """Whether 16-bit samples may stay what they are."""
        return channels == 1 and rate == self.pcm_rate


def check_rate(name: str, rate: int) -> None:
    """Make sure that a file's rate (Hz) is one that audio has; raises `AudioError` if not."""
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        raise absurd_rate(name, rate)


def absurd_rate(name: str, rate: int) -> AudioError:
    return AudioError(f"{name} claims a sample rate of {rate} Hz; expected {MIN_SAMPLE_RATE}-{MAX_SAMPLE_RATE} Hz")


def cut_off(name: str, detail: str) -> AudioError:
    return AudioError(f"{name} is cut off: {detail}. Copy or download it again.")


def missing_bytes(name: str, part: float) -> AudioError:
    return cut_off(name, f"{100 * part:.3g} % of the bytes that its container states are not there")


def unread(name: str, reason: str) -> AudioFormatError:
    return AudioFormatError(f"{name} {reason}. Known are {KNOWN_FORMATS}.")


def no_samples(name: str) -> AudioError:
    return AudioError(f"{name} has no samples, or is cut off")
