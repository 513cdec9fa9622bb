"""Checks of what a server needs before it can start, each with its own fix.

run_checks(...)  ->  list[Check]     what `tritone doctor` prints
require(...)     ->  Installation, warnings; or a ServerSetupError with every fix
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from tritone.errors import ServerSetupError
from tritone.net.address import joined
from tritone.runtime import obstacle
from tritone.runtime.known import runtimes
from tritone.runtime.memory import machine_bytes
from tritone.server.installation import PYTHON, Installation, find_installation, find_libpython, readable
from tritone.server.options import ServerOptions
from tritone.server.ports import holder, is_free

SHARED_MEMORY = Path("/dev/shm")
GPU = Path("/dev/nvidiactl")
MIN_SHARED_MEMORY = 64 << 20  # bytes; Docker's default /dev/shm, enough for small batches of short utterances
NUMPY_TOO_NEW = (2,)  # Triton 2.51's Python backend sends text from it as empty strings
MB = 10**6
WHEEL_GLIBC = (2, 35)  # of the manylinux tag of nvidia-pytriton

Status = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, how it is, what was seen, and what to do when it is not ok."""

    name: str
    status: Status
    seen: str
    fix: str = ""


def run_checks(
    server: str | Path | None = None,
    options: ServerOptions | None = None,
    shared_memory: int = MIN_SHARED_MEMORY,
    runtimes: Collection[tuple[str, str]] | None = None,
    backends: Collection[str] = (),
    memory: int = 0,
) -> list[Check]:
    """Check everything a server needs.

    Args:
        server: path of tritonserver; None searches as `find_installation` does.
        options: their ports are checked.
        shared_memory: bytes that /dev/shm should have free.
        runtimes: what models were built for, as (runtime, "cpu" or "gpu"); runtime "" means any. None checks
            which runtimes can use a GPU.
        backends: those of Triton's own that models need.
        memory: bytes that models and server may take, see `tritone.repository.memory`.
    """
    options = options or ServerOptions()
    try:
        installation = find_installation(server)
    except ServerSetupError as error:
        checks = [check_platform(), Check("tritonserver", "broken", "not found", str(error))]
    else:
        checks = [
            check_platform(wheel=installation.is_wheel),
            check_installation(installation),
            check_stub(installation),
            check_shell(installation),
        ]
        checks += [check_backend(installation, name) for name in sorted(backends)]
        checks.append(check_numpy(installation.is_wheel))
    checks += [check_packages(), check_libpython()]
    checks += [check_gpu()] if runtimes is None else [check_runtime(*each) for each in sorted(runtimes)]
    checks += [check_shared_memory(shared_memory), check_memory(memory, options.overcommit)]
    return checks + [check_port(options.host, service, port) for service, port in options.ports.items()]


def require(
    server: str | Path | None = None,
    options: ServerOptions | None = None,
    shared_memory: int = MIN_SHARED_MEMORY,
    runtimes: Collection[tuple[str, str]] | None = None,
    backends: Collection[str] = (),
    memory: int = 0,
) -> tuple[Installation, list[Check]]:
    """Find the installation and make sure that it can start; arguments as of `run_checks`.

    Returns:
        The installation, and what does not prevent the start but may hurt later.

    Raises:
        ServerSetupError: something that is needed is broken; the message names every such thing and its fix.
    """
    installation = find_installation(server)
    checks = run_checks(server, options, shared_memory, runtimes, backends, memory)
    broken = [check for check in checks if check.status == "broken"]
    if broken:
        lines = "\n".join(f"  {check.name}: {check.seen}. {check.fix}" for check in broken)
        raise ServerSetupError(f"the server cannot start here:\n{lines}")
    return installation, [check for check in checks if check.status == "warning"]


def check_platform(wheel: bool = True) -> Check:
    """Operating system, processor and C library. `wheel`: whether the limits of the wheel nvidia-pytriton hold."""
    seen = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if sys.platform != "linux":
        return Check("platform", "broken", seen, "tritonserver runs on Linux; use NVIDIA's container.")
    library, release = platform.libc_ver()
    seen += f", {library or 'unknown C library'} {release}".rstrip()
    if wheel and platform.machine() != "x86_64":
        return Check("platform", "broken", seen, "The wheel nvidia-pytriton is for x86-64; use NVIDIA's container.")
    if wheel and (library != "glibc" or _version(release) < WHEEL_GLIBC):
        return Check(
            "platform",
            "broken",
            seen,
            "The wheel nvidia-pytriton needs glibc {}.{} or newer: Debian 12, Ubuntu 22.04.".format(*WHEEL_GLIBC),
        )
    return Check("platform", "ok", seen)


def check_packages(names: Sequence[str] | None = None) -> Check:
    """The packages that a served model imports; None: as the runtimes say that come with Tritone."""
    usual = [each for each in runtimes().values() if each.is_usual]
    names = names or ("numpy", *(each.needs for each in usual))
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        return Check("packages", "broken", f"{', '.join(missing)} missing", f"pip install {' '.join(missing)}")
    try:
        slow = [each.look_up(each.slow)() for each in usual if each.slow]  # imports the runtime
    except ImportError as error:
        again = " ".join(each.needs for each in usual)
        return Check("packages", "broken", str(error), f"pip install --force-reinstall {again}")
    return Check("packages", "ok", "; ".join([", ".join(names), *filter(None, slow)]))


def check_numpy(wheel: bool = True, installed: str | None = None) -> Check:
    """Whether Triton's Python backend gets text from this numpy. `wheel`: the server is that of nvidia-pytriton."""
    seen = installed or version("numpy")
    if _version(seen) < NUMPY_TOO_NEW:
        return Check("numpy", "ok", seen)
    newest = ".".join(map(str, NUMPY_TOO_NEW))
    return Check(
        "numpy",
        "broken" if wheel else "warning",
        f"{seen}, of which Triton 2.51's Python backend makes empty texts",
        f"pip install 'numpy<{newest}'",
    )


def check_gpu(device: Path = GPU) -> Check:
    """Whether there is a GPU, and what can use it. Serving on the CPU needs neither."""
    if not device.exists():
        return Check("gpu", "ok", "no NVIDIA GPU: models run on the CPU")
    reasons = {name: obstacle(name, "cuda") for name in _of_graphs()}
    able = [name for name, reason in reasons.items() if reason is None]
    if able:
        return Check("gpu", "ok", f"NVIDIA GPU, with runtime {' or '.join(able)}")
    return Check("gpu", "warning", "NVIDIA GPU, but no runtime can use it", _listed(reasons))


def check_runtime(runtime: str, device: str) -> Check:
    """Whether models that were built for a runtime (or, for "", any) can run on a device, "cpu" or "gpu"."""
    name = f"runtime {runtime or 'of models'}"
    if runtime and runtime not in runtimes():
        return Check(
            name, "broken", "there is no such runtime", f"Build the model with one of {', '.join(runtimes())}."
        )
    reasons = {
        each: obstacle(each, "cuda" if device == "gpu" else "cpu") for each in ([runtime] if runtime else _of_graphs())
    }
    able = [each for each, reason in reasons.items() if reason is None]
    if able:
        return Check(name, "ok", f"{' or '.join(able)} on the {device.upper()}")
    return Check(name, "broken", f"cannot run on the {device.upper()}", _listed(reasons))


def _of_graphs() -> list[str]:
    """The runtimes that models use which name none; what a function uses of a GPU is its own matter."""
    return [name for name, each in runtimes().items() if not each.named and not each.by_itself]


def _listed(reasons: Mapping[str, str | None]) -> str:
    return " ".join(f"{name}: {reason}." for name, reason in reasons.items())


def check_libpython() -> Check:
    """The shared library of the running Python, which Triton's stub is linked with."""
    found = find_libpython()
    if found:
        return Check("libpython", "ok", str(found))
    return Check(
        "libpython",
        "broken",
        f"no libpython{PYTHON}.so.1.0",
        f"Debian and Ubuntu: apt-get install libpython{PYTHON}. Fedora: dnf install python{PYTHON}-libs. "
        "pyenv: reinstall this Python with PYTHON_CONFIGURE_OPTS=--enable-shared.",
    )


def check_shared_memory(needed: int = MIN_SHARED_MEMORY, folder: Path = SHARED_MEMORY) -> Check:
    """Free space of /dev/shm, through which Triton hands audio to the models. `needed` is in bytes."""
    if not os.access(folder, os.W_OK):
        return Check("shared memory", "broken", f"{folder} is not writable", f"mount -t tmpfs tmpfs {folder}")
    free = shutil.disk_usage(folder).free
    seen = f"{free >> 20} MiB free in {folder}"
    if free >= needed:
        return Check("shared memory", "ok", seen)
    mebibytes = -(-needed >> 20)
    fix = f"Full batches may need {mebibytes} MiB: start the container with --shm-size {mebibytes}m, or --ipc=host."
    # A server starts with 1 MiB an instance and grows; too little shows only under load.
    return Check("shared memory", "broken" if free < (8 << 20) else "warning", seen, fix)


def check_memory(needed: int, overcommit: bool = False, machine: int | None = None) -> Check:
    """Memory of this machine or its container. `needed` is in bytes; `machine` too, None asks the system."""
    machine = machine_bytes() if machine is None else machine
    if machine is None:
        return Check("memory", "ok", "this system does not report how much there is")
    seen = f"{machine / MB:.0f} MB here"
    if needed <= machine:
        return Check("memory", "ok", seen)
    return Check(
        "memory",
        "warning" if overcommit else "broken",
        f"{seen}, the models and Triton may take {needed / MB:.0f} MB",
        "Build the models with less (--memory-mb, --max-audio-s, --max-streams, --instances), serve fewer of them, or "
        "start with --overcommit.",
    )


def check_installation(installation: Installation) -> Check:
    """Whether the program starts at all, i.e. its libraries are there."""
    try:
        started = subprocess.run(
            [str(installation.executable), "--help"],
            env=installation.environment(),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("tritonserver", "broken", f"{installation.executable} does not run: {error}", "Reinstall it.")
    if "--model-repository" not in started.stdout + started.stderr:
        words = (started.stderr or started.stdout).strip().splitlines() or [f"exit code {started.returncode}"]
        return Check(
            "tritonserver",
            "broken",
            f"{installation.executable} does not start: {words[-1]}",
            "Install what it misses, or reinstall it (pip install --force-reinstall nvidia-pytriton).",
        )
    return Check("tritonserver", "ok", f"{installation.executable} ({installation.origin})")


def check_backend(installation: Installation, name: str) -> Check:
    """Whether the server has one of Triton's own backends, which models were built for."""
    if installation.has_backend(name):
        return Check(f"backend {name}", "ok", f"in {installation.root / 'backends'}")
    return Check(
        f"backend {name}",
        "broken",
        f"{installation.executable} has none",
        "Build the models again with --platform tritone (stages: --acoustic python), or, where the repository is not "
        "of Tritone, with tritone export onnx FILE --output BUNDLE and tritone build BUNDLE; or serve them with "
        "NVIDIA's container.",
    )


def check_stub(installation: Installation) -> Check:
    """Whether Triton's Python backend can run models in this version of Python."""
    is_readable = readable(installation.stub)
    versions = installation.stub_pythons if is_readable or installation.is_wheel else ()
    if not installation.stub.is_file():
        have = f"it has stubs for {', '.join(versions)}" if versions else "it has no Python backend"
        return Check(
            "python backend",
            "broken",
            f"{installation.executable} cannot run Python {PYTHON}: {have}",
            "Run Tritone with one of those versions, or pip install nvidia-pytriton into this one.",
        )
    if not is_readable:
        return Check(
            "python backend",
            "broken",
            f"the stub {installation.stub} cannot be read by this user",
            f"As its owner: chmod 755 {installation.stub}. Triton takes away rights of a stub that it starts.",
        )
    if versions and PYTHON not in versions:
        return Check(
            "python backend",
            "broken",
            f"the stub {installation.stub} embeds Python {', '.join(versions)}, this is {PYTHON}",
            "Install Tritone into that Python, or build the stub for this one (python_backend, target "
            "triton-python-backend-stub).",
        )
    return Check("python backend", "ok", f"stub for Python {PYTHON}")


def check_shell(installation: Installation) -> Check:
    """Whether there is a bash, by which Triton starts the processes of models."""
    programs = installation.environment()["PATH"]
    if found := shutil.which("bash", path=programs):
        return Check("shell", "ok", found)
    return Check("shell", "broken", f"no bash in {programs}", "apt-get install bash, or add its folder to PATH.")


def check_port(host: str, service: str, port: int) -> Check:
    """Whether `service` can listen on `port`."""
    name = f"{service} port"
    try:
        if is_free(host, port):
            return Check(name, "ok", f"{joined(host, port)} is free")
    except OSError as error:
        fix = f"Give an address of this machine with --host, and a port from 1024 up with --{service}-port."
        return Check(name, "broken", f"cannot listen on {joined(host, port)} ({error.strerror or error})", fix)
    return Check(
        name,
        "broken",
        f"{joined(host, port)} is taken by {holder(port)}",
        f"Stop it, or choose another port with --{service}-port.",
    )


def worst(checks: Iterable[Check]) -> Status:
    """The worst status among `checks`."""
    return max((check.status for check in checks), key=("ok", "warning", "broken").index, default="ok")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
