"""Arrays on a GPU as inputs of requests: torch or CuPy array  ->  DeviceArray, which is never copied to the host."""

from typing import Any

import numpy as np

from tritone.errors import AudioError


def is_on_gpu(item: object) -> bool:
    """Whether an input is an array on a GPU, as torch, CuPy and others have them."""
    return not isinstance(item, np.ndarray) and getattr(item, "__cuda_array_interface__", None) is not None


class DeviceArray:
    """An array on a GPU, with those attributes of a numpy array that a request needs.

    What its library's default stream has queued is waited for before it is copied; wait for other streams yourself.
    """

    def __init__(self, array: Any, shape: tuple[int, ...] | None = None) -> None:
        found = array.__cuda_array_interface__
        self._array = array  # keeps the memory
        self.shape: tuple[int, ...] = tuple(found["shape"]) if shape is None else shape
        self.dtype = np.dtype(found["typestr"])
        self.pointer: int = found["data"][0]
        self.stream: int | None = found.get("stream")
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize
        packed = tuple(int(step) for step in np.cumprod([self.dtype.itemsize, *found["shape"][:0:-1]])[::-1])
        self.is_packed = found.get("strides") in (None, packed)

    def __getitem__(self, key: None) -> "DeviceArray":
        """With an axis of rows in front: `array[None]`."""
        return DeviceArray(self._array, (1, *self.shape))

    def check_waveform(self) -> "DeviceArray":
        """Itself, if it is audio as a model takes it; it cannot be converted here.

        Raises:
            AudioError: another shape or type.
        """
        if len(self.shape) != 1 or self.dtype not in (np.float32, np.int16) or not self.size or not self.is_packed:
            raise AudioError(
                f"an array on a GPU must be (samples,) float32 or int16, without gaps, to be sent from there; this is "
                f"{self.shape} {self.dtype}. Convert it, or copy it to the host."
            )
        return self
