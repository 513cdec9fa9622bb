"""Building an image of deploy/images/Dockerfile: its options, and the command line."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritone.errors import InputError, OperatorError
from tritone.images.engine import Engine, option
from tritone.images.requirements import check_requirements, read_pins

TARGETS = ("server", "server-slim", "client", "gateway", "export")
DOCKERFILE = Path("deploy/images/Dockerfile")
VERSIONS = Path("constraints.txt")
VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
ON_NVIDIA = ("server",)  # targets whose base is BASE; that of the others is SLIM_BASE
TAKE_EXTRAS = ("server", "server-slim")


@dataclass(frozen=True, kw_only=True)
class ImageBuild:
    """What an image is built from."""

    tag: str = option("", "Name of the image; if not given tritone/TARGET:VERSION.")
    base: str = option("", "Image to begin with; if not given NVIDIA's Triton for server, else Debian.")
    requirements: Path | None = option(
        None, "requirements.txt of yours, installed too; checked against the versions of the image."
    )
    extras: str = option("", "Extras of tritone in servers, as in remote,torch; if not given remote.")
    packages: str = option("", "Packages of Debian to install too, as in 'ffmpeg sox'.")
    tensorrt: str = option("", "For export: a package of TensorRT, as in tensorrt-cu13.")
    pip_conf: Path | None = option(None, "Settings of pip for the build, such as a mirror; not kept in the image.")
    ca_bundle: Path | None = option(None, "Certificates that pip trusts during the build; not kept in the image.")

    def command(self, engine: Engine, target: str, checkout: Path, extra: Sequence[str] = ()) -> list[str]:
        """The command line that builds an image.

        Args:
            target: of `TARGETS`.
            checkout: root of Tritone's sources, see `find_checkout`.
            extra: further options of the engine's `build`.

        Raises:
            InputError: the requirements do not fit the versions of the image, or files are missing.
            ValueError: there is no such target, or it does not take these options.
        """
        self._check(target)
        version = _version(checkout)
        arguments = {
            "VERSION": version,
            "REVISION": _revision(checkout),
            "BASE" if target in ON_NVIDIA else "SLIM_BASE": self.base,
            "EXTRAS": self.extras,
            "PACKAGES": self.packages,
            "TENSORRT": self.tensorrt,
        }
        command: list[str] = [engine, "build", "--file", str(checkout / DOCKERFILE), "--target", target]
        command += ["--tag", self.tag or f"tritone/{target}:{version}"]
        if engine == "podman":
            command += ["--format", "docker"]  # the other one has no health checks
        if self.requirements is not None:
            check_requirements(self.requirements, read_pins(checkout / VERSIONS))
            arguments["REQUIREMENTS"] = self.requirements.name
            command += ["--build-context", f"requirements={self.requirements.resolve().parent}"]
        for name, value in arguments.items():
            if value:
                command += ["--build-arg", f"{name}={value}"]
        for name, path in (("pip-conf", self.pip_conf), ("ca-bundle", self.ca_bundle)):
            if path is not None:
                if not path.is_file():
                    raise InputError(f"there is no file {path}")
                command += ["--secret", f"id={name},src={path.resolve()}"]
        return [*command, *extra, str(checkout)]

    def _check(self, target: str) -> None:
        if target not in TARGETS:
            raise ValueError(f"there is no target {target!r:.50}; there are {', '.join(TARGETS)}")
        if self.extras and target not in TAKE_EXTRAS:
            raise ValueError(f"extras are for {' and '.join(TAKE_EXTRAS)}; {target} has its own")
        if self.tensorrt and target != "export":
            raise ValueError(f"a package of TensorRT is for the target export, not for {target}")


def find_checkout(given: Path | None = None) -> Path:
    """The root of Tritone's sources: the folder that is given, else that of this package, else the current one.

    Raises:
        InputError: it has no Dockerfile.
    """
    folders = [given] if given is not None else [Path(__file__).resolve().parents[3], Path.cwd()]
    for folder in folders:
        if (folder / DOCKERFILE).is_file():
            return folder.resolve()
    told = " nor ".join(str(folder) for folder in folders)
    raise InputError(f"no {DOCKERFILE} in {told}. Images are built of a checkout of Tritone: name it with --context.")


def version_here() -> str:
    """The version of this package, which tags of images are named after."""
    from importlib.metadata import version

    return version("tritone")


def _version(checkout: Path) -> str:
    found = VERSION.search((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    if found is None:
        raise OperatorError(f"{checkout / 'pyproject.toml'} has no line 'version = \"...\"'")
    return found[1]


def _revision(checkout: Path) -> str:
    """The commit of the sources, for the label of images; "" where git does not know it."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
