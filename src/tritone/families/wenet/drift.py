"""What a graph in another precision makes of real audio, against the float32 network.

    graph, opened graph, recordings  ->  Drift

An error bound on numbers says little of a recogniser: log-probabilities of tokens that nobody considers may move by
whole units and change nothing. What is limited is how much probability moves. For encoders that is the total variation
distance of a frame, ½ Σ |p - q| over the vocabulary, averaged over frames: 0 if nothing changes, 1 if everything does.
For decoders it is the change of a hypothesis's score per token, which for small changes is the relative change of a
token's probability.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tritone.audio import Waveform, read_audio
from tritone.errors import ExportError, InputError
from tritone.families.wenet.check import zero_states
from tritone.families.wenet.graphs import OfflineGraph, StreamingGraph
from tritone.families.wenet.rescoring import RescoringGraph
from tritone.runtime import Graph

MAX_DRIFT = 0.05
"""Default limit of `Drift.moved`; see docs/export-wenet.md for what models show."""
MAX_RECORDINGS = 50  # enough for a mean, and done in seconds
MAX_SECONDS = 30.0  # of one recording; the rest of it is left out
MAX_LIST_BYTES = 16 * 2**20
CLIPS = Path(str(files("tritone"))) / "demo" / "clips"  # the ten recordings that the package brings, 27 s
SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3")

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Drift:
    """How far a graph is from float32.

    `count`: frames of an encoder, hypotheses of a decoder. `mean`, `largest`: change of a log-probability, or of a
    hypothesis's score, natural-log units. `changed`: share of frames with another best token; None for decoders.
    `moved`: what is limited, see above; NaN if the graph gave something that is not finite.
    """

    count: int
    mean: float
    largest: float
    changed: float | None
    moved: float

    def __str__(self) -> str:
        if self.changed is None:
            return (
                f"scores of {self.count} hypotheses change by {self.mean:.3g}, at most {self.largest:.3g}; "
                f"{self.moved:.3g} a token"
            )
        return (
            f"log-probs of {self.count} frames change by {self.mean:.3g}, at most {self.largest:.3g}; another best "
            f"token in {self.changed:.2%}; total variation {self.moved:.3g}"
        )


def read_recordings(source: Path | None, sample_rate: int) -> list[Waveform]:
    """Read audio to measure drift with.

    Args:
        source: a folder of audio files, or a Kaldi wav.scp; None takes the clips of the demo.
        sample_rate: of the model, in Hz.

    Raises:
        ExportError: there is no audio at all.
        InputError: a file cannot be read.
    """
    folder = CLIPS if source is None else source
    if folder.is_dir():
        paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    else:
        paths = _listed(folder)
    if not paths:
        raise ExportError(f"{folder} has no audio ({', '.join(SUFFIXES)}) to check the exported graphs with")
    longest = round(MAX_SECONDS * sample_rate)
    return [read_audio(path, sample_rate)[:longest] for path in paths[:MAX_RECORDINGS]]


def _listed(wavscp: Path) -> list[Path]:
    """The files of a Kaldi list, `id path` a line; relative ones start from its folder."""
    try:
        if wavscp.stat().st_size > MAX_LIST_BYTES:
            raise InputError(f"{wavscp} is too large for a list of recordings; give a short one or a folder")
        lines = wavscp.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {wavscp} as a list of recordings: {error}") from error
    fields = [line.strip().split(maxsplit=1) for line in lines if line.strip()]
    for number, each in enumerate(fields, 1):
        if len(each) != 2:
            raise InputError(f"{wavscp}, entry {number}: expected 'id path', got {' '.join(each)!r}")
    return [wavscp.parent / path for _, path in fields]


def encoder_drift(graph: OfflineGraph | StreamingGraph, session: Graph, recordings: Sequence[Waveform]) -> Drift:
    """Compare the log-probabilities of an opened graph with those of the float32 network `graph`, frame by frame."""
    pairs = _offline if isinstance(graph, OfflineGraph) else _streams
    frames, changed, total, largest, moved = 0, 0, 0.0, 0.0, 0.0
    tokens = 1
    for waveform in recordings:
        for expected, found in pairs(graph, session, waveform):  # type: ignore[arg-type]  # the right one for its type
            if not len(expected):
                continue
            # The built-in max would lose a NaN.
            change = np.abs(found - expected)
            frames, tokens = frames + len(expected), expected.shape[1]
            total += float(change.sum(dtype=np.float64))
            largest = float(np.maximum(largest, change.max()))
            changed += int((found.argmax(axis=1) != expected.argmax(axis=1)).sum())
            moved += 0.5 * float(np.abs(np.exp(found) - np.exp(expected)).sum(dtype=np.float64))
    if not frames:
        raise ExportError("the audio to check the exported graphs with is too short for a single frame")
    return Drift(
        frames,
        total / (frames * tokens),
        largest,
        changed / frames,
        moved / frames if math.isfinite(largest) else math.nan,
    )


@torch.no_grad()
def decoder_drift(
    graph: RescoringGraph, session: Graph, offline: OfflineGraph, blank_id: int, recordings: Sequence[Waveform]
) -> Drift:
    """Compare the scores of the greedy hypotheses; both decoders are given what the float32 encoder says."""
    changes: list[Array] = []
    counts: list[int] = []
    for waveform in recordings:
        if len(waveform) < offline.min_samples:
            continue
        samples = torch.tensor([len(waveform)])
        log_probs, num_frames, encoded = offline(torch.from_numpy(waveform)[None], samples)
        best = log_probs[0, : int(num_frames)].argmax(dim=1).unique_consecutive()
        tokens = best[best != blank_id]
        ids = tokens.reshape(1, 1, -1)
        inputs = (encoded, num_frames, ids, torch.tensor([[len(tokens)]]))
        expected = graph(*inputs)
        feed = dict(zip(graph.inputs, (each.numpy() for each in inputs), strict=True))
        found = session(feed, graph.outputs)
        for ours, theirs in zip(found, expected, strict=True):
            changes.append(np.abs(ours - theirs.numpy()).reshape(-1))
            counts.append(len(tokens) + 1)
    if not changes:
        raise ExportError("the audio to check the exported graphs with is too short for a single frame")
    change = np.concatenate(changes).astype(np.float64)
    return Drift(len(change), float(change.mean()), float(change.max()), None, float(change.sum() / sum(counts)))


@torch.no_grad()
def _offline(graph: OfflineGraph, session: Graph, waveform: Waveform) -> Iterator[tuple[Array, Array]]:
    if len(waveform) < graph.min_samples:
        return
    inputs = {"waveform": waveform[None], "num_samples": np.array([len(waveform)])}
    expected, num_frames, _ = graph(*map(torch.from_numpy, inputs.values()))
    [found] = session(inputs, ["log_probs"])
    count = int(num_frames)
    yield expected[0, :count].numpy(), found[0, :count]


@torch.no_grad()
def _streams(graph: StreamingGraph, session: Graph, waveform: Waveform) -> Iterator[tuple[Array, Array]]:
    """Steps of one stream with the chunk size and history of the export; each keeps the states of its own precision."""
    window, shift = graph.window_for(graph.chunk_size), graph.shift_for(graph.chunk_size)
    steps = max(0, len(waveform) - window) // shift + 1
    left_frames = graph.chunk_size * (graph.left_chunks if graph.left_chunks >= 0 else steps)
    expected_states = zero_states(graph, 1, left_frames)
    states = {name: value.numpy() for name, value in expected_states.items()}
    names = ["log_probs", *(f"next_{name}" for name in states)]
    for step in range(steps):
        piece = waveform[step * shift : step * shift + window]
        block = np.zeros((1, window), np.float32)
        block[0, : len(piece)] = piece
        num_samples = np.array([len(piece)])
        expected, num_frames, _, *rest = graph(
            torch.from_numpy(block), torch.from_numpy(num_samples), *expected_states.values()
        )
        found, *next_states = session({"waveform": block, "num_samples": num_samples, **states}, names)
        expected_states = dict(zip(expected_states, rest, strict=True))
        states = dict(zip(states, next_states, strict=True))
        count = int(num_frames)
        yield expected[0, :count].numpy(), found[0, :count]
