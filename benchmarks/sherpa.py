"""Transducers here and in sherpa-onnx (C++): the same weights, the same two cores, in one run.

    python -m benchmarks.sherpa [--size zipformer-m] [--only offline,served,servers,streams]
        [--graphs published] [--precision fp32] [--runtime onnxruntime] [--output FILE.json]

A random model of a published size is written twice: as a bundle, and in sherpa-onnx's layout, with the operators of
icefall's export or, with `--graphs ours`, with those of `tritone export icefall --layout sherpa-onnx`. In int8, graphs
of sherpa-onnx are quantised as icefall's export does it. Both sides search greedily, with as many threads as there are
cores, in turn, on the same audio; sherpa-onnx with the workers and batches that are fastest for it. What they say is
compared before anything is timed (in int8 that is not done: a random network says different things after rounding).
Prints every repeat, and writes the JSON with its conditions and the page beside it (FILE.md). Needs the extra `export`
and `sherpa-onnx`; for `servers`, which is only measured if it is asked for, `sherpa-onnx-bin` too.
"""

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import rapidfuzz

from benchmarks.measure import (
    ROOT,
    Bystanders,
    Finding,
    Setup,
    alternate,
    is_calm,
    median_ratio,
    save,
    timed,
    to_markdown,
)
from benchmarks.models.transducer import ENCODERS, write_checkpoint
from benchmarks.models.upstream import quantise_as_published, upstream_operators
from benchmarks.served import MODEL, serving
from benchmarks.sherpa_server import RivalServer, Settings, rival_server
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.bundle.manifest import Precision
from tritone.bundle.vocabulary import read_tokens
from tritone.client import Client
from tritone.families.icefall.export import export_icefall
from tritone.families.icefall.model import IcefallModel
from tritone.families.icefall.sherpa_layout import write_sherpa_layout
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import speech_workload
from tritone.pipelines import OfflinePipeline, Step, open_offline, open_streaming
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.repository import ModelOptions

OUTPUT = ROOT / "docs" / "performance" / "sherpa.json"
TITLE = "Beside sherpa-onnx"
INTRODUCTION = """\
Ratios from one run each, both sides on the same machine, in turn, on the same audio, after a warm-up. "others %" is how
much of the cores foreign processes took during a repeat: above a few percent a figure is only indicative. Each figure
names its CPU and the operators of sherpa-onnx's graph: those of icefall's export, which published models have, or
those of `tritone export icefall --layout sherpa-onnx`. sherpa-onnx has the workers that are fastest for it. **Only the
figures of the runtime openvino are older: there it had one worker for all cores; one for each core, a thread each, is
up to 1.5 times as fast, so those flatter Tritone.** Figures that name no version of sherpa-onnx were taken before 2.0
was out, with the newest 1.x of their day. Written by `python -m benchmarks.sherpa`; raw rows are in
[sherpa.json](sherpa.json)."""

SAMPLE_RATE = 16000
CONCURRENCY = 16
COUNT = 48
SHORTEST_S, LONGEST_S = 1.0, 10.0
REPEATS = 5
SERVED_BEFORE = 8  # loads that a server answers before it is measured: a runtime may prepare itself for new shapes
BEFORE = f"The server had answered {SERVED_BEFORE} such loads before, in batches of ever other shapes."
RIVAL_BATCHES = (1, 4, 16)  # utterances that sherpa-onnx gets at once
RIVAL_STREAMS = (4, 16, 64)  # streams that a worker of it gets at once, of `TRIED_STREAMS` in a step
TRIED_STREAMS, TRIED_TICKS = 32, 3
CHUNK, LEFT = 32, 128  # of streams, frames at 50 Hz: published settings of streaming zipformers
TICKS = 12  # steps of each stream in a trial
IN_TIME = 0.99  # share of ticks that must be over before the next audio comes
MOST_DIFFERENT = 0.02  # share of characters; random networks have near ties


@dataclass(frozen=True)
class Model:
    """One random model, for whole utterances or for streams, in both forms.

    `published`: whether sherpa-onnx has the operators of icefall's export, and not those of ours.
    """

    size: str
    folder: Path
    causal: bool
    published: bool = True
    precision: Precision = "fp32"
    runtime: str = "onnxruntime"  # of the bundle

    def __str__(self) -> str:
        graphs = "icefall's operators" if self.published else "operators of our export"
        return f"{self.size} in {self.precision} on {self.runtime}, {graphs} in sherpa-onnx"

    @cached_property
    def bundle(self) -> Bundle:
        assert self._network
        return export_icefall(
            checkpoint=self.folder / "pretrained.pt",
            tokens=self.folder / "tokens.txt",
            output=self.folder / "bundle",
            streaming=self.causal,
            chunk_size=CHUNK // 2 if self.causal else None,  # in encoder frames
            left_context=LEFT // 2 if self.causal else None,
            precisions=("fp32",) if self.precision == "fp32" else ("fp32", self.precision),
            force=True,
        ).bundle

    @property
    def placement(self) -> Placement:
        return Placement(precision=self.precision, runtime=self.runtime)

    @cached_property
    def rival(self) -> dict[str, str]:
        """The files that sherpa-onnx opens."""
        folder = self.folder / "sherpa"
        sizes = {"chunk_size": CHUNK, "left_context": LEFT} if self.causal else {}
        network = self._network
        tokens = read_tokens(self.folder / "tokens.txt")
        with upstream_operators() if self.published else contextlib.nullcontext():
            write_sherpa_layout(network, folder, tokens, streaming=self.causal, **sizes)  # type: ignore[arg-type]
        paths = {name: folder / f"{name}.onnx" for name in ("encoder", "decoder", "joiner")}
        if self.precision == "int8":
            paths = {name: quantise_as_published(path) for name, path in paths.items()}
        return {"tokens": str(folder / "tokens.txt")} | {name: str(path) for name, path in paths.items()}

    @cached_property
    def _network(self) -> IcefallModel:
        return write_checkpoint(self.size, self.folder, causal=self.causal)


def offline_in_process(model: Model, setup: Setup) -> Finding:
    """Throughput of the pipeline in process, divided by sherpa-onnx's."""
    pipeline, audio = open_offline(model.bundle, placement=model.placement), _utterances()
    if model.precision == "fp32":
        theirs = _Rival(model, Settings(1, 1, 1)).texts(audio[:8])
        _require_alike([result.text for result in pipeline.recognize(audio[:8])], theirs)
    rival = _best_rival(model, audio)
    rows = alternate(
        {"tritone s": lambda: _recognize(pipeline, audio), "sherpa-onnx s": lambda: rival.texts(audio)}, REPEATS
    )
    return _throughput("offline", f"throughput in process ÷ {_rival()}", 1.1, rows, audio, [_told(rival)], setup)


def offline_served(model: Model, setup: Setup) -> Finding:
    """Throughput through Triton by gRPC, divided by sherpa-onnx's in process."""
    audio = _utterances()
    rival = _best_rival(model, audio)
    with _served(model, audio) as served:
        rows = alternate({"tritone s": served, "sherpa-onnx s": lambda: rival.texts(audio)}, REPEATS)
    title = f"throughput through gRPC at concurrency {CONCURRENCY} ÷ {_rival()} in process"
    return _throughput("served", title, 1.0, rows, audio, [_told(rival), BEFORE], setup)


def servers(model: Model, setup: Setup) -> Finding:
    """Throughput through Triton by gRPC, divided by that of sherpa-onnx's own server by WebSocket."""
    audio, rival = _utterances(), {name: os.path.abspath(path) for name, path in model.rival.items()}

    def load(server: RivalServer) -> list[str]:
        return server.texts(audio, CONCURRENCY, SAMPLE_RATE)

    @contextlib.contextmanager
    def opened(settings: Settings) -> Iterator[Callable[[], object]]:
        with rival_server(rival, settings) as server:
            yield lambda: load(server)

    best = _fastest(RIVAL_BATCHES, opened)
    with _served(model, audio) as served, rival_server(rival, best) as server:
        if model.precision == "fp32":
            _require_alike(served(), load(server))
        rows = alternate({"tritone s": served, "sherpa-onnx s": lambda: load(server)}, REPEATS)
    title = f"throughput served, {CONCURRENCY} in flight ÷ {_rival()}'s own server"
    count = len(_rival_settings(RIVAL_BATCHES))
    told = f"sherpa-onnx's server has {best}, the fastest of {count} settings; it gets float32 by WebSocket."
    return _throughput("servers", title, 1.1, rows, audio, [told, BEFORE], setup)


@contextlib.contextmanager
def _served(model: Model, audio: Sequence[Waveform]) -> Iterator[Callable[[], list[str]]]:
    """The bundle on Triton, which has answered some loads; gives what sends one more."""
    options = ModelOptions(runtime=model.runtime)
    with serving(model.bundle, "offline", options) as server, Client(server.grpc_address) as client:

        def served() -> list[str]:
            return [result.text for result in client.transcribe(audio, MODEL, concurrency=CONCURRENCY)]

        for _ in range(SERVED_BEFORE):
            served()
        yield served


def streams(model: Model, setup: Setup) -> Finding:
    """Streams that keep up in real time in process, divided by sherpa-onnx's."""
    audio = speech_workload(f"{TICKS * CHUNK / 50 + 2:g}", Tape.shipped(SAMPLE_RATE), max_utterances=8).waveforms
    ours, theirs = _OurStreams(model.bundle, model.placement), _best_rival_streams(model, audio)
    if model.precision == "fp32":
        _require_alike(ours.texts(audio), theirs.texts(audio))
    rows: list[dict[str, Any]] = []
    while sum(map(is_calm, rows)) < 3 and len(rows) < 4:
        with Bystanders() as bystanders:
            row: dict[str, Any] = {
                "tritone streams": _sustained(ours, audio),
                "sherpa-onnx streams": _sustained(theirs, audio),
            }
        rows.append(row | {"others %": bystanders.percent})
    ratio, basis = median_ratio(rows, "tritone streams", "sherpa-onnx streams")
    return Finding(
        key="streams",
        title=f"streams in real time ÷ {_rival()}",
        value=ratio,
        bar=1.0,
        sense="at least",
        setup=setup,
        rows=rows,
        notes=[
            basis,
            f"Steps of {CHUNK * 20} ms of all streams come at once; a number of streams keeps up if {IN_TIME:.0%} of "
            f"{TICKS} steps are over before the next one comes, backlog included. The largest number that does is "
            "searched for by halving.",
            "Both sides compute in one process and are called with all chunks of a step.",
            _told(theirs, RIVAL_STREAMS),
        ],
    )


MEASURES: dict[str, tuple[bool, Callable[[Model, Setup], Finding]]] = {
    "offline": (False, offline_in_process),
    "served": (False, offline_served),
    "servers": (False, servers),
    "streams": (True, streams),
}


class _Rival:
    """sherpa-onnx with whole utterances, which some workers of some threads each decode in batches."""

    def __init__(self, model: Model, settings: Settings) -> None:
        import sherpa_onnx

        self.settings = settings
        self._workers = ThreadPoolExecutor(settings.workers)
        self._recognizer = sherpa_onnx.OfflineRecognizer.from_transducer(
            **model.rival, num_threads=settings.threads, decoding_method="greedy_search"
        )

    def texts(self, audio: Sequence[Waveform]) -> list[str]:
        # Alike lengths together, as its users do: it pads.
        order = sorted(range(len(audio)), key=lambda index: -len(audio[index]))
        size = self.settings.batch
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        texts = itertools.chain(*self._workers.map(lambda group: self._decoded([audio[i] for i in group]), groups))
        return [text for _, text in sorted(zip(order, texts, strict=True))]

    def _decoded(self, audio: Sequence[Waveform]) -> list[str]:
        group = [self._recognizer.create_stream() for _ in audio]
        for stream, waveform in zip(group, audio, strict=True):
            stream.accept_waveform(SAMPLE_RATE, waveform)
        self._recognizer.decode_streams(group)
        return [stream.result.text.strip() for stream in group]


class _OurStreams:
    def __init__(self, bundle: Bundle, placement: Placement = ON_CPU) -> None:
        self._pipeline = open_streaming(bundle, placement=placement)
        self.step_samples = self._pipeline.geometry.shift_samples

    def start(self, count: int) -> Callable[[Sequence[Waveform]], object]:
        slots = [self._pipeline.open() for _ in range(count)]

        def step(chunks: Sequence[Waveform]) -> object:
            return self._pipeline.advance([Step(slot, chunk) for slot, chunk in zip(slots, chunks, strict=True)])

        self._slots = slots
        return step

    def end(self) -> None:
        for slot in self._slots:
            self._pipeline.close(slot)

    def texts(self, audio: Sequence[Waveform]) -> list[str]:
        """What is said in whole windows; the ends are made differently by the two sides."""
        slots = [self._pipeline.open() for _ in audio]
        steps = [Step(slot, waveform) for slot, waveform in zip(slots, audio, strict=True)]
        texts = [result.text for result in self._pipeline.advance(steps)]
        for slot in slots:
            self._pipeline.close(slot)
        return texts


class _RivalStreams:
    """sherpa-onnx with streams, of which some workers of some threads each decode as many at once."""

    def __init__(self, model: Model, settings: Settings) -> None:
        import sherpa_onnx

        self.settings = settings
        self._workers = ThreadPoolExecutor(settings.workers)
        self._recognizer = sherpa_onnx.OnlineRecognizer.from_transducer(
            **model.rival, num_threads=settings.threads, decoding_method="greedy_search"
        )
        self.step_samples = CHUNK * SAMPLE_RATE // 50

    def start(self, count: int) -> Callable[[Sequence[Waveform]], object]:
        streams = [self._recognizer.create_stream() for _ in range(count)]

        def step(chunks: Sequence[Waveform]) -> object:
            for stream, chunk in zip(streams, chunks, strict=True):
                stream.accept_waveform(SAMPLE_RATE, chunk)
            while ready := [stream for stream in streams if self._recognizer.is_ready(stream)]:
                size = min(-(-len(ready) // self.settings.workers), self.settings.batch)
                groups = [ready[begin : begin + size] for begin in range(0, len(ready), size)]
                list(self._workers.map(self._recognizer.decode_streams, groups))
            return [self._recognizer.get_result(stream) for stream in streams]

        return step

    def end(self) -> None:
        """Nothing is held."""

    def texts(self, audio: Sequence[Waveform]) -> list[str]:
        return [text.strip() for text in self.start(len(audio))(audio)]  # type: ignore[attr-defined]


def _sustained(side: "_OurStreams | _RivalStreams", audio: Sequence[Waveform]) -> int:
    """The largest number of streams that keep up."""
    most, too_many = 1, 2
    while _keeps_up(side, too_many, audio):
        most, too_many = too_many, 2 * too_many
    while too_many - most > max(1, most // 16):
        count = (most + too_many) // 2
        if _keeps_up(side, count, audio):
            most = count
        else:
            too_many = count
    return most


def _keeps_up(side: "_OurStreams | _RivalStreams", count: int, audio: Sequence[Waveform]) -> bool:
    step, period = side.start(count), side.step_samples / SAMPLE_RATE
    size = side.step_samples
    in_time, behind = 0, 0.0
    for tick in range(TICKS):
        chunks = [audio[stream % len(audio)][tick * size : (tick + 1) * size] for stream in range(count)]
        start = perf_counter()
        step(chunks)
        taken = behind + perf_counter() - start
        in_time += taken <= period
        behind = max(0.0, taken - period)
        if behind > 2 * period:
            break  # for good
    side.end()
    return in_time >= IN_TIME * TICKS


def _rival_settings(batches: Sequence[int]) -> list[Settings]:
    cores = len(os.sched_getaffinity(0))
    workers = dict.fromkeys([1, cores])
    return [Settings(many, cores // many, batch) for many in workers for batch in batches]


Opened = Callable[[Settings], contextlib.AbstractContextManager[Callable[[], object]]]


def _fastest(batches: Sequence[int], opened: Opened) -> Settings:
    """The settings of sherpa-onnx in which a second load takes least; `opened` gives loads."""
    times = {}
    for settings in _rival_settings(batches):
        with opened(settings) as load:
            load()
            times[settings] = timed(load)
        print(f"sherpa-onnx, {settings}: {times[settings]:.2f} s", flush=True)
    return min(times, key=times.__getitem__)


def _best_rival(model: Model, audio: Sequence[Waveform]) -> _Rival:
    """sherpa-onnx with the settings that are fastest there."""
    best = _fastest(RIVAL_BATCHES, lambda each: contextlib.nullcontext(partial(_Rival(model, each).texts, audio)))
    return _Rival(model, best)


def _best_rival_streams(model: Model, audio: Sequence[Waveform]) -> _RivalStreams:
    """sherpa-onnx with the settings in which some steps of some streams are fastest there."""
    samples = (TRIED_TICKS + 1) * CHUNK * SAMPLE_RATE // 50
    chosen = [audio[index % len(audio)][:samples] for index in range(TRIED_STREAMS)]
    best = _fastest(
        RIVAL_STREAMS, lambda each: contextlib.nullcontext(partial(_RivalStreams(model, each).texts, chosen))
    )
    return _RivalStreams(model, best)


def _rival() -> str:
    return f"sherpa-onnx {version('sherpa-onnx')}"


def _told(rival: _Rival | _RivalStreams, batches: Sequence[int] = RIVAL_BATCHES) -> str:
    sorted_ = ", and its audio sorted by length" if isinstance(rival, _Rival) else ""
    return f"sherpa-onnx has {rival.settings}, the fastest for it of {len(_rival_settings(batches))} settings{sorted_}."


def _recognize(pipeline: OfflinePipeline, audio: Sequence[Waveform]) -> list[str]:
    return [
        result.text
        for start in range(0, len(audio), CONCURRENCY)
        for result in pipeline.recognize(audio[start : start + CONCURRENCY])
    ]


def _throughput(
    key: str,
    title: str,
    bar: float,
    rows: list[dict[str, float]],
    audio: Sequence[Waveform],
    notes: Sequence[str],
    setup: Setup,
) -> Finding:
    ratio, basis = median_ratio(rows, "sherpa-onnx s", "tritone s")
    seconds = sum(map(len, audio)) / SAMPLE_RATE
    for row in rows:
        row |= {"tritone RTFx": seconds / row["tritone s"], "ratio": row["sherpa-onnx s"] / row["tritone s"]}
    return Finding(
        key=key,
        title=title,
        value=ratio,
        bar=bar,
        sense="at least",
        setup=setup,
        rows=rows,
        notes=[
            basis,
            f"{len(audio)} utterances of {SHORTEST_S:g} to {LONGEST_S:g} s, {seconds:.0f} s of audio a repeat.",
            *notes,
        ],
    )


def _require_alike(texts: Sequence[str], others: Sequence[str]) -> None:
    distance = [rapidfuzz.distance.Levenshtein.distance(a, b) for a, b in zip(texts, others, strict=True)]
    length = sum(map(len, others))
    if not length or sum(distance) > MOST_DIFFERENT * length:
        raise SystemExit(
            f"the sides say different things, so nothing is timed: {sum(distance)} of {length} characters; the first "
            f"texts are {texts[0]!r} and {others[0]!r}"
        )
    print(f"both sides alike: {sum(distance)} of {length} characters differ", flush=True)


def _utterances() -> Sequence[Waveform]:
    tape = Tape.shipped(SAMPLE_RATE)
    return speech_workload(f"uniform:{SHORTEST_S},{LONGEST_S}", tape, max_utterances=COUNT).waveforms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="zipformer-m", choices=sorted(ENCODERS))
    parser.add_argument("--only", default="offline,served,streams", help=f"some of {','.join(MEASURES)}")
    parser.add_argument("--graphs", choices=["published", "ours"], default="published", help="operators in sherpa-onnx")
    parser.add_argument("--precision", choices=["fp32", "int8"], default="fp32")
    parser.add_argument("--runtime", choices=["onnxruntime", "openvino"], default="onnxruntime", help="of the bundle")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file; the page is written beside it")
    parser.add_argument("--cores", type=int, default=2, help="CPU cores for everything together (default: 2)")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in MEASURES]:
        parser.error(f"--only {','.join(unknown)}: choose from {','.join(MEASURES)}")
    if arguments.precision != "fp32" and {"served", "servers"} & set(names):
        parser.error("served models are measured in fp32; with --precision int8 take --only offline,streams")
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < arguments.cores:
        parser.error(f"--cores {arguments.cores}: this process may use {len(usable)}")
    os.sched_setaffinity(0, usable[: arguments.cores])  # the server inherits it
    findings = []
    with tempfile.TemporaryDirectory(prefix="random-transducer-") as folder:
        models = {
            causal: Model(
                arguments.size,
                Path(folder) / str(causal),
                causal,
                published=arguments.graphs == "published",
                precision=arguments.precision,
                runtime=arguments.runtime,
            )
            for causal in (False, True)
        }
        for name in names:
            causal, measure = MEASURES[name]
            findings.append(measure(models[causal], Setup.here(str(models[causal]), "benchmarks.sherpa")))
            print(findings[-1], flush=True)
            page = to_markdown(save(findings, arguments.output), TITLE, INTRODUCTION)
            arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0 if all(finding.is_met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
