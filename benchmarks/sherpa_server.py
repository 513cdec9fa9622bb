"""sherpa-onnx's own server for whole utterances, as its users start it, and a client of it.

    rival_server(files, Settings(...))  ->  texts(waveforms, in_flight)

The program is of the package `sherpa-onnx-bin`, which has no onnxruntime; that of `sherpa-onnx` is used. Its protocol
is that of its `offline-websocket-server-impl.cc`: a sampling rate and a number of bytes as int32, then float32 samples.
It has no option for an address, so it may listen on more than loopback while it is measured.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import websockets

from tritone.audio.waveform import Waveform
from tritone.server import free_ports

PROGRAM = "sherpa-onnx-offline-websocket-server"
READY_S = 120.0
PART_BYTES = 2**20  # of a message; the server takes up to 2 MB by default


@dataclass(frozen=True)
class Settings:
    """Workers that compute requests, threads of each of them, and utterances that share a call."""

    workers: int
    threads: int
    batch: int

    def __str__(self) -> str:
        return f"--num-work-threads={self.workers} --num-threads={self.threads} --max-batch-size={self.batch}"


def program() -> str:
    """The path of the server; raises `SystemExit` where it is not installed."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if (found := shutil.which(PROGRAM, path=folders)) is None:
        raise SystemExit(f"{PROGRAM} is not there; install it with `pip install --no-deps sherpa-onnx-bin`")
    return found


@contextmanager
def rival_server(files: Mapping[str, str], settings: Settings) -> Iterator["RivalServer"]:
    """sherpa-onnx's server with a transducer, ready when entered, gone when left.

    Args:
        files: `tokens`, `encoder`, `decoder` and `joiner`.

    Raises:
        RuntimeError: it has ended, or does not listen after two minutes; says what it printed.
    """
    import sherpa_onnx

    libraries = Path(sherpa_onnx.__file__).parent / "lib"
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="sherpa-onnx-") as folder:
        options = [f"--port={port}", *str(settings).split(), *(f"--{name}={path}" for name, path in files.items())]
        with (Path(folder) / "out.txt").open("w+", encoding="utf-8") as told:
            process = subprocess.Popen(
                [program(), *options, f"--log-file={folder}/log.txt"],
                stdout=told,
                stderr=subprocess.STDOUT,
                env=os.environ | {"LD_LIBRARY_PATH": str(libraries)},
            )
            try:
                until = time.monotonic() + READY_S
                while not _listens(port):
                    if process.poll() is not None or time.monotonic() > until:
                        told.seek(0)
                        raise RuntimeError(f"{PROGRAM} does not listen on port {port}: {told.read()[-2000:]}")
                    time.sleep(0.1)
                yield RivalServer(port)
            finally:
                process.kill()
                process.wait()


class RivalServer:
    """A server that listens on a port of this machine."""

    def __init__(self, port: int) -> None:
        """Take the port."""
        self._address = f"ws://127.0.0.1:{port}"

    def texts(self, audio: Sequence[Waveform], in_flight: int, sample_rate: int) -> list[str]:
        """The texts of utterances, which are sent over so many connections, one after the other in each."""
        return asyncio.run(self._texts(audio, in_flight, sample_rate))

    async def _texts(self, audio: Sequence[Waveform], in_flight: int, sample_rate: int) -> list[str]:
        texts = [""] * len(audio)
        left = iter(enumerate(audio))

        async def work() -> None:
            async with websockets.connect(self._address, max_size=None, compression=None) as connection:
                for index, waveform in left:
                    message = np.array([sample_rate, waveform.nbytes], "<i4").tobytes() + waveform.tobytes()
                    for begin in range(0, len(message), PART_BYTES):
                        await connection.send(message[begin : begin + PART_BYTES])
                    texts[index] = json.loads(await connection.recv())["text"].strip()
                await connection.send("Done")

        await asyncio.gather(*(work() for _ in range(in_flight)))
        return texts


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
