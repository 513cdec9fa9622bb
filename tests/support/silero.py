"""The package silero-vad itself, for comparison, imported without its change of torch's threads."""

from importlib import import_module
from typing import Any

import torch


def package() -> Any:
    """The module `silero_vad`."""
    threads = torch.get_num_threads()
    try:
        return import_module("silero_vad")
    finally:
        torch.set_num_threads(threads)  # its import sets one
