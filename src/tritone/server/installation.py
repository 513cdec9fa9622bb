"""An installation of `tritonserver`, and what its Python backend needs to run *this* Python environment.

    find_installation(path | None)  ->  Installation  ->  command line, environment

Two layouts are known. *Installed*: NVIDIA's container, or an unpacked release, with `bin/tritonserver` beside
`backends/python/` that is complete. *Wheel*: the PyPI package `nvidia-pytriton`, which keeps one stub per Python
version in a folder of its own. Triton wants it beside the backend library, and models' processes are to begin with a
file of ours (`tritone.backend.stub`), so `Installation.assemble` makes links.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tritone import backend
from tritone.backend.stub import OWN, STANDING, UTILS
from tritone.errors import ServerSetupError
from tritone.server.folder import PLAIN_PATH, absolute_entries, runs_programs

INSTALLED = Path("/opt/tritonserver/bin/tritonserver")
STUB = "triton_python_backend_stub"
STUB_FIRST = Path(backend.__file__).with_name("stub.py")
# Of every shell, for an environment without PATH: Triton starts stubs by bash.
USUAL_PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
UTF8_LOCALE = re.compile(r".*\.utf-?8(@.*)?", re.IGNORECASE)
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
        """Return the backend directory to start with, of links under `folder`, and a copy of the stub.

        Triton takes all rights but to run it, and that of its owner, from the stub that it is given; nobody else could
        start it then, and nobody at all who does not own it. Where no program of `folder` runs there is a link.
        """
        target = folder / "backends"
        python = target / "python"
        python.mkdir(parents=True)
        for source in (self.root / "backends" / "python").iterdir():
            if source.name not in (f"{UTILS}.py", STUB):
                (python / source.name).symlink_to(source)
        if runs_programs(folder):
            readable(self.stub)
            shutil.copyfile(self.stub, python / STUB)
        else:
            (python / STUB).symlink_to(self.stub)
        (python / f"{UTILS}.py").symlink_to(STUB_FIRST)
        (python / OWN).symlink_to(self.root / "backends" / "python" / f"{UTILS}.py")
        for other in (self.root / "backends").iterdir():
            if other.name != "python" and other.is_dir():
                (target / other.name).symlink_to(other)
        return target

    def environment(self) -> dict[str, str]:
        """Environment for the server: its stubs embed Python and must come up in the environment we run in.

        Folders in which programs, libraries and modules are looked for are absolute: where one stands is none of them.
        """
        libpython = find_libpython()
        libraries = [*self.library_folders, *([libpython.parent] if libpython else [])]
        programs = absolute_entries(os.environ.get("PATH"))
        programs += [each for each in USUAL_PROGRAMS if each not in programs]
        return os.environ | {
            # The stub asks PATH for `python3` and takes that one's prefix and site-packages.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), *programs]),
            "LD_LIBRARY_PATH": _joined(libraries, os.environ.get("LD_LIBRARY_PATH")),
            "PYTHONPATH": _joined(_checkout(), os.environ.get("PYTHONPATH")),
            "PYTHONUNBUFFERED": "1",
            **utf8_locale(os.environ),
            # glibc makes eight heaps a core for the server's hundred threads, and audio of ever new lengths leaves
            # holes in each of them: memory creeps up for thousands of requests.
            "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", str(max(2, os.cpu_count() or 1))),
        }

    def start_environment(self, folder: Path) -> dict[str, str]:
        """Environment to start the server with: its stubs begin in an empty folder under `folder`, and go back then.

        The server itself stays where one stands, which relative paths among its arguments mean.
        """
        empty, first = folder / "empty", folder / "first.sh"
        empty.mkdir()
        # bash reads it before the command by which Triton starts a stub, which ends in `exec`.
        theirs = os.environ.get("BASH_ENV")
        after = "unset BASH_ENV" if theirs is None else f"export BASH_ENV={shlex.quote(theirs)}"
        first.write_bytes(os.fsencode(f'{after}\nexec() {{ cd {empty}; builtin exec "$@"; }}\n'))
        try:
            standing = {STANDING: os.getcwd()}
        except FileNotFoundError:  # it was deleted
            standing = {}
        return {**self.environment(), "BASH_ENV": str(first), "TMPDIR": temporary_folder(folder), **standing}


def temporary_folder(folder: Path) -> str:
    """That of this user; or if libraries may not take its path, the place of the server's own folder."""
    with suppress(FileNotFoundError):  # there is none
        if PLAIN_PATH.fullmatch(usual := tempfile.gettempdir()):
            return usual
    return str(folder.parent)


def readable(stub: Path) -> bool:
    """Whether a stub can be read; one of our own from which a server took all other rights is given them back."""
    if not os.access(stub, os.R_OK):
        with suppress(OSError):
            stub.chmod(0o755)
    return os.access(stub, os.R_OK)


def utf8_locale(environment: Mapping[str, str]) -> dict[str, str]:
    """What makes the locale of an environment one of UTF-8 if it is not, for processes that are started in it."""
    deciding = next((name for name in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(name)), "LANG")
    if UTF8_LOCALE.fullmatch(environment.get(deciding, "")):
        return {"PYTHONUTF8": "1"}
    return {"PYTHONUTF8": "1", "LC_ALL" if deciding == "LC_ALL" else "LC_CTYPE": "C.UTF-8"}


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
    ldconfig = shutil.which("ldconfig", path=os.pathsep.join(["/sbin", "/usr/sbin"]))
    if not ldconfig:
        return None
    cache = os.fsdecode(subprocess.run([ldconfig, "-p"], capture_output=True, check=False).stdout)
    match = re.search(rf"{re.escape(name)} .*=> (\S+)", cache)
    return Path(match.group(1)) if match else None


def _checkout() -> list[Path]:
    # The stub must find a `tritone` that is imported from a checkout; site-packages must not be added, it would come
    # before the standard library there.
    root = Path(__file__).resolve().parents[2]
    return [] if root == Path(sysconfig.get_paths()["purelib"]).resolve() else [root]


def _joined(folders: list[Path], before: str | None) -> str:
    return os.pathsep.join([*map(str, folders), *absolute_entries(before)])
