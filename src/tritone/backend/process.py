"""What the process of a served model does first and around each batch, whatever the model."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import triton_python_backend_utils as pb_utils

from tritone.backend import garbage, heartbeat
from tritone.backend.instance import Instance, read_instance
from tritone.later import load
from tritone.pipelines.ahead import Ahead
from tritone.pipelines.kind import kind_of
from tritone.preparing import Preparing, timed


def start_instance(args: Mapping[str, str]) -> Instance:
    """Guard this process against pauses and its requests against other users; errors as of `read_instance`."""
    heartbeat.start()
    garbage.start()
    _hide_shared_memory()
    name, version, instance = (args[f"model_{each}"] for each in ("name", "version", "instance_name"))
    log = pb_utils.Logger
    preparing = Preparing.of_model(name, version, instance, log.log_warn, log.log_info)
    preparing.seconds["starting"] = time.time() - psutil.Process().create_time()
    return read_instance(args, preparing)


def ready(pipeline: Any, instance: Instance, *, in_steps: bool = False) -> Ahead | None:
    """Warm up a pipeline, import what requests may need, and begin to compile the searches that they may ask for.

    What this returns is to be closed.

    Args:
        in_steps: whether the pipeline takes streams.
    """
    with timed(instance.placement.preparing, "first calls"):
        pipeline.warm_up()
        load(kind_of(instance.bundle).later)
    if (preparing := instance.placement.preparing) is not None:
        preparing.opened(time.time() - psutil.Process().create_time())
    return Ahead.of(pipeline, in_steps=in_steps, warn=pb_utils.Logger.log_warn)


@contextmanager
def batch() -> Iterator[None]:
    """Inside, a batch is computed: it has a time limit, and seldom waits for a collection of garbage."""
    garbage.before_batch()
    with heartbeat.batch():
        yield


def _hide_shared_memory(arguments: Path = Path("/proc/self/cmdline"), folder: Path = Path("/dev/shm")) -> None:
    """Take the region through which this process gets requests from all other users.

    Triton makes it readable for everybody, whatever the umask. Nothing opens it by its name any more.
    """
    try:
        name = arguments.read_bytes().split(b"\0")[2].decode()
        (folder / Path(name).name).chmod(0o600)
    except (OSError, IndexError, UnicodeDecodeError) as error:
        pb_utils.Logger.log_warn(f"the model's shared memory stays readable for other users of this machine: {error}")
