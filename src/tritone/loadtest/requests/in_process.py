"""Load on a bundle in this process, without a server: calls one after the other, each of so many inputs.

bundle, BuildOptions  ->  open_in_process  ->  Local(items)  ->  measure_in_process  ->  Measurement

What is opened is the pipeline that a served model of these options has, so that the rest of its time is the server's.
"""

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritone.backend.instance import instance_of
from tritone.bundle import Bundle
from tritone.client.transport import EMBEDDING, TEXT
from tritone.container import usable_cpus
from tritone.errors import InputError, TritoneError
from tritone.kinds import Kind, kind_of
from tritone.kinds.generic.part import GenericPart
from tritone.loadtest.findings.result import Latency, Measurement
from tritone.loadtest.options import TENSORS, LoadOptions
from tritone.loadtest.requests.windows import End, Event, Recorder, Tick
from tritone.loadtest.senders.wire import error_kind
from tritone.loadtest.workload.answers import Verdict, judge, judge_embeddings
from tritone.loadtest.workload.inputs import Inputs
from tritone.loadtest.workload.workload import Workload
from tritone.pipelines.graphs.placement import Placement
from tritone.repository import ModelOptions
from tritone.repository.config import settings_of

IN_PROCESS = "in process"  # the protocol of such measurements


@dataclass(frozen=True, kw_only=True)
class Local:
    """A bundle that is open here. `pipeline`: what a served model would run, warmed up."""

    bundle: Bundle
    kind: Kind
    pipeline: Any


def open_in_process(path: str | Path, options: ModelOptions) -> Local:
    """Open a bundle as a served model of these options would, on one device.

    Raises:
        BundleError, OperatorError: it cannot be opened so.
        InputError: its model keeps states or answers many times.
    """
    bundle = Bundle.open(path)
    kind, generic = kind_of(bundle), bundle.manifest.find(GenericPart)
    if generic is not None and (generic.is_sequence or (generic.python is not None and generic.python.decoupled)):
        raise InputError(f"{path} keeps states or answers a request many times, which is measured on a server alone")
    device = f"cuda:{options.gpus[0] if options.gpus else 0}" if options.device == "gpu" else "cpu"
    placement = Placement(
        device=device,
        threads=options.threads or usable_cpus(),
        runtime=options.runtime or None,
        precision=options.precision or None,
        compile=options.compile or None,
    )
    own: dict[str, Any] = {}
    if generic is None:
        settings = settings_of("offline", options, kind, sample_rate=bundle.manifest.sample_rate)
        instance = instance_of(bundle, settings, placement, Path(), max_batch=options.max_batch_size)
        own = {"max_audio_s": settings.max_audio_s, "defaults": instance.defaults(kind)}
    pipeline = kind.open(bundle, placement=placement, **own)
    pipeline.warm_up()
    return Local(bundle=bundle, kind=kind, pipeline=pipeline)


def measure_in_process(
    local: Local,
    workload: Workload | Inputs,
    options: LoadOptions,
    *,
    on_window: Callable[[Tick], None] | None = None,
) -> Measurement:
    """Call a pipeline with a batch of inputs at a time, in windows as on a server, and measure."""
    recorder = Recorder(options.windows, options.timeout_s)
    order = np.random.default_rng([options.seed, 0]).permutation(len(workload.pool))
    indices = itertools.cycle(map(int, order))
    items = [_item(each) for each in workload.pool]
    while recorder.end is None:
        tick = Tick(begin := time.perf_counter(), begin)
        while (now := time.perf_counter()) - begin < options.report_s:
            _call(local, [next(indices) for _ in range(options.batch_size)], items, workload, tick, now)
        tick.end = now
        if recorder.add(tick) is Event.WINDOW and on_window is not None:
            on_window(recorder.windows[-1])
    gc.collect()  # what this one leaves is not the next one's
    return _measurement(local, workload, options, recorder)


def _item(sent: Any) -> Any:
    return {each.name: each.array for each in sent.inputs} if hasattr(sent, "inputs") else sent


def _call(
    local: Local, members: Sequence[int], items: Sequence[Any], workload: Workload | Inputs, tick: Tick, sent: float
) -> None:
    results = local.pipeline.run([items[each] for each in members])
    tick.sent += 1
    took_s = time.perf_counter() - sent
    if errors := [each for each in results if isinstance(each, TritoneError)]:
        tick.add_error(error_kind("failed", str(errors[0])))
        return
    tick.latencies.append(took_s)
    tick.utterances += len(members)
    if isinstance(workload, Inputs):
        tick.answers += 1
        return
    tick.audio_s += sum(len(items[each]) for each in members) / workload.sample_rate
    for member, result in zip(members, results, strict=True):
        if isinstance(result, np.ndarray):
            tick.embeddings.add(member, result)
        elif (text := getattr(result, "text", None)) is not None:
            tick.add_text(member, text)


def _measurement(local: Local, workload: Workload | Inputs, options: LoadOptions, recorder: Recorder) -> Measurement:
    windows = list(recorder.windows)
    total = Tick(windows[0].begin, windows[0].begin)
    for window in windows:
        total.absorb(window)
    if isinstance(workload, Inputs):
        verdict, output = Verdict(), TENSORS
    elif total.embeddings.first:
        verdict, output = judge_embeddings(total.embeddings), EMBEDDING
    else:
        verdict, output = judge(total.texts, workload, options.normalization), TEXT
    notes = [] if recorder.end is End.STABLE else [f"not stable: {recorder.end.value if recorder.end else ''}"]
    return Measurement(
        model=local.bundle.manifest.name,
        protocol=IN_PROCESS,
        loop="closed",
        load=1,
        batch_size=options.batch_size,
        seconds=workload.seconds,
        wall_s=total.wall_s,
        requests=total.requests,
        utterances=total.utterances,
        audio_s=total.audio_s,
        errors=dict(total.errors.most_common()),
        latency=Latency.of(total.latencies),
        windows=len(windows),
        stable=recorder.end is End.STABLE,
        output=output,
        **verdict.figures(),
        notes=[*notes, *verdict.notes, *workload.notes],
    )
