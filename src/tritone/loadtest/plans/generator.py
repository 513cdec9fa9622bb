"""Measuring the points of a plan: a target, the audio that the plan names or the model's own inputs, and options.

find_target  ->  Target,  content_of  ->  Audio or Inputs
Generator(target, Audio or Inputs, LoadOptions)(point)  ->  Measurement, whole utterances, streams or inputs alike
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tritone.audio.pcm import is_16_bit
from tritone.client import Client
from tritone.client.models import Kind, ModelInfo
from tritone.client.parameters import Parameter
from tritone.corpus.dataset import Utterance
from tritone.errors import InputError
from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.options import TENSORS, LoadOptions
from tritone.loadtest.plans.plan import Duration, Point
from tritone.loadtest.requests.offline import measure_closed, measure_open
from tritone.loadtest.requests.windows import COLD_S, Tick
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.streams.measure import MAX_SPREAD_S, SETTLE_S, measure_streams
from tritone.loadtest.workload.inputs import Inputs, made_inputs, model_at, read_inputs
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import Workload, files_workload, parse_lengths, speech_workload

FILES = "files"
WHOLE: tuple[Kind, ...] = ("offline", "embedding")
SPEECH: tuple[Kind, ...] = (*WHOLE, "streaming")  # models that audio is measured with
START_S = 1.5  # until the generator's processes run
OnWindow = Callable[[Tick], None]


@dataclass(frozen=True, kw_only=True)
class Audio:
    """The audio that is sent: files as they are (kind "files"), or speech cut to lengths; or samples in its place."""

    lengths: Sequence[str] = ()  # the kinds, see `workload.parse_lengths`; none sends the files as they are
    utterances: Sequence[Utterance] = ()  # the files; without any the lengths are cut from the shipped clips
    seed: int = 0
    inputs: Sequence[Path] = ()  # files and folders of samples, in place of audio
    is_default: bool = False  # whether nobody asked for audio

    def __post_init__(self) -> None:
        if not self.lengths and not self.utterances and not self.inputs:
            raise ValueError("no audio: give lengths, files, or both")
        for spec in self.lengths:
            parse_lengths(spec)

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds that a plan can name."""
        return self.lengths or (("",) if self.inputs else (FILES,))

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


class Generator:
    """Measures points of one target. Audio is prepared when a point first needs it; one kind is kept.

    Args:
        target: the model.
        audio: what points may name, see `content_of`.
        options: how.
        on_window: is called with every window as it ends.
    """

    def __init__(
        self, target: Target, audio: Audio | Inputs, options: LoadOptions, on_window: OnWindow | None = None
    ) -> None:
        self._target = target
        self._audio = audio
        self._options = options
        self._on_window = on_window
        self._held: tuple[str, Workload] | None = None

    def __call__(self, point: Point) -> Measurement:
        """Measure a point.

        Raises:
            Interrupted: Ctrl-C; it carries what was measured.
            TritoneError: the audio cannot be read, or the generator itself failed.
        """
        options = replace(self._options, batch_size=point.batch_size)
        if point.loop == "streaming":
            workload = self._workload(point.audio)
            return measure_streams(self._target, workload, int(point.load), options, on_window=self._on_window)
        sent = self._audio if isinstance(self._audio, Inputs) else self._workload(point.audio)
        if point.loop == "closed":
            return measure_closed(self._target, sent, int(point.load), options, on_window=self._on_window)
        return measure_open(self._target, sent, point.load, point.loop, options, on_window=self._on_window)

    def _workload(self, kind: str) -> Workload:
        assert isinstance(self._audio, Audio)
        if self._held is None or self._held[0] != kind:
            self._held = None  # frees an hour of audio before the next is made
            workload = self._audio.workload(kind, self._target.sample_rate)
            if self._target.pcm and (rounded := sum(not is_16_bit(each) for each in workload.waveforms)):
                note = f"samples were rounded to 16 bits in {rounded} of {len(workload.waveforms)} utterances"
                workload = replace(workload, notes=[*workload.notes, note])
            self._held = kind, workload
        return self._held[1]


def find_target(
    client: Client,
    model: str | None,
    *,
    streaming: bool,
    parameters: Mapping[str, Parameter] | None = None,
    has_inputs: bool = False,
) -> Target:
    """Find the model to measure: the one of that name, or the only one that takes streams, or whole utterances.

    Without any that takes audio it is the only other one.

    Args:
        parameters: of its requests.
        has_inputs: whether it is sent inputs of its own, whatever it is for.

    Raises:
        InputError: there is no such model, or several, or it takes no such parameters.
        RetryError: the server cannot be reached.
    """
    info = client.model(model, kind="streaming") if streaming else _of_requests(client, model, has_inputs)
    if has_inputs or info.kind not in SPEECH:
        usage = model_at(client.endpoint, info.name).usage
        if usage == "answers" and client.endpoint.protocol != "grpc":
            raise InputError(
                f"{client.endpoint}: model '{info.name}' answers any number of times, which is measured over gRPC: "
                "give --url HOST:8001 (grpc://), not HTTP"
            )
        return Target.of(client.endpoint, info, parameters, shared_memory=client.shared_memory, usage=usage)
    check = info.check_windows if info.kind == "embedding" else info.check_search
    check(parameters or {}, client.endpoint)
    # A load is of one kind: samples of more bits are rounded, which the report says.
    pcm = client.pcm_of(info) is not False
    return Target.of(client.endpoint, info, parameters, pcm=pcm, shared_memory=client.shared_memory)


def content_of(target: Target, audio: Audio) -> Audio | Inputs:
    """What a target is sent: audio, or samples that are read or made for the model.

    Raises:
        InputError: a sample does not fit the model, or audio was asked for and it takes none.
        RetryError: the server cannot be reached.
    """
    if target.output != TENSORS:
        return audio
    model = model_at(target.endpoint, target.model)
    if audio.inputs:
        return read_inputs(audio.inputs, model, seed=audio.seed)
    if not audio.is_default:
        raise InputError(
            f"model '{target.model}' is not for speech: it is sent inputs of its own. Give --input with samples, such "
            "as `tritone api` writes, in place of options of audio; without either they are made."
        )
    return made_inputs(model)


def _of_requests(client: Client, model: str | None, has_inputs: bool) -> ModelInfo:
    models = client.models()
    stages = {stage for each in models for stage in each.stages}
    named = [each for each in models if model == each.name or (model is None and each.name not in stages)]
    found = [each for each in named if has_inputs or each.kind in WHOLE]
    if not found:
        found = [each for each in named if each.kind not in SPEECH]
    if len(found) == 1:
        return found[0]
    if found and (has_inputs or found[0].kind not in SPEECH):
        names = ", ".join(each.name for each in found)
        raise InputError(f"{client.endpoint}: {len(found)} models are ready, name one by --model: {names}")
    if found:
        names = ", ".join(f"{each.name} ({each.kind})" for each in found)
        raise InputError(f"{client.endpoint}: {len(found)} models of whole utterances are ready, name one: {names}")
    return client.model(model, kind="offline")  # which reports what is there instead


def point_duration(options: LoadOptions, streaming: bool = False) -> Duration:
    """How long one point takes."""
    plan = options.windows
    usual_s = START_S + plan.warmup_s + plan.needed * plan.window_s
    most_s = START_S + plan.warmup_s + plan.max_windows * plan.longest_s + options.timeout_s + options.drain_s
    if streaming:
        spread_s = MAX_SPREAD_S + options.chunk_s + SETTLE_S
        return Duration(usual_s + spread_s / 2, most_s + spread_s)
    return Duration(usual_s, most_s + COLD_S)


def ramp_duration(one: Duration, start: int, maximum: int, precision: float = 0.05) -> Duration:
    """How long a search from `start` may take: doublings, then halvings, each perhaps measured twice."""
    doublings = math.ceil(math.log2(max(1, maximum / start))) + 1
    steps = doublings + math.ceil(math.log2(1 / precision))
    return Duration(one.usual_s * steps, one.most_s * 2 * steps)
