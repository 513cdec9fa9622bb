"""Several channels to one: their mean, or one of them.

    (samples, channels)  ->  (samples,)

A cable with one wire turned round makes channels that are opposite, whose mean is silence: such recordings are refused.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.errors import AudioError

CANCELLED = 0.01
"""Power of the mean beside that of the channels, -20 dB, from which on they cancel each other; half of it is usual."""
AUDIBLE = 1e-7
"""Mean power of channels, -70 dB of the largest, below which nothing is there to be cancelled."""


class Mixer:
    """Makes one channel of all blocks of a recording, and remembers whether the channels cancelled each other.

    Args:
        name: of the recording, in messages.
        channel: the one to take, counted from 1; None mixes all.
    """

    def __init__(self, name: str, channel: int | None = None) -> None:
        self._name, self.channel = name, channel
        self.channels = 1
        """Of the blocks so far."""
        self._mixed = self._each = 0.0
        self._count = 0

    def mix(self, samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """(samples, channels) of floats to (samples,) float32; of one channel that one, of any type, as it is.

        Raises:
            AudioError: there is no such channel.
        """
        channels = self.channels = samples.shape[1]
        if self.channel is not None:
            if self.channel > channels:
                raise AudioError(f"{self._name} has {channels} channels; there is no channel {self.channel}")
            return samples[:, self.channel - 1]
        if channels == 1:
            return samples[:, 0]
        mixed: npt.NDArray[np.float32] = samples.mean(axis=1, dtype=np.float32)
        with np.errstate(all="ignore"):  # what is not finite is refused later, with its place
            self._mixed += float(np.vdot(mixed, mixed))
            self._each += float(np.square(samples, dtype=np.float32).sum(dtype=np.float64)) / channels
        self._count += len(mixed)
        return mixed

    def check(self) -> None:
        """Raises `AudioError` if the channels so far cancel each other."""
        if self._each > AUDIBLE * self._count and self._mixed < CANCELLED * self._each:
            raise AudioError(
                f"{self._name}: its channels cancel each other, so that their mean is next to silence (was a wire "
                "turned round?). Choose one of them: --channels 1, or audio.files.Selection(path, channel=1)"
            )
