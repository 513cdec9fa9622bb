"""Importing ready-made ONNX files of speaker models: tiny hand-written graphs, and files that should be refused."""

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnxruntime
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import sherpa_toys as toys
from effort import examples
from families.conftest import babble
from families.wespeaker.test_wespeaker_bundle import Floats, block, embed, reference_features
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Features
from tritone.cli.main import app
from tritone.errors import ExportError
from tritone.families.onnx.builder import EMBEDDED, Builder
from tritone.families.wespeaker.onnx_model import ImportReport, import_wespeaker, normalised
from tritone.kinds import kind_named
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.runtime import open_graph

DIM, BINS = 6, 80
LIFT = 1e-3  # keeps the root away from 0


def toy(
    path: Path,
    *,
    shape: Sequence[int | str] = ("B", "T", BINS),
    mean: float | None = None,
    mixing: bool = False,
    bins: int = BINS,
) -> Path:
    """The deviation of every band times a matrix; NaN for one frame, as with upstream's pooling.

    `mean`: is subtracted from every number of an embedding, as upstream's export does. `mixing` adds the mean over the
    batch.
    """
    nodes: list[tuple[Any, ...]] = [
        ("Mul", ["feats", "feats"], ["squares"]),
        ("ReduceSum", ["squares", "axis1"], ["total"], {"keepdims": 0}),
        ("Shape", ["feats"], ["sizes"]),
        ("Gather", ["sizes", "place"], ["frames"]),
        ("Cast", ["frames"], ["count"], {"to": toys.FLOAT}),
        ("Sub", ["count", "unit"], ["fewer"]),
        ("Div", ["total", "fewer"], ["variance"]),
        ("Add", ["variance", "lift"], ["lifted"]),
        ("Sqrt", ["lifted"], ["deviation"]),
        ("MatMul", ["deviation", "w"], ["product"]),
        ("ReduceMean", ["product"], ["mates"], {"axes": [0], "keepdims": 1}),
        ("Mul", ["mates", "mix"], ["mixed"]),
        ("Add", ["product", "mixed"], ["embs" if mean is None else "raw"]),
    ]
    constants: dict[str, Any] = {
        "axis1": np.array([1]),
        "place": np.int64(1),
        "unit": np.float32(1),
        "lift": np.float32(LIFT),
        "w": toys.weights(1, bins, DIM),
        "mix": np.float32(mixing),
    }
    if mean is not None:
        nodes.append(("Sub", ["raw", "mean_vec"], ["embs"]))
        constants["mean_vec"] = np.full(DIM, mean, np.float32)
    return toys.write(
        path, nodes, {"feats": (toys.FLOAT, shape)}, {"embs": (toys.FLOAT, [shape[0], DIM])}, constants, {}, opset=14
    )


def expected_of(features: Floats, *, normalized: bool = False) -> npt.NDArray[np.float64]:
    """What the toy makes of features less their mean; `normalized` ones are also divided by their deviation."""
    deviation = features.astype(np.float64).std(axis=0, ddof=1)
    if normalized:
        deviation = deviation / np.sqrt(deviation**2 + 1e-7)
    found: npt.NDArray[np.float64] = np.sqrt(deviation**2 + LIFT) @ toys.weights(1, features.shape[1], DIM)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy(tmp_path_factory.mktemp("toy") / "avg_model.onnx")


@pytest.fixture(scope="module")
def imported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> ImportReport:
    return import_wespeaker(model=model, output=tmp_path_factory.mktemp("bundle") / "b")


def found_in(bundle: Bundle, waveforms: list[Floats]) -> Floats:
    return embed(open_graph(bundle.artifact("encoder"), threads=1), waveforms)


def test_a_graph_gets_the_features_of_the_reference_tool(imported: ImportReport) -> None:
    waveforms = [babble(16000, 1), babble(16000, 2)]
    for waveform, row in zip(waveforms, found_in(imported.bundle, waveforms), strict=True):
        np.testing.assert_allclose(row, expected_of(reference_features(waveform)), atol=2e-3)
    assert imported.difference < 1e-4


def test_what_is_behind_the_end_is_not_heard(imported: ImportReport) -> None:
    waveform = babble(9000, 3)
    feed = block([waveform])
    feed["waveform"] = np.pad(feed["waveform"], ((0, 0), (0, 5000)), constant_values=0.7)
    [found] = open_graph(imported.bundle.artifact("encoder"))(feed, ["embeddings"])
    np.testing.assert_allclose(found, found_in(imported.bundle, [waveform]), atol=1e-6)


def test_the_manifest_asks_for_equal_lengths_and_enough_audio(imported: ImportReport) -> None:
    manifest = imported.bundle.manifest
    assert (manifest.kind, manifest.encoder.output_dim, manifest.encoder.equal_lengths) == ("embedding", DIM, True)
    assert manifest.encoder.min_samples == 400 + 160  # the toy needs two frames
    assert not manifest.part(EmbeddingPart).mean_subtracted
    assert manifest.features == Features(window="hamming", normalize="mean")
    assert np.isfinite(found_in(imported.bundle, [babble(560, 1)])).all()
    wanted = kind_named(manifest.kind).tensors(manifest, "encoder")
    graph = open_graph(imported.bundle.artifact("encoder"))
    assert {name: tuple(spec.shape) for name, spec in graph.inputs.items()} == {
        name: tuple(spec.shape) for name, spec in wanted[0].items()
    }


@pytest.mark.parametrize(
    ("dataset_args", "rate", "options"),
    [
        ({"resample_rate": 8000}, 8000, {}),
        ({"cmvn_args": {"norm_var": True}}, 16000, {}),
        ({"fbank_args": {"num_mel_bins": 80}}, 16000, {"window": "povey", "sample_scale": 1.0}),
    ],
)
def test_features_are_those_of_the_config_whatever_its_network_is(
    model: Path, tmp_path: Path, dataset_args: dict[str, Any], rate: int, options: dict[str, Any]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump({"model": "ERes2Net34_Base", "model_args": {"m": 1}, "dataset_args": dataset_args}),
        encoding="utf-8",
    )
    bundle = import_wespeaker(model=model, config=config, output=tmp_path / "b", **options).bundle
    assert bundle.manifest.sample_rate == rate
    waveform = babble(8000, 5)
    features = reference_features(
        waveform, rate, window=options.get("window", "hamming"), scale=options.get("sample_scale", 32768.0)
    )
    expected = expected_of(features, normalized="cmvn_args" in dataset_args)
    np.testing.assert_allclose(found_in(bundle, [waveform])[0], expected, atol=2e-3)


def test_a_mean_is_subtracted_once(model: Path, tmp_path: Path) -> None:
    mean, waveform = np.arange(DIM, dtype=np.float32), babble(9000, 6)
    np.save(tmp_path / "mean_vec.npy", mean)
    bundle = import_wespeaker(model=model, mean_vec=tmp_path / "mean_vec.npy", output=tmp_path / "b").bundle
    assert bundle.manifest.part(EmbeddingPart) is not None
    assert bundle.manifest.part(EmbeddingPart).mean_subtracted
    expected = expected_of(reference_features(waveform))
    np.testing.assert_allclose(found_in(bundle, [waveform])[0], expected - mean, atol=2e-3)
    holding = toy(tmp_path / "holding.onnx", mean=0.5)
    bundle = import_wespeaker(model=holding, threshold=-0.5, output=tmp_path / "b").bundle
    assert bundle.manifest.part(EmbeddingPart) is not None
    assert bundle.manifest.part(EmbeddingPart).mean_subtracted
    assert bundle.manifest.part(EmbeddingPart).threshold == -0.5
    np.testing.assert_allclose(found_in(bundle, [waveform])[0], expected - 0.5, atol=2e-3)
    with pytest.raises(ExportError, match="subtracts a mean from its embeddings already"):
        import_wespeaker(model=holding, mean_vec=tmp_path / "mean_vec.npy", output=tmp_path / "b")
    # Upstream's export subtracts zeros where there is no mean.
    nothing = import_wespeaker(model=toy(tmp_path / "zeros.onnx", mean=0.0), output=tmp_path / "b").bundle
    assert nothing.manifest.part(EmbeddingPart) is not None
    assert not nothing.manifest.part(EmbeddingPart).mean_subtracted


@cache
def normalising(normalize: str) -> onnxruntime.InferenceSession:
    """A graph of nothing but these nodes, around an identity."""
    b = Builder()
    b.op("Identity", "x", output=f"{EMBEDDED}x")
    identity = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 14]> g (float[B,T,5] x) => (float[B,T,5] y) { y = Identity(x) }'
    )
    b.embed(identity)
    b.op("Identity", normalised(b, f"{EMBEDDED}y", "valid", normalize), output="y")
    frames = (toys.FLOAT, ["batch", "frames", 5])
    model = b.model({"x": frames, "valid": (toys.INT64, ["batch"])}, {"y": frames}, {})
    return onnxruntime.InferenceSession(model.SerializeToString())


@settings(max_examples=examples(25), deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    normalize=st.sampled_from(["none", "mean", "per-feature"]),
    seed=st.integers(0, 99),
)
def test_the_nodes_normalise_each_row_by_its_own_frames(counts: list[int], normalize: str, seed: int) -> None:
    x = np.random.default_rng(seed).normal(4, 2, (len(counts), max(counts), 5)).astype(np.float32)
    [found] = normalising(normalize).run(None, {"x": x, "valid": np.array(counts)})
    for row, values, count in zip(found, x.astype(np.float64), counts, strict=True):
        own = values[:count] if normalize == "none" else values[:count] - values[:count].mean(axis=0)
        if normalize == "per-feature" and count > 1:
            own = own / np.sqrt(own.var(axis=0, ddof=1) + 1e-7)
        np.testing.assert_allclose(row[:count], own, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shape": (1, 200, BINS)}, "fixed to 1 utterances of 200 frames .*without --num_frames"),
        ({"shape": ("B", 200, BINS)}, "fixed to any number of utterances of 200 frames"),
        ({"mixing": True}, "with what else is in the batch"),
    ],
)
def test_files_that_cannot_be_served_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=said):
        import_wespeaker(model=toy(tmp_path / "model.onnx", **changes), output=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_files_of_other_kinds_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"feats .batch, frames, bins., and one float32 output"):
        import_wespeaker(model=toys.encoder(tmp_path / "encoder.onnx"), output=tmp_path / "b")
    (tmp_path / "text.onnx").write_text("no graph", encoding="utf-8")
    with pytest.raises(ExportError, match=r"not an ONNX graph .*Export the model again"):
        import_wespeaker(model=tmp_path / "text.onnx", output=tmp_path / "b")
    with pytest.raises(ExportError, match="cannot read"):
        import_wespeaker(model=tmp_path / "nowhere.onnx", output=tmp_path / "b")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"dataset_args": {"fbank_args": {"num_mel_bins": 40}}}), encoding="utf-8")
    with pytest.raises(ExportError, match=r"is 80, but fbank_args\.num_mel_bins is 40"):
        import_wespeaker(model=model, config=config, output=tmp_path / "b")


def test_weights_from_another_folder_are_not_read(model: Path, tmp_path: Path) -> None:
    graph = onnx.load(model)
    (tmp_path / "secret").write_bytes(bytes(4 * BINS * DIM))
    folder = tmp_path / "folder"
    folder.mkdir()
    [weight] = [each for each in graph.graph.initializer if each.name == "w"]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../secret")
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    with pytest.raises(ExportError, match=r"secret"):
        import_wespeaker(model=folder / "model.onnx", output=tmp_path / "b")


def test_the_command_imports_and_says_what_is_for_checkpoints_alone(model: Path, tmp_path: Path) -> None:
    arguments = ["export", "wespeaker", "--onnx", str(model), "--output", str(tmp_path / "b")]
    done = CliRunner().invoke(app, [*arguments, "--name", "voices"])
    assert done.exit_code == 0, done.output
    assert f"embeddings of {DIM} numbers" in done.output
    assert Bundle.open(tmp_path / "b").manifest.name == "voices"
    for more, said in (
        (["--precision", "fp16", "--stages"], "--stages, --precision is for checkpoints"),
        (["--runtimes", "torch"], "is for onnxruntime and tensorrt, not for torch"),
        (["--window", "hann"], "'hann' is not hamming or povey"),
    ):
        done = CliRunner().invoke(app, [*arguments, *more])
        assert done.exit_code == 2
        assert said in " ".join(done.output.replace("│", " ").split())


@pytest.mark.slow
def test_importing_needs_no_torch(model: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path\n"
        "from tritone.families.wespeaker.onnx_model import import_wespeaker\n"
        f"import_wespeaker(model=Path({str(model)!r}), output=Path({str(tmp_path / 'b')!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert Bundle.open(tmp_path / "b").manifest.kind == "embedding"
