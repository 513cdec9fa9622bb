"""An installation of `tritonserver`, and what its Python backend needs to run *this* Python environment.

    find_installation(path | None)  ->  Installation  ->  command line, environment

Two layouts are known. *Installed*: NVIDIA's container, or an unpacked release, with `bin/tritonserver` beside
`backends/python/` that is complete. *Wheel*: the PyPI package `nvidia-pytriton`, which keeps one stub per Python
version in a folder of its own; Triton wants it beside the backend library, so `Installation.assemble` makes links.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tritone.errors import ServerSetupError

INSTALLED = Path("/opt/tritonserver/bin/tritonserver")
STUB = "triton_python_backend_stub"
BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, kw_only=True)
class Installation:
    """A `tritonserver` on this machine."""

    executable: Path
    origin: str  # how it was found, for people
    root: Path  # the folder that holds `bin/` and `backends/`
    library_folders: tuple[Path, ...] = ()  # where the loader must search besides the usual places

    @property
    def is_wheel(self) -> bool:
        """Whether the stubs come one folder per Python version, as in the PyPI wheel."""
        return (self.root / "python_backend_stubs").is_dir()

    @property
    def stub(self) -> Path:
        """The program that will run our models; it may not exist (see `stub_pythons`)."""
        if self.is_wheel:
            return self.root / "python_backend_stubs" / PYTHON / STUB
        return self.root / "backends" / "python" / STUB

    @property
    def stub_pythons(self) -> tuple[str, ...]:
        """The Python versions ("3.11") for which there is a stub, as far as they are known."""
        if self.is_wheel:
            found = (entry.parent.name for entry in (self.root / "python_backend_stubs").glob(f"*/{STUB}"))
            return tuple(sorted(found, key=lambda version: [int(part) for part in version.split(".")]))
        if not self.stub.is_file():
            return ()
        versions = re.findall(rb"libpython(3\.\d+)\.so", self.stub.read_bytes())
        return tuple(sorted({version.decode() for version in versions}))

    def has_backend(self, name: str) -> bool:
        """Whether it has a backend of this name (of Python's, see `stub`)."""
        return (self.root / "backends" / name).is_dir()

    def assemble(self, folder: Path) -> Path:
        """Return the backend directory to start with; the wheel's is assembled from links under `folder`."""
        if not self.is_wheel:
            return self.root / "backends"
        target = folder / "backends"
        (target / "python").mkdir(parents=True)
        for source in (*(self.root / "backends" / "python" / name for name in BACKEND_FILES), self.stub):
            (target / "python" / source.name).symlink_to(source)
        # Other backends that may lie beside it keep working.
        for other in (self.root / "backends").iterdir():
            if other.name != "python" and other.is_dir():
                (target / other.name).symlink_to(other)
        return target

    def environment(self) -> dict[str, str]:
        """Environment for the server: its stubs embed Python and must come up in the environment we run in."""
        libpython = find_libpython()
        libraries = [*self.library_folders, *([libpython.parent] if libpython else [])]
        return os.environ | {
            # The stub asks PATH for `python3` and takes that one's prefix and site-packages.
            "PATH": _joined([Path(sys.executable).parent], os.environ.get("PATH")),
            "LD_LIBRARY_PATH": _joined(libraries, os.environ.get("LD_LIBRARY_PATH")),
            "PYTHONPATH": _joined(_checkout(), os.environ.get("PYTHONPATH")),
            "PYTHONUNBUFFERED": "1",
            # glibc makes eight heaps a core for the server's hundred threads, and audio of ever new lengths leaves
            # holes in each of them: memory creeps up for thousands of requests.
            "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", str(max(2, os.cpu_count() or 1))),
        }


def has_backends(names: Collection[str]) -> bool:
    """Whether any names are given, and the tritonserver here has all these backends."""
    try:
        return bool(names) and all(map(find_installation().has_backend, names))
    except ServerSetupError:
        return False


def find_installation(path: str | Path | None = None) -> Installation:
    """Find `tritonserver`: at `path` if given, else on PATH, in /opt/tritonserver, in the wheel `nvidia-pytriton`.

    Raises:
        ServerSetupError: there is none, or `path` is not one.
    """
    if path is not None:
        given = Path(path).expanduser()
        if given.is_dir():
            given = given / "bin" / "tritonserver" if (given / "bin").is_dir() else given / "tritonserver"
        if not given.is_file() or not os.access(given, os.X_OK):
            raise ServerSetupError(f"{path} is not an executable tritonserver. Give the path of the program itself.")
        return _installation(given, "given")
    if on_path := shutil.which("tritonserver"):
        return _installation(Path(on_path), "on PATH")
    if os.access(INSTALLED, os.X_OK):
        return _installation(INSTALLED, "installed")
    wheel = _wheel_root()
    if wheel and os.access(wheel / "bin" / "tritonserver", os.X_OK):
        return _installation(wheel / "bin" / "tritonserver", "pip wheel nvidia-pytriton")
    raise ServerSetupError(
        f"no tritonserver found: not on PATH, not at {INSTALLED}, and nvidia-pytriton is not installed. "
        "On x86-64 Linux run `pip install nvidia-pytriton` with Python 3.11 or 3.12; elsewhere use NVIDIA's "
        "container, or name the program with --server."
    )


def find_libpython() -> Path | None:
    """Find the shared library of the running Python version; the backend stub cannot start without it."""
    name = f"libpython{PYTHON}.so.1.0"
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = [
        Path(sys.base_prefix) / "lib",
        Path(sys.base_prefix) / "lib64",
        Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib"),
        Path("/usr/lib") / multiarch,
        Path("/usr/lib64"),
        Path("/usr/local/lib"),
    ]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    return _from_loader_cache(name)


def _installation(executable: Path, origin: str) -> Installation:
    root = executable.resolve().parent.parent
    wheel_libraries = root.parent.parent / "nvidia_pytriton.libs"
    folders = [folder for folder in (root / "lib", wheel_libraries) if folder.is_dir()]
    return Installation(executable=executable.resolve(), origin=origin, root=root, library_folders=tuple(folders))


def _wheel_root() -> Path | None:
    # find_spec of a top-level package only looks for it; importing pytriton would pull in its own client and proxy.
    spec = importlib.util.find_spec("pytriton")
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) / "tritonserver" if places else None


def _from_loader_cache(name: str) -> Path | None:
    ldconfig = shutil.which("ldconfig", path=_joined([Path("/sbin"), Path("/usr/sbin")], os.environ.get("PATH")))
    if not ldconfig:
        return None
    cache = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    match = re.search(rf"{re.escape(name)} .*=> (\S+)", cache)
    return Path(match.group(1)) if match else None


def _checkout() -> list[Path]:
    # The stub must find a `tritone` that is imported from a checkout; site-packages must not be added, it would come
    # before the standard library there.
    root = Path(__file__).resolve().parents[2]
    return [] if root == Path(sysconfig.get_paths()["purelib"]).resolve() else [root]


def _joined(folders: list[Path], before: str | None) -> str:
    return os.pathsep.join([*map(str, folders), *([before] if before else [])])
