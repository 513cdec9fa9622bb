"""What masks cost a speaker model in onnxruntime, and what the form for even batches leaves of that. On the CPU.

    python -m benchmarks.even_rows [--size resnet34] [--batches 1,8] [--threads 1,2] [--rounds 15]

The plain network without masks, as upstream exports it; the bundle's acoustic graph on a batch whose rows all are as
long as the batch; and the same graph on a batch with one shorter row. 200 frames, random weights. All take turns in one
process; CPU time of the process is what counts, which others on the machine disturb less than time on the clock.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.models.plain_speaker import PlainNetwork, write_onnx
from benchmarks.models.random_bundle import RANDOM_BUNDLES, names_of
from benchmarks.models.speaker import SIZES, config_of, kept_speaker, random_network
from tritone.families.wespeaker.config import parse_config
from tritone.runtime import open_graph

FRAMES, BINS = 200, 80
SAMPLES, SHORTER = 32_320, 30_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="resnet34", choices=list(SIZES))
    parser.add_argument("--batches", type=names_of, default="1,8")
    parser.add_argument("--threads", type=names_of, default="1,2")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bundles", type=Path, default=RANDOM_BUNDLES)
    given = parser.parse_args()
    bundle = kept_speaker(given.size, given.bundles, "onnxruntime", "fp32")
    plain = given.bundles / f"plain-{given.size}.onnx"
    if not plain.is_file():
        write_onnx(PlainNetwork(random_network(parse_config(config_of(given.size)))), plain, FRAMES)
    print(f"onnxruntime {onnxruntime.__version__}, {given.size}; ms of CPU time an utterance, ratios to plain")
    for threads in map(int, given.threads):
        graphs = open_graph(plain, "cpu", threads), open_graph(bundle.artifact("acoustic"), "cpu", threads)
        for batch in map(int, given.batches):
            _measure(*graphs, batch, threads, given.rounds)


def _measure(plain, graph, batch: int, threads: int, rounds: int) -> None:  # type: ignore[no-untyped-def]
    features = np.random.default_rng(0).normal(size=(batch, FRAMES, BINS)).astype(np.float32)
    even = np.full(batch, SAMPLES)
    ragged = np.where(np.arange(batch) == 0, SHORTER, SAMPLES)
    calls = {
        "plain": lambda: plain({"feats": features}, ["embs"]),
        "even": lambda: graph({"features": features, "num_samples": even}, ["embeddings"]),
        "ragged": lambda: graph({"features": features, "num_samples": ragged}, ["embeddings"]),
    }
    [expected], [found] = calls["plain"](), calls["even"]()
    apart = np.abs(found - expected).max() / np.abs(expected).max()
    calls["ragged"]()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append((time.process_time() - start) / batch * 1000)
    ratios = {name: np.median(np.divide(each, times["plain"])) for name, each in times.items()}
    cells = [f"{name} {np.median(times[name]):6.1f} ({ratios[name]:.3f})" for name in calls]
    print(f"threads {threads}, batch {batch}: {', '.join(cells)}; even is {apart:.1g} from plain", flush=True)


if __name__ == "__main__":
    main()
