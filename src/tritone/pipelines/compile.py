"""Compiling the networks of a bundle for the machine that will run them.

    bundle, placement, sizes or lengths of recordings  ->  compiled calls in the user's cache folder, [CompiledSize]

Whatever opens the bundle on this machine afterwards uses them, copies of it in model repositories as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, OperatorError
from tritone.pipelines.graphs.buckets import LENGTHS, STEP_ROWS, Choice
from tritone.pipelines.graphs.placement import AUTO, ON_CPU, Placement
from tritone.pipelines.graphs.runner import DEFAULT_MAX_AUDIO_S, WARM_UP_S
from tritone.pipelines.kind import Mode, kind_of
from tritone.pipelines.searching.base import SearchSettings
from tritone.runtime.graph import Bucket
from tritone.search.options import SearchMode, SearchOptions


@dataclass(frozen=True)
class CompiledSize:
    """A size that the graph of a mode is compiled for; calls of fewer rows use it, too.

    `compile_s`: seconds it took; None if this machine had it already. `padding`: the share of padding in what is
    computed for audio of the given lengths that fits this size best; None for streams, and where sizes were given.
    """

    mode: Mode
    bucket: Bucket
    sample_rate: int
    compile_s: float | None
    padding: float | None = None

    def __str__(self) -> str:
        return f"{self.bucket.rows} x {self.bucket.samples / self.sample_rate:.2f} s"


def compile_bundle(
    bundle: Bundle,
    *,
    placement: Placement = ON_CPU,
    sizes: str = AUTO,
    modes: Literal["offline", "streaming", "both"] = "both",
    search: SearchMode = "greedy",
    lengths_s: Sequence[float] = (),
    count: int = LENGTHS,
    rows: int = STEP_ROWS,
    max_audio_s: float = WARM_UP_S,
    chunk_size: int | None = None,
    left_chunks: int | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> list[CompiledSize]:
    """Compile the graphs of a bundle for calls of some sizes, as far as this machine has not done so before.

    Args:
        placement: where the graphs will run, and which.
        sizes: of calls for whole utterances: AUTO, or such as "64x10,16x16.7", rows at most x seconds.
        modes: for whole utterances, for streams, or both as far as the bundle has graphs for them.
        search: the mode of search, which decides what the network returns.
        lengths_s: of recordings like those to come, in seconds, to choose sizes by; by default as speech usually has.
        count: different lengths of calls to choose.
        rows: of steps of streams, at most.
        max_audio_s: the longest audio to compile for; longer audio runs as it is.
        chunk_size, left_chunks: of streams, as they will be served.
        progress: is called with each step.

    Raises:
        BundleError: the bundle has no graph for a mode.
        OperatorError: the runtime compiles nothing, or the compiler failed.
        ValueError: an argument is out of its range.
    """
    kind = kind_of(bundle)
    if not bundle.manifest.is_of_audio:
        raise BundleError(
            f"{bundle.path} is {kind.noun}; only networks that take audio are compiled for sizes of calls."
        )
    had = {artifact.role for artifact in bundle.manifest.artifacts}
    wanted = [
        mode
        for mode, role in kind.encoders.items()
        if (role in had if modes == "both" else (mode == "streaming") == (modes == "streaming"))
    ]
    if not wanted:
        raise BundleError(f"{bundle.path} is {kind.noun}: it has no graphs for mode {modes}")
    plain = replace(placement, runtime=placement.runtime or "torch", compile=None)  # no other is compiled
    settings = SearchSettings(options=SearchOptions(mode=search))
    found: list[CompiledSize] = []
    for mode in wanted:
        progress(f"opening the graph for mode {mode}")
        if mode == "streaming":
            pipeline: Any = kind.open_streaming(
                bundle,
                placement=plain,
                capacity=1,
                max_batch=rows,
                chunk_size=chunk_size,
                left_chunks=left_chunks,
                search=settings,
            )
            choice = Choice(tuple(pipeline.buckets(rows)))
        else:
            defaults = settings if kind.options is SearchOptions else None
            pipeline = kind.open(bundle, placement=plain, max_audio_s=DEFAULT_MAX_AUDIO_S, defaults=defaults)
            choice = pipeline.runner.chosen_buckets(sizes, longest_s=max_audio_s, lengths_s=lengths_s, count=count)
        took: dict[Bucket, float] = {}

        def done(call: Any, mode: Mode = mode, took: dict[Bucket, float] = took, choice: Choice = choice) -> None:
            if "hypotheses" in call.shapes:  # of the search's decoder
                rows, hypotheses, tokens = call.shapes["hypotheses"]
                progress(
                    f"{mode}: decoder, up to {rows} x {hypotheses} hypotheses, {tokens} tokens, {call.compile_s:.0f} s"
                )
                return
            if call.bucket not in choice.buckets:  # of the search's predictor or joiner
                progress(f"{mode}: steps of the search, up to {call.bucket.rows} rows, {call.compile_s:.0f} s")
                return
            took[call.bucket] = call.compile_s
            progress(
                f"{mode}: {len(took)} of {len(choice.buckets)}, up to {call.bucket.rows} rows, {call.compile_s:.0f} s"
            )

        pipeline.compile(choice.buckets, done)
        if missing := set(choice.buckets) - set(pipeline.runner.graph.buckets_for(())):
            raise OperatorError(
                f"what was compiled is kept, and cannot be used in this process: {missing}; the log says why"
            )
        rate = bundle.manifest.sample_rate
        found += [
            CompiledSize(mode, each, rate, took.get(each), choice.padding.get(each.samples)) for each in choice.buckets
        ]
    return found
