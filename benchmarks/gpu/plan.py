"""What is measured, part by part: the ceilings of each, the pipelines in process, and the loads of its server.

PARTS["ctc"]  ->  Part(ceilings, pipelines, loads)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.audio import LIBRISPEECH
from tritone.bundle.manifest import Precision, Role

PLAIN = ""  # the name of the plain conformer among models
IN_TIME = 0.99  # share of a stream's chunks that must be answered before the next ones come


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Something to measure of a model. `full`: whether a quick run leaves it out."""

    model: str
    full: bool = False


@dataclass(frozen=True, kw_only=True)
class Ceiling(Planned):
    """A compiled network for one shape; the role says which graph. `seconds` is 0 for steps of streams."""

    rows: int
    seconds: float = 0.0
    role: Role = "encoder"
    precision: Precision = "bf16"


@dataclass(frozen=True, kw_only=True)
class Pipeline(Planned):
    """A pipeline in process on batches of these (rows, seconds), in these forms of audio, or on so many streams."""

    shapes: Sequence[tuple[int, float]] = ()
    wires: Sequence[str] = ("float32",)
    streams: int = 0
    precision: Precision = "bf16"
    callers: int = 2
    search: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Load(Planned):
    """So many requests in flight, or streams, for a model of the part's server.

    `utterances`: in a request. `build`: options of `tritone build`. `mps`: on a server with CUDA's Multi-Process
    Service. `paced`: streams in real time; others send a chunk as soon as the one before is answered. `chunk_ms`: of
    streams, where it is not the model's own.
    """

    load: int
    audio: str = "10"
    utterances: int = 1
    precision: Precision = "bf16"
    search: Mapping[str, Any] = field(default_factory=dict)
    streams: bool = False
    paced: bool = True
    chunk_ms: float = 0.0
    mps: bool = False
    build: Mapping[str, Any] = field(default_factory=dict)

    @property
    def served_as(self) -> str:
        """The name of the model on the server: one for each precision, way to search and set of options."""
        words = [self.model, self.precision, *map(str, (*self.search.values(), *self.build.values()))]
        return "-".join(words)

    @property
    def runtime(self) -> str:
        """What computes the network."""
        return str(self.build.get("runtime", "torch"))


@dataclass(frozen=True, kw_only=True)
class Compiled(Planned):
    """Calls that `tritone compile` prepares before a model is served.

    `sizes`: of whole utterances, rows x seconds, in a quick run; a full one lets Tritone choose, by the lengths that
    are sent, unless `fixed`. `steps`: most rows of steps of streams, of `chunk_size` encoder frames (None: the
    bundle's own) with the past of `left_chunks`.
    """

    sizes: str = ""
    steps: int = 0
    chunk_size: int | None = None
    left_chunks: int | None = None
    search: str = "greedy"
    precision: Precision = "bf16"
    fixed: bool = False


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a run, with a server of its own."""

    title: str
    compiled: Sequence[Compiled] = ()
    ceilings: Sequence[Ceiling] = ()
    pipelines: Sequence[Pipeline] = ()
    loads: Sequence[Load] = ()

    def models(self) -> list[str]:
        """The bundles that it needs."""
        planned: list[Planned] = [*self.compiled, *self.ceilings, *self.pipelines, *self.loads]
        return list(dict.fromkeys(each.model for each in planned if each.model != PLAIN))


BEAM = {"search": "prefix-beam", "beam": 10}
RESCORING = {"search": "rescoring"}
MODIFIED = {"search": "modified-beam", "beam": 4}
JASPER = [(rows, seconds) for seconds in (2.0, 7.0, 16.7) for rows in (1, 2, 4, 8)]
WIRES = ("float32", "int16")
SPEAKER_S = 2.02
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
HALF_AND_FULL: tuple[Precision, ...] = ("fp16", "fp32")
# Lengths that waste least of audio as long as LibriSpeech's, as `tritone compile --data` chooses them; with the 10 s of
# the other loads among them.
MIXED = "128x4.8,96x7.36,64x10,48x13.52,48x14.64,48x15.6,32x16.72,32x19.2,24x25.92,16x35.04"
MIXED_LARGE = "128x5.36,64x8.56,48x14.24,48x15.68,32x17.44,24x24.48,16x35.04"
# The more utterances are planned together, the less is padding.
MANY = {"max_batch_size": 128, "instances": 4}
MORE = {"max_batch_size": 256, "instances": 4}
MOST = {"max_batch_size": 512, "instances": 3}
WAITING = {"queue_delay_ms": 1.0}  # for others to share a batch with
FILLED = {"instances": 6, "queue_delay_ms": 4.0}  # for small networks that are compiled for full batches alone

# Parakeet's, whose compiler takes longer for each size.
MIXED_PARAKEET = "128x5.36,64x10,48x15.68,24x25.92,16x35.04"
BEAM_6 = {"search": "modified-beam", "beam": 6}
NAMES = "anna berg,bela bartok,clara,dora maar,emil,frida kahlo,gustav,hanna,igor,jana,karl marx,lena,maria callas,nils"
WITH_NAMES = {**MODIFIED, "hotwords": ",".join(f"{name}:2" for name in NAMES.split(","))}
FRAME_MS = 80.0
# Chunks in frames of 80 ms, and how many streams: those that NVIDIA names for one H100, and more.
NEMOTRON = {1: (240, 1100, 2000), 7: (1000, 2400, 4000), 14: (2400, 5000, 8000)}

# Of the tables that the source documents print (`benchmarks.gpu.published`).
ONLINE = {"left_chunks": 5, "max_batch_size": 128}
RUNTIMES = ("torch", "torchscript", "onnxruntime")
NVIDIA_S = (2.0, 7.0, 16.7)
DYNAMIC = {"runtime": "torch", "max_batch_size": 4, "queue_delay_ms": 5.0, "instances": 2}
DYNAMIC_LOADS = (1, 2, 4, 8, 16, 32)


def _static(rows: int, runtime: str = "torch") -> dict[str, Any]:
    """Each request is a batch: nothing is put together, nothing waits."""
    return {"runtime": runtime, "max_batch_size": rows, "queue_delay_ms": 0.0, "instances": 2}


def _sizes(shapes: Sequence[tuple[int, float]]) -> str:
    return ",".join(f"{rows}x{seconds:g}" for rows, seconds in shapes)


PARTS: dict[str, Part] = {
    "ctc": Part(
        title="WeNet U2++ conformers, whole utterances",
        compiled=(
            Compiled(model="wenet-512", sizes="1x10,64x5,64x10,64x16"),
            Compiled(model="wenet-256", sizes="64x10"),
        ),
        ceilings=(
            Ceiling(model="wenet-512", rows=64, seconds=10),
            Ceiling(model="wenet-512", rows=1, seconds=10),
            Ceiling(model=PLAIN, rows=64, seconds=10),
            Ceiling(model="wenet-512", rows=128, seconds=10, full=True),
            Ceiling(model="wenet-512", rows=64, seconds=5),
            Ceiling(model="wenet-512", rows=64, seconds=16),
            Ceiling(model="wenet-256", rows=64, seconds=10),
        ),
        pipelines=(
            Pipeline(model="wenet-512", shapes=((64, 10.0),)),
            Pipeline(model="wenet-256", shapes=((64, 10.0),), full=True),
        ),
        loads=(
            Load(model="wenet-512", load=256),
            Load(model="wenet-512", load=512),
            Load(model="wenet-512", load=64),
            Load(model="wenet-512", load=16),
            Load(model="wenet-512", load=1),
            *(Load(model="wenet-512", load=load, build=WAITING, full=True) for load in (256, 64, 16, 1)),
            Load(model="wenet-512", load=512, mps=True),
            *(Load(model="wenet-512", load=load, audio=audio) for audio in ("5", "16") for load in (256, 512)),
            Load(model="wenet-256", load=256),
            Load(model="wenet-256", load=512),
        ),
    ),
    "mixed": Part(
        title="WeNet U2++ conformer, mixed lengths",
        compiled=(Compiled(model="wenet-512", sizes=f"1x10,{MIXED}"),),
        ceilings=(Ceiling(model="wenet-512", rows=64, seconds=10),),
        loads=(
            Load(model="wenet-512", load=512, audio=LIBRISPEECH, build=MANY),
            Load(model="wenet-512", load=256, audio=LIBRISPEECH, build=MANY, mps=True),
            Load(model="wenet-512", load=512, audio=LIBRISPEECH, build=MANY, mps=True),
            Load(model="wenet-512", load=1024, audio=LIBRISPEECH, build=MORE, mps=True),
            Load(model="wenet-512", load=256, audio=LIBRISPEECH, full=True),
            Load(model="wenet-512", load=256, audio="lognormal:8,0.6", full=True),
        ),
    ),
    "searches": Part(
        title="U2++ conformer, second passes and beams",
        # has all outputs that prefix beam search needs, too
        compiled=(Compiled(model="wenet-512", sizes="64x10", search="rescoring"),),
        ceilings=(
            Ceiling(model="wenet-512", rows=64, seconds=10),
            Ceiling(model="wenet-512", rows=64, seconds=10, role="decoder"),
        ),
        pipelines=tuple(
            Pipeline(model="wenet-512", shapes=((64, 10.0),), callers=callers, search=search)
            for callers in (1, 2)
            for search in (RESCORING, BEAM)
        ),
        loads=tuple(
            Load(model="wenet-512", load=512, search=search, mps=mps)
            for mps in (False, True)
            for search in (RESCORING, BEAM)
        ),
    ),
    "icefall": Part(
        title="icefall transducers, whole utterances",
        compiled=(
            Compiled(model="conformer-l", sizes="64x10"),
            Compiled(model="zipformer-l", sizes="64x10"),
            Compiled(model="zipformer-m", sizes="64x10"),
        ),
        ceilings=(
            Ceiling(model="conformer-l", rows=64, seconds=10),
            Ceiling(model="zipformer-l", rows=64, seconds=10),
            Ceiling(model="zipformer-m", rows=64, seconds=10),
        ),
        pipelines=(
            Pipeline(model="conformer-l", shapes=((64, 10.0),)),
            Pipeline(model="zipformer-l", shapes=((64, 10.0),), full=True),
        ),
        loads=(
            *(
                Load(model=model, load=512, search=search, mps=mps)
                for mps in (False, True)
                for model in ("conformer-l", "zipformer-l", "zipformer-m")
                for search in ({}, MODIFIED)
            ),
            Load(model="conformer-l", load=256),
            Load(model="zipformer-l", load=256, full=True),
            Load(model="zipformer-l", load=256, search=MODIFIED, full=True),
        ),
    ),
    "large": Part(
        title="Zipformer of 290 M parameters, mixed lengths",
        compiled=(Compiled(model="zipformer-xl", sizes=MIXED_LARGE),),
        ceilings=(
            Ceiling(model="zipformer-xl", rows=64, seconds=17.2),
            Ceiling(model="zipformer-xl", rows=48, seconds=10),
        ),
        pipelines=(Pipeline(model="zipformer-xl", shapes=((64, 17.0),), full=True),),
        loads=(
            Load(model="zipformer-xl", load=1536, audio=LIBRISPEECH, build=MOST),
            Load(model="zipformer-xl", load=1536, audio=LIBRISPEECH, build=MOST, mps=True),
            Load(model="zipformer-xl", load=256, audio=LIBRISPEECH, full=True),
        ),
    ),
    "streams": Part(
        title="Streams in real time",
        compiled=(
            Compiled(model="wenet-256", steps=256),
            Compiled(model="zipformer-m", steps=256),
        ),
        ceilings=(
            Ceiling(model="wenet-256", rows=256, role="streaming_encoder"),
            Ceiling(model="wenet-256", rows=512, role="streaming_encoder", full=True),
            Ceiling(model="zipformer-m", rows=256, role="streaming_encoder"),
        ),
        pipelines=(
            Pipeline(model="wenet-256", streams=256),
            Pipeline(model="zipformer-m", streams=256),
        ),
        loads=(
            Load(model="wenet-256", load=5000, streams=True),
            Load(model="wenet-256", load=10000, streams=True),
            Load(model="wenet-256", load=10000, streams=True, mps=True),
            Load(model="wenet-256", load=2000, streams=True, full=True),
            Load(model="zipformer-m", load=2000, streams=True),
            Load(model="zipformer-m", load=5000, streams=True),
        ),
    ),
    "speakers": Part(
        title="Speaker models, 2.02 s",
        compiled=tuple(
            Compiled(
                model=model,
                sizes="64x2.02",
                precision=precision,
                fixed=True,
                full=(model, precision) == ("ecapa", "fp32"),
            )
            for model in ("resnet34", "ecapa")
            for precision in PRECISIONS
        ),
        ceilings=(
            Ceiling(model="resnet34", rows=64, seconds=SPEAKER_S, precision="fp32"),
            Ceiling(model="resnet34", rows=64, seconds=SPEAKER_S),
            Ceiling(model="ecapa", rows=64, seconds=SPEAKER_S, precision="fp32", full=True),
            Ceiling(model="ecapa", rows=64, seconds=SPEAKER_S),
        ),
        pipelines=(
            Pipeline(model="resnet34", shapes=((64, SPEAKER_S),), precision="fp32"),
            Pipeline(model="ecapa", shapes=((64, SPEAKER_S),)),
        ),
        loads=(
            Load(model="resnet34", load=400, audio="2.02", precision="fp32"),
            Load(model="resnet34", load=400, audio="2.02"),
            Load(model="ecapa", load=400, audio="2.02", precision="fp32", full=True),
            Load(model="ecapa", load=400, audio="2.02"),
            *(
                Load(model=model, load=512, audio="2.02", build=FILLED, mps=mps)
                for mps in (False, True)
                for model in ("resnet34", "ecapa")
            ),
            Load(model="resnet34", load=200, audio="2.02", precision="fp32", full=True),
            Load(model="resnet34", load=200, audio="2.02", full=True),
            Load(model="ecapa", load=200, audio="2.02", full=True),
        ),
    ),
    "jasper": Part(
        title="Jasper 10x5dr, in process",
        compiled=(Compiled(model="jasper", sizes=_sizes(JASPER), fixed=True),),
        ceilings=tuple(Ceiling(model="jasper", rows=rows, seconds=seconds) for rows, seconds in JASPER),
        pipelines=tuple(Pipeline(model="jasper", shapes=JASPER, wires=WIRES, callers=callers) for callers in (1, 2)),
    ),
    "published-transducers": Part(
        title="icefall transducers, by length of audio and requests in flight",
        compiled=tuple(
            Compiled(model=model, sizes=f"64x{seconds}", precision=precision, fixed=True, full=model != "conformer-l")
            for model in ("conformer-l", "zipformer-m")
            for precision in PRECISIONS
            for seconds in (5, 8, 10)
        ),
        loads=tuple(
            Load(model=model, load=load, audio=audio, precision=precision, full=model != "conformer-l" or load == 400)
            for model in ("conformer-l", "zipformer-m")
            for precision in PRECISIONS
            for audio in ("5", "8", "10")
            for load in (50, 100, 150, 200, 400)
        ),
    ),
    "published-wenet": Part(
        title="WeNet with rescoring, by length of audio and requests in flight",
        compiled=tuple(
            Compiled(model=model, sizes=f"64x{seconds}", search="rescoring", fixed=True)
            for model in ("wenet-512", "wenet-256")
            for seconds in (5, 8, 10)
        ),
        loads=tuple(
            Load(model=model, load=load, audio=audio, search=RESCORING)
            for model, audio, loads in (
                ("wenet-256", "5", (50, 100, 150, 200)),
                ("wenet-256", "8", (50, 100, 150, 200)),
                ("wenet-256", "10", (10, 50, 100)),
                ("wenet-512", "5", (50, 100)),
                ("wenet-512", "8", (50, 100)),
                ("wenet-512", "10", (5, 10, 50)),
            )
            for load in loads
        ),
    ),
    "published-streams": Part(
        title="WeNet's streams with prefix beam search and rescoring",
        compiled=(Compiled(model="wenet-256", steps=128, left_chunks=5, search="rescoring"),),
        loads=tuple(
            Load(model="wenet-256", load=load, search=search, streams=True, paced=paced, build=ONLINE)
            for paced in (False, True)
            for search in (BEAM, RESCORING)
            for load in (50, 100)
        ),
    ),
    "published-jasper": Part(
        title="Jasper 10x5dr, served",
        compiled=tuple(
            Compiled(model="jasper-runtimes", sizes=f"1x{seconds:g},8x{seconds:g}", precision=precision, fixed=True)
            for precision in HALF_AND_FULL
            for seconds in NVIDIA_S
        ),
        loads=(
            # one request after the other shows the latency, four at once the most throughput
            *(
                Load(
                    model="jasper-runtimes",
                    load=load,
                    audio=f"{seconds:g}",
                    utterances=rows,
                    precision=precision,
                    build=_static(rows, runtime),
                    full=rows in (2, 4) or (precision == "fp32" and (load, seconds) != (4, 7.0)),
                )
                for precision in HALF_AND_FULL
                for runtime in RUNTIMES
                for rows in (1, 2, 4, 8)
                for seconds in NVIDIA_S
                for load in (1, 4)
            ),
            *(
                Load(model="jasper-runtimes", load=load, audio="7", precision="fp16", build=build)
                for build in (_static(1), DYNAMIC)
                for load in DYNAMIC_LOADS
                if (build is DYNAMIC or load not in (1, 4))  # those are above
            ),
        ),
    ),
    "published-parakeet": Part(
        title="Parakeet TDT 0.6B, whole utterances",
        compiled=(Compiled(model="parakeet-0.6b", sizes=f"1x10,{MIXED_PARAKEET}"),),
        ceilings=(Ceiling(model="parakeet-0.6b", rows=64, seconds=10),),
        pipelines=(
            Pipeline(model="parakeet-0.6b", shapes=((64, 10.0),)),
            Pipeline(model="parakeet-0.6b", shapes=((64, 10.0),), search=BEAM_6),
            Pipeline(model="parakeet-0.6b", shapes=((64, 10.0),), search=WITH_NAMES),
        ),
        loads=(
            *(Load(model="parakeet-0.6b", load=load, mps=mps) for mps in (False, True) for load in (256, 512)),
            Load(model="parakeet-0.6b", load=1),
            *(
                Load(model="parakeet-0.6b", load=load, audio=LIBRISPEECH, build=MANY, mps=mps)
                for mps in (False, True)
                for load in (512, 1024)
            ),
            Load(model="parakeet-0.6b", load=512, search=BEAM_6),
            Load(model="parakeet-0.6b", load=512, audio=LIBRISPEECH, search=BEAM_6, build=MANY, full=True),
        ),
    ),
    "published-parakeet-large": Part(
        title="Parakeet 1.1B, CTC and RNNT, whole utterances",
        compiled=tuple(
            Compiled(model=model, sizes="64x10,48x15.68,16x35.04")
            for model in ("parakeet-ctc-1.1b", "parakeet-rnnt-1.1b")
        ),
        ceilings=(Ceiling(model="parakeet-rnnt-1.1b", rows=64, seconds=10),),
        loads=tuple(
            Load(model=model, load=load, audio=audio, build=build, full=load == 256)
            for model in ("parakeet-ctc-1.1b", "parakeet-rnnt-1.1b")
            for audio, build, loads in (("10", {}, (256, 512)), (LIBRISPEECH, MANY, (512,)))
            for load in loads
        ),
    ),
    "published-nemotron": Part(
        title="Nemotron's cache-aware streams, 0.6B",
        compiled=tuple(Compiled(model="nemotron-0.6b", steps=256, chunk_size=frames) for frames in NEMOTRON),
        ceilings=(Ceiling(model="nemotron-0.6b", rows=256, role="streaming_encoder"),),
        loads=tuple(
            Load(
                model="nemotron-0.6b",
                load=streams,
                streams=True,
                chunk_ms=frames * FRAME_MS,
                build={"chunk_size": frames},
                full=frames > 1 and streams == NEMOTRON[frames][0],
            )
            for frames in NEMOTRON
            for streams in NEMOTRON[frames]
        ),
    ),
}
