"""What the calls of a bundle's graph for whole inputs take of memory, measured in a process of its own.

bundle, artifact  ->  Memory (bytes of the process, and of calls with 10, 20, ... seconds of audio; of a voice, up to
                      the longest that it speaks at once)

    python -m tritone.pipelines.memory BUNDLE          # measures all graphs and keeps it in the manifest
    python -m tritone.pipelines.memory BUNDLE INDEX    # one graph; prints a line of JSON for each size

Each size runs in a fork of a process that has opened the model and computed nothing, so what it takes is what a model
takes that meets this size first. A few seconds of audio, then more and more, until the time or the memory is over.
"""

import json
import os
import subprocess
import sys
import threading
from itertools import accumulate
from pathlib import Path

import numpy as np

from tritone.bundle.bundle import MANIFEST, Bundle
from tritone.bundle.manifest import Artifact, CallSize, Manifest, Memory, Role
from tritone.errors import BundleError
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.kind import kind_named, kind_of
from tritone.runtime.child import python_command
from tritone.runtime.graph import Array
from tritone.runtime.memory import machine_bytes, peak_bytes, reset_peak, resident_bytes

LENGTHS_S = (10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0)
NEEDED = 3  # sizes at least: fewer show little about longer audio
TIMEOUT_S = 60.0
PART = 0.5  # of the machine's memory that a measurement may take
LOUDNESS = 0.1  # of the noise that is computed


def measured(bundle: Bundle, *, timeout_s: float = TIMEOUT_S) -> Bundle:
    """The same bundle, with the memory of each graph for whole inputs that can be measured here and was not yet.

    Args:
        timeout_s: for each graph.
    """
    artifacts = [
        artifact
        if artifact.memory is not None
        else artifact.model_copy(update={"memory": measure(bundle, index, timeout_s=timeout_s)})
        for index, artifact in enumerate(bundle.manifest.artifacts)
    ]
    return Bundle(bundle.path, bundle.manifest.model_copy(update={"artifacts": tuple(artifacts)}))


def record(bundle: Bundle, *, anew: bool = False) -> Bundle:
    """Keep in a bundle's manifest what `measured` finds; returns the bundle as it is then.

    Args:
        anew: measure also what was measured before.

    Raises:
        BundleError: the manifest cannot be written.
    """
    found = measured(_forgotten(bundle) if anew else bundle)
    if found.manifest == bundle.manifest:
        return bundle
    path = bundle.path / MANIFEST
    content = json.loads(path.read_bytes())
    for entry, artifact in zip(content["artifacts"], found.manifest.artifacts, strict=True):
        if artifact.memory is not None:
            entry["memory"] = artifact.memory.model_dump()
    beside = path.with_suffix(".new")
    try:
        beside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror}") from error
    return Bundle.open(bundle.path)


def measure(bundle: Bundle, index: int, *, timeout_s: float = TIMEOUT_S) -> Memory | None:
    """What calls of an artifact take; None for another role than that of whole inputs, and where it cannot be measured.

    Args:
        index: of the artifact in the manifest.
        timeout_s: what has not been measured by then is estimated.
    """
    artifact = bundle.manifest.artifacts[index]
    if (
        artifact.role != measured_role(bundle.manifest)
        or artifact.runtime == "tensorrt"
        or not Path("/proc/self/clear_refs").exists()
    ):
        return None
    if kind_of(bundle).writes_text:  # of windows, one at a time
        return None
    process = subprocess.Popen(
        python_command("tritone.pipelines.memory", bundle.path.resolve(), index),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        start_new_session=True,
    )
    timer = threading.Timer(timeout_s, lambda: os.killpg(process.pid, 9))
    timer.start()
    try:
        with process:
            assert process.stdout is not None
            rows = [json.loads(line) for line in process.stdout if line.endswith("}\n")]
    finally:
        timer.cancel()
    if len(rows) < NEEDED:
        return None
    network = accumulate((row["network"] for row in rows), max)  # one that fits its arena well may take less
    return Memory(
        process=rows[0]["process"],
        network=tuple(CallSize(seconds=row["seconds"], bytes=taken) for row, taken in zip(rows, network, strict=True)),
        search_per_second=max(row["search"] / row["seconds"] for row in rows),
    )


def measured_role(manifest: Manifest) -> Role:
    """The role of the graph for whole inputs."""
    return "model" if kind_named(manifest.kind).call_sizes else "encoder"


def main(path: str, index: str) -> None:
    """Measure one size after another and print each."""
    bundle = Bundle.open(path)
    artifact, kind = bundle.manifest.artifacts[int(index)], kind_of(bundle)
    pipeline = kind.open(
        _alone(bundle, artifact),
        placement=Placement(threads=1, runtime=artifact.runtime, precision=artifact.precision),
        max_audio_s=2 * max(LENGTHS_S),
    )
    if searching := getattr(pipeline, "searching", None):
        searching.warm_up()  # what is compiled stays, and is no matter of a call
    process, limit = resident_bytes(), machine_bytes() or 0
    last: tuple[float, float] | None = None
    for size in kind.call_sizes or LENGTHS_S:
        if last is not None and process + last[1] * (size / last[0]) ** 2 > PART * limit:
            break
        read, write = os.pipe()
        if not (child := os.fork()):
            os.close(read)
            os.write(write, json.dumps(_take(pipeline, bundle.manifest, size)).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as answer:
            row = answer.read()
        os.waitpid(child, 0)
        if not row:  # the system has ended it
            break
        found = json.loads(row)
        last = size, found["network"]
        sys.stdout.write(json.dumps({"process": process, **found}) + "\n")
        sys.stdout.flush()


def _take(pipeline: object, manifest: Manifest, size: float) -> dict[str, float]:
    """What a call takes of so many seconds of audio, or, of a voice, of so many phonemes; and its seconds."""
    if kind_named(manifest.kind).call_sizes:
        before = resident_bytes()
        reset_peak()
        seconds = pipeline.babble(int(size))  # type: ignore[attr-defined]
        return {"seconds": seconds, "network": max(0, peak_bytes() - before), "search": 0.0}
    runner, searching = pipeline.runner, getattr(pipeline, "searching", None)  # type: ignore[attr-defined]
    noise = LOUDNESS * np.random.default_rng(0).standard_normal(int(size * manifest.sample_rate))
    before = resident_bytes()
    reset_peak()
    inputs = runner.filled([noise.astype(np.float32)], len(noise)).inputs
    if searching is None:
        runner.compute(inputs, tuple(runner.graph.outputs))
        return {"seconds": size, "network": max(0, peak_bytes() - before), "search": 0.0}
    options = [searching.options]
    # All outputs: any search can be asked for, and some take more of them than this one.
    outputs: dict[str, Array] = runner.compute(inputs, tuple(runner.graph.outputs))
    network, between = peak_bytes() - before, resident_bytes()
    reset_peak()
    searching.search(outputs, options)
    # Beams keep copies of the network's outputs of each frame.
    copies = 2 * sum(output.nbytes for output in outputs.values())
    return {"seconds": size, "network": max(0, network), "search": max(0, peak_bytes() - between, copies)}


def _alone(bundle: Bundle, artifact: Artifact) -> Bundle:
    """The bundle with no other graph of the artifact's role."""
    kept = [each for each in bundle.manifest.artifacts if each.role != artifact.role or each == artifact]
    return Bundle(bundle.path, bundle.manifest.model_copy(update={"artifacts": tuple(kept)}))


def _forgotten(bundle: Bundle) -> Bundle:
    artifacts = tuple(each.model_copy(update={"memory": None}) for each in bundle.manifest.artifacts)
    return Bundle(bundle.path, bundle.manifest.model_copy(update={"artifacts": artifacts}))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:
        for each in record(Bundle.open(sys.argv[1]), anew=True).manifest.artifacts:
            sys.stdout.write(f"{each.role} {each.runtime} {each.precision}: {each.memory or 'not measured'}\n")
