"""The work of one Ray actor: a bundle opened once, shards of recordings in, the results of their blocks out.

Ray starts it in a process of its own, on any machine of a cluster, which has this package too.
"""

import platform
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from tritone.pipelines.model import AudioModel
from tritone.systems.bundled import BundleSystem

Load = Callable[..., AudioModel[Any]]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Of a worker whose model is open: its machine, the version of Tritone there, and which bundle it has."""

    host: str
    version: str
    manifest_sha256: str


class RayWorker:
    """A model in a process of a cluster. Nothing is opened before `open`, so that errors reach who asks for it."""

    def __init__(self, load: Load, bundle: str, options: Mapping[str, Any], block: int) -> None:
        """Note what to open.

        Args:
            load: what loads the bundle, such as `tritone.load`.
            block: recordings that the model gets together.
        """
        self._load, self._bundle, self._options, self._block = load, bundle, options, block
        self._system: BundleSystem[Any] | None = None

    def open(self) -> Opened:
        """Open the model; raises what `tritone.load` and `System.prepare` raise."""
        self._system = BundleSystem(self._load(self._bundle, **self._options), concurrency=self._block)
        self._system.prepare()
        digest = self._system.describe()["manifest_sha256"]
        return Opened(host=platform.node(), version=version("tritone"), manifest_sha256=digest)

    def run(self, paths: Sequence[str]) -> Generator[list[Any], None, None]:
        """Yield the results of one block after the other, each in order."""
        assert self._system is not None
        results: list[Any] = []
        with closing(self._system.run(paths)) as found:
            for result in found:
                results.append(result)
                if len(results) == self._block:
                    yield sorted(results, key=_index)
                    results = []
        if results:
            yield sorted(results, key=_index)


def _index(result: Any) -> int:
    found: int = result.index
    return found
