"""Audio in the forms that other load generators take: NVIDIA's perf_analyzer, and ApacheBench.

    waveforms  ->  offline_input.json, online_input.json  ->  perf_analyzer --input-data
    a waveform  ->  a request's body in a file  ->  ab -p

A perf_analyzer file holds every sample as text, some 20 bytes for each. Waveforms are taken one after the other and
written as they come, so that an hour of audio needs no more memory than its longest utterance. A file appears under its
name when it is complete.

Source: docs/input_data.md of triton-inference-server/perf_analyzer; `generate_perf_input.py` of WeNet's GPU runtime.
"""

import base64
import json
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.client.transport import NUM_SAMPLES, WAVEFORM
from tritone.errors import InputError, OperatorError
from tritone.loadtest.senders.wire import Target, encode

OFFLINE, ONLINE = "offline_input.json", "online_input.json"
AB_BODY = "ab_input.bin"
DEFAULT_CHUNK_S = 0.64
PIECE = 49152  # samples written at once; their bytes are a multiple of 3, as base64 likes it
JSON_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, kw_only=True)
class PerfInput:
    """A file for perf_analyzer.

    `utterances`, and `requests` of all of them together: one for each, or one for each chunk. `audio_s`: of all, in
    seconds. `uniform`: whether all requests have one shape, which perf_analyzer needs to put several in a batch.
    """

    path: Path
    streaming: bool
    utterances: int
    requests: int
    audio_s: float
    uniform: bool

    @property
    def utterance_s(self) -> float:
        """Mean audio of an utterance, in seconds."""
        return self.audio_s / self.utterances


@dataclass(frozen=True, kw_only=True)
class AbInput:
    """A request for ApacheBench: the file with its body, the headers that belong to it, and its URL."""

    path: Path
    headers: tuple[str, ...]
    url: str

    def command(self, *, requests: int = 1000, concurrency: int = 16) -> list[str]:
        """The command line that sends it so many times, so many at once, over kept connections."""
        headers = [word for header in self.headers for word in ("-H", header)]
        load = ["-n", str(requests), "-c", str(concurrency)]
        return ["ab", "-k", "-l", *load, "-p", str(self.path), "-T", "application/octet-stream", *headers, self.url]

    def __str__(self) -> str:
        return shlex.join(self.command())


def write_inputs(
    waveforms: Iterable[Waveform],
    folder: Path,
    *,
    sample_rate: int,
    offline: bool = True,
    streaming: bool = True,
    chunk_s: float = DEFAULT_CHUNK_S,
    first_chunk_s: float | None = None,
    as_base64: bool = False,
) -> list[PerfInput]:
    """Write `offline_input.json` and `online_input.json`.

    Args:
        waveforms: (samples,) float32 at `sample_rate`, none empty; taken once, one at a time.
        folder: made if it does not exist; files of these names in it are replaced.
        sample_rate: in Hz.
        offline, streaming: which of the files to write.
        chunk_s: audio in a chunk of a stream, in seconds. The last one is filled up with zeros, and `WAV_LENS` tells
            its true length, as the deployments' own scripts do it.
        first_chunk_s: of the first chunk; some deployments need it longer (0.69 s with WeNet's defaults).
        as_base64: write samples as base64 of their bytes: a quarter of the size and read far faster by perf_analyzer,
            but not the form that the deployments' own scripts write.

    Returns:
        A description of each file written.

    Raises:
        InputError: there is no waveform, or one is empty.
        OperatorError: the files cannot be written.
        ValueError: a chunk has no sample.
    """
    sizes = [round(each * sample_rate) for each in (chunk_s if first_chunk_s is None else first_chunk_s, chunk_s)]
    if min(sizes) < 1:
        raise ValueError(
            f"chunks must hold at least one sample of {sample_rate} Hz, got {first_chunk_s} and {chunk_s} s"
        )
    with ExitStack() as stack:
        writers = [
            _Writer(stack.enter_context(_new_file(folder / name)), folder / name, cut, as_base64)
            for name, cut, wanted in ((OFFLINE, None, offline), (ONLINE, (sizes[0], sizes[1]), streaming))
            if wanted
        ]
        for index, waveform in enumerate(waveforms):
            if not len(waveform):
                raise InputError(f"utterance {index} has no samples; leave it out")
            for writer in writers:
                writer.add(waveform)
        return [writer.finish(sample_rate) for writer in writers]


def write_ab_input(target: Target, waveform: Waveform, folder: Path) -> AbInput:
    """Write one utterance as the body of an HTTP request, in Triton's binary form, for ApacheBench (`ab -p`).

    ApacheBench sends the same request again and again. It cannot keep a stream, so the model must be an offline one.

    Args:
        target: an offline model, reached over HTTP.
        waveform: (samples,) float32 at the target's rate.
        folder: made if it does not exist; a file of the name in it is replaced.

    Raises:
        InputError: the target is a stream, or is reached over gRPC.
        OperatorError: the file cannot be written.
    """
    if target.streaming:
        raise InputError(
            f"model '{target.model}' takes streams; ApacheBench sends single requests. Name an offline model."
        )
    if target.endpoint.protocol != "http":
        raise InputError(
            f"ApacheBench speaks HTTP, {target.endpoint} does not; give the HTTP address (http://HOST:8000)"
        )
    body = encode(target, [waveform])
    path = folder / AB_BODY
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body.json + body.content)
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error.strerror}") from error
    scheme = "https" if target.endpoint.tls else "http"
    url = f"{scheme}://{target.endpoint.address}/v2/models/{target.model}/infer"
    return AbInput(path=path, headers=(f"{JSON_LENGTH}: {len(body.json)}",), url=url)


class _Writer:
    """Writes the utterances of one file as they come. `sizes`: of the first and the other chunks of a stream."""

    def __init__(self, file: TextIO, path: Path, sizes: tuple[int, int] | None, as_base64: bool) -> None:
        self._file = file
        self._path = path
        self._sizes = sizes
        self._as_base64 = as_base64
        self._utterances = self._requests = self._samples = 0
        self._shapes: set[int] = set()
        file.write('{"data": [')

    def add(self, waveform: Waveform) -> None:
        steps = [(waveform, len(waveform))] if self._sizes is None else list(_chunks(waveform, *self._sizes))
        self._file.write("\n" if not self._utterances else ",\n")
        self._file.write("" if self._sizes is None else "[")
        for index, (samples, valid) in enumerate(steps):
            self._file.write(",\n" if index else "")
            self._write_step(samples, valid)
            self._shapes.add(len(samples))
        self._file.write("" if self._sizes is None else "]")
        self._utterances += 1
        self._requests += len(steps)
        self._samples += len(waveform)

    def finish(self, sample_rate: int) -> PerfInput:
        if not self._utterances:
            raise InputError("there are no utterances to write; the list is empty")
        self._file.write("\n]}\n")
        return PerfInput(
            path=self._path,
            streaming=self._sizes is not None,
            utterances=self._utterances,
            requests=self._requests,
            audio_s=self._samples / sample_rate,
            uniform=len(self._shapes) == 1,
        )

    def _write_step(self, samples: Waveform, valid: int) -> None:
        # In pieces: as Python's numbers and as text, a long utterance takes twenty times its own memory.
        pieces = [samples[start : start + PIECE] for start in range(0, len(samples), PIECE)]
        write = self._file.write
        write(f'{{"{WAVEFORM}": {{"content": ')
        if self._as_base64:
            write('{"b64": "')
            for piece in pieces:
                write(base64.b64encode(piece.astype("<f4", copy=False).tobytes()).decode())
            write('"}')
        else:
            for index, piece in enumerate(pieces):
                write((", " if index else "[") + json.dumps(piece.tolist())[1:-1])
            write("]")
        write(f', "shape": [{len(samples)}]}}, "{NUM_SAMPLES}": [{valid}]}}')


def _chunks(waveform: Waveform, first: int, others: int) -> Iterator[tuple[Waveform, int]]:
    """Chunks of a stream, the last one filled up with zeros, each with its true length."""
    place, size = 0, first
    while place < len(waveform):
        part = waveform[place : place + size]
        yield np.pad(part, (0, size - len(part))), len(part)
        place += size
        size = others


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """A text file that takes its name when all of it is written, and leaves nothing behind when that fails."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w", encoding="ascii") as file:
            yield file
        unfinished.replace(path)
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
