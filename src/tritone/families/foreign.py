"""Forms of trained models that no family reads: what they are, and what would be needed. Nothing of them is loaded.

ggml-base.bin, an adapter of PEFT, a folder of MLX, …  ->  Foreign
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.paths import open_file

MAX_TEXT_BYTES = 16 * 2**20  # of a config
GGML = {b"lmgg": "ggml", b"ggml": "ggml", b"GGUF": "GGUF"}


@dataclass(frozen=True)
class Foreign:
    """`what` it is, a part of a sentence; `needed`: what would be, a sentence without its full stop."""

    what: str
    needed: str

    @property
    def sentence(self) -> str:
        """For errors."""
        return f"this is {self.what}; {self.needed}"


def foreign_form(path: Path) -> Foreign | None:
    """What a file or folder in such a form is; None if it is in none of them, or cannot be read."""
    try:
        return _folder(path) if path.is_dir() else _file(path)
    except (OSError, ValueError, EOFError, struct.error, RecursionError):
        return None


def _folder(path: Path) -> Foreign | None:
    def has(name: str) -> bool:
        return (path / name).is_file()

    if has("adapter_config.json"):
        base = _json(path / "adapter_config.json").get("base_model_name_or_path")
        return Foreign(
            f"a PEFT adapter for {str(base)[:80]!r}, without the model that it changes",
            "merge it into its model in peft (merge_and_unload), save that, and export its folder",
        )
    if has("model.bin") and (spec := _ctranslate2(path / "model.bin")) and spec != "WhisperSpec":
        return Foreign(
            f"a CTranslate2 model of type {spec}, which is no Whisper",
            "its network would be needed here; take the model that it was converted from",
        )
    if has("weights.npz") or has("weights.safetensors"):
        return Foreign(
            "a folder of MLX (weights with Apple's names and layout)",
            "its names and layouts would be needed here; take the folder of transformers that it was made of",
        )
    return None


def _file(path: Path) -> Foreign | None:
    with open_file(path) as file:
        start = file.read(4)
    if form := GGML.get(start):
        return Foreign(
            f"a {form} file, as whisper.cpp has them",
            "its quantised layouts would be needed here; take the model in transformers' or OpenAI's form",
        )
    return None


def _ctranslate2(path: Path) -> str:
    """The type of model that CTranslate2 wrote; empty if it did not write the file."""
    with open_file(path) as file:
        version, length = struct.unpack("<IH", file.read(6))
        name = file.read(min(length, 200))
    is_one = 1 <= version <= 100 and 1 < length <= 200 and name.endswith(b"Spec\0")
    return name[:-1].decode("ascii", "replace") if is_one else ""


def _json(path: Path) -> dict[str, Any]:
    content = json.loads(_text(path))
    return content if isinstance(content, dict) else {}


def _text(path: Path) -> str:
    with open_file(path) as file:
        return file.read(MAX_TEXT_BYTES).decode("utf-8", "replace")
