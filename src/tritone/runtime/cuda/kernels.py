"""Kernels of Triton's compiler, and what compiled code depends on: they are kept for processes to come.

device  ->  stamp: versions of torch, driver and compiler, and the device itself
"""

import logging
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from tritone.runtime.kept import distrust, kernels_of, make_private, root

LOGGER = logging.getLogger(__name__)
FORM = 3  # of what is kept; raised when older files must not be used, or are slower
KERNELS = "TRITON_CACHE_DIR"  # environment variable of Triton's compiler: where it keeps what it compiled


def keep_kernels(device: torch.device) -> None:
    """Have Triton's compiler keep kernels in the cache folder, in a folder for this stamp, and use them again.

    Unless the environment names another place, or others could have written to this one: then it is Triton's usual one.
    """
    if KERNELS in os.environ:
        return
    try:
        folder = kernels_of(root(), stamp_of(device))
        make_private(root(), folder.parent, folder)
    except OSError as error:
        LOGGER.warning("kernels are kept in the usual place of Triton's compiler, not in the cache: %s", error)
        return
    if reason := next((why for each in (root(), folder.parent, folder) if (why := distrust(each))), None):
        LOGGER.warning("kernels that were compiled are not used: %s", reason)
        return
    os.environ[KERNELS] = str(folder)


def stamp_of(device: torch.device) -> dict[str, str]:
    """What compiled code depends on: versions, and the device."""
    found = {"form": str(FORM), "torch": torch.__version__, "machine": platform.machine()}
    if device.type != "cuda":
        return found | {"cpu": _cpu(), "vectors": torch.backends.cpu.get_cpu_capability()}
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    properties = torch.cuda.get_device_properties(device)
    return found | {
        "cuda": str(torch.version.cuda),
        "driver": str(getattr(torch._C, "_cuda_getDriverVersion", lambda: "unknown")()),
        "triton": triton,
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
    }


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else platform.processor()
