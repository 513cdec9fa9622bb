"""Bundles of small speaker models: features, batches, mean vectors, precisions, stages, and the command."""

from pathlib import Path
from typing import Any

import kaldi_native_fbank as knf
import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from effort import examples, runtimes
from families.conftest import babble
from families.wespeaker_models import Reference, random_state, small_content, write_model
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.cli.main import app
from tritone.errors import ExportError
from tritone.families.export.drift import read_recordings
from tritone.families.export.embedding_drift import EmbeddingDrift
from tritone.families.export.options import ExportOptions
from tritone.families.export.report import ExportReport
from tritone.families.known import recognise
from tritone.families.layers.normalised import normalised
from tritone.families.wespeaker.config import FeatureConfig
from tritone.families.wespeaker.export import export_wespeaker
from tritone.families.wespeaker.features import SpeakerFeatures
from tritone.families.wespeaker.front_end import manifest_features
from tritone.families.wespeaker.mean import read_mean
from tritone.families.wespeaker.options import WespeakerOptions
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.runtime import Graph, open_graph
from tritone.tensorrt.onnx_graph import input_axes, with_wide_weights

Floats = npt.NDArray[np.float32]

# Of the second network; in quick runs ONNX alone.
PROGRAMS: tuple[Any, ...] = ("torch", "torchscript") if "torch" in runtimes() else runtimes()
LENGTHS = (9000, 16000, 1680, 4321)


def reference_features(
    waveform: Floats, rate: int = 16000, *, window: str = "hamming", scale: float = 32768.0, bins: int = 80
) -> Floats:
    """Upstream's features by the reference tool, less their mean."""
    options = knf.FbankOptions()
    options.frame_opts.dither, options.frame_opts.samp_freq = 0, rate
    options.frame_opts.window_type = window
    options.mel_opts.num_bins = bins
    extractor = knf.OnlineFbank(options)
    extractor.accept_waveform(rate, (waveform * scale).tolist())
    extractor.input_finished()
    rows = np.array([extractor.get_frame(index) for index in range(extractor.num_frames_ready)], np.float64)
    result: Floats = (rows - rows.mean(axis=0)).astype(np.float32)
    return result


def block(waveforms: list[Floats]) -> dict[str, npt.NDArray[Any]]:
    """Waveforms as a graph takes them; behind their ends lies something that must not be heard."""
    rows = np.full((len(waveforms), max(map(len, waveforms))), 0.5, np.float32)
    for row, waveform in zip(rows, waveforms, strict=True):
        row[: len(waveform)] = waveform
    return {"waveform": rows, "num_samples": np.array([len(each) for each in waveforms])}


def embed(graph: Graph, waveforms: list[Floats]) -> Floats:
    [found] = graph(block(waveforms), ["embeddings"])
    return found


def cosine(one: Floats, other: Floats) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.fixture(scope="module")
def waveforms() -> list[Floats]:
    return [babble(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def mean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mean") / "mean_vec.npy"
    np.save(path, np.linspace(-1, 1, 12))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published folder of a small ECAPA-TDNN."""
    path = tmp_path_factory.mktemp("ecapa")
    write_model(path, small_content("ecapa"))
    return path


@pytest.fixture(scope="module")
def report(folder: Path, mean: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    return export_wespeaker(
        checkpoint=folder / "avg_model.pt",
        config=folder / "config.yaml",
        mean_vec=mean,
        output=tmp_path_factory.mktemp("bundles") / "small",
        precisions=("fp32", "fp16"),
        stages=True,
    )


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    path = tmp_path_factory.mktemp("resnet")
    checkpoint, config = write_model(path, small_content("resnet"))
    return export_wespeaker(checkpoint=checkpoint, config=config, output=path / "b", runtimes=PROGRAMS, name="voices")


def test_the_manifest_tells_what_the_graph_does(report: ExportReport, resnet: ExportReport) -> None:
    manifest = report.bundle.manifest
    assert (manifest.kind, manifest.sample_rate, manifest.provenance.family) == ("embedding", 16000, "wespeaker")
    assert (manifest.features.window, manifest.features.normalize, manifest.features.sample_scale) == (
        "hamming",
        "mean",
        32768,
    )
    assert (manifest.encoder.output_dim, manifest.encoder.min_samples, manifest.encoder.equal_lengths) == (
        12,
        400 + 160,  # the deviation of two frames
        False,
    )
    assert manifest.part(EmbeddingPart).mean_subtracted
    assert manifest.part(EmbeddingPart).threshold is None
    assert sorted(manifest.provenance.sources) == ["checkpoint", "config", "mean_vec"]
    assert {(each.role, each.precision) for each in manifest.artifacts} == {
        (role, precision) for role in ("encoder", "features", "acoustic") for precision in ("fp32", "fp16")
    }
    manifest = resnet.bundle.manifest
    assert (manifest.name, manifest.encoder.subsampling_rate, manifest.encoder.min_samples) == ("voices", 8, 1680)
    assert not manifest.part(EmbeddingPart).mean_subtracted
    assert resnet.bundle.runtimes == PROGRAMS


@pytest.mark.parametrize("kind", ["ecapa", "resnet"])
def test_a_ragged_batch_gives_upstreams_embedding_of_each_utterance_alone(
    kind: str, report: ExportReport, resnet: ExportReport, mean: Path, waveforms: list[Floats]
) -> None:
    content = small_content(kind)
    reference = Reference(content, random_state(content))
    graph = open_graph((report if kind == "ecapa" else resnet).bundle.artifact("encoder"))
    found = embed(graph, waveforms)
    for waveform, row in zip(waveforms, found, strict=True):
        expected = reference(torch.from_numpy(reference_features(waveform)).double()).numpy().reshape(-1)
        expected -= np.load(mean) if kind == "ecapa" else 0.0
        np.testing.assert_allclose(row, expected, atol=5e-3 * np.abs(expected).max())
        np.testing.assert_allclose(row, embed(graph, [waveform])[0], atol=1e-4 * np.abs(expected).max())


@pytest.mark.slow
def test_a_campplus_of_3d_speaker_needs_no_config(waveforms: list[Floats], tmp_path: Path) -> None:
    content = small_content("campplus", embed_dim=6)
    state, checkpoint = random_state(content), tmp_path / "campplus_cn_common.bin"
    torch.save({**state, "head.bn1.num_batches_tracked": torch.tensor(3)}, checkpoint)
    (tmp_path / "config.yaml").write_text(
        "model: CAMPPlus\nmodel_conf: {feat_size: 80}\n", encoding="utf-8"
    )  # FunASR's
    for named in (tmp_path, checkpoint):
        found = recognise(named)
        assert (found.family, found.arguments) == ("wespeaker", {"checkpoint": checkpoint})
    report = export_wespeaker(**found.arguments, output=tmp_path / "b")
    assert "taken for a CAM++ of 3D-Speaker" in report.notes[0]
    graph, reference = open_graph(report.bundle.artifact("encoder")), Reference(content, state, guard=0.0)
    for waveform, row in zip(waveforms, embed(graph, waveforms), strict=True):
        features = reference_features(waveform, window="povey", scale=1.0)
        expected = reference(torch.from_numpy(features).double()).numpy().reshape(-1)
        np.testing.assert_allclose(row, expected, atol=5e-3 * np.abs(expected).max())
        np.testing.assert_allclose(row, embed(graph, [waveform])[0], atol=1e-4 * np.abs(expected).max())


def test_a_campplus_of_wespeakers_training_needs_its_config(tmp_path: Path) -> None:
    checkpoint, config = write_model(tmp_path, small_content("campplus"))
    assert recognise(checkpoint).arguments == {"checkpoint": checkpoint, "config": config}
    with pytest.raises(ExportError, match=r"give the config.yaml"):
        export_wespeaker(checkpoint=checkpoint, output=tmp_path / "b")
    torch.save({"xvector.tdnn.linear.weight": torch.zeros(8, 320, 5)}, tmp_path / "part.pt")
    with pytest.raises(ExportError, match=r"without xvector.dense.linear.weight"):
        export_wespeaker(checkpoint=tmp_path / "part.pt", output=tmp_path / "b")


@pytest.fixture(scope="module", params=["fp32", pytest.param("int8", marks=pytest.mark.slow)])
def choosing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """ONNX graphs of a small ResNet, which have a form for even batches."""
    path = tmp_path_factory.mktemp("choosing")
    checkpoint, config = write_model(path, small_content("resnet"))
    return export_wespeaker(
        checkpoint=checkpoint, config=config, output=path / "b", stages=True, weight_storage=request.param
    ).bundle


EVEN = [[4321] * 3, [8000, 8079, 8030], [1680]]  # as long as the batch, or not a frame shorter


@pytest.mark.parametrize("lengths", EVEN)
def test_rows_of_an_even_batch_are_those_of_a_ragged_one(choosing: Bundle, lengths: list[int]) -> None:
    waveforms = [babble(length, seed) for seed, length in enumerate(lengths)]
    whole, features, acoustic = (open_graph(choosing.artifact(role)) for role in ("encoder", "features", "acoustic"))
    ragged = embed(whole, [*waveforms, babble(max(lengths) + 2000, 9)])[:-1]
    even = embed(whole, waveforms)
    size = np.abs(ragged).max()
    np.testing.assert_allclose(even, ragged, atol=1e-4 * size)
    [ready] = features(block(waveforms), ["features"])
    [staged] = acoustic({"features": ready, "num_samples": np.array(lengths)}, ["embeddings"])
    np.testing.assert_allclose(staged, even, atol=1e-4 * size)


@pytest.mark.parametrize("role", ["encoder", "acoustic"])
def test_the_form_for_even_batches_runs_if_no_row_is_a_frame_short(
    choosing: Bundle, role: Role, tmp_path: Path
) -> None:
    """It is made to say the opposite here, to be told from the other."""
    path = choosing.artifact(role)
    model = onnx.load(path)
    [choice] = [node for node in model.graph.node if node.op_type == "If"]
    [even] = [each.g for each in choice.attribute if each.name == "then_branch"]
    even.node.append(onnx.helper.make_node("Neg", [even.output[0].name], ["opposite"]))
    even.output[0].name = "opposite"
    onnx.save(model, tmp_path / "opposite.onnx")
    graphs = open_graph(path), open_graph(tmp_path / "opposite.onnx")

    def is_opposite(lengths: list[int]) -> bool:
        inputs = block([babble(length, seed) for seed, length in enumerate(lengths)])
        if role == "acoustic":
            [ready] = open_graph(choosing.artifact("features"))(inputs, ["features"])
            inputs = {"features": ready, "num_samples": inputs["num_samples"]}
        [usual], [found] = (graph(inputs, ["embeddings"]) for graph in graphs)
        sign = float(np.sign(np.sum(usual * found)))
        np.testing.assert_allclose(found, sign * usual, rtol=1e-5)
        return sign < 0

    assert all(is_opposite(lengths) for lengths in EVEN)
    assert not any(is_opposite(lengths) for lengths in ([4321, 4000], [8000, 8081], [1680, 1680, 1840]))


def test_engines_are_built_of_the_form_for_any_batch(choosing: Bundle, tmp_path: Path) -> None:
    path = choosing.artifact("encoder")
    wide = with_wide_weights(path, tmp_path)
    assert wide.parent == tmp_path
    assert "If" not in {node.op_type for node in onnx.load(wide).graph.node}
    assert input_axes(wide) == input_axes(path)
    for lengths in ([4321, 9000, 1680], EVEN[0]):
        waveforms = [babble(length, seed) for seed, length in enumerate(lengths)]
        expected, found = (embed(open_graph(each), waveforms) for each in (path, wide))
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("role", ["encoder", "acoustic"])
def test_weights_of_both_forms_are_stored_once(choosing: Bundle, role: Role) -> None:
    graph = onnx.load(choosing.artifact(role), load_external_data=False).graph
    [choice] = [node for node in graph.node if node.op_type == "If"]
    even, any_rows = (
        {tuple(entry.value for entry in tensor.external_data) for tensor in each.g.initializer} - {()}
        for each in choice.attribute
    )
    assert even
    assert even == any_rows


@pytest.mark.slow
def test_torch_and_torchscript_give_the_same(resnet: ExportReport, waveforms: list[Floats]) -> None:
    one, other = (open_graph(resnet.bundle.artifact("encoder", runtime)) for runtime in ("torch", "torchscript"))
    np.testing.assert_allclose(embed(one, waveforms), embed(other, waveforms), atol=1e-4)


def test_the_shortest_audio_has_a_finite_embedding_and_less_has_not(report: ExportReport) -> None:
    shortest = report.bundle.manifest.encoder.min_samples
    graph = open_graph(report.bundle.artifact("encoder"))
    found = embed(graph, [babble(shortest, 1), babble(shortest - 1, 2), babble(0), babble(9000, 3)])
    assert np.isfinite(found[[0, 3]]).all()


def test_graphs_in_fp16_point_where_the_others_do(report: ExportReport, waveforms: list[Floats]) -> None:
    wide, half = (
        embed(open_graph(report.bundle.artifact("encoder", None, each)), waveforms) for each in ("fp32", "fp16")
    )
    assert np.abs(wide - half).max() > 0
    assert min(cosine(*rows) for rows in zip(wide, half, strict=True)) > 0.9999
    drift = report.drifts["encoder.fp16.onnx"]
    assert isinstance(drift, EmbeddingDrift)
    assert drift.count == len(read_recordings(None, 16000))
    assert 0 <= drift.moved <= drift.largest < WespeakerOptions.usual_drift
    assert "1 - cosine of 10 embeddings" in str(drift)


def test_the_stages_one_after_the_other_are_the_whole_graph(report: ExportReport, waveforms: list[Floats]) -> None:
    whole, features, acoustic = (
        open_graph(report.bundle.artifact(role)) for role in ("encoder", "features", "acoustic")
    )
    [ready] = features(block(waveforms), ["features"])
    for row, waveform in zip(ready, waveforms, strict=True):
        expected = reference_features(waveform)
        np.testing.assert_allclose(row[: len(expected)], expected, atol=2e-3)
    lengths = block(waveforms)["num_samples"]
    [found] = acoustic({"features": ready, "num_samples": lengths}, ["embeddings"])
    np.testing.assert_allclose(found, embed(whole, waveforms), atol=1e-4)


@pytest.mark.slow
def test_a_graph_that_turns_embeddings_too_far_is_refused(folder: Path, tmp_path: Path) -> None:
    files = {"checkpoint": folder / "avg_model.pt", "config": folder / "config.yaml"}
    with pytest.raises(ExportError, match=r"encoder.fp16.onnx drifts too far .*1 - cosine .*the limit is 0"):
        export_wespeaker(**files, output=tmp_path / "b", precisions=("fp16",), max_drift=0.0)
    assert {each.precision for each in Bundle.open(tmp_path / "b").manifest.artifacts} == {"fp32"}
    with pytest.raises(ValueError, match="these networks are made of convolutions"):
        export_wespeaker(**files, output=tmp_path / "b", precisions=("int8",))
    assert WespeakerOptions.usual_drift < ExportOptions.usual_drift  # which is of another kind, not for embeddings


@pytest.mark.slow
def test_weights_in_int8_give_nearly_the_same_directions(
    folder: Path, report: ExportReport, mean: Path, waveforms: list[Floats], tmp_path: Path
) -> None:
    arguments = ["export", "wespeaker", "--model", str(folder), "--mean-vec", str(mean), "--weights", "int8"]
    arguments += ["--threshold", "0.25"]
    done = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "b")])
    assert done.exit_code == 0, done.output
    assert "of the size of embeddings" in done.output
    small = Bundle.open(tmp_path / "b")
    assert small.manifest.part(EmbeddingPart) is not None
    assert small.manifest.part(EmbeddingPart).threshold == 0.25
    assert small.num_bytes(small.artifacts("encoder")[0]) < 0.6 * report.bundle.num_bytes(
        report.bundle.artifacts("encoder", precision="fp32")[0]
    )
    exact, rough = (embed(open_graph(each.artifact("encoder")), waveforms) for each in (report.bundle, small))
    assert min(cosine(*rows) for rows in zip(exact, rough, strict=True)) > 0.99


def test_the_command_wants_a_checkpoint_with_its_config_or_a_folder_or_onnx(folder: Path, tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["export", "wespeaker", "--output", str(tmp_path / "b"), *arguments])
        assert done.exit_code == 2
        return " ".join(done.output.split())

    assert "give --checkpoint and --config, or a --model" in said()
    alone = ["--checkpoint", str(folder / "avg_model.pt"), "--output", str(tmp_path / "b")]
    done = CliRunner().invoke(app, ["export", "wespeaker", *alone])
    assert done.exit_code == 1
    assert "give the config.yaml" in " ".join(done.output.split())
    assert "leave out --checkpoint, --config and --onnx" in said("--model", str(folder), "--config", "c.yaml")
    assert "'hann' is not hamming or povey" in said("--model", str(folder), "--window", "hann")
    assert "--threshold" in said("--model", str(folder), "--threshold", "1.5")
    assert "such as 1 or 32768" in said("--model", str(folder), "--sample-scale", "0")


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(11), "has 11 numbers, but embeddings of this model have 12"),
        (np.zeros((3, 4)), "not one vector of numbers"),
        (np.array(["a"] * 12), "not numbers"),
        (np.full(12, np.nan), "not finite"),
        (np.array([{}] * 12, dtype=object), "holds object, not numbers"),
        (np.zeros(2**18), "more than 1,048,576 bytes"),
    ],
)
def test_what_is_no_mean_vector_is_refused(array: npt.NDArray[Any], said: str, tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", array)
    with pytest.raises(ExportError, match=said):
        read_mean(tmp_path / "mean.npy", 12)


def test_a_mean_vector_may_be_a_row_and_must_be_there(tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", np.arange(12)[None])
    np.testing.assert_array_equal(read_mean(tmp_path / "mean.npy", 12), np.arange(12, dtype=np.float32))
    with pytest.raises(ExportError, match="cannot read the mean vector"):
        read_mean(tmp_path / "nowhere.npy", 12)
    (tmp_path / "text.npy").write_text("1 2 3", encoding="utf-8")
    with pytest.raises(ExportError, match="no array that numpy has saved"):
        read_mean(tmp_path / "text.npy", 12)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (FeatureConfig(sample_rate=8000), {}),
        (FeatureConfig(num_mel_bins=40), {}),
        (FeatureConfig(), {"window": "povey", "sample_scale": 1.0}),
    ],
)
def test_features_of_other_rates_bins_and_windows_are_the_reference_tools(
    config: FeatureConfig, options: dict[str, Any]
) -> None:
    front_end = SpeakerFeatures(manifest_features(config, **options), config.sample_rate)
    waveform = babble(8000, 4)
    found, counts = front_end(torch.from_numpy(waveform)[None], torch.tensor([len(waveform)]))
    expected = reference_features(
        waveform,
        config.sample_rate,
        window=options.get("window", "hamming"),
        scale=options.get("sample_scale", 32768.0),
        bins=config.num_mel_bins,
    )
    assert counts.tolist() == [len(expected)]
    np.testing.assert_allclose(found[0], expected, atol=2e-3)


def test_features_that_cannot_be_had_are_refused() -> None:
    with pytest.raises(ExportError, match="norm_var without norm_mean"):
        manifest_features(FeatureConfig(subtract_mean=False, divide_by_deviation=True))
    with pytest.raises(ExportError, match="covers no DFT bin"):
        manifest_features(FeatureConfig(sample_rate=8000, num_mel_bins=200))


@settings(max_examples=examples(30), deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    normalize=st.sampled_from(["none", "mean", "per-feature"]),
    level=st.floats(-16, 20),
    seed=st.integers(0, 99),
)
def test_each_row_is_normalised_by_its_own_frames(counts: list[int], normalize: str, level: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = level + rng.normal(0, 2, (len(counts), max(1, *counts), 5))
    features[..., 0] = level  # a band that never changes
    found = normalised(torch.from_numpy(features).float(), torch.tensor(counts), normalize).numpy()
    for row, count, values in zip(found, counts, features, strict=True):
        own = values[:count]
        if count and normalize != "none":
            own = own - own.mean(axis=0)
        if count > 1 and normalize == "per-feature":
            own = own / np.sqrt(own.var(axis=0, ddof=1) + 1e-7)
        np.testing.assert_allclose(row[:count], own, atol=1e-5)
        assert not row[count:].any()


def test_the_mean_over_an_hour_is_as_good_as_over_a_second() -> None:
    rng = np.random.default_rng(0)
    features = (12 + 3 * rng.normal(0, 1, (1, 360_000, 2))).astype(np.float32)
    features[0, :100] = -15.94
    wide = features.astype(np.float64)
    found = normalised(torch.from_numpy(features), torch.tensor([360_000]), "mean").numpy()
    np.testing.assert_allclose(found, wide - wide.mean(axis=1, keepdims=True), atol=5e-6)


@pytest.mark.slow
def test_a_config_of_8_khz_makes_a_model_of_8_khz(tmp_path: Path) -> None:
    content = small_content("ecapa")
    content["dataset_args"]["resample_rate"] = 8000
    checkpoint, config = write_model(tmp_path, content)
    assert yaml.safe_load(config.read_text(encoding="utf-8"))["dataset_args"]["resample_rate"] == 8000
    manifest = export_wespeaker(checkpoint=checkpoint, config=config, output=tmp_path / "b").bundle.manifest
    assert (manifest.sample_rate, manifest.features.frame_length, manifest.features.frame_shift) == (8000, 200, 80)
