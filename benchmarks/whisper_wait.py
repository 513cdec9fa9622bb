"""How long a short request waits for an hour's recording that one served Whisper model transcribes at the same time.

    python -m benchmarks.whisper_wait BUNDLE ../shared/data/librispeech_mini [--threads 2] [--clips 40] [--hours 1]

A real server on the CPU answers clips of four seconds, one after the other: first alone, then beside the long request,
which is given up once the clips are answered. Their texts are compared.
"""

import argparse
import tempfile
import threading
import time
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from benchmarks.whisper_reference import RATE, recordings
from tritone.client import Client
from tritone.errors import TritoneError
from tritone.repository import ModelOptions, build_repository
from tritone.server import ServerOptions, TritonServer

CLIP = 4 * RATE
KINDS = 6  # different clips


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path, help="of recordings")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--long-s", type=float, default=150.0, help="after which the long request is given up")
    arguments = parser.parse_args()
    audio = [waveform for _, waveform in recordings(arguments.folder)]
    clips = [waveform[:CLIP] for waveform in audio if len(waveform) >= CLIP][:KINDS]
    long = np.resize(np.concatenate(audio), round(arguments.hours * 3600 * RATE))
    options = ModelOptions(threads=arguments.threads, max_audio_s=len(long) / RATE + 1, decoding='{"temperature": "0"}')
    with tempfile.TemporaryDirectory() as folder:
        build_repository([arguments.bundle], Path(folder, "repository"), options=options, modes="offline")
        with (
            TritonServer(Path(folder, "repository"), ServerOptions.on_free_ports(drain_s=0)) as server,
            Client(server.grpc_address, timeout_s=600) as client,
            Client(server.grpc_address, timeout_s=arguments.long_s, retries=0) as patient,
        ):

            def ask() -> tuple[list[float], list[str]]:
                times, texts = [], []
                for clip in islice(cycle(clips), arguments.clips):
                    start = time.perf_counter()
                    texts.append(client.transcribe(clip).get().text)
                    times.append(time.perf_counter() - start)
                return times, texts

            alone, expected = ask()
            other = threading.Thread(target=patient.transcribe, args=([long],))
            other.start()
            beside, texts = ask()
            print(f"the long request is {'still' if other.is_alive() else 'no longer'} in work")
            other.join()
    for what, times in (("alone", alone), ("beside", beside)):
        print(
            f"{what}: p50 {np.median(times) * 1000:.0f} ms, p95 {np.quantile(times, 0.95) * 1000:.0f} ms, {len(times)}"
        )
    print(f"texts the same: {sum(map(str.__eq__, texts, expected))} of {len(texts)}")


if __name__ == "__main__":
    try:
        main()
    except TritoneError as error:
        raise SystemExit(str(error)) from error
