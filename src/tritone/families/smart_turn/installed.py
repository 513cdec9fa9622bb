"""Smart Turn v3.2 as an installed package carries it."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from tritone.errors import ExportError

PACKAGE, VERSION = "pipecat", "pipecat-ai==1.14.0"
FILE = "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
SHA256 = "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f"


def installed_file() -> Path:
    """The file in the installed package.

    Raises:
        ExportError: the package is not there, or has another file; says how to get it.
    """
    package = find_spec(PACKAGE)
    file = None if package is None or package.origin is None else Path(package.origin).parent / FILE
    if file is None or not file.is_file():
        raise ExportError(f"to have Smart Turn say when turns end: pip install --no-deps {VERSION}")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != SHA256:
        raise ExportError(f"{file} has the SHA-256 {digest}, not {SHA256}: pip install --no-deps {VERSION}")
    return file
