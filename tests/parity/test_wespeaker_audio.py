"""WeSpeaker's models from audio to embedding, against arrays made by upstream's own code.

Tolerances are those of the golden data's README. Everything is compared with what upstream gives an utterance alone;
the batch has all utterances of a case, of lengths from a tenth of a second to seconds.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parity.golden_cases import Case, largest
from tritone.bundle import Bundle
from tritone.families.onnx.writer import export_graph
from tritone.families.wespeaker.checkpoint import load_network, read_config
from tritone.families.wespeaker.config import FeatureConfig
from tritone.families.wespeaker.features import SpeakerFeatures
from tritone.families.wespeaker.front_end import manifest_features
from tritone.families.wespeaker.onnx_model import import_wespeaker
from tritone.runtime import open_graph

FEATURE_ATOL = 2e-3
COSINE = 0.99999


def waveforms(case: Case) -> list[np.ndarray]:
    """The audio of a model's case, or of the case of features that it was made with."""
    held = case.inputs
    if "audio_0" not in held:
        wanted = held["feats_0"]
        for path in sorted(case.path.parent.rglob("input.npz")):
            with np.load(path, allow_pickle=False) as arrays, np.load(path.with_name("expected.npz")) as expected:
                if "audio_0" not in arrays.files or "fbank_0" not in expected.files:
                    continue
                fbank = expected["fbank_0"]
                if fbank.shape == wanted.shape and largest(fbank - fbank.mean(axis=0), wanted) < FEATURE_ATOL:
                    held = {name: arrays[name] for name in arrays.files}
                    break
        else:
            pytest.skip(f"no audio of the case {case.name}")
    count = sum(name.startswith("audio_") for name in held)
    return [held[f"audio_{index}"].astype(np.float32) / 32768 for index in range(count)]


def batch(rows: list[np.ndarray], fill: float = 0.0) -> dict[str, np.ndarray]:
    block = np.full((len(rows), max(map(len, rows))), fill, np.float32)
    for row, waveform in zip(block, rows, strict=True):
        row[: len(waveform)] = waveform
    return {"waveform": block, "num_samples": np.array([len(waveform) for waveform in rows])}


def check(case: Case, found: np.ndarray, array: str) -> None:
    """One embedding against upstream's."""
    expected = case.expected[array]
    said = re.search(r"([0-9.e-]+) from audio", (case.path / "README.md").read_text(encoding="utf-8"))
    assert said is not None
    tolerance = float(said[1])
    assert largest(found, expected) <= tolerance, f"{array}: largest difference {largest(found, expected):.2e}"
    wide, other = found.astype(np.float64), expected.astype(np.float64)
    assert wide @ other / np.linalg.norm(wide) / np.linalg.norm(other) >= COSINE


def features_of(config: FeatureConfig, waveform: np.ndarray) -> np.ndarray:
    front_end = SpeakerFeatures(manifest_features(config), config.sample_rate)
    found, counts = front_end(torch.from_numpy(waveform)[None], torch.tensor([len(waveform)]))
    assert counts.tolist() == [found.shape[1]]
    return found[0].numpy()


def test_features_are_upstreams(wespeaker_features_case: Case) -> None:
    rows, expected = waveforms(wespeaker_features_case), wespeaker_features_case.expected
    for index, waveform in enumerate(rows):
        found = features_of(FeatureConfig(subtract_mean=False), waveform)
        assert largest(found, expected[f"fbank_{index}"]) <= FEATURE_ATOL
    fewer = features_of(FeatureConfig(num_mel_bins=40, subtract_mean=False), rows[0])
    assert largest(fewer, expected["fbank40_0"]) <= FEATURE_ATOL
    slower = features_of(FeatureConfig(sample_rate=8000, subtract_mean=False), np.ascontiguousarray(rows[0][::2]))
    assert largest(slower, expected["fbank80_8k_0"]) <= FEATURE_ATOL


def test_features_less_their_mean_are_upstreams_in_a_ragged_batch(wespeaker_case: Case) -> None:
    config = read_config(wespeaker_case.path / "config.yaml").features
    front_end = SpeakerFeatures(manifest_features(config), config.sample_rate)
    feed = batch(waveforms(wespeaker_case), fill=0.3)
    found, counts = front_end(*map(torch.from_numpy, feed.values()))
    for index, count in enumerate(counts.tolist()):
        expected = wespeaker_case.inputs[f"feats_{index}"]
        assert count == len(expected)
        assert largest(found[index, :count], expected) <= FEATURE_ATOL


def test_exported_graphs_give_upstreams_embeddings_in_a_ragged_batch(wespeaker_case: Case, exported: Any) -> None:
    bundle = Bundle.open(exported(wespeaker_case))
    rows, mean = waveforms(wespeaker_case), np.load(wespeaker_case.path / "mean_vec.npy")
    for runtime in bundle.runtimes:
        graph = open_graph(bundle.artifact("encoder", runtime))
        [found] = graph(batch(rows, fill=0.5), ["embeddings"])
        for index, row in enumerate(found):
            check(wespeaker_case, row, f"emb_minus_mean_{index}")
            check(wespeaker_case, row + mean, f"emb_{index}")
        for index in (0, 2):
            [alone] = graph(batch(rows[index : index + 1]), ["embeddings"])
            check(wespeaker_case, alone[0], f"emb_minus_mean_{index}")


def test_an_imported_onnx_file_gives_upstreams_embeddings(wespeaker_case: Case, tmp_path: Path) -> None:
    """The file is written as upstream writes one: features in, and no lengths."""
    if read_config(wespeaker_case.path / "config.yaml").name == "CAMPPlus":
        pytest.skip("takes the time of all others, and nothing of it is special here")

    class AsUpstreams(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, _ = load_network(
                read_config(wespeaker_case.path / "config.yaml"), wespeaker_case.path / "avg_model.pt"
            )

        def forward(self, feats: torch.Tensor) -> torch.Tensor:
            frames = torch.ones_like(feats[:, :, 0]).sum(dim=1).long()
            return self.network(feats, frames)

    axes = {"feats": {0: "B", 1: "T"}}
    written = export_graph(AsUpstreams().eval(), {"feats": torch.ones(2, 200, 80)}, ["embs"], axes, {}, opset=14)
    (tmp_path / "avg_model.onnx").write_bytes(written.SerializeToString())
    bundle = import_wespeaker(
        model=tmp_path / "avg_model.onnx",
        config=wespeaker_case.path / "config.yaml",
        mean_vec=wespeaker_case.path / "mean_vec.npy",
        output=tmp_path / "b",
    ).bundle
    graph = open_graph(bundle.artifact("encoder"))
    for index, waveform in enumerate(waveforms(wespeaker_case)):
        assert len(waveform) >= bundle.manifest.encoder.min_samples
        [found] = graph(batch([waveform]), ["embeddings"])
        check(wespeaker_case, found[0], f"emb_minus_mean_{index}")
