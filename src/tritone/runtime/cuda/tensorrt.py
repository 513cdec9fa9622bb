"""NVIDIA's TensorRT, or TensorRT for RTX, whichever is installed, and the GPU that it would use.

They have one Python API, and neither runs the engines of the other. Nothing here needs torch.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tritone.errors import MissingDependencyError

MODULES: Mapping[str, tuple[str, ...]] = {
    "tensorrt": ("tensorrt",),
    "tensorrt-rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}
"""Where each library may be, in the order of our choice."""
TITLES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT for RTX"}
RTX_LIBRARIES = "tensorrt_rtx_libs"  # of the wheels: the shared libraries, apart from the bindings
OLDEST = 10  # major version of TensorRT; int64 tensors and strongly typed networks
INSTALL = (
    "pip install tensorrt (NVIDIA's TensorRT, for its GPUs of every kind), or pip install tensorrt-rtx-cu13-libs "
    "tensorrt-rtx-cu13-bindings (TensorRT for RTX)"
)
# of cuDeviceGetAttribute; source: enum CUdevice_attribute, cuda.h
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True)
class Library:
    """An imported library. `name`: a key of `MODULES`; `version`: its own, whole."""

    name: str
    module: Any
    version: str

    @property
    def title(self) -> str:
        """Its name with its version, for people."""
        return f"{TITLES[self.name]} {self.version}"


@dataclass(frozen=True)
class Gpu:
    """`capability`: of its compute units, like "9.0"."""

    name: str
    capability: str


def installed() -> tuple[str, ...]:
    """The libraries that are there, without importing them."""
    return tuple(name for name, modules in MODULES.items() if any(find_spec(module) for module in modules))


def load_library(name: str | None = None) -> Library:
    """Import a library.

    Args:
        name: which; None takes the first that is there.

    Raises:
        MissingDependencyError: it is not there, cannot be loaded, or is too old.
    """
    found = installed()
    if not found or name not in (None, *found):
        raise MissingDependencyError(f"{TITLES[name] if name else 'TensorRT'} is not installed: {INSTALL}")
    name = name or found[0]
    module_name = next(each for each in MODULES[name] if find_spec(each))
    try:
        if module_name == "tensorrt_rtx_bindings":
            _load_shared(RTX_LIBRARIES)
        module = import_module(module_name)
    except (ImportError, OSError) as error:
        raise MissingDependencyError(
            f"{TITLES[name]} is installed (module {module_name}), but cannot be loaded: {error}. Install it again: "
            f"{INSTALL}"
        ) from error
    version = str(module.__version__)
    if name == "tensorrt" and int(version.split(".")[0]) < OLDEST:
        raise MissingDependencyError(f"TensorRT {OLDEST} or newer is needed, installed is {version}: {INSTALL}")
    return Library(name, module, version)


def find_gpu(index: int = 0) -> Gpu | None:
    """What the driver says of a GPU; None if there is no driver, or no such GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    numbers = [ctypes.c_int(), ctypes.c_int()]
    calls = [driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(device), index)]
    calls.append(driver.cuDeviceGetName(name, len(name), device))
    for number, attribute in zip(numbers, (CAPABILITY_MAJOR, CAPABILITY_MINOR), strict=True):
        calls.append(driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device))
    if any(calls):  # each gives 0 if it worked
        return None
    return Gpu(name.value.decode(errors="replace"), ".".join(str(number.value) for number in numbers))


def _load_shared(package: str) -> None:
    """Load the shared libraries of a package, which the bindings then find by their names."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return
    # The parser needs the other one, and a package imports them in the order of the file system.
    for path in sorted(Path(spec.origin).parent.glob("lib*.so*"), key=lambda path: "parser" in path.name):
        ctypes.CDLL(str(path))
