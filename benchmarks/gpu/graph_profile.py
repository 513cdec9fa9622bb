"""Which kernels a program's graph takes, and for how long: operator by operator and compiled, for several programs.

    python -m benchmarks.gpu.graph_profile old/encoder.bf16.pt2 new/encoder.bf16.pt2 --rows 64 --samples 160000
    python -m benchmarks.gpu.graph_profile --width 512 --forms plain,fused --rows 32          # random conformers

    program, sizes of a call  ->  milliseconds a call, and the kernels by their share of it

On a GPU a call is recorded as a CUDA graph and replayed, as the runtime does. It runs on a CPU as well.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, fx

from benchmarks.models.wenet import ModelSize
from tritone.bundle.manifest import Precision
from tritone.families.export.fused import fused
from tritone.families.export.precision import in_precision
from tritone.families.export.torch_program import save_program
from tritone.families.wenet.config import parse_config
from tritone.families.wenet.graphs import OfflineGraph, StreamingGraph, make_fbank
from tritone.families.wenet.model import AsrModel
from tritone.runtime.files.program import read_program
from tritone.runtime.torch.lowering import lower

OUTPUTS = ("best_tokens", "best_log_probs", "num_frames")
MODES: dict[str, Callable[[fx.GraphModule], Any]] = {
    "eager": lambda module: module,
    "compiled": lambda module: torch.compile(module, dynamic=False),
    "lowered": lambda module: torch.compile(_lowered(module), dynamic=False),
}


def _lowered(module: fx.GraphModule) -> fx.GraphModule:
    lower(module.graph, dict(module.named_buffers()))
    module.recompile()
    return module


REPEATS = 15
PROFILED = 3


@dataclass(frozen=True, kw_only=True)
class Call:
    """Sizes of a call: a row's samples, and the past frames of a stream."""

    rows: int
    samples: int
    left_frames: int

    def inputs(self, program: Any, device: torch.device) -> list[Tensor]:
        """Noise of full length, and states of zeros."""
        random = torch.Generator().manual_seed(0)
        found = []
        for name, spec in program.inputs.items():
            free = self.samples if name == "waveform" else self.left_frames
            shape = [self.rows, *(free if size is None else size for size in spec.shape[1:])]
            if name == "waveform":
                found.append(torch.rand(shape, generator=random) - 0.5)
            elif name == "num_samples":
                found.append(torch.full(shape, self.samples))
            else:
                found.append(torch.zeros(shape, dtype=getattr(torch, spec.dtype.name)))
        return [each.to(device) for each in found]


def profile(path: Path, mode: str, call: Call, outputs: Sequence[str], kernels: int, device: torch.device) -> float:
    """Print what a program takes in one mode; returns the median milliseconds of a call."""
    program = read_program(path, device)
    states = [f"next_{name}" for name in program.inputs if f"next_{name}" in program.outputs]
    names = [name for name in (*outputs, *states) if name in program.outputs] or list(program.outputs)
    module: Any = program.function(names)
    inputs = call.inputs(program, device)
    start = time.perf_counter()
    with torch.inference_mode():
        function = MODES[mode](module.__self__)
        function(*inputs)
        run = recorded(function, inputs) if device.type == "cuda" else lambda: function(*inputs)
        ready = time.perf_counter() - start
        times = sorted(timed(run, device) for _ in range(REPEATS))
        print(f"{path.name} {mode} {call}: {median(times):.3f} ms (least {times[0]:.3f}); ready in {ready:.1f} s")
        if kernels:
            for line in table(lambda: function(*inputs), kernels, device):
                print(line, flush=True)
    return median(times)


def recorded(function: Any, inputs: Sequence[Tensor]) -> Callable[[], None]:
    """A call as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function(*inputs)
        function(*inputs)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = function(*inputs)
    return lambda kept=kept: graph.replay()  # type: ignore[misc]


def timed(run: Callable[[], Any], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    run()
    after.record()
    after.synchronize()
    return before.elapsed_time(after)


def table(run: Callable[[], Any], most: int, device: torch.device) -> Iterator[str]:
    """The longest kernels of a call (operators on a CPU): microseconds and calls, and what all take together."""
    on_gpu = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profiler:
        for _ in range(PROFILED):
            run()
        if on_gpu:
            torch.cuda.synchronize()
    spent: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if not on_gpu:
            spent[event.name].append(event.self_cpu_time_total)
        elif event.device_type == torch.autograd.DeviceType.CUDA:
            spent[event.name].append(event.time_range.elapsed_us())
    total = sum(map(sum, spent.values())) / PROFILED
    yield f"    {total:9.1f} us in {sum(map(len, spent.values())) // PROFILED} kernels"
    for name, each in sorted(spent.items(), key=lambda item: -sum(item[1]))[:most]:
        yield f"    {sum(each) / PROFILED:9.1f} us {len(each) / PROFILED:6.1f} x  {name[:150]}"


def random_programs(
    size: ModelSize, forms: Sequence[str], precision: Precision, left_chunks: int | None, folder: Path
) -> list[Path]:
    """Programs of a random conformer in its forms; of streaming steps if `left_chunks` is a number."""
    torch.manual_seed(0)
    model = AsrModel(parse_config(size.config)).eval()
    assert model.encoder.global_cmvn is not None
    model.encoder.global_cmvn.mean.fill_(5.0)
    model.encoder.global_cmvn.istd.fill_(0.3)
    narrow, fbank = in_precision(model, precision), make_fbank(model.config)
    graph = OfflineGraph(narrow, fbank) if left_chunks is None else StreamingGraph(narrow, fbank, 16, left_chunks)
    paths = []
    for form in forms:
        made = {"plain": lambda: graph, "fused": lambda: fused(graph)}[form]().eval()
        paths.append(folder / f"{form}.pt2")
        save_program(made, paths[-1], made.example(), made.outputs, made.dynamic, made.metadata)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, nargs="*", help="files .pt2; none: random conformers")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--samples", type=int, default=160_000)
    parser.add_argument("--left-frames", type=int, default=80)
    parser.add_argument("--outputs", default=",".join(OUTPUTS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--kernels", type=int, default=25, help="lines of the table; 0 for none")
    parser.add_argument("--forms", default="plain,fused", help="of random conformers")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--vocab-size", type=int, default=5537)
    parser.add_argument("--streaming", action="store_true", help="a step of streams, of a random conformer")
    options = parser.parse_args()
    device = torch.device(options.device)
    size = ModelSize(
        width=options.width, blocks=options.blocks, linear_units=4 * options.width, vocab_size=options.vocab_size
    )
    call = Call(rows=options.rows, samples=options.samples, left_frames=options.left_frames)
    with tempfile.TemporaryDirectory() as folder:
        programs = options.programs or random_programs(
            size,
            options.forms.split(","),
            options.precision,
            options.left_frames // 16 if options.streaming else None,
            Path(folder),
        )
        for path in programs:
            for mode in options.modes.split(","):
                profile(path, mode, call, options.outputs.split(","), options.kernels, device)


if __name__ == "__main__":
    main()
