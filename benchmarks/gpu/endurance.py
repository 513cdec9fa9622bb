"""Whether a server on a GPU lasts: memory over many requests, and what others notice when one instance is killed.

a served model, N requests  ->  device memory and the processes' own, before and after
SIGKILL of one instance under load  ->  answers of the others, until all are back
"""

import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import Any

import psutil

from benchmarks.endurance.deployment import STUB
from benchmarks.endurance.gauges import anonymous_bytes
from benchmarks.gpu.audio import workload
from benchmarks.gpu.served import Server, measured
from tritone.client import Client
from tritone.errors import TritoneError

MIB = 2**20
SENDERS = 16
WATCHED_S = 8.0
MOST_ROUNDS = 40


def memory(server: Server, model: str, requests: int, seconds: float, most_s: float) -> list[dict[str, Any]]:
    """Look after every round of short requests until so many were answered; the first look is after a warm-up."""
    measured(server, model, 256, "1", seconds)
    rows = [{"what": "memory", "model": model, "requests": 0, **_look(server)}]
    total, start = 0, time.monotonic()
    for _ in range(MOST_ROUNDS):
        if total >= requests or time.monotonic() - start > most_s:
            break
        found = measured(server, model, 256, "lognormal:1,0.5", seconds)
        total += found["requests"]
        rows.append({"what": "memory", "model": model, "requests": total, **_look(server)})
    return rows


def kill(server: Server, model: str) -> dict[str, Any]:
    """Kill one instance under load."""
    victims = _instances(server, model)
    audio = workload("1", 16000).waveforms
    outcomes: list[tuple[float, float, bool]] = []
    over = threading.Event()

    def send(number: int) -> None:
        with Client(f"grpc://{server.grpc}") as client:
            while not over.is_set():
                sent = time.monotonic()
                good = True
                try:
                    client.transcribe([audio[number % len(audio)]], model)
                except TritoneError:
                    good = False
                    time.sleep(0.05)
                outcomes.append((sent, time.monotonic(), good))

    senders = [threading.Thread(target=send, args=(number,)) for number in range(SENDERS)]
    for each in senders:
        each.start()
    time.sleep(2.0)
    killed = time.monotonic()
    if victims:
        with suppress(psutil.Error):
            victims[0].send_signal(signal.SIGKILL)
    time.sleep(WATCHED_S)
    over.set()
    for each in senders:
        each.join()
    after = [each for each in outcomes if each[1] > killed]
    failed = [each for each in after if not each[2]]
    good = sorted(each[1] for each in after if each[2])
    gaps = [later - earlier for earlier, later in zip([killed, *good], good, strict=False)]
    return {
        "what": "kill",
        "model": model,
        "instances": len(victims),
        "answered_before": len(outcomes) - len(after),
        "answered_after": len(good),
        "failed_after": len(failed),
        "longest_silence_s": max(gaps, default=WATCHED_S),
        "instances_after": len(_instances(server, model)),
    }


def _instances(server: Server, model: str) -> list[psutil.Process]:
    found = []
    for each in psutil.Process(server.pid).children(recursive=True):
        with suppress(psutil.Error):
            command = each.cmdline()
            if command and STUB in command[0] and any(f"/{model}/" in word for word in command):
                found.append(each)
    return found


def _look(server: Server) -> dict[str, Any]:
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    own = 0.0
    for each in processes:
        with suppress(psutil.Error, OSError):
            own += anonymous_bytes(each.pid) / MIB
    return {"own_mib": round(own, 1), "device_mib": device_mib(), "processes": len(processes)}


def device_mib() -> list[int]:
    """Memory in use on each GPU, in MiB; empty without one."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    found = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    return [int(line) for line in found.stdout.split() if line.strip().isdigit()]
