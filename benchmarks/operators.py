"""Where the time of a transducer's encoder goes, operator by operator, beside the same network in sherpa-onnx's layout.

    python -m benchmarks.operators [--size zipformer-m] [--streams] [--int8] [--rows 4] [--seconds 8] [--folder DIR]

A random model of a published size is written as a graph of a bundle (waveform in) and as icefall's export writes it for
sherpa-onnx (features in), and with `--int8` as both quantise it. One thread runs them in turn in one process, so that
what disturbs one disturbs all. Prints the name of the CPU, the least processor time of a call, and the table of
operators (of each node the least of its times). Graphs are kept in a `--folder` and taken from there the next time.
Needs the extra `export`.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch

from benchmarks.models.transducer import ENCODERS, random_network
from benchmarks.models.upstream import quantise_as_published, upstream_operators
from tritone.families.export.exportable import ExportableGraph
from tritone.families.icefall.graphs import OfflineGraph, StreamingGraph, feature_bins, make_fbank
from tritone.families.icefall.model import IcefallModel
from tritone.families.icefall.sherpa_layout import write_sherpa_layout
from tritone.families.onnx.int8 import quantise_products
from tritone.families.onnx.writer import export_graph, named, save_graphs
from tritone.report.stamp import Stamp

SAMPLE_RATE = 16000
CHUNK, LEFT = 32, 128  # of streams, frames at 50 Hz: published settings of streaming zipformers
OURS, THEIRS = "tritone", "sherpa-onnx"
INSTRUCTIONS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8")

Feed = dict[str, npt.NDArray[Any]]


def write_graphs(size: str, folder: Path, *, streaming: bool, int8: bool) -> dict[str, Path]:
    """Write the encoders that are not in the folder yet, and return the files by the name of their side."""
    ours, theirs = folder / "encoder.onnx", folder / "sherpa" / "encoder.onnx"
    paths = {OURS: ours, THEIRS: theirs}
    if int8:
        paths |= {
            f"{OURS} int8": folder / "encoder.int8.onnx",
            f"{THEIRS} int8": folder / "sherpa" / "encoder.int8.onnx",
        }
    if all(path.exists() for path in paths.values()):
        return paths
    network = random_network(size, causal=streaming)
    graph = _graph(network, streaming)
    traced = export_graph(graph.eval(), graph.example(), graph.outputs, graph.dynamic, graph.metadata)
    folder.mkdir(parents=True, exist_ok=True)
    if int8:
        narrow = quantise_products(traced, named(traced, graph.constants), single_rows=graph.single_rows_in_int8)
        save_graphs({"encoder.int8.onnx": narrow}, folder, "weights.int8.bin", "fp32", graph.constants)
    save_graphs({ours.name: traced}, folder, "weights.bin", "fp32", graph.constants)
    sizes = {"chunk_size": CHUNK, "left_context": LEFT} if streaming else {}
    tokens = [f"<{index}>" for index in range(network.config.vocab_size)]
    with upstream_operators():
        write_sherpa_layout(network, theirs.parent, tokens, streaming=streaming, check=False, **sizes)  # type: ignore[arg-type]
    if int8:
        quantise_as_published(theirs)
    return paths


def _graph(network: IcefallModel, streaming: bool) -> ExportableGraph:
    front_end = make_fbank(feature_bins(network))
    if streaming:
        return StreamingGraph(network, front_end, "transducer", CHUNK, LEFT, 0)
    return OfflineGraph(network, front_end, "transducer")


def feeds(session: onnxruntime.InferenceSession, rows: int, samples: int) -> Feed:
    """Noise for a graph of either side: so many rows, of equal length."""
    random = np.random.default_rng(0)
    given: Feed = {}
    for node in session.get_inputs():
        if node.name == "num_samples":
            given[node.name] = np.full(rows, given["waveform"].shape[1])
        elif node.name == "x_lens":
            given[node.name] = np.full(rows, given["x"].shape[1])
        else:
            length = samples if node.name == "waveform" else (samples + SAMPLE_RATE // 200) // (SAMPLE_RATE // 100)
            axes = [
                axis if isinstance(axis, int) else rows if axis in ("batch", "N") else length for axis in node.shape
            ]
            values = random.standard_normal(axes)
            if node.name == "waveform":
                given[node.name] = (0.1 * values).astype(np.float32)
            elif node.name in ("processed", "processed_lens"):
                given[node.name] = np.full(axes, 10 * LEFT)
            else:
                given[node.name] = values.astype(np.float32)
    return given


class Profiled:
    """A graph on one thread whose nodes are timed."""

    def __init__(self, path: Path, rows: int, samples: int, prefix: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._plain = onnxruntime.InferenceSession(str(path), options)
        options.enable_profiling = True
        options.profile_file_prefix = str(prefix)
        self._profiled = onnxruntime.InferenceSession(str(path), options)
        self._feed = feeds(self._plain, rows, samples)
        self._plain.run(None, self._feed)
        self._profiled.run(None, self._feed)
        self.calls: list[float] = []

    def run(self) -> None:
        start = time.process_time()
        self._plain.run(None, self._feed)
        self.calls.append(1e3 * (time.process_time() - start))
        self._profiled.run(None, self._feed)

    def operators(self) -> dict[str, tuple[int, float]]:
        """Nodes and milliseconds by operator; the first call is left out."""
        path = Path(self._profiled.end_profiling())
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for event in json.loads(path.read_text(encoding="utf-8")):
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                times[_kind(event["args"]), event["name"]].append(event["dur"] / 1e3)
        result: dict[str, tuple[int, float]] = {}
        for (kind, _), each in times.items():
            count, total = result.get(kind, (0, 0.0))
            result[kind] = count + 1, total + min(each[1:])
        return result


def _kind(arguments: Mapping[str, Any]) -> str:
    """The operator, and of a convolution what it spreads over."""
    kind = str(arguments["op_name"])
    if "Conv" not in kind:
        return kind
    weight = next(iter(arguments["input_type_shape"][1].values()))
    return f"{kind} {'x'.join(map(str, weight[2:]))}{' depthwise' if weight[1] == 1 and weight[0] > 1 else ''}"


def table(sides: Mapping[str, Profiled]) -> str:
    """Operators of all sides side by side, in order of the longest time, as Markdown."""
    found = {name: side.operators() for name, side in sides.items()}
    kinds = sorted({kind for each in found.values() for kind in each}, key=lambda kind: -_most(found.values(), kind))
    lines = [f"| operator | {' | '.join(f'{name}, ms' for name in found)} |", f"| --- |{' ---: |' * len(found)}"]
    for kind in kinds:
        cells = [f"{each[kind][1]:.2f} ({each[kind][0]})" if kind in each else "–" for each in found.values()]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    sums = [f"{sum(ms for _, ms in each.values()):.1f}" for each in found.values()]
    calls = [f"{min(side.calls):.1f}" for side in sides.values()]
    return "\n".join([*lines, f"| all nodes | {' | '.join(sums)} |", f"| a call | {' | '.join(calls)} |"])


def _most(tables: Any, kind: str) -> float:
    return max(each[kind][1] for each in tables if kind in each)


def processor() -> str:
    """The CPU with those of its instruction sets that kernels are chosen by."""
    flags = next(
        (line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if line.startswith("flags")),
        "",
    )
    known = [name for name in INSTRUCTIONS if name in flags.split()]
    return f"{Stamp.here().processor} ({', '.join(known)})"


def measure(paths: Mapping[str, Path], rows: int, samples: int, calls: int) -> str:
    """Run all graphs in turn, and return the table."""
    with tempfile.TemporaryDirectory(prefix="operators-") as folder:
        sides = {
            name: Profiled(path, rows, samples, Path(folder) / str(index))
            for index, (name, path) in enumerate(paths.items())
        }
        for turn in range(calls):
            for side in list(sides.values())[:: 1 if turn % 2 else -1]:
                side.run()
        return table(sides)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="zipformer-m", choices=sorted(ENCODERS))
    parser.add_argument("--streams", action="store_true", help="a step of streams in place of whole utterances")
    parser.add_argument("--int8", action="store_true", help="the graphs in int8 as well")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each row")
    parser.add_argument("--calls", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where graphs are kept; a temporary folder by default")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="graphs-") as temporary, torch.no_grad():
        folder = (chosen.folder or Path(temporary)) / f"{chosen.size}{'-streams' * chosen.streams}"
        paths = write_graphs(chosen.size, folder, streaming=chosen.streams, int8=chosen.int8)
        print(f"{processor()}, onnxruntime {onnxruntime.__version__}, one thread\n")
        print(measure(paths, chosen.rows, round(chosen.seconds * SAMPLE_RATE), chosen.calls))


if __name__ == "__main__":
    main()
