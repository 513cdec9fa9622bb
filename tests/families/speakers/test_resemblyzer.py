"""Resemblyzer's voice encoder: its embeddings are upstream's, with small random weights and with the released ones."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from effort import TORCH, runtimes
from families.speakers.upstream import LENGTHS, PATH, Array, resemblyzer_state, signals
from tritone.bundle.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import ExportError
from tritone.families.known import recognise
from tritone.families.resemblyzer.export import export_resemblyzer, load_encoder
from tritone.families.resemblyzer.features import FRAME_SHIFT, PART, STEP, count_parts
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.runtime import Graph, open_graph


def saved(folder: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """A checkpoint as upstream's trainer writes it."""
    state = {name: torch.from_numpy(value) for name, value in resemblyzer_state().items()}
    loss = {"similarity_weight": torch.ones(1), "similarity_bias": torch.ones(1)}
    whole = {"step": 1, "model_state": {**loss, **state}, "optimizer_state": {"state": {}}}
    if change is not None:
        change(whole)
    torch.save(whole, folder / "pretrained.pt")
    return folder / "pretrained.pt"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("resemblyzer")
    return export_resemblyzer(checkpoint=saved(folder), output=folder / "b", runtimes=runtimes()).bundle


def embed(graph: Graph, waves: list[Array]) -> Array:
    """All of them in one block, with something behind the ends that must not be heard."""
    block = np.full((len(waves), max(map(len, waves))), 0.4, np.float32)
    for row, wave in zip(block, waves, strict=True):
        row[: len(wave)] = wave
    [found] = graph({"waveform": block, "num_samples": np.array([len(each) for each in waves])}, ["embeddings"])
    return found


@pytest.mark.parametrize("runtime", ["onnxruntime", TORCH])
def test_a_ragged_batch_gives_upstreams_embedding_of_each_utterance_alone(bundle: Bundle, runtime: Any) -> None:
    graph, waves = open_graph(bundle.artifact("encoder", runtime)), signals()
    found = embed(graph, waves)
    np.testing.assert_allclose(found, np.load(PATH)["resemblyzer"], atol=2e-5)
    for wave, row in zip(waves, found, strict=True):
        np.testing.assert_allclose(embed(graph, [wave])[0], row, atol=2e-6)


def test_the_manifest_tells_what_the_graph_does(bundle: Bundle) -> None:
    manifest = bundle.manifest
    assert (manifest.kind, manifest.provenance.family, manifest.features.kind) == ("embedding", "resemblyzer", "mel")
    assert (manifest.encoder.output_dim, manifest.encoder.min_samples) == (10, 400)
    assert not manifest.part(EmbeddingPart).mean_subtracted


def parts_of(num_samples: int) -> int:
    """Parts that begin within the frames that there are, the last only if three quarters of it are audio."""
    last_start = max(0, num_samples // FRAME_SHIFT + 1 - PART + STEP)
    starts = range(0, last_start + 1, STEP)
    share = (num_samples - starts[-1] * FRAME_SHIFT) / (PART * FRAME_SHIFT)
    return max(1, len(starts) - (share < 0.75))


def test_parts_are_counted_as_upstream_counts_them() -> None:
    edges = [STEP * FRAME_SHIFT * part + beyond for part in range(4) for beyond in (0, 13120, 19200)]
    lengths = sorted({max(0, edge + off) for edge in edges for off in (-1, 0, 1)} | {*LENGTHS, 10**9})
    assert count_parts(torch.tensor(lengths)).tolist() == [parts_of(each) for each in lengths]


def test_the_checkpoint_is_recognised_in_its_folder_too_and_exported_by_the_command(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    for named in (tmp_path, checkpoint):
        found = recognise(named)
        assert (found.family, found.arguments) == ("resemblyzer", {"checkpoint": checkpoint})
    done = CliRunner().invoke(
        app, [*found.command(str(tmp_path / "b"), threshold="0.7").split()[1:], "--weights", "fp16"]
    )
    assert done.exit_code == 0, done.output
    embedding = Bundle.open(tmp_path / "b").manifest.part(EmbeddingPart)
    assert embedding is not None
    assert embedding.threshold == 0.7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: whole.pop("model_state"), "has no model_state"),
        (lambda whole: whole["model_state"].pop("lstm.weight_hh_l0"), "none of Resemblyzer's encoder: expected"),
        (lambda whole: whole["model_state"].pop("lstm.bias_hh_l1"), "missing lstm.bias_hh_l1"),
        (lambda whole: whole["model_state"].update(extra=torch.zeros(1)), "unknown extra"),
    ],
)
def test_what_is_no_encoder_is_refused(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        load_encoder(saved(tmp_path, change))


def test_int8_is_refused() -> None:
    with pytest.raises(ValueError, match="an LSTM"):
        export_resemblyzer(checkpoint=Path("x.pt"), output=Path("b"), precisions=("int8",))


def test_the_released_encoder_embeds_as_upstream_does(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("resemblyzer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("Resemblyzer 0.1.4, which holds the released weights, was not fetched: make .venv/.real-onnx")
    weights = Path(spec.submodule_search_locations[0], "pretrained.pt")
    graph = open_graph(export_resemblyzer(checkpoint=weights, output=tmp_path / "b").bundle.artifact("encoder"))
    np.testing.assert_allclose(embed(graph, signals()), np.load(PATH)["resemblyzer_released"], atol=1e-5)
