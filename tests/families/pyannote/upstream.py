"""What pyannote.audio's own code makes of small random networks and segmentations, kept beside this file.

    python tests/families/pyannote/upstream.py

Run in an environment with torch 2.13 and pyannote.audio 4.0.7; writes `upstream.npz`. Weights, signals and
segmentations are made anew from numbers in each test: the file holds upstream's answers alone.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

PATH = Path(__file__).with_name("upstream.npz")
RATE = 16000
WINDOW_S, SPEAKERS, AT_ONCE = 2.0, 3, 2
SIZES = {"hidden": 6, "layers": 4, "linear": 5}
CHUNKS, FRAMES, CLUSTERS = 7, 589, 4  # of the segmentation: windows of 10 s, one every second
FIELD_S, FRAME_S = 991 / RATE, 270 / RATE

Array = npt.NDArray[Any]


def waveforms() -> Array:
    """(4, samples): tones that come and go, one of them soft, the last one silent."""
    random, time = np.random.default_rng(3), np.arange(round(WINDOW_S * RATE)) / RATE
    rows = []
    for level in (0.3, 0.01, 0.8, 0.0):
        tones = sum(np.sin(2 * np.pi * hz * time + 4 * np.sin(3 * time)) for hz in random.uniform(90, 3000, 5))
        rows.append(level * (tones / 5 + random.normal(0, 0.1, len(time))) * (np.sin(5 * time) > -0.3))
    return np.stack(rows).astype(np.float32)


def tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Weights of these shapes, in the order of their names."""
    random, found = np.random.default_rng(7), {}
    for name, shape in sorted(shapes.items()):
        values = random.normal(0, 1, shape)
        if name.endswith("band_hz_"):
            values = 200 * values
        elif name.endswith("low_hz_"):
            values = 2500 * values
        elif "lstm" in name:
            values *= 0.9 if len(shape) > 1 else 0.1
        elif name.startswith(("linear", "classifier")):
            values *= 3.0 if len(shape) > 1 else 0.0
        elif len(shape) > 1:
            values *= (1.5 / values[0].size) ** 0.5
        elif name.endswith(".weight"):
            values = 0.5 + np.abs(values)
        found[name] = values.astype(np.float32)
    return found


def shapes() -> dict[str, tuple[int, ...]]:
    """The shapes of the network's tensors, but for those that are constants."""
    found: dict[str, tuple[int, ...]] = {
        "sincnet.conv1d.0.filterbank.band_hz_": (40, 1),
        "sincnet.conv1d.0.filterbank.low_hz_": (40, 1),
        "sincnet.conv1d.1.bias": (60,),
        "sincnet.conv1d.1.weight": (60, 80, 5),
        "sincnet.conv1d.2.bias": (60,),
        "sincnet.conv1d.2.weight": (60, 60, 5),
        "sincnet.wav_norm1d.bias": (1,),
        "sincnet.wav_norm1d.weight": (1,),
    }
    for index, size in enumerate((80, 60, 60)):
        found |= {f"sincnet.norm1d.{index}.bias": (size,), f"sincnet.norm1d.{index}.weight": (size,)}
    hidden, linear = SIZES["hidden"], SIZES["linear"]
    for layer in range(SIZES["layers"]):
        for end in ("", "_reverse"):
            found |= {f"lstm.{kind}_l{layer}{end}": (4 * hidden,) for kind in ("bias_hh", "bias_ih")}
            found[f"lstm.weight_hh_l{layer}{end}"] = (4 * hidden, hidden)
            found[f"lstm.weight_ih_l{layer}{end}"] = (4 * hidden, 2 * hidden if layer else 60)
    for index in range(2):
        found |= {
            f"linear.{index}.bias": (linear,),
            f"linear.{index}.weight": (linear, linear if index else 2 * hidden),
        }
    return found | {"classifier.bias": (7,), "classifier.weight": (7, linear)}


def segmentations() -> Array:
    """(CHUNKS, FRAMES, SPEAKERS) of 0 and 1: stretches in which local speakers talk, up to two at once."""
    random = np.random.default_rng(11)
    found = np.zeros((CHUNKS, FRAMES, SPEAKERS))
    for chunk in found:
        for _ in range(7):
            start, speaker = random.integers(FRAMES), random.integers(SPEAKERS)
            chunk[start : start + random.integers(20, 200), speaker] = 1
        crowded = chunk.sum(axis=1) > AT_ONCE
        chunk[crowded, SPEAKERS - 1] = 0
    found[2, :, 1] = 0  # nobody
    return found


def similarities() -> Array:
    """(CHUNKS, SPEAKERS, CLUSTERS), of the voices of local speakers and of clusters."""
    return np.random.default_rng(13).uniform(-0.2, 1, (CHUNKS, SPEAKERS, CLUSTERS))


def _network() -> Any:
    import torch

    task = import_module("pyannote.audio.core.task")
    network = import_module("pyannote.audio.models.segmentation").PyanNet(
        lstm={"hidden_size": SIZES["hidden"], "num_layers": SIZES["layers"], "bidirectional": True},
        linear={"hidden_size": SIZES["linear"], "num_layers": 2},
    )
    network.specifications = task.Specifications(
        problem=task.Problem.MONO_LABEL_CLASSIFICATION,
        resolution=task.Resolution.FRAME,
        duration=WINDOW_S,
        classes=[f"speaker#{number}" for number in range(SPEAKERS)],
        powerset_max_classes=AT_ONCE,
        permutation_invariant=True,
    )
    network.build()
    own = network.state_dict()
    constant = {name: value for name, value in own.items() if name.endswith((".n_", ".window_"))}
    assert {name: tuple(value.shape) for name, value in own.items() if name not in constant} == shapes()
    network.load_state_dict({name: torch.from_numpy(value) for name, value in tensors(shapes()).items()} | constant)
    return network.eval()


def _diarization() -> dict[str, Array]:
    core, upstream = import_module("pyannote.core"), import_module("pyannote.audio.pipelines").SpeakerDiarization
    clustering = import_module("pyannote.audio.pipelines.clustering").BaseClustering
    given = segmentations()
    frames = core.SlidingWindow(start=0, duration=FIELD_S, step=FRAME_S)
    chunks = core.SlidingWindow(start=0, duration=10, step=1)
    count = upstream.speaker_count(core.SlidingWindowFeature(given, chunks), frames, warm_up=(0.0, 0.0))
    clusters = clustering.constrained_argmax(SimpleNamespace(), similarities())
    clusters[given.sum(axis=1) == 0] = -2
    pipeline = SimpleNamespace(to_diarization=upstream.to_diarization)
    discrete = upstream.reconstruct(pipeline, core.SlidingWindowFeature(given.copy(), chunks), clusters, count)
    turns = upstream.to_annotation(discrete, min_duration_off=0.1)
    spans = [(segment.start, segment.end, label) for segment, _, label in turns.itertracks(yield_label=True)]
    return {
        "count": count.data[:, 0].astype(np.uint8),
        "clusters": clusters.astype(np.int8),
        "discrete": discrete.data.astype(bool),
        "turns": np.array(sorted(spans)),
    }


if __name__ == "__main__":
    import torch

    powerset = import_module("pyannote.audio.utils.powerset").Powerset(SPEAKERS, AT_ONCE)
    with torch.inference_mode():
        log_probs = _network()(torch.from_numpy(waveforms())[:, None])
        local = powerset(log_probs).numpy().astype(bool)
    np.savez_compressed(PATH, log_probs=log_probs.numpy(), local=local, **_diarization())
