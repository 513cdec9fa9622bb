"""A bundle that runs on a Ray cluster, as a system like others: paths in, a result for each of them.

    here = BundleSystem(tritone.load("demo-asr"))
    RaySystem(here, Cluster(address="auto"), load=tritone.load, bundle="demo-asr", result=TranscriptResult).run(paths)

Workers are actors with a model each; this process cuts the paths into shards, gives them out and puts the results in
order. Workers may die at any time: what they have not returned is given to others, and a new worker is asked for.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Generic

from tritone.audio.files import Selection
from tritone.errors import InputError, MissingDependencyError, OperatorError, RetryError, TritoneError
from tritone.installing import pip_install
from tritone.result import AnyResult
from tritone.systems.ray_worker import Load, RayWorker
from tritone.systems.shards import Shard, Shards
from tritone.systems.streams import PartialListener
from tritone.systems.system import Mode

if TYPE_CHECKING:
    from tritone.systems.bundled import BundleSystem
    from tritone.systems.ray_worker import Opened

LOGGER = logging.getLogger(__name__)
LOCAL = "local"
PATIENCE_S = 600.0  # without any worker; a cluster that grows takes minutes to start a machine
REPORT_AFTER_S = 30.0
POLL_S = 1.0
MAX_STARTS = 5  # workers one after the other that die before their model is open


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Which Ray cluster, and what it gives a worker.

    `address`: `auto` for the one that this machine belongs to, host:port, or `local` for one that begins and ends with
    the command. `workers`: None for as many as there is room for now. `cpus` are threads of a worker's model, too.
    `gpus` may be a part of one. `patience_s`: without any worker, until it is given up.
    """

    address: str
    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    ordered: bool = True
    patience_s: float = PATIENCE_S

    def __post_init__(self) -> None:
        if self.address.startswith("ray://"):
            raise ValueError(
                f"{self.address} is an address of Ray Client, which cannot stream results. Run the command on a "
                "machine of the cluster with the address auto, or send it there: ray job submit -- tritone ..."
            )
        if (self.workers is not None and self.workers < 1) or self.cpus < 1 or self.gpus < 0:
            raise ValueError(
                f"workers and CPUs of each must be at least 1 and GPUs at least 0, got {self.workers}, {self.cpus} and "
                f"{self.gpus:g}"
            )

    @property
    def needs(self) -> dict[str, float]:
        """What a worker takes, by Ray's names."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


@dataclass(eq=False)
class _Worker:
    """An actor, and what is awaited of it: that its model is open, or the next block of a shard."""

    actor: Any
    awaited: Any
    shard: Shard | None = None
    host: str = ""


@dataclass
class _Pool:
    """The workers of a system: those that open their model, those that compute, and those that wait for work."""

    starting: list[_Worker] = field(default_factory=list)
    busy: list[_Worker] = field(default_factory=list)
    idle: list[_Worker] = field(default_factory=list)

    @property
    def all(self) -> list[_Worker]:
        return [*self.starting, *self.busy, *self.idle]


class RaySystem(Generic[AnyResult]):
    """See the top of this file. Connects to the cluster in `prepare`; `close` ends the workers."""

    mode: Mode = "offline"

    def __init__(
        self,
        here: "BundleSystem[AnyResult]",
        cluster: Cluster,
        *,
        load: Load,
        bundle: str,
        result: type[AnyResult],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Take what workers shall have.

        Args:
            here: the same bundle in this process, whose graphs are never opened. Workers must have the same files.
            load: what loads it, such as `tritone.load`.
            bundle: its folder on all machines, the name of a shipped one, or an address such as s3://bucket/folder.
            result: what the system yields.
            options: what the bundle is loaded with.
        """
        self.name, self.concurrency, self.batch = here.name, here.concurrency, here.batch
        self._here, self._cluster, self._result = here, cluster, result
        threads = {"threads": cluster.cpus} | dict(options or {})
        self._arguments = (load, bundle, threads, here.concurrency)
        self._pool = _Pool()
        self._count = cluster.workers or 1
        self._early_deaths = 0
        self._connected_here = False
        self._lonely_since: float | None = None
        self._reported = False

    def describe(self) -> Mapping[str, str]:
        """That of the bundle: where it runs decides no result."""
        return self._here.describe()

    def prepare(self, *, warm_up: bool = False) -> None:
        """Connect, and wait for the first worker.

        Raises:
            MissingDependencyError: Ray is not installed.
            OperatorError: there is no such cluster, or none of its machines has what a worker needs.
            TritoneError: the first worker cannot open the bundle, or has another one.
        """
        self._connect()
        self._fill()
        while not self._pool.idle:
            self._wait()

    def run(
        self, paths: Iterable[str | Selection], on_partial: PartialListener | None = None
    ) -> Generator[AnyResult, None, None]:
        self._connect()
        shards: Shards[AnyResult] = Shards(
            list(map(_whole, paths)),
            block=self.concurrency,
            workers=self._count,
            result=self._result,
            ordered=self._cluster.ordered,
        )
        try:
            while shards.left:
                self._fill()
                while self._pool.idle and (shard := shards.take()) is not None:
                    worker = self._pool.idle.pop()
                    worker.shard = shard
                    worker.awaited = worker.actor.run.options(num_returns="streaming").remote(shard.paths)
                    self._pool.busy.append(worker)
                for event in self._wait():
                    yield from self._take(event, shards)
        finally:
            for worker in self._pool.busy:  # left early: what they compute is not needed
                self._kill(worker)
            self._pool.busy = []

    def close(self) -> None:
        for worker in self._pool.all:
            self._kill(worker)
        self._pool = _Pool()
        if self._connected_here:
            self._connected_here = False
            import ray

            with _own_signals():
                ray.shutdown()
        self._here.close()

    def _connect(self) -> None:
        """Connect to the cluster, unless this process is connected to one, as in a job of Ray's."""
        ray = _import_ray()
        if not ray.is_initialized():
            address = self._cluster.address
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
            if address == LOCAL:
                quiet |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            try:
                with _own_signals():
                    ray.init(address=address, **quiet)
            except Exception as error:  # Ray raises plain ones too, such as that a machine was too busy to start it
                raise OperatorError(
                    f"no Ray cluster at {address} ({_reported(error)}). Give host:port of its head (ray start --head "
                    "prints it), auto on a machine of the cluster, or local for a cluster of this machine alone."
                ) from error
            self._connected_here = True
        if self._cluster.workers is None and not self._pool.all:
            there, needs = ray.cluster_resources(), self._cluster.needs
            self._count = max(1, int(min(there.get(name, 0) // needed for name, needed in needs.items())))

    def _fill(self) -> None:
        """Ask for workers in place of those that died; Ray starts them where and when there is room."""
        import ray

        cpus, gpus = self._cluster.cpus, self._cluster.gpus
        make: Any = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0)(RayWorker)
        while len(self._pool.all) < self._count:
            actor = make.options(scheduling_strategy="SPREAD").remote(*self._arguments)
            self._pool.starting.append(_Worker(actor, actor.open.remote()))

    def _wait(self) -> list[_Worker]:
        """The busy workers of which something has come; those whose model is open become idle on the way."""
        import ray

        waiting = {worker.awaited: worker for worker in (*self._pool.starting, *self._pool.busy)}
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_S, fetch_local=False)
        events = [waiting[each] for each in ready]
        for worker in events:
            if worker in self._pool.starting:
                self._opened(worker)
        self._check_company()
        return [worker for worker in events if worker in self._pool.busy]

    def _opened(self, worker: _Worker) -> None:
        import ray

        self._pool.starting.remove(worker)
        try:
            opened: Opened = ray.get(worker.awaited)
        except ray.exceptions.RayTaskError as error:
            self._kill(worker)
            raise _cause(error, "a worker cannot open the bundle") from error
        except ray.exceptions.RayError as error:
            self._kill(worker)
            self._early_deaths += 1
            if self._early_deaths >= MAX_STARTS:
                raise OperatorError(
                    f"{MAX_STARTS} workers died before their model was open, the last one so: {_reported(error)}. Is "
                    "tritone installed on all machines of the cluster, and has a worker memory enough?"
                ) from error
            return
        self._early_deaths = 0
        self._check(opened)
        worker.host = opened.host
        self._pool.idle.append(worker)

    def _check(self, opened: "Opened") -> None:
        """What decides the results must be the same everywhere."""
        own = version("tritone")
        if opened.version != own:
            raise OperatorError(
                f"{opened.host} has tritone {opened.version}, this machine {own}; install one version on all"
            )
        if opened.manifest_sha256 != self.describe()["manifest_sha256"]:
            raise OperatorError(
                f"{opened.host} has another bundle at {self._arguments[1]} than this machine. Use one folder that all "
                "machines see, or an address such as s3://bucket/folder."
            )

    def _take(self, worker: _Worker, shards: Shards[AnyResult]) -> Iterator[AnyResult]:
        """Take a block of results, the end of a shard or the end of a worker."""
        import ray

        shard = worker.shard
        assert shard is not None
        try:
            results = ray.get(next(worker.awaited))
        except StopIteration:
            worker.shard = None
            self._pool.busy.remove(worker)
            self._pool.idle.append(worker)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error, f"the worker on {worker.host} failed") from error
        except ray.exceptions.RayError as error:
            self._pool.busy.remove(worker)
            self._kill(worker)  # it may only be out of reach, and compute on
            why = _reported(error)
            LOGGER.warning("a worker on %s is gone; its recordings go to others (%s)", worker.host, why)
            yield from shards.lost(shard, why)
        else:
            yield from shards.done(shard, results)

    def _check_company(self) -> None:
        """Raise if there has been no worker for long."""
        if self._pool.busy or self._pool.idle:
            self._lonely_since, self._reported = None, False
            return
        now = time.monotonic()
        self._lonely_since = self._lonely_since or now
        lonely_s = now - self._lonely_since
        given_up = lonely_s >= self._cluster.patience_s
        if not given_up and (self._reported or lonely_s < REPORT_AFTER_S):
            return
        import ray

        needs = _resources(self._cluster.needs)
        state = f"a worker needs {needs}; free are {_resources(ray.available_resources())}"
        if given_up:
            raise RetryError(
                f"the Ray cluster has had no room for a worker for {lonely_s:.0f} s: {state}. Ask for less, or try "
                "again when there is room."
            )
        self._reported = True
        LOGGER.warning("waiting for room in the Ray cluster: %s", state)

    def _kill(self, worker: _Worker) -> None:
        import ray

        with suppress(Exception):  # it may be gone, and so may the cluster
            ray.kill(worker.actor)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to others
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"a Ray cluster needs the package ray: {pip_install('ray')}") from error
    return ray


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; what this command does at a signal is its own matter."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cause(error: Any, doing: str) -> TritoneError:
    """The error of ours that a worker raised, or one about it."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, TritoneError):
        return cause
    if isinstance(cause, ValueError):
        return InputError(str(cause))
    return OperatorError(f"{doing} ({type(cause or error).__name__}: {_reported(cause or error)})")


def _reported(error: BaseException) -> str:
    """The first lines of Ray's errors, which go on with advice for its developers."""
    return " ".join(str(error).split())[:300]


def _resources(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amounts.get(name, 0):g} {name}s" for name in ("CPU", "GPU") if name in amounts) or "none"


def _whole(path: str | Selection) -> str:
    if isinstance(path, Selection):
        raise InputError(f"{path.source}: workers on a Ray cluster read whole files; cut it to files first")
    return path
