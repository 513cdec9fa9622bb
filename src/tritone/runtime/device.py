"""Where a graph runs: `cpu`, `cuda` or `cuda:<index>`, and on how many threads."""

import re

from tritone.container import usable_cpus


def cuda_index(device: str) -> int | None:
    """The index of the CUDA device that a device name means; None for `cpu`.

    Raises:
        ValueError: it is no device name.
    """
    match = re.fullmatch(r"cpu|cuda(?::([0-9]+))?", device)
    if match is None:
        raise ValueError(f"device must be cpu, cuda or cuda:<index>, got {device!r}")
    return None if device == "cpu" else int(match[1] or 0)


def thread_count(threads: int | None) -> int:
    """The number of threads to use: `threads`, or all usable CPUs for None.

    Raises:
        ValueError: `threads` is below 1.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    return threads or usable_cpus()
