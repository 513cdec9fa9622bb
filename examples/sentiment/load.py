"""Send a served sentiment model requests from several threads, each as soon as its last one is answered.

200 requests, 4 threads  ->  requests per second, latency at 50, 90 and 99 %

python examples/sentiment/load.py --threads 4 --requests 200
"""

import argparse
import threading
import time

import numpy as np
import tritonclient.http as triton


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("--model", default="sentiment")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--requests", type=int, default=200, help="of all threads together")
    parser.add_argument("--length", type=int, default=32, help="tokens of a text")
    chosen = parser.parse_args()
    ids = np.random.default_rng(0).integers(0, 15, (1, chosen.length))
    latencies: list[float] = []

    def send(count: int) -> None:
        inputs = []
        for name, array in (("input_ids", ids), ("attention_mask", np.ones_like(ids))):
            inputs.append(triton.InferInput(name, array.shape, "INT64"))
            inputs[-1].set_data_from_numpy(array)
        with triton.InferenceServerClient(chosen.url) as client:
            for _ in range(count):
                start = time.perf_counter()
                client.infer(chosen.model, inputs)
                latencies.append(time.perf_counter() - start)

    send(10)  # warms up
    latencies.clear()
    threads = [threading.Thread(target=send, args=(chosen.requests // chosen.threads,)) for _ in range(chosen.threads)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - start
    half, most, nearly_all = np.percentile(latencies, [50, 90, 99]) * 1000
    print(
        f"{len(latencies)} requests, {chosen.threads} at once: {len(latencies) / wall_s:.0f}/s, "
        f"p50 {half:.1f} ms, p90 {most:.1f} ms, p99 {nearly_all:.1f} ms"
    )


if __name__ == "__main__":
    main()
