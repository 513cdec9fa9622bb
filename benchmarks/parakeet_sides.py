"""One side of `benchmarks.parakeet_cpu`: this project in process or served, sherpa-onnx, or onnx-asr.

    python -m benchmarks.parakeet_sides SIDE CASE --work DIR --threads 2

It has its model in memory and works whenever a line comes. The others run in an environment of their own, which needs
no more than their package and numpy.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sides import serve

RATE = 16000
CLIPS = "clips.npz"
BUNDLE = "bundle"
MODEL = "parakeet"
SHERPA, ONNX_ASR = "sherpa-onnx", "onnx-asr"

Clips = Sequence[np.ndarray]
Work = Callable[[Clips], dict[str, Any]]


def load_clips(work: Path) -> list[np.ndarray]:
    """The recordings as (samples,) float32 at 16 kHz."""
    with np.load(work / CLIPS) as found:
        return [found[name] for name in sorted(found.files)]


@contextmanager
def here(arguments: argparse.Namespace) -> Iterator[Work]:
    """This project in process: one call for each recording, or one for all."""
    import tritone

    model = tritone.load(arguments.work / BUNDLE, precision="int8", threads=arguments.threads)

    def work(clips: Clips) -> dict[str, Any]:
        calls = [list(clips)] if arguments.case == "together" else [[each] for each in clips]
        texts = [found.get().text for call in calls for found in model.transcribe(call, sample_rate=RATE)]
        return {"texts": texts}

    yield work


@contextmanager
def served(arguments: argparse.Namespace) -> Iterator[Work]:
    """This project's `tritone serve`, and a client that sends one recording after the other, or all at once."""
    import tempfile

    import psutil

    from benchmarks.endurance.deployment import Deployment
    from tritone.client import Client
    from tritone.repository import ModelOptions, build_repository

    in_flight = len(load_clips(arguments.work)) if arguments.case == "together" else 1
    with tempfile.TemporaryDirectory(prefix="parakeet-cpu-") as folder:
        repository = Path(folder) / "repository"
        options = ModelOptions(precision="int8", threads=arguments.threads)
        build_repository([arguments.work / BUNDLE], repository, names=[MODEL], options=options, link=True)
        with (
            Deployment(repository, Path(folder)) as deployment,
            Client(deployment.grpc) as client,
            ThreadPoolExecutor(in_flight) as pool,
        ):
            tree = psutil.Process(deployment.pid)

            def work(clips: Clips) -> dict[str, Any]:
                def ask(clip: np.ndarray) -> str:
                    return client.transcribe(clip, MODEL, sample_rate=RATE).get().text

                return {"texts": list(pool.map(ask, clips)), "tree": memory_of(tree)}

            yield work


def memory_of(root: Any) -> dict[str, dict[str, float]]:
    """MB of a process and all below it, by name: `pss` and `rss` now, and the most that it had resident (`peak`)."""
    found = {}
    for each in [root, *root.children(recursive=True)]:
        status = Path(f"/proc/{each.pid}/status").read_text(encoding="utf-8").splitlines()
        peak = next((int(line.split()[1]) / 1e3 for line in status if line.startswith("VmHWM")), 0.0)
        used = each.memory_full_info()
        found[f"{each.name()} {each.pid}"] = {"pss": used.pss / 1e6, "rss": used.rss / 1e6, "peak": peak}
    return found


@contextmanager
def sherpa(arguments: argparse.Namespace) -> Iterator[Work]:
    """sherpa-onnx: one recording after the other with all threads."""
    recognizer = _sherpa(arguments, arguments.threads)
    yield lambda clips: {"texts": [_decoded(recognizer, [clip])[0] for clip in clips], "version": version(SHERPA)}


@contextmanager
def sherpa_batch(arguments: argparse.Namespace) -> Iterator[Work]:
    """sherpa-onnx: all recordings in one call."""
    recognizer = _sherpa(arguments, arguments.threads)
    yield lambda clips: {"texts": _decoded(recognizer, clips), "version": version(SHERPA)}


@contextmanager
def sherpa_workers(arguments: argparse.Namespace) -> Iterator[Work]:
    """sherpa-onnx: as many callers as there are threads, each with one of them."""
    recognizer = _sherpa(arguments, 1)
    with ThreadPoolExecutor(arguments.threads) as pool:
        yield lambda clips: {
            "texts": list(pool.map(lambda clip: _decoded(recognizer, [clip])[0], clips)),
            "version": version(SHERPA),
        }


def _sherpa(arguments: argparse.Namespace, threads: int) -> Any:
    folder = arguments.work / SHERPA
    return import_module("sherpa_onnx").OfflineRecognizer.from_transducer(
        **{name: str(folder / f"{name}.int8.onnx") for name in ("encoder", "decoder", "joiner")},
        tokens=str(folder / "tokens.txt"),
        model_type="nemo_transducer",
        feature_dim=_features(arguments),
        num_threads=threads,
        decoding_method="greedy_search",
    )


def _decoded(recognizer: Any, clips: Clips) -> list[str]:
    streams = [recognizer.create_stream() for _ in clips]
    for stream, clip in zip(streams, clips, strict=True):
        stream.accept_waveform(RATE, clip)
    recognizer.decode_streams(streams)
    return [stream.result.text for stream in streams]


def _features(arguments: argparse.Namespace) -> int:
    config = json.loads((arguments.work / ONNX_ASR / "config.json").read_text(encoding="utf-8"))
    return int(config["features_size"])


@contextmanager
def onnx_asr(arguments: argparse.Namespace) -> Iterator[Work]:
    """onnx-asr: one call for each recording, or one for all."""
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    kind = json.loads((arguments.work / ONNX_ASR / "config.json").read_text(encoding="utf-8"))["model_type"]
    model = import_module("onnx_asr").load_model(
        kind, arguments.work / ONNX_ASR, quantization="int8", sess_options=options, providers=["CPUExecutionProvider"]
    )

    def work(clips: Clips) -> dict[str, Any]:
        if arguments.case == "together":
            texts = model.recognize(list(clips), sample_rate=RATE)
        else:
            texts = [model.recognize(clip, sample_rate=RATE) for clip in clips]
        return {"texts": texts, "version": version(ONNX_ASR)}

    yield work


SIDES = {
    "here": here,
    "served": served,
    SHERPA: sherpa,
    f"{SHERPA} batch": sherpa_batch,
    f"{SHERPA} workers": sherpa_workers,
    ONNX_ASR: onnx_asr,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("case", choices=("one", "together"), help="one recording after the other, or all at once")
    parser.add_argument("--work", type=Path, required=True, help="folder that `benchmarks.parakeet_cpu` has filled")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    clips = load_clips(arguments.work)
    with SIDES[arguments.side](arguments) as work:
        serve(lambda: work(clips))


if __name__ == "__main__":
    main()
