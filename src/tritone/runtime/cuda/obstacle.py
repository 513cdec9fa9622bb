"""Why torch cannot run on a device."""

import torch

from tritone.runtime.device import cuda_index


def obstacle(device: str) -> str | None:
    """Why the installed torch cannot run on a device, with the way out; None if it can.

    Raises:
        ValueError: it is no device name.
    """
    index = cuda_index(device)
    if index is None:
        return None
    if torch.version.cuda is None:
        return f"the installed torch {torch.__version__} has no CUDA support. Install a build of torch for CUDA"
    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} finds no usable NVIDIA GPU: the driver is missing, or too old for CUDA "
            f"{torch.version.cuda}"
        )
    if index >= torch.cuda.device_count():
        return f"this machine has {torch.cuda.device_count()} GPUs, counted from 0"
    return None
