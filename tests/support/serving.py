"""A raw Triton client and a few questions about running servers, for tests that check the server without our client."""

import importlib
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import tritonclient.grpc as triton

from tritone.server import ServerOptions, TritonServer, free_ports
from tritone.server.checks import SHARED_MEMORY
from waiting import LIMIT_S, LOOK_S

TIMEOUT_S = 30.0
# Regions of killed runs stay until the machine ends, and numbers of processes come again.
LEFT_BEHIND = frozenset(path.name for path in SHARED_MEMORY.glob("tritone_*"))
Serve = Callable[..., "subprocess.Popen[str]"]  # the fixture `serve`
METRIC = re.compile(r"(?P<name>tritone_\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)")


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request. `lens` None sends the true length; `stream` 0 is no stream; `called`: what the audio is sent as."""

    model: str
    wav: Any
    lens: int | Sequence[int] | None = None
    stream: int | str = 0
    start: bool = False
    end: bool = False
    outputs: tuple[str, ...] = ("TRANSCRIPTS",)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    called: tuple[str, ...] = ("WAV",)


@dataclass(frozen=True)
class Refusal:
    """An error that Triton answered: gRPC status name, message."""

    status: str
    message: str


class RawClient:
    """The wire contract over tritonclient's gRPC, with nothing of Tritone's own."""

    def __init__(self, address: str) -> None:
        self.grpc = triton.InferenceServerClient(address)

    def ask(self, ask: Ask, timeout_s: float = TIMEOUT_S) -> Any:
        """Send one request; gives `text` of one row, a list of texts for several, or a `Refusal`."""
        return self.together([ask], timeout_s)[0]

    def together(self, asks: Sequence[Ask], timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Send requests at once, as a batcher likes them, and wait for all; see `ask` for what comes back."""
        answers: list[Any] = [None] * len(asks)
        done = [threading.Event() for _ in asks]

        def finish(index: int) -> Callable[[Any, Any], None]:
            def callback(result: Any, error: Any) -> None:
                answers[index] = result if error is None else _refusal(error)
                done[index].set()

            return callback

        for index, ask in enumerate(asks):
            try:
                self.grpc.async_infer(
                    ask.model,
                    _inputs(ask),
                    finish(index),
                    outputs=[triton.InferRequestedOutput(name) for name in ask.outputs],
                    sequence_id=ask.stream,
                    sequence_start=ask.start,
                    sequence_end=ask.end,
                    client_timeout=timeout_s,
                    parameters=dict(ask.parameters),
                )
            except triton.InferenceServerException as error:
                answers[index] = _refusal(error)
                done[index].set()
        for each in done:
            assert each.wait(timeout_s + 5), "a request was never answered"
        return [_text(ask, answer) for ask, answer in zip(asks, answers, strict=True)]

    def batches(self, model: str) -> Counter[int]:
        """How many batches of each size `model` has run."""
        statistics = self.grpc.get_inference_statistics(model, as_json=True)["model_stats"][0]
        sizes = statistics.get("batch_stats", [])
        return Counter({int(each["batch_size"]): int(each["compute_infer"]["count"]) for each in sizes})


def batches_of(client: RawClient, asks: Sequence[Ask]) -> tuple[list[Any], Counter[int]]:
    """Send requests to one model at once; gives their answers and the sizes of the batches that they were run in."""
    model, rows = asks[0].model, sum(len(np.atleast_2d(ask.wav)) for ask in asks)
    before = client.batches(model)
    answers = client.together(asks)
    deadline = time.monotonic() + TIMEOUT_S
    # Triton counts a batch shortly after it has answered it.
    while (new := client.batches(model) - before).total() == 0 or sum(k * v for k, v in new.items()) < rows:
        assert time.monotonic() < deadline, f"Triton's statistics account for {new}, {rows} rows were sent"
    return answers, new


def in_one_batch(client: RawClient, asks: Sequence[Ask], attempts: int = 10) -> list[Any]:
    """Send requests until all of them shared one batch, as Triton's statistics tell; gives that batch's answers."""
    for _ in range(attempts):
        answers, batches = batches_of(client, asks)
        if batches.total() == 1:
            return answers
        # the streams that these began are open now, and would refuse to begin again
        client.together([replace(ask, start=False, end=True) for ask in asks if ask.start and not ask.end])
    raise AssertionError(f"{len(asks)} requests did not share a batch in {attempts} attempts")


def metrics_of(server: TritonServer, model: str) -> dict[str, float]:
    """The counters of a model by name, without "tritone_", and outcomes as "ok", "bad_input", ..."""
    url = f"http://{server.options.address('metrics')}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    values: dict[str, float] = {}
    for match in METRIC.finditer(text):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        if labels["model"] == model:
            assert labels["version"] == "1"
            name = labels.get("outcome") or match["name"].removeprefix("tritone_")
            values[name] = values.get(name, 0.0) + float(match["value"])
    return values


@contextmanager
def backend_module(name: str) -> Iterator[Any]:
    """A module of `tritone.backend`, without Triton; nobody else sees what was imported for it."""

    def ours() -> dict[str, Any]:
        names = ("tritone.backend.", "triton_python_backend_utils")
        return {each: module for each, module in sys.modules.items() if each.startswith(names)}

    before = ours()
    for each in before:
        del sys.modules[each]
    utils = SimpleNamespace(TRITONSERVER_RESPONSE_COMPLETE_FINAL=1)
    sys.modules["triton_python_backend_utils"] = utils  # type: ignore[assignment]
    try:
        yield importlib.import_module(f"tritone.backend.{name}")
    finally:
        for each in ours():
            del sys.modules[each]
        sys.modules.update(before)


def quiet_options(**changes: object) -> ServerOptions:
    """Options on free ports, for servers that are killed when they stop: else Triton takes a second or two to end."""
    http_port, grpc_port, metrics_port = free_ports(3)
    ports = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
    return ServerOptions(**(ports | {"drain_s": 0, "stop_timeout_s": 0} | changes))  # type: ignore[arg-type]


def regions(pid: int) -> set[str]:
    """The shared memory regions of servers that process `pid` has started."""
    return {path.name for path in SHARED_MEMORY.glob(f"tritone_{pid}_*")} - LEFT_BEHIND


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below `pid`."""
    return psutil.Process(pid).children(recursive=True)


def kill_tree(process: "subprocess.Popen[str]") -> None:
    """Kill a process that may still run, and everything below it, also a guard; close its pipes, free its memory."""
    pids = [process.pid]
    if process.poll() is None:
        for each in [*descendants(process.pid), psutil.Process(process.pid)]:
            pids.append(each.pid)
            with suppress(psutil.NoSuchProcess):  # a supervisor ends processes meanwhile
                each.kill()
    process.communicate()
    for region in [name for pid in pids for name in regions(pid)]:
        (SHARED_MEMORY / region).unlink(missing_ok=True)


def left(processes: Sequence[psutil.Process], limit_s: float = LIMIT_S) -> list[psutil.Process]:
    """Those that still run after a while: what was killed ends when the kernel gets to it."""
    end = time.monotonic() + limit_s
    while (found := alive(processes)) and time.monotonic() < end:
        time.sleep(LOOK_S)
    return found


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie that waits for a foreign parent does not."""
    return [each for each in processes if _runs(each)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended in between
        return False


def _inputs(ask: Ask) -> list[Any]:
    wav: npt.NDArray[Any] = np.asarray(ask.wav)
    wav = wav[None] if wav.ndim == 1 else wav
    lens = np.full(len(wav), wav.shape[1] if ask.lens is None else ask.lens, dtype=np.int32)[:, None]
    types = {np.dtype(np.float32): "FP32", np.dtype(np.float64): "FP64", np.dtype(np.int16): "INT16"}
    sent = [("WAV_LENS", lens)]
    for name in ask.called:
        sent.append((name, wav.astype(np.int16) if name == "PCM" and len(ask.called) > 1 else wav))
    inputs = []
    for name, values in sent:
        kind = "INT32" if name == "WAV_LENS" else types[values.dtype]
        inputs.append(triton.InferInput(name, values.shape, kind))
        inputs[-1].set_data_from_numpy(values)
    return inputs


def _refusal(error: Any) -> Refusal:
    return Refusal(str(error.status() or ""), str(error.message()))


def _text(ask: Ask, answer: Any) -> Any:
    if isinstance(answer, Refusal):
        return answer
    columns = [[cell.decode() for cell in answer.as_numpy(name).ravel()] for name in ask.outputs]
    rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    return rows[0] if len(rows) == 1 else rows


def ports(options: ServerOptions) -> list[str]:
    return [part for service, port in options.ports.items() for part in (f"--{service}-port", str(port))]


def lines_until(process: "subprocess.Popen[str]", pattern: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"{pattern!r} never came; it said {lines} and {process.communicate()[1]}")
