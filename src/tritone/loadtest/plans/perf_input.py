"""Audio in the form that NVIDIA's perf_analyzer takes.

    waveforms  ->  offline_input.json, online_input.json  ->  perf_analyzer --input-data

A perf_analyzer file holds every sample as text, some 20 bytes for each. Waveforms are taken one after the other and
written as they come, so that an hour of audio needs no more memory than its longest utterance. A file appears under its
name when it is complete.

Source: docs/input_data.md of triton-inference-server/perf_analyzer; `generate_perf_input.py` of WeNet's GPU runtime.
"""

import base64
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from tritone.audio.pcm import to_pcm
from tritone.audio.waveform import Waveform
from tritone.client.transport import NUM_SAMPLES, PCM, WAVEFORM
from tritone.errors import InputError, OperatorError

OFFLINE, ONLINE = "offline_input.json", "online_input.json"
DEFAULT_CHUNK_S = 0.64
PIECE = 49152  # samples written at once; their bytes are a multiple of 3, as base64 likes it


@dataclass(frozen=True, kw_only=True)
class PerfInput:
    """A file for perf_analyzer."""

    path: Path
    streaming: bool
    utterances: int
    requests: int  # one for each utterance, or one for each chunk
    audio_s: float  # of all utterances
    uniform: bool  # whether all requests have one shape, which perf_analyzer needs to put several in a batch


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
    pcm: bool = False,
) -> list[PerfInput]:
    """Write `offline_input.json` and `online_input.json`.

    Args:
        waveforms: (samples,) float32 at `sample_rate`, none empty; taken once, one at a time.
        folder: made if it does not exist; files of these names in it are replaced.
        sample_rate: in Hz.
        offline, streaming: which of the files to write.
        chunk_s: audio in a chunk of a stream, in seconds. The last one is filled up with zeros, and `WAV_LENS` has
            its true length, as in the deployments' own scripts.
        first_chunk_s: of the first chunk; some deployments need it longer (0.69 s with WeNet's defaults).
        as_base64: write samples as base64 of their bytes: a quarter of the size and read far faster by perf_analyzer,
            but not the form that the deployments' own scripts write.
        pcm: write the input `PCM` of 16-bit samples, rounded, in place of `WAV`.

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
            _Writer(stack.enter_context(_new_file(folder / name)), folder / name, cut, as_base64, pcm)
            for name, cut, wanted in ((OFFLINE, None, offline), (ONLINE, (sizes[0], sizes[1]), streaming))
            if wanted
        ]
        for index, waveform in enumerate(waveforms):
            if not len(waveform):
                raise InputError(f"utterance {index} has no samples; leave it out")
            for writer in writers:
                writer.add(waveform)
        return [writer.finish(sample_rate) for writer in writers]


class _Writer:
    """Writes the utterances of one file as they come. `sizes`: of the first and the other chunks of a stream."""

    def __init__(self, file: TextIO, path: Path, sizes: tuple[int, int] | None, as_base64: bool, pcm: bool) -> None:
        self._file = file
        self._path = path
        self._sizes = sizes
        self._as_base64 = as_base64
        self._pcm = pcm
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
        name, dtype = (PCM, "<i2") if self._pcm else (WAVEFORM, "<f4")
        whole = to_pcm(samples) if self._pcm else samples
        pieces = [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]
        write = self._file.write
        write(f'{{"{name}": {{"content": ')
        if self._as_base64:
            write('{"b64": "')
            for piece in pieces:
                write(base64.b64encode(piece.astype(dtype, copy=False).tobytes()).decode())
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
