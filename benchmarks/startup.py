"""Restart to first text, and to full speed, with a cold and with a warm cache of compiled code.

    python -m benchmarks.startup --out results                                 # a random Whisper of turbo's size, GPU
    python -m benchmarks.startup --out results --size mini --device cpu --in-flight 2 --tokens 8
    python -m benchmarks.startup --out results --bundle my-model --compile auto --seconds 10

Each start is a new process: a server (`--way served`, where there is a tritonserver), or one that opens the bundle by
itself (`process`). The first text is that of a request which is sent as soon as there is somebody to take it; then so
many requests are kept in flight. Full speed is reached when the mean rate from then on is within 5 % of that of the
second half of the texts. The first start finds an empty cache folder, the others what it left there; files of models
and libraries are in the system's memory for all, as far as it has room. Rows are in `startup.json` as soon as they are
there; no further start begins that might end after `--limit-s`.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tritone import preparing
from tritone.bundle import Bundle
from tritone.kinds.whisper.part import WhisperPart
from tritone.paths import CACHE
from tritone.preparing import READY, Preparing
from tritone.report.stamp import Stamp

NEAR = 0.95  # of the rate at the end is full speed
LEAST = 8  # texts
LOOK_S = 0.1
MARK = "the model answers"  # of the line of the log that says what a start was taken by
FIXED = {"language": "en", "temperature": "0", "timestamps": False} | {
    f"{name}_threshold": "none" for name in ("no_speech", "log_prob", "compression_ratio")
}
KERNELS = "TRITON_CACHE_DIR"


def full_speed_s(ends: Sequence[float]) -> tuple[float, float]:
    """When full speed is reached, and what it is.

    Args:
        ends: when each text was there, in seconds, in order; the second half of them is at full speed.

    Returns:
        The first text from which on the mean rate is near that of the second half; that rate, texts a second.

    Raises:
        ValueError: there are fewer than `LEAST` texts.
    """
    if len(ends) < LEAST:
        raise ValueError(f"{len(ends)} texts are too few to tell a rate by; {LEAST} are needed")
    times, count = np.asarray(ends), len(ends)
    rate = float(np.polyfit(times[count // 2 :], np.arange(count // 2, count), 1)[0])  # of bursts, too
    means = (count - np.arange(count - 1)) / (times[-1] - times[:-1])
    return float(times[np.argmax(means >= NEAR * rate)]), rate


def loaded(answer: Callable[[], object], start: float, in_flight: int, load_s: float) -> list[float]:
    """Keep requests in flight for a while; when each was answered, in seconds after `start` of the system's clock."""
    ends: list[float] = []
    until = time.time() + load_s

    def ask() -> None:
        while time.time() < until:
            answer()
            ends.append(time.time() - start)

    threads = [threading.Thread(target=ask) for _ in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(ends)


@contextmanager
def watched(state: Callable[[], str], start: float) -> Iterator[dict[str, float]]:
    """When each state of preparing was seen first, in seconds after `start`, as long as this is open."""
    seen: dict[str, float] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            seen.setdefault(state(), time.time() - start)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def measured(
    answer: Callable[[], object], state: Callable[[], str], start: float, arguments: argparse.Namespace
) -> dict[str, Any]:
    """The first text, then the rate under load, of a model that takes requests now."""
    with watched(state, start) as seen:
        answer()
        first = time.time() - start
        ends = loaded(answer, start, arguments.in_flight, arguments.load_s)
        while not any(READY in each or "failed" in each for each in seen) and time.time() - start < arguments.limit_s:
            time.sleep(LOOK_S)
    if len(ends) < LEAST:
        return {"first_text_s": first, "texts": len(ends), "full_speed": "too few texts to tell: raise --load-s"}
    full_s, rate = full_speed_s(ends)
    found = {
        "first_text_s": first,
        "full_speed_s": full_s,
        "texts_per_s": rate,
        "x_real_time": rate * arguments.seconds,
    }
    return found | {"texts": len(ends), "states": seen}


def audio(bundle: Bundle, seconds: float) -> np.ndarray:
    noise = np.random.default_rng(0).normal(0, 0.1, round(bundle.manifest.sample_rate * seconds))
    return noise.clip(-1, 1).astype(np.float32)


def in_process(arguments: argparse.Namespace) -> dict[str, Any]:
    """A start in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.startup", *sys.argv[1:], "--start", str(time.time())]
    command += ["--bundle", str(arguments.path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def child(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `in_process` starts: open the bundle, answer."""
    from tritone.kinds import kind_of
    from tritone.pipelines.graphs.placement import Placement
    from tritone.pipelines.whisper.options import DecodingOptions, read_decoding

    imported = time.time() - arguments.start
    told: list[str] = []
    beside = Preparing(told.append, note=told.append)
    bundle = Bundle.open(arguments.bundle)
    kind = kind_of(bundle)
    placement = Placement(device=arguments.device, runtime="torch", compile=arguments.compile or None, preparing=beside)
    defaults = (
        read_decoding(json.dumps(decoding(bundle, arguments.tokens))) if kind.options is DecodingOptions else None
    )
    pipeline: Any = kind.open(bundle, placement=placement, max_audio_s=60.0, defaults=defaults)
    with preparing.timed(beside, "first calls"):
        pipeline.warm_up()
    beside.opened(time.time() - arguments.start)
    waveform = audio(bundle, arguments.seconds)

    def answer() -> None:
        [found] = pipeline.run([waveform])
        if isinstance(found, Exception):
            raise found

    found = measured(answer, lambda: beside.text, arguments.start, arguments)
    return found | {"imported_s": imported, "log": told}


def decoding(bundle: Bundle, tokens: int) -> dict[str, Any]:
    """Options with which a Whisper of random weights writes as many tokens as one of trained weights usually does."""
    special = bundle.manifest.find(WhisperPart)
    return FIXED | ({} if special is None else {"suppress": str(special.eot), "max_tokens": tokens})


def served(arguments: argparse.Namespace) -> dict[str, Any]:
    """A start of a server."""
    from tritone.client import Client
    from tritone.repository import ModelOptions, build_repository
    from tritone.server import ServerOptions, TritonServer, free_ports

    bundle = Bundle.open(arguments.path)
    options = ModelOptions(
        device="cpu" if arguments.device == "cpu" else "gpu",
        runtime="torch",
        max_audio_s=60,
        compile=arguments.compile,
        decoding=json.dumps(decoding(bundle, arguments.tokens))
        if bundle.manifest.find(WhisperPart) is not None
        else "",
    )
    http, grpc, metrics = free_ports(3)
    ports = ServerOptions(
        http_port=http, grpc_port=grpc, metrics_port=metrics, start_timeout_s=300, drain_s=1, log_level="info"
    )
    waveform = audio(bundle, arguments.seconds)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+", encoding="utf-8") as log:
        build_repository(
            [bundle.path], Path(folder, "repository"), names=["measured"], modes="offline", options=options, link=True
        )
        start = time.time()
        with TritonServer(Path(folder, "repository"), ports, log=log) as server:
            ready = time.time() - start
            with Client(server.grpc_address, timeout_s=300) as client:

                def answer() -> None:
                    client.transcribe(waveform, "measured").get()

                def state() -> str:
                    assert server.preparing is not None
                    return "; ".join(preparing.states(server.preparing).values())

                found = measured(answer, state, start, arguments)
        log.seek(0)
        lines = [line.strip() for line in log if MARK in line or "is done" in line]
    return found | {"ready_s": ready, "log": lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of startup.json")
    parser.add_argument("--bundle", default="", help="bundle; if not given, a Whisper of random weights is made")
    parser.add_argument("--size", default="turbo", help="of that Whisper: mini, tiny, base, turbo, large-v3")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", default="", help="as of tritone build")
    parser.add_argument("--way", choices=("served", "process"), default="served")
    parser.add_argument("--starts", type=int, default=3, help="the first with a cold cache, the others with a warm one")
    parser.add_argument("--seconds", type=float, default=30.0, help="of audio of each request")
    parser.add_argument("--tokens", type=int, default=80, help="of each text of a Whisper")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--load-s", type=float, default=20.0)
    parser.add_argument("--limit-s", type=float, default=280.0, help="of all starts together")
    parser.add_argument("--start", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        logging.basicConfig(stream=sys.stderr)
        print(json.dumps(child(arguments)), flush=True)
        return 0
    began = time.time()
    arguments.out.mkdir(parents=True, exist_ok=True)
    place = arguments.out / "startup.json"
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.bundle:
            arguments.path = Bundle.open(arguments.bundle).path
        else:
            from benchmarks.whisper_gpu import SIZES, write_bundle

            arguments.path = write_bundle(Path(temporary), SIZES[arguments.size], arguments.device)
        stamp = Stamp.here(" ".join(["python", "-m", "benchmarks.startup", *sys.argv[1:]]))
        told: dict[str, Any] = {"stamp": asdict(stamp), "bundle_made_s": time.time() - began, "starts": []}
        os.environ[CACHE] = str(Path(temporary, "cache"))
        os.environ.pop(KERNELS, None)
        longest = 0.0
        for index in range(arguments.starts):
            if (left_s := began + arguments.limit_s - time.time()) < longest:
                told["left_out"] = f"{arguments.starts - index} starts, for which {left_s:.0f} s were too short"
                break
            begin = time.time()
            row: dict[str, Any] = {"cache": "warm" if index else "cold", "way": arguments.way}
            row |= (served if arguments.way == "served" else in_process)(arguments)
            longest = time.time() - begin
            told["starts"].append(row)
            place.write_text(json.dumps(told, indent=1, default=str), encoding="utf-8")
            print(json.dumps(row, indent=1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
