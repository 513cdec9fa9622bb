"""How many processes run a model, and where; and what suits a device where nothing else is given.

"2"      two where models run by default        "4@0,1"   four on each of the GPUs 0 and 1
"2@cpu"  two on the CPU                         "1@gpu"   one on every GPU
"1@0,2@1,2"  one on the GPU 0, two on each of the GPUs 1 and 2
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from tritonclient.grpc import model_config_pb2 as pb

Device = Literal["cpu", "gpu"]

AUTO = -(10**9)  # an option that is to suit the device, which nobody means; written `auto`


@dataclass(frozen=True, kw_only=True)
class Usual:
    """What suits a device: processes of a model (on each GPU), most requests in a call, and the wait for one to fill.

    On the CPU one process uses all cores, and a batch is there to share them fairly; more processes are for more cores
    than one call can use.

    On a GPU a process prepares a batch while that of another is computed: one alone leaves the device idle for as long
    as it fills blocks and answers. On an H200 1, 2, 3 and 4 processes reached 0.85, 0.95, 0.95 and 0.98 of what a
    network of 20 ms could do alone (`benchmarks.instances`), and on a server six were 1 % faster than four.

    A call of whole utterances takes as many rows as the compiled network has in its largest bucket, and does not wait
    for them: batches form while all processes are at work. With 0 and 1 ms, 1, 16, 64 and 256 requests of 10 s in
    flight (d=512) had 251 and 194, 1,481 and 1,621, 2,767 and 2,693, 4,058 and 3,974 utterances/s, and a request alone
    took 3.8 and 5.1 ms. Most of a step of streams is Python's work, so they want more processes: with 2, 4
    and 6 the p95 of a chunk of 5,000 streams (d=256, 640 ms) was 110, 45 and 62 ms, that of 10,000 streams with 4 and 6
    350 and 114 ms (one H200, 16 cores).
    """

    instances: int
    max_batch_size: int
    queue_delay_ms: float
    max_streams: int = 256


USUAL: dict[Device, Usual] = {
    "cpu": Usual(instances=1, max_batch_size=32, queue_delay_ms=5.0),
    "gpu": Usual(instances=4, max_batch_size=64, queue_delay_ms=0.0),
}
# On a GPU the states of all streams are there from the start: as many as `STREAM_BYTES` hold, within these bounds.
STREAMS_ON_GPU = Usual(instances=6, max_batch_size=256, queue_delay_ms=5.0, max_streams=10_240)
STREAM_BYTES = 8 * 10**9
# Beside them each process keeps the memory of its recorded steps, several times the states of its largest batch: those
# that it reads, those that it writes, what is computed between. Of streams of 14.5 MB it was 13.4 GB, 3.6 times 256 of
# them. So there are as many processes as this holds, if no more than of streams with small states.
STEP_COPIES = 4
STEP_BYTES = 24 * 10**9

WRITTEN = re.compile(r"(?P<count>\d{1,4})(@(?P<place>cpu|gpu|\d{1,4}(,\d{1,4})*))?")
NEXT = re.compile(r",(?=\d+@)")  # a comma before COUNT@ begins what others have, one before a number alone does not


@dataclass(frozen=True)
class Instances:
    """`count` processes on the CPU, or on each GPU of `gpus`; without any of those, on each that Triton sees.

    `others`: further ones, each on GPUs of its own.
    """

    count: int = 1
    device: Device = "cpu"
    gpus: tuple[int, ...] = ()
    others: tuple["Instances", ...] = ()

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"instances must be a number above 0, got {self.count}")
        if self.device not in ("cpu", "gpu"):
            raise ValueError(f"device must be cpu or gpu, got {self.device!r}")
        if self.device == "cpu" and self.gpus:
            raise ValueError(f"gpus {self.gpus} are named, but the device is cpu")
        if self.others and not all(each.gpus for each in (self, *self.others)):
            raise ValueError(f"only GPUs by their indices can have different numbers of instances, got {self}")
        gpus = self.all_gpus
        if len(set(gpus)) < len(gpus) or any(gpu < 0 for gpu in gpus):
            raise ValueError(f"gpus must be different indices from 0, got {gpus}")

    def __str__(self) -> str:
        """As `parse` reads it."""
        place = ",".join(map(str, self.gpus)) or self.device
        return ",".join([f"{self.count}@{place}", *map(str, self.others)])

    @property
    def all_gpus(self) -> tuple[int, ...]:
        """The GPUs that are named."""
        return self.gpus + tuple(gpu for each in self.others for gpu in each.gpus)

    @property
    def processes(self) -> int:
        """How many there are in all; of those on every GPU, on each."""
        return self.count * max(1, len(self.gpus)) + sum(each.processes for each in self.others)

    @classmethod
    def parse(cls, text: str, usual: "Instances") -> "Instances":
        """Read COUNT, COUNT@cpu, COUNT@gpu, COUNT@GPU,GPU, or several of the last; `usual`: where a number alone is.

        Raises:
            ValueError: it is none of these; the message shows what would be.
        """
        first, *others = NEXT.split(text.strip())
        if others:
            return replace(cls.parse(first, usual), others=tuple(cls.parse(each, usual) for each in others))
        match = WRITTEN.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"{text!r} does not say how many instances are to be where: write COUNT, COUNT@cpu, COUNT@gpu, "
                "COUNT@0,1 for GPUs by their indices, or several such: 1@0,2@1,2"
            )
        count, place = int(match["count"]), match["place"]
        if place is None:
            return cls(count, usual.device, usual.gpus)
        if place in ("cpu", "gpu"):
            return cls(count, place)  # type: ignore[arg-type]  # just compared
        return cls(count, "gpu", tuple(int(index) for index in place.split(",")))

    def groups(self) -> list[Any]:
        """The same as Triton wants it."""
        if self.device == "cpu":
            return [pb.ModelInstanceGroup(count=self.count, kind=pb.ModelInstanceGroup.KIND_CPU)]
        # Without `gpus` Triton puts instances on every GPU that it sees.
        own = pb.ModelInstanceGroup(count=self.count, kind=pb.ModelInstanceGroup.KIND_GPU, gpus=self.gpus)
        return [own, *(group for each in self.others for group in each.groups())]


def read_count(text: str) -> int | str:
    """A number of instances alone, or text that also says where.

    Raises:
        ValueError: it is neither.
    """
    Instances.parse(text, Instances())
    return int(text) if text.strip().isdigit() else text.strip()
