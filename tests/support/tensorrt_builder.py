"""The real parser and builder of TensorRT for RTX, which need no GPU: one for all tests of a process."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Artifact
from tritone.runtime.cuda.tensorrt import installed
from tritone.tensorrt.build import EngineBuilder
from tritone.tensorrt.library import Tools, find_tools
from tritone.tensorrt.onnx_graph import input_axes, with_wide_weights
from tritone.tensorrt.profile import Profile, Range

SIZES = Profile.parse("1x0.5s", "2x2s", "8x10s")
ONE_SIZE = Profile.parse("1x1s", "1x1s", "1x1s")  # builds in half the time
LEVEL = 0  # the least search for kernels; a small network takes a second

needs_tensorrt = pytest.mark.skipif(
    "tensorrt-rtx" not in installed(), reason="the wheels of TensorRT for RTX are not installed (x86-64 Linux alone)"
)


@cache
def tools() -> Tools:
    return find_tools("tensorrt-rtx")


@cache
def builder() -> EngineBuilder:
    found = tools().builder(level=LEVEL)
    assert isinstance(found, EngineBuilder)
    return found


def ranges_of(bundle: Bundle, artifact: Artifact, profiles: Sequence[Profile] = (SIZES,)) -> list[dict[str, Range]]:
    """The sizes of the inputs that vary."""
    axes = {name: each for name, each in input_axes(bundle.file(artifact.files[0])).items() if None in each}
    return [profile.ranges(bundle.manifest, artifact.role, axes) for profile in profiles]


def plans_of(
    bundle: Bundle, folder: Path, sizes: Profile = SIZES, roles: Sequence[str] | None = None
) -> Mapping[str, bytes]:
    """An engine of each ONNX graph of a bundle, or of some roles; graphs with other weights are written to `folder`."""
    return {
        artifact.files[0]: builder().build(
            with_wide_weights(bundle.file(artifact.files[0]), folder), ranges_of(bundle, artifact, [sizes])
        )
        for artifact in bundle.manifest.artifacts
        if artifact.runtime == "onnxruntime"
        and artifact.precision != "int8"
        and (roles is None or artifact.role in roles)
    }
