"""Speech that was made of text: a waveform, and what is said in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tritone.audio.encoder import SpeechFormat, encoded, format_of
from tritone.audio.waveform import Waveform


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """A text, or one of its sentences, as it was spoken.

    `waveform`: (samples,) float32 in [-1, 1] at `sample_rate`, in Hz.
    """

    text: str
    waveform: Waveform = field(repr=False, compare=False)
    sample_rate: int

    @property
    def audio_s(self) -> float:
        """How long it is, in seconds."""
        return len(self.waveform) / self.sample_rate

    def encoded(self, format: SpeechFormat = "wav") -> bytes:
        """The speech as an audio file."""
        return encoded(self.waveform, self.sample_rate, format)

    def save(self, path: str | Path, format: SpeechFormat | None = None) -> None:
        """Write an audio file, of the format that its name ends with if none is given.

        Raises:
            InputError: the name ends with no format that is known.
        """
        path = Path(path)
        path.write_bytes(self.encoded(format or format_of(path)))


def joined(parts: Sequence[Spoken]) -> Spoken:
    """The sentences of a text, at least one, as one."""
    return Spoken(
        text=" ".join(each.text for each in parts),
        waveform=np.concatenate([each.waveform for each in parts]),
        sample_rate=parts[0].sample_rate,
    )
