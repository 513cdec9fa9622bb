"""Triton's own backends: what they call a graph's file and its tensors, and what an engine has room for.

None of them is in the wheel of tritonserver, so what is written for them here was never run by this project's tests.
Sources: the README files of triton-inference-server/onnxruntime_backend, pytorch_backend and tensorrt_backend.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Artifact
from tritone.runtime.known import runtimes
from tritone.runtime.runtime import NativeBackend

UNLIMITED = 2**31 - 1
SIZE = re.compile(r"(?P<rows>\d+)x(?P<seconds>\d+(\.\d+)?)s")


def natives() -> Mapping[str, NativeBackend]:
    """Triton's own backends by the names of the runtimes whose graphs they run."""
    return {name: each.native for name, each in runtimes().items() if each.native is not None}


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
