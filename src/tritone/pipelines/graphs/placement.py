"""Where graphs run, and which of a bundle's graphs: one value that every pipeline takes.

Placement(device="cuda:0", precision="fp16")
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from tritone.bundle.manifest import Precision
from tritone.pipelines.graphs.buckets import read_sizes
from tritone.runtime.device import cuda_index, thread_count
from tritone.runtime.known import check_runtime

if TYPE_CHECKING:
    from tritone.preparing import Preparing

AUTO = "auto"  # sizes for lengths as those of speech usually are


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the graphs of a pipeline run, and which of its bundle's graphs these are.

    Raises:
        ValueError: there is no such device, runtime or precision, or the number of threads is below 1.
    """

    device: str = "cpu"  # cpu, cuda or cuda:<index>
    threads: int | None = None  # CPU threads of one graph call; None takes every CPU that this process may use
    # Names as in the manifest. None takes the first graph, in its order, whose runtime can run on the device;
    # engines of TensorRT, TorchScript and functions, which are programs, are taken only where `runtime` asks for them.
    runtime: str | None = None
    precision: str | None = None
    # Sizes of calls to compile the network for when it is opened, if this machine has not done so: AUTO, or such as
    # "64x10,1x16.7" (rows x seconds). None uses what was compiled before.
    compile: str | None = None
    # Where what the first answers do not need, such as compiling, is done beside them; None: before there are any.
    preparing: "Preparing | None" = field(default=None, compare=False)
    memory_mb: float | None = None  # of the process, in megabytes, where what calls take was measured; None: all

    def __post_init__(self) -> None:
        if self.runtime is not None:
            check_runtime(self.runtime)
        if self.precision not in (None, *get_args(Precision)):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}")
        if self.compile not in (None, AUTO):
            read_sizes(self.compile, 1)
        cuda_index(self.device)
        thread_count(self.threads)


ON_CPU = Placement()
