"""Writing files that are complete or absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def save_torch(state: Any, path: Path) -> None:
    """The file is complete or absent."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)
