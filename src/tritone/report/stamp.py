"""The conditions of a measurement: machine, software, command. Written once, when the measurement begins.

    this process, this machine  ->  Stamp  ->  JSON, one line, rows of a table

A stamp describes the machine that measures. The server may run on another one; `server` says what is known of it.
"""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from tritone.container import usable_cpus

PACKAGES = ("tritone", "onnxruntime", "torch", "numpy", "tritonclient", "nvidia-pytriton")
TOOL_TIMEOUT_S = 5.0  # nvidia-smi takes up to 2 s where the driver has to wake up; one that hangs must not stop a run
CHECKOUT = Path(__file__).resolve().parents[3]  # of src/tritone/report/stamp.py


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The conditions of one run.

    `commit`: of the checkout that tritone runs from, "" of an installed one. `cores`: those that this process may use,
    not all that there are. `gpus`: name and memory of each that CUDA_VISIBLE_DEVICES leaves. `load`: the system's load
    average over a minute when the run began. `server`: what was measured where, in words.
    """

    command: str
    date: str
    commit: str
    processor: str
    cores: int
    memory_gib: float
    gpus: Sequence[str] = ()
    driver: str = ""
    system: str
    versions: Mapping[str, str]
    load: float
    server: str = ""

    def __post_init__(self) -> None:
        # JSON knows lists only; a stamp that was read equals the one that was written
        object.__setattr__(self, "gpus", tuple(self.gpus))
        object.__setattr__(self, "versions", dict(self.versions))

    @classmethod
    def here(cls, command: str | None = None) -> "Stamp":
        """Describe this process and this machine; `command` is this process's own command line when not given.

        Takes some milliseconds, with an NVIDIA driver up to `TOOL_TIMEOUT_S`. Never raises: what cannot be found out
        is empty.
        """
        gpus, driver = _gpus()
        return cls(
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if command is None else command,
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commit=_commit(CHECKOUT),
            processor=_processor(),
            cores=usable_cpus(),
            memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
            gpus=gpus,
            driver=driver,
            system=_system(),
            versions={name: found for name in PACKAGES if (found := _version(name))},
            load=round(psutil.getloadavg()[0], 2),
        )

    def of_server(self, server: str) -> "Stamp":
        """The same stamp with a word on the server that was measured, e.g. "triton 2.51.0 on loopback"."""
        return replace(self, server=server)

    def rows(self) -> list[tuple[str, str]]:
        """Name and text of every condition that is known, in the order in which they are shown."""
        found = [
            ("command", self.command),
            ("date", self.date),
            ("commit", self.commit),
            ("server", self.server),
            ("processor", self.processor),
            ("cores", str(self.cores)),
            ("memory", f"{self.memory_gib:g} GiB"),
            ("GPUs", _counted(self.gpus)),
            ("driver", self.driver),
            ("system", self.system),
            ("versions", ", ".join(f"{name} {number}" for name, number in self.versions.items())),
            ("load average before", f"{self.load:g}"),
        ]
        return [(name, text) for name, text in found if text]

    def machine(self) -> str:
        """Hardware and software on one line."""
        gpus = [_counted(self.gpus) + (f" (driver {self.driver})" if self.driver else "")] if self.gpus else []
        software = [self.system, *(f"{name} {number}" for name, number in self.versions.items())]
        return ", ".join([self.processor, f"{self.cores} cores", f"{self.memory_gib} GiB", *gpus, *software])

    def summary(self) -> str:
        """All but the command on one line."""
        when = f"{self.date}, commit {self.commit}" if self.commit else self.date
        return "; ".join(filter(None, [when, self.server, self.machine(), f"load average before: {self.load:g}"]))


def _counted(gpus: Sequence[str]) -> str:
    """GPUs as text, equal ones once: "8 x NVIDIA H200 (140 GiB)"."""
    kinds = dict.fromkeys(gpus)
    return ", ".join(f"{count} x {kind}" if (count := list(gpus).count(kind)) > 1 else kind for kind in kinds)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):  # not on ARM
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, Python {platform.python_version()}"


def _version(package: str) -> str:
    for name in (package, f"{package}-gpu"):  # one wheel or the other holds the module `onnxruntime`
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def _gpus() -> tuple[tuple[str, ...], str]:
    """The GPUs that CUDA would show to this process, and the driver's version; nothing without a driver."""
    query = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits")
    try:
        lines = _output(*query).splitlines()
    except (OSError, subprocess.SubprocessError):
        return (), ""
    found = [fields for line in lines if len(fields := [each.strip() for each in line.split(",")]) == 5]
    visible = _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return tuple(_gpu(name, memory) for _, _, name, memory, _ in visible), visible[0][4] if visible else ""


def _gpu(name: str, memory_mib: str) -> str:
    return f"{name} ({int(memory_mib) / 1024:.0f} GiB)" if memory_mib.isdecimal() else name  # "[N/A]" on some boards


def _visible(gpus: Sequence[list[str]], chosen: str | None) -> list[list[str]]:
    """Those of `gpus` (index, UUID, ...) that CUDA_VISIBLE_DEVICES names; the first that is unknown ends the list.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    if chosen is None:
        return list(gpus)
    visible = []
    for name in (each.strip() for each in chosen.split(",")):
        # a UUID may be cut short; an index may not
        match = [gpu for gpu in gpus if gpu[0] == name or (name.startswith("GPU-") and gpu[1].startswith(name))]
        if len(match) != 1:
            break
        visible.append(match[0])
    return visible


def _commit(root: Path) -> str:
    """The short commit of the checkout at `root`, " with changes" when its code differs; "" when it is none."""
    if not (root / ".git").exists() or not (root / "src" / "tritone").is_dir():
        return ""  # installed, perhaps into an environment that lies in somebody else's checkout
    git = ("git", "-C", str(root))
    try:
        changed = _output(*git, "status", "--porcelain", "--", "src", "benchmarks").strip()
        return _output(*git, "rev-parse", "--short", "HEAD").strip() + (" with changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _output(*command: str) -> str:
    """The output of a command; git's variables are left out, which a hook sets to another checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=True,
        timeout=TOOL_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        env=environment,
    ).stdout
