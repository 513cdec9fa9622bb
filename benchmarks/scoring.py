"""How long a million trials take, from files to error rates, and how much longer a loop over trials would.

    python -m benchmarks.scoring [--trials 1000000] [--recordings 40000] [--dim 256] [--cohort 5000] [--threads 2]

Vectors and trials are made up: 40,000 recordings of 1,250 speakers, a tenth of the trials targets. Every part is timed
once the files are in the page cache. The loop takes two vectors by name and their cosine, trial by trial, for a
thousandth of the trials; its scores must be ours.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--recordings", type=int, default=40_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--cohort", type=int, default=5_000)
    parser.add_argument("--threads", type=int, default=2, help="of matrix products")
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(options.threads)  # numpy reads them when it is loaded
    with tempfile.TemporaryDirectory(prefix="scoring-benchmark-") as folder:
        _measure(options, Path(folder))


def _measure(options: argparse.Namespace, folder: Path) -> None:
    import numpy as np

    from tritone.report.stamp import Stamp
    from tritone.speakers.archive import Vectors, read_vectors
    from tritone.speakers.metrics import Cost, evaluate
    from tritone.speakers.score_file import Scores, read_scores, write_scores
    from tritone.speakers.scoring import score_trials
    from tritone.speakers.trials import read_trials

    print(Stamp.here().summary())
    rng = np.random.default_rng(0)
    speakers = max(2, options.recordings // 32)
    owner = rng.integers(speakers, size=options.recordings)
    centres = rng.normal(size=(speakers, options.dim))
    matrix = (centres[owner] + 2 * rng.normal(size=(options.recordings, options.dim))).astype(np.float32)
    keys = tuple(f"id{owner[row]:05d}/utterance-{row:06d}.wav" for row in range(options.recordings))
    _write(folder, keys, matrix)
    left = rng.integers(options.recordings, size=options.trials)
    right = rng.integers(options.recordings, size=options.trials)
    by_owner = np.argsort(owner, kind="stable")
    place = np.empty(len(owner), dtype=np.int64)
    place[by_owner] = np.arange(len(owner))
    tenth = rng.random(options.trials) < 0.1
    neighbour = by_owner[np.minimum(place[left] + 1, len(owner) - 1)]
    right[tenth] = neighbour[tenth]
    label = np.where(owner[left] == owner[right], "target", "nontarget")
    with (folder / "trials").open("w", encoding="utf-8") as file:
        file.writelines(f"{keys[a]} {keys[b]} {c}\n" for a, b, c in zip(left, right, label, strict=True))

    took: dict[str, float] = {}

    def timed(name: str, work: Callable[[], T]) -> T:
        started = perf_counter()
        result = work()
        took[name] = perf_counter() - started
        print(f"{name:42} {took[name]:8.2f} s", flush=True)
        return result

    print(f"{options.trials:,} trials of {options.recordings:,} recordings, {options.dim} values")
    vectors = timed("read vectors", lambda: read_vectors(folder / "xvector.scp"))
    trials = timed("read trials", lambda: read_trials(folder / "trials"))
    plain = timed("score", lambda: score_trials(trials, vectors))
    timed("write scores", lambda: write_scores(folder / "plain.score", trials, plain.values))
    scores = Scores(trials, plain.values)
    timed("EER and minDCF", lambda: evaluate(scores, [Cost()], resamples=0))
    whole = sum(took.values())
    print(f"{'all of it':42} {whole:8.2f} s")
    cohort = Vectors(
        tuple(f"c{row}" for row in range(options.cohort)),
        rng.normal(size=(options.cohort, options.dim)).astype(np.float32),
    )
    timed(f"score, AS-norm with {options.cohort:,} speakers", lambda: score_trials(trials, vectors, cohort=cohort))
    timed("95 % intervals", lambda: evaluate(scores, [Cost()]))
    timed("read scores", lambda: read_scores(folder / "plain.score"))

    few = max(1, options.trials // 1000)
    held = {key: matrix[row] for row, key in enumerate(keys)}
    started = perf_counter()
    looped = [
        float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))
        for a, b in ((held[keys[x]], held[keys[y]]) for x, y in zip(left[:few], right[:few], strict=True))
    ]
    loop_s = (perf_counter() - started) * options.trials / few
    worst = float(np.abs(np.array(looped) - plain.values[:few]).max())
    assert worst < 1.1e-5, f"the loop scores otherwise, by {worst:.1e}"
    times = loop_s / took["score"]
    print(f"{'a loop over trials, by its first thousandth':42} {loop_s:8.2f} s   {times:.0f} times `score`")


def _write(folder: Path, keys: tuple[str, ...], matrix: object) -> None:
    import numpy as np

    from tritone.speakers.archive_writer import entry

    rows = np.asarray(matrix, dtype=np.float32)
    place = 0
    with (folder / "xvector.ark").open("wb") as ark, (folder / "xvector.scp").open("w", encoding="utf-8") as scp:
        for key, row in zip(keys, rows, strict=True):
            data, offset = entry(key, row)
            scp.write(f"{key} {folder}/xvector.ark:{place + offset}\n")
            place += ark.write(data)


if __name__ == "__main__":
    main()
