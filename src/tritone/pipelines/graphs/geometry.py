"""How streams are cut into steps, and how much of the past each step is given.

    manifest, chunk size?, left chunks?  ->  window and shift in samples, states, history of a step

What `chunk_size` C and `left_chunks` L mean is WeNet's: a step gives C encoder frames, each of which sees all of them
and the L * C frames before them. With L = 0 nothing of the past is seen, with L = -1 all of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import ALL_LEFT, LEFT_FRAMES, State, Streaming
from tritone.bundle.part import MAX_COUNT, MAX_STATE_BYTES
from tritone.errors import BundleError
from tritone.runtime.graph import TensorSpec

DEFAULT_MAX_HISTORY_S = 60.0
SHORTEST_HISTORY = 64  # encoder frames; growing from less would cut batches of streams into more calls than it saves
MIN_PART = 2  # streams of a graph call that is worth making beside another one
# Streams of a call on a device that is worth making before another one, which is prepared meanwhile. On an H200 two of
# 128 rows take 14.0 ms with the host's part, one of 256 16.7; two of 64 would gain nothing.
MIN_AHEAD = 128


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The steps of one pipeline.

    `left_frames`: past encoder frames that every step is given; None where histories grow. `max_history`: the longest
    of them then, in encoder frames.
    """

    chunk_size: int
    left_chunks: int
    window_samples: int
    shift_samples: int
    states: Mapping[str, TensorSpec]
    left_frames: int | None = None
    max_history: int = 0

    @classmethod
    def choose(
        cls,
        bundle: Bundle,
        streaming: Streaming,
        chunk_size: int | None = None,
        left_chunks: int | None = None,
        max_history_s: float = DEFAULT_MAX_HISTORY_S,
    ) -> "Geometry":
        """Take what was asked for, or else the manifest's.

        Args:
            bundle, streaming: the bundle, and its manifest's part of that name.
            chunk_size: encoder frames a step.
            left_chunks: past chunks that a step sees; -1 for all.
            max_history_s: the most that -1 stands for, in seconds of audio; of a longer stream the oldest is forgotten.

        Raises:
            BundleError: the bundle's graph is for other sizes alone.
            ValueError: a size is no size, or the state of a stream would be too large.
        """
        try:
            chunk, left = streaming.chosen(chunk_size, left_chunks)
        except BundleError as error:
            raise BundleError(f"{bundle.path}: {error}") from error
        manifest = bundle.manifest
        if not (max_history_s > 0 and math.isfinite(max_history_s)):
            raise ValueError(f"max_history_s must be more than 0 seconds, got {max_history_s}")
        if not streaming.flexible:
            window, shift = streaming.window_samples, streaming.shift_samples
        else:
            window, shift = manifest.step_samples(chunk)
        if window > MAX_COUNT:
            raise ValueError(
                f"chunk_size {chunk} means windows of {window} samples, at most {MAX_COUNT} are allowed; choose a "
                "smaller one"
            )
        longest = chunk * (left if left != ALL_LEFT else max(1, int(max_history_s / manifest.frame_s) // chunk))
        if (size := streaming.state_bytes(longest)) > MAX_STATE_BYTES:
            raise ValueError(
                f"a stream would keep {size} bytes ({longest} frames of the past, {longest * manifest.frame_s:g} s), "
                f"at most {MAX_STATE_BYTES} are allowed: choose a smaller "
                f"{'max_history_s' if left == ALL_LEFT else 'chunk_size or left_chunks'}"
            )
        left_frames = None if left == ALL_LEFT else longest
        return cls(
            chunk_size=chunk,
            left_chunks=left,
            window_samples=window,
            shift_samples=shift,
            states={state.name: _spec(state, left_frames) for state in streaming.states},
            left_frames=left_frames,
            max_history=longest,
        )

    def within(self, inputs: Mapping[str, TensorSpec], max_batch: int) -> int:
        """How many streams a call of a graph may advance: `max_batch`, or what the graph takes where that is less.

        Args:
            inputs: of the graph, which may have limits of its own, as engines do.

        Raises:
            BundleError: it takes no such steps.
        """
        least, most = self.max_history, self.max_history
        if self.left_frames is None:
            least = min(self.chunk_size * -(-SHORTEST_HISTORY // self.chunk_size), self.max_history)
        wanted = {"waveform": (self.window_samples, self.window_samples)}
        wanted |= {name: (least, most) for name, spec in self.states.items() if _is_open(inputs[name], spec)}
        for name, (low, high) in wanted.items():
            spec = inputs[name]
            axis = 1 if name == "waveform" else spec.shape.index(None, 1)
            if spec.most and not spec.least[axis] <= low <= high <= spec.most[axis]:
                what = "windows of samples" if name == "waveform" else "past frames"
                raise BundleError(
                    f"the engine takes {what} from {spec.least[axis]} to {spec.most[axis]}, but chunk_size "
                    f"{self.chunk_size} and left_chunks {self.left_chunks} mean {low} to {high}: an engine is for what "
                    "its bundle's manifest says alone. Leave them out, or run the bundle with another runtime."
                )
        return min([max_batch, *(spec.most[0] for spec in inputs.values() if spec.most)])

    def history(self, position: int) -> int:
        """Past frames that the next step is given, where histories grow: at least all that there are, and its own.

        Lengths double, so that few are in use at once: only streams of one length share a call of the graph.

        Args:
            position: samples of the stream that earlier steps have consumed.
        """
        if self.left_frames is not None:
            return 0
        # The graph gives back as much as it was given, so there must be room for the new frames already.
        needed = (position // self.shift_samples + 1) * self.chunk_size
        length = self.chunk_size * -(-SHORTEST_HISTORY // self.chunk_size)
        while length < needed:
            length *= 2
        return min(length, self.max_history)


def _is_open(found: TensorSpec, state: TensorSpec) -> bool:
    """Whether a graph leaves the length of a state open."""
    return bool(state.shape) and None in found.shape[1:]


def _spec(state: State, left_frames: int | None) -> TensorSpec:
    shape = tuple(left_frames if axis == LEFT_FRAMES else axis for axis in state.shape)
    return TensorSpec(np.dtype(state.dtype), shape)


def parts(histories: Sequence[int], max_batch: int, workers: int, *, ahead: bool = False) -> list[slice]:
    """Cut a row of streams, sorted by their histories, into calls of the graph.

    Args:
        histories: what `Geometry.history` says of each.
        max_batch: streams of one call at most.
        workers: calls that are made at once.
        ahead: whether a device computes one call while the next is prepared.
    """
    found: list[slice] = []
    end = 0
    for _, equal in groupby(histories):
        start, end = end, end + len(list(equal))
        count = end - start
        calls = max(-(-count // max_batch), min(workers, count // MIN_PART))
        if ahead:
            calls = max(calls, min(2, count // MIN_AHEAD))
        bounds = [start + count * call // calls for call in range(calls + 1)]
        found += map(slice, bounds, bounds[1:])
    return found
