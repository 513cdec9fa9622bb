"""The package silero-vad itself, for comparison, imported without its change of torch's threads."""

from typing import Any

import pytest
import torch


def package() -> Any:
    """The module `silero_vad`; a test that needs it is skipped where it is not installed."""
    threads = torch.get_num_threads()
    try:
        return pytest.importorskip(
            "silero_vad", reason="the package silero-vad, which is compared with, is not installed"
        )
    finally:
        torch.set_num_threads(threads)  # its import sets one
