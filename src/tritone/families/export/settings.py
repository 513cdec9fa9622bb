"""Settings of upstreams' config files, read with known keys and types; every error names the key.

{"encoder": {"n_heads": 4}}  ->  Section("config", ...).section("encoder", KEYS).whole("n_heads")  ->  4
"""

import math
import reprlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tritone.errors import ExportError
from tritone.yaml_text import read_yaml

MAX_SIZE = 2**20  # of anything: channels, kernels, samples of a window
MAX_CONFIG_BYTES = 16 * 2**20


def read_bytes(path: Path, what: str, most: int = MAX_CONFIG_BYTES) -> bytes:
    """A file that is small beside a model; `what` names it in errors.

    Raises:
        ExportError: it is missing, or has more than `most` bytes.
    """
    if not path.is_file():
        raise ExportError(f"{what} not found: {path}")
    if (size := path.stat().st_size) > most:
        raise ExportError(f"{what} {path} has {size} bytes; more than {most} cannot be right")
    return path.read_bytes()


def read_config_file(path: Path) -> dict[str, Any]:
    """The settings in a YAML file.

    Raises:
        ExportError: as of `read_bytes`, or it is no YAML, or holds something else.
    """
    content = read_yaml(read_bytes(path, "config"), f"config {path}", ExportError)
    if not isinstance(content, dict):
        raise ExportError(f"config {path} should hold settings (key: value), it holds one {type(content).__name__}")
    return content


def shown(value: Any) -> str:
    """A value of a file as it appears in an error: short, whatever its author made of it."""
    short = reprlib.Repr()
    short.maxlevel = 2  # lists of lists may repeat each other without bounds
    return short.repr(value)


_NEEDED: Any = object()


class Section:
    """Settings with known keys; every error names the key."""

    def __init__(self, path: str, values: Any, keys: Collection[str] | None = None) -> None:
        if not isinstance(values, Mapping):
            raise ExportError(f"{path} should hold settings (key: value), found {type(values).__name__}")
        self.path, self._values = path, values
        unknown = [str(key) for key in values if keys is not None and key not in keys]
        if keys is not None and unknown:
            raise ExportError(f"{path}: unknown {', '.join(unknown[:10])}; upstream knows {', '.join(keys)}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str, default: Any = _NEEDED) -> Any:
        """A value as it is."""
        value = self._values.get(key, default)
        if value is _NEEDED:
            raise ExportError(f"{self.path}.{key} is missing")
        return value

    def section(self, key: str, keys: Collection[str] | None = None) -> "Section":
        path = key if self.path == "config" else f"{self.path}.{key}"
        return Section(path, self.get(key), keys)

    def part(self, key: str, keys: Collection[str] | None = None) -> "Section":
        """A section that may be missing, or have nothing in it."""
        held = self if self.get(key, None) is not None else Section(self.path, {key: {}})
        return held.section(key, keys)

    def number(self, key: str, default: float = _NEEDED, *, empty: float | None = None) -> float:
        """A number; `empty` is what an empty value stands for, by default the default."""
        value = self.get(key, default)
        if value is None and default is not _NEEDED:
            return default if empty is None else empty
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise ExportError(f"{self.path}.{key} is {shown(value)}, expected a number")
        return float(value)

    def whole(self, key: str, default: int = _NEEDED, *, least: int | None = None, most: int = MAX_SIZE) -> int:
        """A whole number, which may be alone in a list."""
        value = self.get(key, default)
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:
            [value] = value
        if value is None and default is not _NEEDED:
            value = default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ExportError(f"{self.path}.{key} is {shown(value)}, expected a whole number")
        if not (value if least is None else least) <= value <= most:
            raise ExportError(f"{self.path}.{key} is {value}, expected {least} to {most}")
        return value

    def flag(self, key: str, default: bool = _NEEDED) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ExportError(f"{self.path}.{key} is {shown(value)}, expected true or false")
        return value

    def choice(self, key: str, known: Sequence[str], default: str = _NEEDED) -> str:
        value = self.get(key, default)
        if value not in known:
            raise ExportError(f"{self.path}.{key} is {shown(value)}; upstream knows {', '.join(known)}")
        return str(value)
