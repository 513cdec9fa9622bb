"""One ONNX graph to one engine, by TensorRT's own parser and builder.

    encoder.fp16.onnx + ranges of sizes  ->  plan (bytes)

Networks are strongly typed: an engine computes in the precision that its graph was exported with, and in no other.
TensorRT may not round float32 products to TF32, which keeps 10 bits of a number, as no other runtime here does.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritone.errors import ExportError, OperatorError
from tritone.runtime.cuda.tensorrt import Library
from tritone.tensorrt.profile import Range

MIB = 2**20
POLL_S = 0.1  # in which Ctrl-C is noticed
MAX_MESSAGES = 5  # of TensorRT, in one error
REPORT_EVERY_S = 5.0  # what it is at; a small engine is there before that

Progress = Callable[[str], None]


@dataclass
class EngineBuilder:
    """Builds engines with one library, one after the other.

    `workspace_mib`: memory that kernels may take beside the tensors; None leaves it to TensorRT. `timing_cache`: a file
    with what earlier builds measured, which later ones need not measure again; None keeps none, and TensorRT for RTX
    measures nothing when it builds. `level`: how long to search for kernels, 0 to 5; None is TensorRT's own. `progress`
    is called with what TensorRT does.
    """

    library: Library
    workspace_mib: int | None = None
    timing_cache: Path | None = None
    level: int | None = None
    progress: Progress = lambda step: None
    _log: Any = field(default=None, init=False)
    _builder: Any = field(default=None, init=False)

    def build(self, graph: Path, ranges: Sequence[Mapping[str, Range]]) -> bytes:
        """Build an engine.

        Args:
            graph: the ONNX file; its weights lie beside it.
            ranges: sizes of all inputs that vary, for each profile.

        Raises:
            ExportError: TensorRT does not take the graph, or found no kernels; the message has TensorRT's own.
            OperatorError: TensorRT cannot start.
            KeyboardInterrupt: came while TensorRT built; it has stopped.
        """
        network, parser = self.parse(graph)
        config = self._config(ranges)
        cache = self._open_timing_cache(config)
        plan = self._build(network, config)
        del parser  # which held the weights
        if plan is None:
            raise ExportError(f"{self.library.title} builds no engine of {graph}: {self._log.text()}. {self._advice()}")
        if cache is not None and self.timing_cache is not None:
            try:
                _replace(self.timing_cache, bytes(memoryview(cache.serialize())))
            except OSError as error:  # the engine took minutes, and is worth having without
                self.progress(f"what was measured cannot be kept, so the next build measures again ({error})")
        return bytes(memoryview(plan))

    def parse(self, graph: Path) -> tuple[Any, Any]:
        """Read a graph: TensorRT's network, and the parser, which holds its weights; errors as of `build`."""
        trt = self.library.module
        self._start()
        typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)  # later versions know no other
        network = self._builder.create_network(0 if typed is None else 1 << int(typed))
        parser = trt.OnnxParser(network, self._log)
        if parser.parse_from_file(str(graph)):
            return network, parser
        faults = [parser.get_error(place) for place in range(parser.num_errors)]
        why = "; ".join(
            f"node {fault.node_name() or '(no name)'} ({fault.node_operator()}): {fault.desc()}" for fault in faults
        )
        raise ExportError(
            f"{self.library.title} cannot read {graph}: {why or self._log.text()}. It does not know all operators and "
            "types of ONNX; export the bundle again with this Tritone, and if that does not help, run it with another "
            "runtime."
        )

    def _start(self) -> None:
        """Make TensorRT's builder, which takes its time, once."""
        if self._builder is None:
            self._log = _log_of(self.library.module)
            try:
                self._builder = self.library.module.Builder(self._log)
            except TypeError as error:  # what its bindings make of no builder
                raise OperatorError(
                    f"{self.library.title} cannot start here: {self._log.text()}. See whether the driver of the GPU is "
                    "new enough for it (`nvidia-smi`)"
                ) from error
        self._log.lines.clear()

    def _config(self, ranges: Sequence[Mapping[str, Range]]) -> Any:
        trt = self.library.module
        config = self._builder.create_builder_config()
        config.clear_flag(trt.BuilderFlag.TF32)
        if self.level is not None:
            config.builder_optimization_level = self.level
        if self.workspace_mib is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, self.workspace_mib * MIB)
        for sizes in ranges:
            profile = self._builder.create_optimization_profile()
            for name, each in sizes.items():
                profile.set_shape(name, each.least, each.usual, each.most)
            if config.add_optimization_profile(profile) < 0:
                raise ExportError(
                    f"{self.library.title} does not take the sizes {dict(sizes)}: {self._log.text()}. Choose others "
                    "with --min, --opt and --max."
                )
        return config

    def _open_timing_cache(self, config: Any) -> Any:
        """The cache of this build, which begins with what the file holds; None if there is none."""
        if self.timing_cache is None or self.library.name != "tensorrt":
            return None
        try:
            kept = self.timing_cache.read_bytes() if self.timing_cache.is_file() else b""
        except OSError:
            kept = b""
        cache = config.create_timing_cache(kept)
        # What another version or GPU measured is of no use: the cache starts again.
        if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
            cache = config.create_timing_cache(b"")
            config.set_timing_cache(cache, ignore_mismatch=False)
        return cache

    def _build(self, network: Any, config: Any) -> Any:
        """Build in a thread of its own, so that Ctrl-C works: TensorRT asks between steps whether to go on."""
        monitor = _monitor_of(self.library.module, self.progress)
        config.progress_monitor = monitor
        found: list[Any] = []

        def build() -> None:
            found.append(self._builder.build_serialized_network(network, config))

        thread = threading.Thread(target=build, name="tensorrt-build")
        try:
            thread.start()
            while thread.is_alive():
                thread.join(POLL_S)
        except BaseException:
            monitor.stopped = True
            # It may have come while the thread was starting, when it cannot be joined.
            while thread in threading.enumerate():
                time.sleep(POLL_S)
            raise
        return found[0] if found else None

    def _advice(self) -> str:
        return (
            "If it ran out of memory, choose smaller --max sizes or a --workspace-mib that fits; if it has no kernel "
            "for something, run the bundle with another runtime"
        )


def _log_of(trt: Any) -> Any:
    """A logger that keeps errors for messages of our own; what TensorRT warns of nobody can act on."""

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.lines.append(" ".join(message.split()))

        def text(self) -> str:
            return " | ".join(self.lines[:MAX_MESSAGES]) or "it gives no reason"

    return Log()


def _monitor_of(trt: Any, progress: Progress) -> Any:
    """Reports now and then the phase that a build is in, and ends it when `stopped` is set."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.stopped = False
            self._reported_at = time.monotonic()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if time.monotonic() - self._reported_at >= REPORT_EVERY_S:
                self._reported_at = time.monotonic()
                progress(f"TensorRT: {phase_name[:1].lower()}{phase_name[1:]}, {num_steps} steps")

        def phase_finish(self, phase_name: str) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:
            return not self.stopped

    return Monitor()


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.replace(path)
