"""What measures a point of a plan: a target, audio of every kind that the plan names, and how it is measured.

Generator(target, Audio, Method)(point)  ->  Measurement, whole utterances or streams alike
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritone.bench.perf_analyzer import PerfAnalyzer
from tritone.bench.perf_input import write_inputs
from tritone.bench.plan import Duration, Point
from tritone.client import Client
from tritone.client.models import Kind, ModelInfo
from tritone.client.parameters import Parameter
from tritone.client.stream import DEFAULT_CHUNK_MS
from tritone.corpus.dataset import Utterance
from tritone.errors import InputError
from tritone.evaluate.normalize import Normalization
from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.requests.offline import LoadOptions, measure_closed, measure_open
from tritone.loadtest.requests.recorder import COLD_S
from tritone.loadtest.requests.windows import Tick, WindowPlan
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.streams.measure import SETTLE_S, measure_streams
from tritone.loadtest.streams.run import MAX_SPREAD_S, StreamOptions
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import Workload, files_workload, parse_lengths, speech_workload

FILES = "files"
WHOLE: tuple[Kind, ...] = ("offline", "embedding")
START_S = 1.5  # until the generator's processes run
OnWindow = Callable[[Tick], None]


@dataclass(frozen=True, kw_only=True)
class Audio:
    """What is sent: utterances as they are (kind "files"), or speech cut to lengths (see `workload.parse_lengths`).

    `lengths`: the kinds; none sends `utterances` as they are. `utterances`: files to send, or to cut the lengths from;
    without any the shipped clips are cut.
    """

    lengths: Sequence[str] = ()
    utterances: Sequence[Utterance] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.lengths and not self.utterances:
            raise ValueError("no audio: give lengths, files, or both")
        for spec in self.lengths:
            parse_lengths(spec)

    @property
    def kinds(self) -> Sequence[str]:
        """What a plan can name."""
        return self.lengths or (FILES,)

    @property
    def has_references(self) -> bool:
        """Whether there is something to compare texts with."""
        return not self.lengths and any(each.text is not None for each in self.utterances)

    def workload(self, kind: str, sample_rate: int) -> Workload:
        """Prepare one kind, at a rate in Hz.

        Raises:
            InputError: a file cannot be read.
        """
        if not self.lengths:
            return files_workload(self.utterances, sample_rate, seed=self.seed)
        paths = [each.audio for each in self.utterances]
        tape = Tape.of(paths, sample_rate) if paths else Tape.shipped(sample_rate)
        return speech_workload(kind, tape, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a point is measured, whatever it is. See `LoadOptions` and `StreamOptions`."""

    windows: WindowPlan = field(default_factory=WindowPlan)
    timeout_s: float = 60.0
    processes: int | None = None
    seed: int = 0
    metrics_url: str | None = None
    normalization: Normalization = field(default_factory=Normalization)
    chunk_ms: float = DEFAULT_CHUNK_MS

    def __post_init__(self) -> None:
        self.load_options()
        self.stream_options()

    def load_options(self, batch_size: int = 1) -> LoadOptions:
        return LoadOptions(
            batch_size=batch_size,
            timeout_s=self.timeout_s,
            processes=self.processes,
            seed=self.seed,
            windows=self.windows,
            metrics_url=self.metrics_url,
            normalization=self.normalization,
        )

    def stream_options(self) -> StreamOptions:
        return StreamOptions(
            chunk_ms=self.chunk_ms,
            windows=self.windows,
            timeout_s=self.timeout_s,
            processes=self.processes,
            seed=self.seed,
            metrics_url=self.metrics_url,
            normalization=self.normalization,
        )

    def duration(self, streaming: bool = False) -> Duration:
        """How long one point takes."""
        plan = self.windows
        usual_s = START_S + plan.warmup_s + plan.stable_windows * plan.window_s
        most_s = START_S + plan.warmup_s + plan.max_windows * plan.max_window_s
        if streaming:
            drain_s = self.stream_options().drain_s
            spread_s = MAX_SPREAD_S + self.chunk_ms / 1000 + SETTLE_S
            return Duration(usual_s + spread_s / 2, most_s + spread_s + self.timeout_s + drain_s)
        return Duration(usual_s, most_s + self.timeout_s + COLD_S + self.load_options().drain_s)


class Generator:
    """Measures points of one target. Audio is prepared when a point first needs it; one kind is kept.

    Args:
        target: the model.
        audio: what points may name.
        method: how.
        on_window: is called with every window as it ends.
    """

    def __init__(self, target: Target, audio: Audio, method: Method, on_window: OnWindow | None = None) -> None:
        self._target = target
        self._audio = audio
        self._method = method
        self._on_window = on_window
        self._held: tuple[str, Workload] | None = None

    def __call__(self, point: Point) -> Measurement:
        """Measure a point.

        Raises:
            Interrupted: Ctrl-C; it carries what was measured.
            TritoneError: the audio cannot be read, or the generator itself failed.
        """
        workload = self._workload(point.audio)
        if point.loop == "streaming":
            streams = self._method.stream_options()
            return measure_streams(self._target, workload, int(point.load), streams, on_window=self._on_window)
        options = self._method.load_options(point.batch_size)
        if point.loop == "closed":
            return measure_closed(self._target, workload, int(point.load), options, on_window=self._on_window)
        return measure_open(self._target, workload, point.load, point.loop, options, on_window=self._on_window)

    def _workload(self, kind: str) -> Workload:
        if self._held is None or self._held[0] != kind:
            self._held = None  # frees an hour of audio before the next is made
            self._held = kind, self._audio.workload(kind, self._target.sample_rate)
        return self._held[1]


class ForeignGenerator:
    """Measures points with NVIDIA's perf_analyzer. Its input files lie in a folder of the caller's.

    A point of a streaming target is a closed loop: each stream sends its next chunk when the last one is answered.
    """

    def __init__(self, target: Target, audio: Audio, method: Method, binary: Path, folder: Path) -> None:
        self._target = target
        self._audio = audio
        self._method = method
        self._binary = binary
        self._folder = folder
        self._held: tuple[str, PerfAnalyzer] | None = None

    def __call__(self, point: Point) -> Measurement:
        """Measure a point; raises as `PerfAnalyzer.measure`."""
        return self._tool(point.audio).measure(point)

    def _tool(self, kind: str) -> PerfAnalyzer:
        if self._held is None or self._held[0] != kind:
            workload = self._audio.workload(kind, self._target.sample_rate)
            streaming = self._target.streaming
            (inputs,) = write_inputs(
                workload.waveforms,
                self._folder,
                sample_rate=workload.sample_rate,
                offline=not streaming,
                streaming=streaming,
                chunk_s=self._method.chunk_ms / 1000,
                as_base64=True,
            )
            tool = PerfAnalyzer(
                target=self._target,
                inputs=inputs,
                binary=self._binary,
                seconds=workload.seconds,
                windows=self._method.windows,
                timeout_s=self._method.timeout_s,
                metrics_url=self._method.metrics_url,
            )
            self._held = kind, tool
        return self._held[1]


def find_target(
    client: Client, model: str | None, *, streaming: bool, parameters: Mapping[str, Parameter] | None = None
) -> Target:
    """Find the model to measure: the one of that name, or the only one that takes streams, or whole utterances.

    Args:
        parameters: what requests shall ask of it.

    Raises:
        InputError: there is no such model, or several, or it takes no such parameters.
        RetryError: the server cannot be reached.
    """
    info = client.model(model, kind="streaming") if streaming else _of_whole_utterances(client, model)
    check = info.check_windows if info.kind == "embedding" else info.check_search
    check(parameters or {}, client.endpoint)
    return Target.of(client.endpoint, info, parameters)


def _of_whole_utterances(client: Client, model: str | None) -> ModelInfo:
    found = [each for each in client.models() if each.kind in WHOLE and model in (None, each.name)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{each.name} ({each.kind})" for each in found)
        raise InputError(f"{client.endpoint}: {len(found)} models of whole utterances are ready, name one: {names}")
    return client.model(model, kind="offline")  # which tells what is there instead


def ramp_duration(one: Duration, start: int, maximum: int, precision: float = 0.05) -> Duration:
    """How long a search from `start` may take: doublings, then halvings, each perhaps measured twice."""
    doublings = math.ceil(math.log2(max(1, maximum / start))) + 1
    halvings = math.ceil(math.log2(1 / precision))
    both = doublings + halvings
    return Duration(one.usual_s * both, one.most_s * 2 * both)
