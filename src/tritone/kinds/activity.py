"""Kinds of models that find segments of audio: voice activity, and diarization."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tritone.activity import SpeechActivity
from tritone.bundle.manifest import Manifest
from tritone.pipelines.kind import Kind, Specs
from tritone.pipelines.wire import PROBABILITIES, SEGMENTS
from tritone.runtime.graph import Array, TensorSpec


class ActivityKind(Kind):
    """A probability for each frame, and segments made of them by rule. Silence has a result too."""

    usage = "Load it with tritone.load"
    takes_pcm = True
    checks_levels = True
    stream_details = PROBABILITIES

    def read_options(self, pipeline: Any, parameters: Mapping[str, Any], wanted: Collection[str]) -> Any:
        return pipeline.options.changed(parameters) if parameters else pipeline.options

    def answer(self, results: Sequence[SpeechActivity], wanted: Collection[str]) -> dict[str, Array]:
        """Segments as JSON, (rows, 1), and probabilities (rows, frames, ...), where short rows end with zeros."""
        found: dict[str, Array] = {}
        if SEGMENTS in wanted:
            texts = [json.dumps(each.to_dict()).encode() for each in results]
            found[SEGMENTS] = np.array(texts, dtype=object)[:, None]
        rows = [each.probabilities for each in results if each.probabilities is not None]
        if PROBABILITIES in wanted and rows:
            found[PROBABILITIES] = np.zeros((len(rows), max(map(len, rows)), *rows[0].shape[1:]), np.float32)
            for target, row in zip(found[PROBABILITIES], rows, strict=True):
                target[: len(row)] = row
        return found

    def stream_answer(self, result: SpeechActivity, *, details: bool) -> dict[str, Array]:
        return self.answer([result], (SEGMENTS, PROBABILITIES) if details else (SEGMENTS,))


def with_states(manifest: Manifest, inputs: Specs, outputs: Specs) -> tuple[Specs, Specs]:
    """Inputs and outputs of a graph for streams, with the states that go from step to step."""
    assert manifest.streaming is not None
    states = {each.name: TensorSpec(np.dtype(each.dtype), (None, *each.sizes(0))) for each in manifest.streaming.states}
    return {**inputs, **states}, {**outputs, **{f"next_{name}": spec for name, spec in states.items()}}
