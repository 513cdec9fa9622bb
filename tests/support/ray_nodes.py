"""Ray's own cluster of several nodes on this machine, on loopback, with its files in a short folder that goes away.

with ray_nodes(2) as cluster:
    cluster.address                           for --ray; `cluster.environment` for the processes that use it
    cluster.kill(cluster.others[0])           a node is gone, with its workers, as if its machine had lost power
"""

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Ray takes 127.0.0.1 for "find the address that others reach"; all of 127.* is loopback on Linux.
LOOPBACK = "127.0.0.2"
STORE_BYTES = 80 << 20  # the least that Ray takes


@dataclass
class RayNodes:
    """A running cluster: the node of its head, and others, which may die."""

    cluster: Any
    environment: dict[str, str]
    others: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        address: str = self.cluster.address
        return address

    def add(self, num_cpus: int = 1) -> Any:
        node = self.cluster.add_node(num_cpus=num_cpus, node_ip_address=LOOPBACK, object_store_memory=STORE_BYTES)
        self.others.append(node)
        return node

    def kill(self, node: Any) -> None:
        self.others.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


@contextmanager
def ray_nodes(count: int) -> Iterator[RayNodes]:
    """A cluster of so many nodes with one CPU each."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed (pip install '.[ray]')")
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # paths of sockets have at most 107 bytes
    (folder / "ray").mkdir()  # there Ray keeps the address of the newest cluster, and does not make the folder
    own = {  # set before it is imported, which reads some of it
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # or Ray writes one to the home folder
    }
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    nodes = None
    try:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "node_ip_address": LOOPBACK, "include_dashboard": False, "temp_dir": str(folder)}
        nodes = RayNodes(Cluster(initialize_head=True, head_node_args=head | {"object_store_memory": STORE_BYTES}), own)
        for _ in range(count - 1):
            nodes.add()
        yield nodes
    finally:
        if nodes is not None:
            nodes.cluster.shutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for number, handler in signals.items():
            signal.signal(number, handler)
        shutil.rmtree(folder, ignore_errors=True)
