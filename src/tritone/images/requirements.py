"""A user's requirements.txt against the versions that an image has.

    requirements.txt, constraints.txt  ->  nothing, or an error that names each line that cannot be

pip checks what these packages need in turn, when the image is built: it has the same versions as constraints.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tritone.errors import InputError
from tritone.paths import plain_text

MAX_BYTES = 1 << 20  # of a list of packages
MAX_FILES = 32  # that lists may include
PYTHONS = tuple(
    {"python_version": each, "python_full_version": f"{each}.0", "sys_platform": "linux", "platform_machine": "x86_64"}
    for each in ("3.11", "3.12")
)
ENGINE_PACKAGES = ("numpy", "nvidia-pytriton", "tritonclient", "protobuf")


def read_pins(path: Path) -> dict[str, list[str]]:
    """The versions of a constraints file with lines `name==version; marker`, by normalised name.

    Of a package that has several, those for the Pythons of images (`PYTHONS`) on x86-64 Linux.

    Raises:
        InputError: the file is missing, or a line is something else.
    """
    pins: dict[str, list[str]] = {}
    for number, line in _lines(path):
        try:
            requirement = Requirement(line)
            (pin,) = requirement.specifier
        except (InvalidRequirement, ValueError) as error:
            raise InputError(f"{path}:{number}: {line!r:.100} is no name==version") from error
        if pin.operator != "==":
            raise InputError(f"{path}:{number}: {line!r:.100} is no name==version")
        if requirement.marker is None or any(map(requirement.marker.evaluate, PYTHONS)):
            pins.setdefault(canonicalize_name(requirement.name), []).append(pin.version)
    return pins


def check_requirements(path: Path, pins: Mapping[str, Collection[str]]) -> None:
    """Make sure that no line asks for another version of a package than an image has.

    Files that it includes (`-r`) are checked too. Addresses, wheels and options of pip are left to pip.

    Args:
        pins: as of `read_pins`.

    Raises:
        InputError: lines do, or are no requirements; a file is missing, or outside of the folder of the first.
    """
    wrong = []
    for file, number, line in _requirements(path.resolve()):
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise InputError(
                f"{file}:{number}: {line!r:.100} is no requirement such as scipy>=1.11: {error}"
            ) from error
        pinned = pins.get(canonicalize_name(requirement.name), ())
        if not pinned or (requirement.marker and not requirement.marker.evaluate()):
            continue
        fitting = any(requirement.specifier.contains(version, prereleases=True) for version in pinned)
        if requirement.url or not fitting:
            reason = ", which Triton's Python backend is used with" if requirement.name in ENGINE_PACKAGES else ""
            wrong.append(
                f"{file.name}:{number}: {line}, but the image has {requirement.name} {' or '.join(pinned)}{reason}"
            )
    if wrong:
        told = "\n".join(f"  {each}" for each in wrong)
        raise InputError(
            f"{path} does not fit the versions of the image:\n{told}\nAsk for these versions, or for none; or change "
            "constraints.txt within what pyproject.toml allows, and test the image."
        )


def _requirements(first: Path) -> Iterator[tuple[Path, int, str]]:
    """File, number and text of each requirement by name and version."""
    waiting, seen = [first], {first}
    while waiting:
        path = waiting.pop()
        for number, line in _lines(path):
            if line.startswith(("-r", "--requirement")):
                name = line.removeprefix("--requirement").removeprefix("-r").lstrip(" =")
                other = (path.parent / name).resolve()
                if not other.is_relative_to(first.parent):
                    raise InputError(f"{path}:{number}: {name} is outside of {first.parent}, which the build gets")
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
                if len(seen) > MAX_FILES:
                    raise InputError(f"{first} includes more than {MAX_FILES} files")
            elif not line.startswith(("-", ".", "/")) and "://" not in line.split("@")[0]:
                yield path, number, line.split(" --")[0].strip()  # hashes and other options of the line


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a list that say something, with their numbers; a line that ends with a backslash goes on."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{path} has {len(data)} bytes, a list of packages at most {MAX_BYTES}")
    try:
        text = plain_text(data)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error}") from error
    begun = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = begun + line.split(" #")[0].strip()
        begun = ""
        if words.endswith("\\"):
            begun = words[:-1]
        elif words and not words.startswith("#"):
            yield number, words
