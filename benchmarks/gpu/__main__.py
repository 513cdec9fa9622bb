"""Measure everything on a GPU in one run.

    python -m benchmarks.gpu --quick                     # the figures that matter most, in 25 minutes
    python -m benchmarks.gpu --only ctc,streams          # some parts, longer
    python -m benchmarks.gpu --quick --only published-wenet   # a table of the source documents, as long as it takes
    python -m benchmarks.gpu --device cpu --smoke        # the same code on tiny models, to try it
    python -m benchmarks.gpu.page                        # the pages of it, from the JSON

Bundles are made first, all at once, then networks are compiled, all at once; then one thing after the other has the
device to itself. Results are kept as they come.
"""

import argparse
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.gpu import endurance
from benchmarks.gpu.audio import librispeech_lengths
from benchmarks.gpu.bundles import MODELS
from benchmarks.gpu.plan import PARTS, PLAIN, Ceiling, Compiled, Load, Part, Pipeline, Planned
from benchmarks.gpu.results import Results
from benchmarks.gpu.served import ServedModel, Server, measured, measured_streams, options_of, serving
from benchmarks.gpu.tasks import Task, TaskError
from benchmarks.gpu.unpaced import closed_streams
from benchmarks.measure import ROOT
from benchmarks.models.random_bundle import RANDOM_BUNDLES
from tritone.bundle import Bundle
from tritone.errors import TritoneError
from tritone.kinds import kind_of
from tritone.kinds.speech import SpeechKind
from tritone.loadtest.plans.build_options import parse_option
from tritone.runtime import obstacle

OUTPUT = ROOT / "docs" / "performance" / "h200"
KINDS = ("compiled", "ceilings", "pipelines", "loads")  # compiled: what `tritone compile` prepares
OTHERS = ("accuracy", "endurance", "two")
PUBLISHED = "published-"  # parts with the tables of the source documents; each is asked for by its name
COMPILER_THREADS = 2
CEILING_S, CEILING_QUICK_S = 1.5, 0.8
UTTERANCES, UTTERANCES_SMOKE = 1000, 4
ENDURED, ENDURED_QUICK = 50_000, 50_000

OfPlan = TypeVar("OfPlan", bound=Planned)


@dataclass(kw_only=True)
class Bench:
    """One run: where, how long, and what it has found."""

    device: str
    smoke: bool
    quick: bool
    seconds: float
    bundles: Path
    results: Results
    given: Mapping[tuple[str, str], Any]  # by part ("" for all) and name
    until_s: float
    workers: int
    without: Sequence[str]  # kinds of measurements, see `KINDS`
    wire: str
    tasks: list[tuple[str, Ceiling | Pipeline | str, Task]] = field(default_factory=list)
    paths: dict[str, Path] = field(default_factory=dict)

    def chosen(self, planned: Iterable[OfPlan]) -> list[OfPlan]:
        """Those that this run has time for, as large as it may."""
        found = [each for each in planned if not (self.quick and each.full)]
        if not self.smoke:
            return found
        different = {_kind(each): each for each in reversed(found)}
        return [each for each in found if different[_kind(each)] is each]

    def runnable(self, part: str, loads: Iterable[Load]) -> list[Load]:
        """Those whose runtime can use the device here and whose model can search so; of others it is noted why not."""
        found = list(loads)
        lacks = {each.served_as: obstacle(each.runtime, self.device) or self._lack(each) for each in found}
        for name, lack in lacks.items():
            if lack:
                self.results.note(part, f"{name} was not measured: {lack}")
        return [each for each in found if not lacks[each.served_as]]

    def _lack(self, load: Load) -> str | None:
        """Why a model cannot search as a load asks; None if it can, or if there is no model."""
        if "search" not in load.search or load.model not in self.paths:
            return None
        bundle = Bundle.open(self.paths[load.model])
        kind = kind_of(bundle)
        return kind.obstacle(bundle, load.search["search"]) if isinstance(kind, SpeechKind) else None

    def is_late(self, part: str) -> bool:
        """Whether the time is over; what is left out then is noted."""
        if self.results.elapsed_s < self.until_s:
            return False
        self.results.note(part, f"stopped after {self.until_s / 60:g} minutes")
        return True

    def given_for(self, part: str) -> dict[str, Any]:
        """The options of `tritone build` that the command line gives for a part."""
        return {name: value for of in ("", part) for (where, name), value in self.given.items() if where == of}

    def load_of(self, load: Load) -> int:
        return min(load.load, 4) if self.smoke else load.load

    def audio_of(self, load: Load) -> str:
        return "2" if self.smoke and load.audio != "2.02" else load.audio


def prepare(bench: Bench, parts: Sequence[str]) -> None:
    """Export bundles, compile ceilings and open pipelines, as many at once as there are cores for."""
    cores = len(os.sched_getaffinity(0))
    environment = {
        "OMP_NUM_THREADS": str(max(1, cores // bench.workers)),  # more would wait for each other
        "OMP_WAIT_POLICY": "PASSIVE",
        "TORCHINDUCTOR_CACHE_DIR": str(bench.bundles / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": str(COMPILER_THREADS),
    }
    exporting = environment | {"OMP_NUM_THREADS": str(max(1, cores // max(1, len(_models(bench, parts)))))}
    turns = threading.Semaphore(bench.workers)

    def start(part: str, planned: Any, name: str, arguments: Mapping[str, Any]) -> None:
        with turns:
            # what is measured as it is used has its threads as it likes
            task = Task(name, arguments, environment if name == "ceiling" else None)
            bench.tasks.append((part, planned, task))
            task.wait_ready(bench.until_s)
            bench.results.say(f"prepared {name} {part} {_words(planned)} in {task.prepared_s:.1f} s")

    def compile_ahead(part: str, planned: Compiled, arguments: Mapping[str, Any]) -> None:
        with turns:
            told: dict[str, Any] = {
                "model": planned.model,
                "precision": planned.precision,
                "search": planned.search,
            }
            if planned.chunk_size:
                told["chunk_size"] = planned.chunk_size
            try:
                found = Task("compiled", arguments, environment).result(bench.until_s)
                bench.results.add(part, {"what": "compiled ahead", **told, **found})
            except TaskError as error:
                bench.results.note(part, str(error)[-3000:])

    def of_model(model: str) -> None:
        if model != PLAIN:
            try:
                with turns:
                    task = Task(
                        "export", {"model": model, "folder": str(bench.bundles), "smoke": bench.smoke}, exporting
                    )
                    bench.paths[model] = Path(task.result(bench.until_s))
                bench.results.say(f"exported {model} in {task.prepared_s:.1f} s")
            except TaskError as error:
                bench.results.note("export", str(error))
                return
        calls = [each for name in parts for each in _compiled_of(bench, name, model)]
        first = [lambda each=each: compile_ahead(*each) for each in calls]
        tasks = _tasks_of(bench, parts, model)
        networks = [each for each in tasks if each[2] == "ceiling"]
        run_all([*first, *(lambda each=each: start(*each) for each in networks)])
        # pipelines use what was compiled ahead
        run_all([lambda each=each: start(*each) for each in tasks if each not in networks])  # type: ignore[misc]

    def compile_searches() -> None:
        loads = [load for name in parts for load in bench.chosen(PARTS.get(name, Part(title=name)).loads)]
        modes = {(MODELS[load.model].kind, load.search.get("search", "greedy")) for load in loads}
        try:
            Task("searches", {"modes": sorted(modes - {("embedding", "greedy")})}).result(bench.until_s)
        except TaskError as error:
            bench.results.note("searches", str(error)[-3000:])

    works: list[Callable[[], object]] = [lambda name=name: of_model(name) for name in _models(bench, parts)]  # type: ignore[misc]
    works.append(compile_searches)
    if "accuracy" in parts:
        count = UTTERANCES_SMOKE if bench.smoke else UTTERANCES
        compiled = not bench.smoke and "compiled" not in bench.without
        arguments = {"folder": str(bench.bundles), "device": bench.device, "count": count, "compiled": compiled}
        works.append(lambda: start("accuracy", "texts", "texts", arguments))
    run_all(works)


def _tasks_of(bench: Bench, parts: Sequence[str], model: str) -> list[tuple[str, Any, str, Mapping[str, Any]]]:
    """Part, plan, name and arguments of what prepares itself before the device is free for it."""
    found: list[tuple[str, Any, str, Mapping[str, Any]]] = []
    path = str(bench.paths.get(model, ""))
    each_s = CEILING_QUICK_S if bench.quick else CEILING_S
    seconds = 0.2 if bench.smoke else each_s
    for name in parts:
        part = PARTS.get(name, Part(title=name))
        for ceiling in bench.chosen(() if "ceilings" in bench.without else part.ceilings):
            if ceiling.model == model:
                shape = {name: value for name, value in asdict(ceiling).items() if name not in ("model", "full")}
                if bench.smoke:
                    shape |= {"rows": 2, "seconds": min(2.02, ceiling.seconds)}
                arguments = {"bundle": path, **shape, "device": bench.device, "compiled": not bench.smoke}
                found.append((name, ceiling, "ceiling", {**arguments, "seconds_each": seconds}))
        for pipeline in bench.chosen(() if "pipelines" in bench.without else part.pipelines):
            if pipeline.model == model:
                common = {"bundle": path, "device": bench.device, "precision": pipeline.precision}
                if pipeline.streams:
                    streams = 2 if bench.smoke else pipeline.streams
                    steps = {**common, "streams": streams, "seconds_each": 2 * seconds}
                    found.append((name, pipeline, "steps", steps))
                    continue
                shapes = [
                    {"rows": rows, "seconds": length, "wire": wire, "callers": pipeline.callers}
                    for wire in pipeline.wires
                    for rows, length in pipeline.shapes
                ]
                if bench.smoke:
                    shapes = [{"rows": 2, "seconds": 2.02, "wire": wire, "callers": 1} for wire in pipeline.wires]
                each = seconds if len(shapes) > 1 else 3 * seconds
                more = {"shapes": shapes, "search": dict(pipeline.search), "seconds_each": each}
                found.append((name, pipeline, "inprocess", {**common, **more}))
    if model == "resnet34" and "accuracy" in parts:
        count = UTTERANCES_SMOKE if bench.smoke else 64
        found.append(("accuracy", "embeddings", "embeddings", {"bundle": path, "device": bench.device, "count": count}))
    return found


def _compiled_of(bench: Bench, name: str, model: str) -> list[tuple[str, Compiled, Mapping[str, Any]]]:
    """Part, plan and arguments of what is compiled ahead for a model."""
    found: list[tuple[str, Compiled, Mapping[str, Any]]] = []
    if bench.smoke or "compiled" in bench.without:
        return found
    lengths = librispeech_lengths(1000, np.random.default_rng(0)).tolist()
    for each in bench.chosen(PARTS.get(name, Part(title=name)).compiled):
        if each.model == model:
            chosen = bench.quick or each.fixed
            arguments = {
                "bundle": str(bench.paths[model]),
                "device": bench.device,
                "precision": each.precision,
                "search": each.search,
                "sizes": each.sizes if chosen else "auto",
                "steps": each.steps,
                "chunk_size": each.chunk_size,
                "left_chunks": each.left_chunks,
                "lengths_s": [] if chosen else lengths,
            }
            found.append((name, each, arguments))
    return found


def _models(bench: Bench, parts: Sequence[str]) -> list[str]:
    names = []
    for name in parts:
        part = PARTS.get(name, Part(title=name))
        planned: list[Planned] = [*part.compiled, *part.ceilings, *part.pipelines, *part.loads]
        names += [each.model for each in bench.chosen(planned)]
        if name in ("endurance", "two"):
            names.append("wenet-512")
        if name == "accuracy":
            names.append("resnet34")
    # the largest first: they take longest
    return sorted(dict.fromkeys(names), key=lambda name: list(MODELS).index(name) if name in MODELS else -1)


def alone(bench: Bench, parts: Sequence[str]) -> None:
    """Ceilings and pipelines in process, which are ready by now, one after the other."""
    for part, planned, task in sorted(bench.tasks, key=lambda each: parts.index(each[0])):
        try:
            found = task.result(bench.until_s)
        except TaskError as error:
            bench.results.note(part, str(error)[-3000:])
            continue
        if isinstance(planned, Ceiling):
            bench.results.add(part, {"what": "ceiling", **_ceiling_row(bench, planned, found)})
        elif isinstance(planned, Pipeline):
            rows = [found] if isinstance(found, dict) else found
            for row in rows:
                told = {"model": planned.model, "precision": planned.precision, "search": planned.search}
                if "utterances_s" in row:
                    row["rtfx"] = row["utterances_s"] * row["seconds"]
                bench.results.add(part, {"what": "in process", **told, **row})
        else:
            for row in found:
                bench.results.add(part, row)


def _ceiling_row(bench: Bench, ceiling: Ceiling, milliseconds: Mapping[str, float]) -> dict[str, Any]:
    row = {name: value for name, value in asdict(ceiling).items() if name != "full"} | dict(milliseconds)
    rate = 1000 * ceiling.rows / milliseconds["ms"]
    if ceiling.role == "streaming_encoder":
        return row | {"real_time": rate * MODELS[ceiling.model].chunk_ms / 1000}
    return row | {"utterances_s": rate, "rtfx": rate * ceiling.seconds}


def served(bench: Bench, names: Sequence[str]) -> None:
    """The loads of some parts, all models of a runtime served together; then with CUDA's Multi-Process Service."""
    loads = [
        (name, load)
        for name in names
        for load in bench.runnable(name, bench.chosen(PARTS[name].loads))
        if load.model in bench.paths
    ]
    for mps in (False, True):
        if "loads" in bench.without or (mps and not bench.device.startswith("cuda")):
            return
        for runtime in dict.fromkeys(load.runtime for _, load in loads):  # what one cannot load costs no other
            try:
                chosen = [each for each in loads if each[1].mps == mps and each[1].runtime == runtime]
                _served_together(bench, chosen, mps)
            except (TritoneError, RuntimeError, OSError) as error:
                told = f"{runtime}{', with MPS' if mps else ''}: {type(error).__name__}: {error}"
                bench.results.note(names[0], told[-3000:])


def _served_together(bench: Bench, loads: Sequence[tuple[str, Load]], mps: bool) -> None:
    if not loads or bench.is_late(loads[0][0]):
        return
    every = [load for _, load in loads]
    models = {load.served_as: _served(bench, name, load, every) for name, load in loads}
    with (
        (bench.results.folder / "server.log").open("a", encoding="utf-8") as log,
        serving(list(models.values()), mps=mps, log=log) as server,
    ):
        bench.results.say(f"{len(models)} models are served{' with MPS' if mps else ''}")
        for name, load in loads:
            if bench.is_late(name):
                return
            told: dict[str, Any] = {
                "precision": load.precision,
                "search": load.search,
                "build": load.build,
                "of": load.model,
                "mps": mps,
            }
            if load.utterances > 1:
                told["utterances"] = load.utterances
            bench.results.add(name, {"what": "served", **_measured(bench, server, load), **told})


def _measured(bench: Bench, server: Server, load: Load) -> dict[str, Any]:
    size = bench.load_of(load)
    if load.streams:
        measure = measured_streams if load.paced else closed_streams
        chunk_ms = load.chunk_ms or MODELS[load.model].chunk_ms
        row = measure(server, load.served_as, size, chunk_ms, bench.seconds, bench.wire)
        return {**row, "chunk_ms": chunk_ms}
    audio = bench.audio_of(load)
    return measured(server, load.served_as, size, audio, bench.seconds, bench.wire, batch_size=load.utterances)


def _served(bench: Bench, part: str, load: Load, loads: Sequence[Load] = ()) -> ServedModel:
    more: dict[str, Any] = {**load.search, **load.build}
    if load.streams:
        most = max(bench.load_of(each) for each in loads if each.model == load.model)
        more["max_streams"] = most + most // 5  # those that end and those that begin overlap
    return ServedModel(
        name=load.served_as,
        bundle=bench.paths[load.model],
        streaming=load.streams,
        options=options_of(bench.device, load.precision, bench.given_for(part), **more),
    )


def lasting(bench: Bench) -> None:
    """Memory over many requests, and the death of one instance."""
    if "wenet-512" not in bench.paths or bench.is_late("endurance"):
        return
    model = _served(bench, "endurance", Load(model="wenet-512", load=256))
    requests = 200 if bench.smoke else ENDURED_QUICK if bench.quick else ENDURED
    for mps in (False, True) if bench.device.startswith("cuda") else (False,):
        with serving([model], mps=mps, supervised=True) as server:
            most_s = 4.0 if bench.smoke else 40.0 if bench.quick else 600.0
            if not mps:
                for row in endurance.memory(server, model.name, requests, bench.seconds, most_s):
                    bench.results.add("endurance", row)
            bench.results.add("endurance", endurance.kill(server, model.name) | {"mps": mps})


def two(bench: Bench) -> None:
    """One GPU beside two, served with one command each."""
    if len(endurance.device_mib()) < 2 or "wenet-512" not in bench.paths:
        bench.results.note("two", "this machine does not have two GPUs")
        return
    for gpus in ((0,), (0, 1)):
        if bench.is_late("two"):
            return
        load = Load(model="wenet-512", load=512 * len(gpus))
        model = ServedModel(
            name=load.served_as,
            bundle=bench.paths["wenet-512"],
            options=options_of(bench.device, load.precision, bench.given_for("two"), gpus=gpus),
        )
        with serving([model]) as server:
            row = measured(server, model.name, load.load, load.audio, bench.seconds, bench.wire)
            bench.results.add("two", {"what": "served", "gpus": len(gpus), "of": load.model, **row})


def _build_option(text: str) -> tuple[tuple[str, str], Any]:
    """Read "instances=2", or "streams:instances=2" for one part."""
    name, _, value = text.partition("=")
    part, colon, rest = name.rpartition(":")
    field, read = parse_option(rest if colon else name, value)
    return (part, field), read


def run_all(works: Sequence[Callable[[], object]]) -> None:
    """Run functions at the same time, and wait for all of them."""
    threads = [threading.Thread(target=each, daemon=True) for each in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def _kind(planned: Planned) -> str:
    """What a smoke test needs one of."""
    names = ("model", "role", "precision", "search", "streams", "paced", "runtime", "utterances", "audio")
    return f"{[getattr(planned, name, None) for name in names]}"


def _words(key: object) -> str:
    if isinstance(key, Ceiling):
        return f"{key.model} {key.role} {key.rows} x {key.seconds:g} s {key.precision}"
    return key.model if isinstance(key, Pipeline) else str(key)


def main(arguments: Sequence[str] | None = None) -> int:
    every = [*PARTS, *OTHERS]
    usual = [name for name in every if not name.startswith(PUBLISHED)]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(usual), help="some parts, in their order (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="folder of the results (%(default)s)")
    parser.add_argument("--bundles", type=Path, default=RANDOM_BUNDLES, help="folder of the bundles (%(default)s)")
    parser.add_argument("--seconds", type=float, help="of each load that is measured (6; 4.5 with --quick)")
    parser.add_argument("--minutes", type=float, help="after which nothing more is begun (60; 25 with --quick)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="only what matters most")
    parser.add_argument("--smoke", action="store_true", help="tiny models, a second each, nothing compiled")
    parser.add_argument("--prepare", action="store_true", help="only make the bundles and fill the compiler's cache")
    parser.add_argument(
        "--build", action="append", default=[], metavar="[PART:]NAME=VALUE", help="option of `tritone build`"
    )
    parser.add_argument("--together", action="store_true", help="serve the models of all parts at once: starts once")
    parser.add_argument("--without", default="", help=f"leave out some of {','.join(KINDS)}")
    parser.add_argument("--cores", type=int, help="measure on so many of this machine's; preparing takes all of them")
    parser.add_argument("--wire", default="int16", choices=["float32", "int16"], help="how audio travels (%(default)s)")
    parser.add_argument(
        "--workers", type=int, default=max(2, len(os.sched_getaffinity(0)) - 2), help="preparing at once"
    )
    given = parser.parse_args(arguments)
    parts = given.only.split(",")
    if unknown := [name for name in parts if name not in every]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(every)}")
    usual_s, usual_minutes = (4.5, 25.0) if given.quick else (6.0, 60.0)
    bench = Bench(
        device=given.device,
        smoke=given.smoke,
        quick=given.quick or given.smoke,
        seconds=1.0 if given.smoke else given.seconds or usual_s,
        bundles=given.bundles,
        results=Results(given.out, shlex.join(["python", "-m", "benchmarks.gpu", *(arguments or sys.argv[1:])])),
        given=dict(_build_option(text) for text in given.build),
        until_s=60 * (given.minutes or usual_minutes),
        workers=given.workers,
        without=given.without.split(","),
        wire=given.wire,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        prepare(bench, parts)
        if given.prepare:
            return 0
        every_core = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, every_core[: given.cores])
        alone(bench, parts)
        with_server = [name for name in parts if name in PARTS]
        for group in [with_server] if given.together else [[name] for name in with_server]:
            served(bench, group)
        for name in parts:
            try:
                if name == "endurance":
                    lasting(bench)
                elif name == "two":
                    os.sched_setaffinity(0, every_core)
                    two(bench)
            except (TritoneError, RuntimeError, OSError) as error:
                bench.results.note(name, f"{type(error).__name__}: {error}"[-3000:])
        return 0
    finally:
        for *_, task in bench.tasks:
            task.end()


if __name__ == "__main__":
    sys.exit(main())
