"""The line of pip that adds extras to this installation.

    ("gateway",)  ->  pip install '.[gateway]'

Tritone is installed from a checkout or from a wheel's file, which pip records (PEP 610), or from an index.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def pip_install(*extras: str) -> str:
    """The command that installs Tritone with some extras from where this one came from."""
    return f"pip install '{_origin()}[{','.join(extras)}]'"


def _origin() -> str:
    url = urlsplit(str(_direct_url().get("url", "")))
    if url.scheme != "file":
        return "tritone"
    path = Path(unquote(url.path))
    with suppress(FileNotFoundError):  # who is in a folder that was deleted
        if path == Path.cwd():
            return "."
    # Of a file that is gone the name says which one to look for.
    return str(path) if path.exists() else path.name


def _direct_url() -> Mapping[str, Any]:
    try:
        text = distribution("tritone").read_text("direct_url.json")
    except PackageNotFoundError:  # a folder of sources on the path
        text = None
    found: Mapping[str, Any] = json.loads(text) if text else {}
    return found
