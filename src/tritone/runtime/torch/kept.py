"""What the user's cache folder has of compiled code for a device of this machine, as files for other machines.

stamp_here("cuda")                  what the code depends on
kept_files(programs, "cuda")        names such as PROGRAM/16000-….pt2 and kernels/KEY/_text.cubin, with their paths
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from tritone.errors import OperatorError
from tritone.runtime.cuda.kernels import stamp_of
from tritone.runtime.cuda.obstacle import obstacle
from tritone.runtime.files.program import read_program
from tritone.runtime.kept import kernels_of, root
from tritone.runtime.torch.compiled import CompiledStore


def stamp_here(device: str) -> Mapping[str, str]:
    """The stamp of code for a device; raises `OperatorError` if there is no such device."""
    if reason := obstacle(device):
        raise OperatorError(f"device {device} was asked for, but {reason}.")
    return stamp_of(torch.device(device))


def kept_files(programs: Sequence[Path], device: str) -> Iterator[tuple[str, Path]]:
    """The files of the cache that these programs use on a device, by their names without the stamp."""
    place = torch.device(device)
    for path in programs:
        kept = CompiledStore(read_program(path, place), place)
        for _, file in kept.calls():
            for each in (file, file.with_suffix(".json")):
                yield f"{kept.folder.parent.name}/{each.name}", each
    if programs and place.type == "cuda":
        kernels = kernels_of(root(), stamp_of(place))
        for each in sorted(kernels.rglob("*")):
            if each.is_file():
                yield f"kernels/{each.relative_to(kernels).as_posix()}", each
