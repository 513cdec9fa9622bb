"""JSON files of strangers: an object or a list each, of a limited size."""

import json
from pathlib import Path
from typing import Any, overload

from tritone.errors import ExportError
from tritone.families.known import refuse_foreign
from tritone.paths import plain_text

MAX_JSON_BYTES = 64 * 2**20


@overload
def read_json(path: Path, kind: type[list[Any]]) -> list[Any]: ...


@overload
def read_json(path: Path, kind: type[dict[Any, Any]] = dict) -> dict[str, Any]: ...


def read_json(path: Path, kind: type = dict) -> Any:
    """The object in a JSON file, or the list.

    Raises:
        ExportError: the file is missing, too large, or holds something else.
    """
    if not path.is_file():
        refuse_foreign(path.parent)
        raise ExportError(f"{path} not found: give a folder that transformers' save_pretrained wrote")
    if (size := path.stat().st_size) > MAX_JSON_BYTES:
        raise ExportError(f"{path} has {size} bytes; more than {MAX_JSON_BYTES} cannot be right")
    try:
        content = json.loads(plain_text(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(content, kind):
        raise ExportError(
            f"{path} must hold a JSON {'object' if kind is dict else 'list'}, got a {type(content).__name__}"
        )
    return content


def read_json_if_there(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is no file; errors as of `read_json`."""
    return read_json(path) if path.is_file() else {}
