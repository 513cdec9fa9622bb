"""The precision that a bundle runs in by default on a CPU: int8 if it changes little and is faster, else float32.

    bundle with float32 and int8  ->  Choice("int8", the drift that the export measured, seconds of a clip in both)

That int8 changes little is the export's own gate, which compares both on the shipped clips. What is faster is timed on
one of them, in turns.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.audio import read_audio
from tritone.bundle import Bundle
from tritone.bundle.bundle import MANIFEST
from tritone.bundle.manifest import Precision
from tritone.corpus.clips import read_clips
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.kind import kind_of

TURNS = 3


@dataclass(frozen=True)
class Choice:
    """A precision, and why in words: what int8 changes, and how long one clip takes."""

    precision: str
    why: str


def choose(bundle: Bundle, moved: float | None, limit: float, refused: str = "") -> Choice:
    """Choose between float32 and int8.

    Args:
        moved, limit: what int8 changes of probabilities on the shipped clips, and the most it may.
        refused: why the bundle has no int8, as its export reported.
    """
    held = {each.precision for each in bundle.manifest.artifacts}
    if "int8" not in held:
        return Choice("fp32", f"int8 was refused: {refused}" if refused else "the export has no int8")
    seconds = _timed(bundle)
    faster = seconds["int8"] < seconds["fp32"]
    changes = "" if moved is None else f"int8 changes probabilities by {moved:.3f} (limit {limit:g}); "
    return Choice(
        "int8" if faster else "fp32",
        f"{changes}a clip takes {seconds['int8'] * 1e3:.0f} ms in int8 and {seconds['fp32'] * 1e3:.0f} ms in fp32",
    )


def _timed(bundle: Bundle) -> Mapping[str, float]:
    """Seconds that the first shipped clip takes in each precision, as a stream if that is all there is: the least of
    some turns.
    """
    clip = read_audio(read_clips()[0].path, bundle.manifest.sample_rate)
    precisions: tuple[Precision, ...] = ("fp32", "int8")
    kind = kind_of(bundle)
    front: Any = kind.front()
    is_whole = all(bundle.has(role) for mode, role in kind.encoders.items() if mode == "offline")
    fronts = {each: front(bundle, placement=Placement(precision=each), max_audio_s=60.0) for each in precisions}
    seconds: dict[str, float] = {}
    for turn in range(1 + TURNS):  # the first opens the graphs
        for precision, front in fronts.items():
            started = time.perf_counter()
            if is_whole:
                front.run([clip])[0].get()
            else:
                with front.stream() as stream:
                    stream.accept(clip)
                    stream.finish()
            if turn:
                seconds[precision] = min(seconds.get(precision, float("inf")), time.perf_counter() - started)
    return seconds


def prefer(bundle: Path, precision: str) -> None:
    """Make a precision the bundle's first, which is its default."""
    path = bundle / MANIFEST
    content = json.loads(path.read_bytes())
    content["artifacts"].sort(key=lambda each: each["precision"] != precision)  # stable: the rest stays in order
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)
