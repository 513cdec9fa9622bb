"""Whether the kernels of this package can run on a device: Triton must be there, and must be able to compile.

device  ->  module `kernels`, or None
"""

import logging
from typing import Any

import torch

LOGGER = logging.getLogger(__name__)


def kernels_for(device: str) -> Any:
    """The module `kernels` if its kernels run on a device, which is tried; else None, with a word in the log."""
    if torch.device(device).type != "cuda":
        return None
    try:
        from tritone.search.device import kernels

        ones = torch.ones(2, 4, device=device)
        chosen, _ = kernels.spread(ones, torch.zeros(2, dtype=torch.int64, device=device), ones, 1)
        assert bool((chosen == 1).all())
    except Exception as error:  # whatever the compiler, which is a program of the machine, lacks
        LOGGER.warning("transducers are searched in more, smaller steps, because Triton cannot be used: %s", error)
        return None
    return kernels
