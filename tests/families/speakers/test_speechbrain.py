"""SpeechBrain's ECAPA-TDNN: its embeddings are upstream's for each utterance alone, and its YAML makes no objects."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from effort import runtimes
from families.speakers.upstream import PATH, Array, filled, signals, speechbrain_yaml
from tritone.bundle.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import BundleError, ExportError
from tritone.families.known import recognise
from tritone.families.speechbrain.config import read_config
from tritone.families.speechbrain.export import export_speechbrain
from tritone.families.speechbrain.features import Decibels
from tritone.families.speechbrain.model import Ecapa
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.runtime import Graph, open_graph


def written(folder: Path, name: str = "speechbrain", change: Callable[[str], str] = str) -> Path:
    """The folder of a published model, with the weights that the file of embeddings is of."""
    folder.mkdir(exist_ok=True)
    (folder / "hyperparams.yaml").write_text(speechbrain_yaml(name), "utf-8")
    (folder / "config.json").write_text('{"speechbrain_interface": "EncoderClassifier"}', "utf-8")
    network = filled(Ecapa(read_config(folder / "hyperparams.yaml").network))
    (folder / "hyperparams.yaml").write_text(change(speechbrain_yaml(name)), "utf-8")
    torch.save(network.state_dict(), folder / "embedding_model.ckpt")
    torch.save({"weight": torch.zeros(7205, network.embed_dim)}, folder / "classifier.ckpt")
    mean = torch.linspace(-1, 1, network.embed_dim)
    torch.save(
        {"count": 5, "glob_mean": mean, "glob_std": torch.ones(1), "spk_dict_mean": {}},
        folder / "mean_var_norm_emb.ckpt",
    )
    return folder


def block_of(waves: list[Array]) -> tuple[Array, Any]:
    """All of them, with something behind the ends that must not be heard."""
    block = np.full((len(waves), max(map(len, waves))), 0.4, np.float32)
    for row, wave in zip(block, waves, strict=True):
        row[: len(wave)] = wave
    return block, np.array([len(each) for each in waves])


def embed(graph: Graph, waves: list[Array]) -> Array:
    block, lengths = block_of(waves)
    [found] = graph({"waveform": block, "num_samples": lengths}, ["embeddings"])
    return found


def test_a_ragged_batch_gives_upstreams_embedding_of_each_utterance_alone(tmp_path: Path) -> None:
    done = export_speechbrain(checkpoint=written(tmp_path / "theirs"), output=tmp_path / "b", runtimes=runtimes())
    waves, expected = signals(), np.load(PATH)["speechbrain"]
    size = np.abs(expected).max()
    for runtime in runtimes():
        graph = open_graph(done.bundle.artifact("encoder", runtime))
        found = embed(graph, waves)
        np.testing.assert_allclose(found, expected, atol=1e-5 * size)
        for wave, row in zip(waves, found, strict=True):
            np.testing.assert_allclose(embed(graph, [wave])[0], row, atol=2e-6 * size)
    assert done.bundle.manifest.encoder.min_samples == 640  # of five frames, of which four are mirrored


@pytest.mark.parametrize("name", ["speechbrain_other", "speechbrain_full"])
def test_networks_of_other_sizes_and_of_the_published_one_are_upstreams(name: str, tmp_path: Path) -> None:
    (tmp_path / "hyperparams.yaml").write_text(speechbrain_yaml(name), "utf-8")
    config = read_config(tmp_path / "hyperparams.yaml")
    network, front_end = filled(Ecapa(config.network)), Decibels(config.features)
    block, lengths = map(torch.from_numpy, block_of(signals()[:2]))
    with torch.no_grad():
        found = network(*front_end(block, lengths)).numpy()
    expected = np.load(PATH)[name][:2]
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_the_folder_and_its_checkpoint_are_recognised_and_exported_by_the_command(tmp_path: Path) -> None:
    folder = written(tmp_path / "theirs")
    files = {"checkpoint": folder / "embedding_model.ckpt", "config": folder / "hyperparams.yaml"}
    for named in (folder, files["checkpoint"]):
        found = recognise(named)
        assert (found.family, found.arguments) == ("speechbrain", files)
    line = found.command(str(tmp_path / "b"), threshold="0.25", mean_vec=str(folder / "mean_var_norm_emb.ckpt"))
    done = CliRunner().invoke(app, line.split()[1:])
    assert done.exit_code == 0, done.output
    bundle = Bundle.open(tmp_path / "b")
    manifest = bundle.manifest
    assert (manifest.kind, manifest.features.kind, manifest.encoder.output_dim) == ("embedding", "mel-decibels", 10)
    assert (manifest.part(EmbeddingPart).threshold, manifest.part(EmbeddingPart).mean_subtracted) == (0.25, True)
    wave = signals()[:1]
    expected = np.load(PATH)["speechbrain"][:1] - np.linspace(-1, 1, 10)
    np.testing.assert_allclose(embed(open_graph(bundle.artifact("encoder")), wave), expected, atol=2e-3)


def test_a_tag_of_yaml_makes_nothing(tmp_path: Path) -> None:
    def with_calls(text: str) -> str:
        hostile = f"seed: !apply:os.mkdir [{tmp_path / 'made'}]\nother: !new:subprocess.Popen [[touch, made]]\n"
        return (
            hostile
            + text
            + "loose: !name:os.system\n  command: 'false'\nlist: !tuple [1, 2]\nmore: !ref <n_mels> // 2\n"
        )

    config = read_config(written(tmp_path / "theirs", change=with_calls) / "hyperparams.yaml")
    assert config.features.num_mel_bins == 80
    assert [each.name for each in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("ECAPA_TDNN.ECAPA_TDNN", "Xvector.Xvector", r"Xvector; expected !new:speechbrain.lobes.models.ECAPA_TDNN"),
        (
            "!new:speechbrain.lobes.features.Fbank",
            "!apply:speechbrain.lobes.features.Fbank",
            "compute_features is apply",
        ),
        ("norm_type: sentence", "norm_type: global", "mean_var_norm has"),
        ("std_norm: False", "std_norm: True", "mean_var_norm has"),
        ("    n_mels: !ref <n_mels>", "    n_mels: !ref <n_mels> * 2", "only the name of another setting"),
        ("n_mels: 80", "n_mels: !ref <n_mels>", "leads nowhere"),
        ("    n_mels: !ref <n_mels>", "    n_mels: 40", "input_size is 80, but compute_features has 40"),
        ("    n_mels: !ref <n_mels>", "    n_mels: 80\n    deltas: True", "deltas is True"),
        ("    n_mels: !ref <n_mels>", "    n_mels: 80\n    top_db: 60", "unknown top_db"),
        ("kernel_sizes: [5,", "kernel_sizes: [4,", "only odd ones"),
        ("res2net_scale: 4", "res2net_scale: 5", "multiples of res2net_scale"),
        ("res2net_scale: 4", "groups: [1, 2, 1, 1, 1]", "groups is"),
        ("res2net_scale: 4", "activation: !name:torch.nn.GELU", "reads ReLU alone"),
        ("channels: [16,", "channels: [16777216,", "channels is"),
        ("attention_channels: 6", "attention_channels: 7", "asp.tdnn.conv.conv.weight"),
    ],
)
def test_what_would_embed_otherwise_is_refused(before: str, after: str, message: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "theirs", change=lambda text: text.replace(before, after, 1))
    with pytest.raises(ExportError, match=message):
        export_speechbrain(checkpoint=folder, output=tmp_path / "b")


def test_a_mean_of_other_embeddings_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "theirs")
    torch.save({"glob_mean": torch.zeros(9)}, folder / "mean_var_norm_emb.ckpt")
    with pytest.raises(ExportError, match="expected 10 finite numbers"):
        export_speechbrain(checkpoint=folder, mean_vec=folder / "mean_var_norm_emb.ckpt", output=tmp_path / "b")


def test_other_models_of_speechbrain_are_named_as_such(tmp_path: Path) -> None:
    folder = written(tmp_path / "theirs")
    torch.save({"blocks.0.conv.weight": torch.zeros(2)}, folder / "embedding_model.ckpt")
    with pytest.raises(BundleError, match="no ECAPA-TDNN"):
        recognise(folder)
