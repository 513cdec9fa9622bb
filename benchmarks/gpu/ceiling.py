"""The compiled network alone: a bundle's own torch program, compiled for one shape and replayed as a CUDA graph.

    bundle, role, rows, seconds  ->  milliseconds a call, one behind the other and each waited for

It uses of Tritone only the reading of the program.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.plain import Plain
from benchmarks.models.pieces import speech
from tritone.bundle import Bundle
from tritone.pipelines.graphs.geometry import Geometry
from tritone.runtime.files.program import read_program
from tritone.runtime.graph import TensorSpec
from tritone.runtime.slots import state_shape

WARM_UPS = 3
PARTS = 5  # of a measurement; its median counts
ALONE = 25  # calls that are waited for
WANTED = ("best_tokens", "best_log_probs", "embeddings", "encoder_out", "num_frames")
BIG_OUTPUTS = ("log_probs", "encoder_out")  # not wanted where there are best tokens
HYPOTHESES, TOKENS = 10, 60  # of each utterance that is rescored
PLAIN = {"width": 512, "heads": 8, "hidden": 2048, "kernel": 15, "layers": 12, "vocab": 5537, "bins": 80}
TINY = {"width": 16, "heads": 2, "hidden": 16, "kernel": 3, "layers": 1, "vocab": 40, "bins": 80}

Run = Callable[[], object]


def prepare(bundle: str, role: str, rows: int, seconds: float, precision: str, device: str, compiled: bool) -> Run:
    """Compile a graph of a bundle for one shape; the function runs it once more.

    Args:
        bundle: its folder; "" is the plain conformer, on features.
        role: the graph's; a step of `rows` streams for the streaming encoder.
        rows, seconds: of the call.
        compiled: by inductor; without, as a smoke test needs no compiler.
    """
    place = torch.device(device)
    torch.backends.cudnn.allow_tf32 = False  # as the runtime computes
    function, inputs = (
        _program(Path(bundle), role, rows, seconds, precision, place)
        if bundle
        else _plain(rows, seconds, place, tiny=not compiled)
    )
    network = torch.compile(function, dynamic=False) if compiled else function
    with torch.no_grad():
        for _ in range(WARM_UPS):
            network(*inputs)
        if place.type != "cuda":
            return _without_gradients(network, inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = network(*inputs)

    def replay(memory: object = (network, inputs, kept)) -> None:  # which the recording reads and writes
        graph.replay()

    return replay


def milliseconds(run: Run, device: str, seconds: float) -> dict[str, float]:
    """Median times of a call: `ms` behind others, for about so many seconds; `alone_ms` launched and waited for."""
    run()
    once = median(_timed(run, 1, device) for _ in range(ALONE))
    count = max(1, round(seconds / PARTS / max(once, 1e-6)))
    return {"ms": 1000 * median(_timed(run, count, device) for _ in range(PARTS)), "alone_ms": 1000 * once}


def _timed(run: Run, count: int, device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        run()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def _without_gradients(network: Callable[..., Any], inputs: Sequence[Tensor]) -> Run:
    def run() -> object:
        with torch.no_grad():
            return network(*inputs)

    return run


def _program(
    path: Path, role: str, rows: int, seconds: float, precision: str, place: torch.device
) -> tuple[Callable[..., Any], list[Tensor]]:
    bundle = Bundle.open(path)
    artifact = bundle.artifacts(role, runtime="torch", precision=precision)[0]  # type: ignore[arg-type]
    program = read_program(bundle.file(artifact.files[0]), place)
    outputs = [name for name in WANTED if name in program.outputs]
    if "best_tokens" in outputs:
        outputs = [name for name in outputs if name not in BIG_OUTPUTS]
    states: Mapping[str, TensorSpec] = {}
    if role == "streaming_encoder":
        assert bundle.manifest.streaming is not None
        geometry = Geometry.choose(bundle, bundle.manifest.streaming)
        states, samples = geometry.states, geometry.window_samples
        outputs += [f"next_{name}" for name in states]
    else:
        samples = round(seconds * bundle.manifest.sample_rate) + bundle.manifest.encoder.tail_samples
    if role == "decoder":
        outputs = list(program.outputs)
    given = _inputs(bundle, rows, samples)
    # As the graph keeps them: the manifest says float32 where one of bfloat16 has their bits.
    given |= {name: np.zeros((rows, *state_shape(spec)), program.inputs[name].dtype) for name, spec in states.items()}
    inputs = [torch.from_numpy(given[name]).to(place) for name in program.inputs]
    function = program.function(outputs)
    return getattr(function, "__self__", function), inputs


def _inputs(bundle: Bundle, rows: int, samples: int) -> dict[str, Any]:
    """All inputs that some graph takes, for utterances of so many samples."""
    manifest = bundle.manifest
    rng = np.random.default_rng(3)
    heard = speech(samples / manifest.sample_rate + 1, manifest.sample_rate)
    starts = rng.integers(0, len(heard) - samples, rows)
    frames = max(1, samples // (manifest.features.frame_shift * manifest.encoder.subsampling_rate))
    found: dict[str, Any] = {
        "waveform": np.stack([heard[start : start + samples] for start in starts]),
        "num_samples": np.full(rows, samples, np.int64),
        "num_frames": np.full(rows, frames, np.int64),
    }
    found |= {name: np.full(rows, number, np.int64) for name, number in manifest.encoder.asked().items()}
    if manifest.vocabulary is not None:
        found |= {
            "encoder_out": rng.normal(0, 1, (rows, frames, manifest.encoder.output_dim)).astype(np.float32),
            "hypotheses": rng.integers(4, manifest.vocabulary.size - 1, (rows, HYPOTHESES, TOKENS)),
            "num_tokens": np.full((rows, HYPOTHESES), TOKENS, np.int64),
        }
    return found


def _plain(rows: int, seconds: float, place: torch.device, tiny: bool) -> tuple[Callable[..., Any], list[Tensor]]:
    torch.manual_seed(7)
    sizes = TINY if tiny else PLAIN
    network = Plain(**sizes).eval().to(place, torch.bfloat16)
    frames = round(100 * seconds) - 2
    return network, [torch.randn(rows, frames, sizes["bins"]).to(place, torch.bfloat16)]
