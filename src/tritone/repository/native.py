"""Triton's own backends: what they call a graph's file and its tensors, and what an engine has room for.

None of them is in the wheel of tritonserver, so what is written for them here was never run by this project's tests.
Sources: the README files of triton-inference-server/onnxruntime_backend, pytorch_backend and tensorrt_backend.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Artifact

UNLIMITED = 2**31 - 1
SIZE = re.compile(r"(?P<rows>\d+)x(?P<seconds>\d+(\.\d+)?)s")


@dataclass(frozen=True)
class NativeBackend:
    """A backend: its name, the platform it stands for, and what the file of a graph is called.

    `numbered`: tensors go by their names and places, `name__0`, since the graph has none for them.
    """

    name: str
    platform: str
    file: str
    numbered: bool = False

    def output(self, name: str, place: int) -> str:
        """What the backend calls an output of a generic model, whose inputs keep their names everywhere."""
        return name if re.search(r"__\d+$", name) else self.tensor(name, place)

    def tensor(self, name: str, place: int) -> str:
        """What the backend calls a tensor that is in this place among the inputs, or the outputs."""
        return f"{name}__{place}" if self.numbered else name


NATIVE: Mapping[str, NativeBackend] = {
    "onnxruntime": NativeBackend("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    "torchscript": NativeBackend("pytorch", "pytorch_libtorch", "model.pt", numbered=True),
    "tensorrt": NativeBackend("tensorrt", "tensorrt_plan", "model.plan"),
}
"""By our name of the runtime."""


@dataclass(frozen=True)
class Limits:
    """What an engine takes: audio of `least_s` to `most_s` seconds, at most `most_rows` at once."""

    least_s: float = 0.0
    most_s: float = float("inf")
    most_rows: int = UNLIMITED

    def check_audio(self, max_audio_s: float, bundle: Bundle) -> None:
        """Make sure that no audio is let in that is too long.

        Raises:
            ValueError: some would be.
        """
        if max_audio_s > self.most_s:
            raise ValueError(
                f"{bundle.path}: its engine takes audio of up to {self.most_s:g} s, and the model would let in "
                f"{max_audio_s:g} s. Build with --max-audio-s {self.most_s:g}, or build an engine for longer audio."
            )


def limits_of(artifact: Artifact) -> Limits:
    """The limits of the profile that an engine is run with, the first: `1x2s 16x7s 64x16.7s`."""
    if artifact.engine is None or not artifact.engine.profiles:
        return Limits()
    sizes = [(int(each["rows"]), float(each["seconds"])) for each in SIZE.finditer(artifact.engine.profiles[0])]
    if not sizes:
        return Limits()
    rows, seconds = zip(*sizes, strict=True)
    return Limits(min(seconds), max(seconds), max(rows))
