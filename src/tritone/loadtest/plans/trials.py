"""The question of a sweep: how each setting is measured, at given loads or at the largest within a limit.

Question.measure(setting)  ->  Measurements        what `run_sweep` calls
Question.words(grid)       ->  one line            equal lines may share their figures, see `known_trials`
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from tritone.bundle import Bundle
from tritone.client import Client
from tritone.describe.models import described
from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.options import LoadOptions
from tritone.loadtest.plans.build_options import DEFAULTS, in_words, text_of
from tritone.loadtest.plans.generator import (
    FILES,
    Audio,
    Generator,
    OnWindow,
    content_of,
    find_target,
    point_duration,
    ramp_duration,
    samples_of,
)
from tritone.loadtest.plans.plan import Duration, Plan, Point
from tritone.loadtest.plans.ramp import Limit
from tritone.loadtest.plans.run import Header, Observer, Run, run_plan, run_ramp
from tritone.loadtest.plans.serving import serve_bundle
from tritone.loadtest.plans.sweep import Grid, Setting, Sweep
from tritone.loadtest.requests.in_process import measure_in_process, open_in_process
from tritone.loadtest.workload.inputs import Inputs
from tritone.report.stamp import Stamp
from tritone.repository.generic import generic
from tritone.repository.serving import ServingOptions

START_S = 10.0  # until a repository is built and its server is ready


@dataclass(frozen=True, kw_only=True)
class Question:
    """How the settings of a bundle are measured."""

    bundle: str
    streaming: bool = False
    protocol: Literal["grpc", "http"] = "grpc"
    loads: Sequence[int] = ()  # requests in flight, or streams; none searches for the largest within the limit
    most: int = 256  # that a search tries
    audio: Audio
    options: LoadOptions
    limit: Limit | None = None

    def __post_init__(self) -> None:
        if self.streaming and self.audio.inputs:
            raise ValueError("--input is for requests; --streaming sends audio")
        if not self.loads and self.limit is None:
            raise ValueError("give the loads to measure, or a latency limit to search the largest one for")

    @property
    def duration(self) -> Duration:
        """How long one setting takes."""
        one = point_duration(self.options, self.streaming) * len(self.audio.kinds)
        measured = one * len(self.loads) if self.loads else ramp_duration(one, 1, self.most)
        return Duration(START_S + measured.usual_s, START_S + measured.most_s)

    def words(self, grid: Grid) -> str:
        """All that must be equal for two sweeps to share their figures, on one line."""
        bundle = Bundle.open(self.bundle)
        digest = hashlib.sha256((bundle.path / "manifest.json").read_bytes()).hexdigest()[:12]
        fixed = {
            field.name: getattr(grid.base, field.name)
            for field in fields(grid.base)
            if field.name not in grid.axes and getattr(grid.base, field.name) != getattr(DEFAULTS, field.name)
        }
        loads = ", ".join(map(str, self.loads)) if self.loads else f"searched up to {self.most}"
        kind = "streams" if self.streaming else "requests in flight"
        parts = [
            f"bundle {bundle.manifest.name} ({digest})",
            f"{kind}: {loads}",
            f"audio: {self._audio()}" if bundle.manifest.is_of_audio else f"input: {self._inputs()}",
            *([f"chunks of {self.options.chunk_ms:g} ms"] if self.streaming else []),
            self.protocol,
            *([str(self.limit)] if self.limit else []),
            f"varied: {', '.join(name.replace('_', ' ') for name in grid.axes)}",
            *(in_words(name, text_of(value)) for name, value in fixed.items()),
        ]
        return "; ".join(parts)

    def measure(self, setting: Setting, observer: Observer, on_window: OnWindow | None = None) -> list[Measurement]:
        """Build, serve and measure a setting.

        Raises:
            TritoneError: it cannot be served, or the generator failed.
            KeyboardInterrupt: on Ctrl-C.
        """
        if setting.where == "process":
            return self._measure_in_process(setting, observer, on_window)
        with serve_bundle(self.bundle, setting.options, mode=self._mode) as served:
            with Client(served.url(self.protocol)) as client:
                target = find_target(client, None, streaming=self.streaming, has_inputs=bool(self.audio.inputs))
                sent = content_of(target, self.audio)
            options = replace(self.options, metrics_url=served.metrics_url)
            generator = Generator(target, sent, options, on_window)
            header = Header(stamp=Stamp.here(""))  # of a report that is not kept
            loop: Literal["streaming", "closed"] = "streaming" if self.streaming else "closed"
            if self.loads:
                plan = Plan(loop=loop, loads=self.loads, batch_sizes=[setting.batch_size], audio=sent.kinds)
                runs = [run_plan(plan, generator, observer, header, limit=self.limit)]
            else:
                assert self.limit is not None
                first = Point(loop=loop, load=1, batch_size=setting.batch_size)
                searches = (
                    run_ramp(replace(first, audio=kind), self.most, self.limit, generator, observer, header)
                    for kind in sent.kinds
                )
                runs = list(_until_one_ends(run for run, _ in searches))
        return _measurements(runs)

    def _measure_in_process(
        self, setting: Setting, observer: Observer, on_window: OnWindow | None
    ) -> list[Measurement]:
        local = open_in_process(self.bundle, setting.options)
        sent: Audio | Inputs = self.audio
        if not local.bundle.manifest.is_of_audio:
            (folder, *_) = generic("model", local.bundle, setting.options, ServingOptions(), "tritone")
            sent = samples_of(described("model", folder.config), self.audio)
        options = replace(self.options, batch_size=setting.batch_size)

        def measure(point: Point) -> Measurement:
            rate = local.bundle.manifest.sample_rate if isinstance(sent, Audio) else 0
            workload = sent.workload(point.audio, rate) if isinstance(sent, Audio) else sent
            return measure_in_process(local, workload, options, on_window=on_window)

        plan = Plan(loop="closed", loads=[1], batch_sizes=[setting.batch_size], audio=sent.kinds)
        return _measurements([run_plan(plan, measure, observer, Header(stamp=Stamp.here("")), limit=self.limit)])

    @property
    def _mode(self) -> Literal["streaming", "offline"]:
        return "streaming" if self.streaming else "offline"

    def _inputs(self) -> str:
        return ", ".join(map(str, self.audio.inputs)) or "made"

    def _audio(self) -> str:
        files = f"{len(self.audio.utterances)} files"
        if self.audio.kinds == (FILES,):
            return files
        return f"{', '.join(self.audio.kinds)} s of {files if self.audio.utterances else 'the shipped clips'}"

    def build_command(self, sweep: Sweep) -> str | None:
        """The command line that builds the winner of a sweep; None if there is none."""
        if sweep.winner is None:
            return None
        setting = sweep.winner.setting
        if setting.where == "process":
            chosen = {"runtime": setting.options.runtime, "precision": setting.options.precision}
            arguments = "".join(f", {name}={value!r}" for name, value in chosen.items() if value)
            return f"tritone.load({self.bundle!r}{arguments})  # in process, in batches of {setting.batch_size}"
        line = setting.options.build_command(self.bundle, mode=self._mode)
        # The command is the server's part; the other part is up to the clients.
        return f"{line}  # clients send batches of {setting.batch_size}" if setting.batching == "static" else line


def _until_one_ends(runs: Iterable[Run]) -> Iterator[Run]:
    for run in runs:
        yield run
        if run.ended_by is not None:
            return


def _measurements(runs: Sequence[Run]) -> list[Measurement]:
    """What was measured; raises what ended the last of the runs early."""
    if (error := runs[-1].ended_by) is not None:
        raise error
    return [each for run in runs for each in run.report.measurements]
