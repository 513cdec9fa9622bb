"""`tritone engine`, and `--runtimes tensorrt` of exports, by the real builder of TensorRT for RTX."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb
from typer.testing import CliRunner, Result

import graphs
from tensorrt_builder import needs_tensorrt
from tritone.bundle.bundle import MODEL_CARD, Bundle, BundleWriter
from tritone.bundle.manifest import Manifest, Provenance
from tritone.cli.export.engines import RuntimePlan, plan_runtimes
from tritone.cli.main import app
from tritone.errors import ExportError, MissingDependencyError, OperatorError
from tritone.families.convert.calls import InputFiles
from tritone.families.convert.convert import Target, convert_onnx
from tritone.kinds.generic.part import GenericInput, GenericOutput, GenericPart, labels_of
from tritone.pipelines import open_offline
from tritone.runtime.cuda.tensorrt import Gpu, Library
from tritone.tensorrt import library
from tritone.tensorrt.build import EngineBuilder
from tritone.tensorrt.bundled import build_engines
from tritone.tensorrt.profile import Profile
from tritone.tensorrt.single import read_description

SIZES = ("--min", "1x1s", "--opt", "2x2s", "--max", "4x5s", "--level", "0")
PLANS = {"encoder.plan", "streaming_encoder.plan", "decoder.plan"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from toy import write_toy_bundle

    path = write_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy", decoder=True)
    (path / MODEL_CARD).write_text("A toy.", encoding="utf-8")
    return path


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "toy")


@pytest.fixture(scope="module")
def built(original: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A bundle with engines, and what the command said."""
    path = tmp_path_factory.mktemp("engines") / "toy"
    return path, run("engine", original, "--output", path, *SIZES)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@needs_tensorrt
def test_engines_of_all_graphs_are_added_to_a_bundle_that_stays_as_it_was_otherwise(
    built: tuple[Path, Result], original: Path
) -> None:
    path, result = built
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(path)
    for told in ("TensorRT for RTX", "no GPU here", "building decoder.plan", "on RTX GPUs"):
        assert told in result.stderr
    bundle = Bundle.open(path)
    bundle.verify()
    before, after = contents(original), contents(path)
    assert set(after) - set(before) == PLANS
    assert {name: after[name] for name in before if name != "manifest.json"} == {
        name: content for name, content in before.items() if name != "manifest.json"
    }
    engines = [artifact for artifact in bundle.manifest.artifacts if artifact.engine is not None]
    assert bundle.manifest.artifacts == (*Bundle.open(original).manifest.artifacts, *engines)
    for artifact in engines:
        assert (artifact.runtime, artifact.precision) == ("tensorrt", "fp32")
        assert artifact.engine is not None
        assert (artifact.engine.library, artifact.engine.profiles) == ("tensorrt-rtx", ("1x1s 2x2s 4x5s",))
        assert artifact.engine.version.count(".") >= 2


@needs_tensorrt
def test_a_bundle_with_engines_still_runs_where_they_cannot(built: tuple[Path, Result]) -> None:
    from toy import toy_waveform

    assert open_offline(Bundle.open(built[0])).recognize([toy_waveform("still")])[0].text == "still"


@needs_tensorrt
def test_several_profiles_are_one_engine_and_replace_an_older_one_in_place(bundle: Path) -> None:
    more = ("--min", "1x5s", "--opt", "1x10s", "--max", "2x20s")
    for arguments in (SIZES, (*SIZES, *more)):
        result = run("engine", bundle, *arguments, "--roles", "encoder")
        assert result.exit_code == 0, result.stderr
    opened = Bundle.open(bundle)
    [artifact] = opened.artifacts("encoder", "tensorrt")
    assert artifact.engine is not None
    assert artifact.engine.profiles == ("1x1s 2x2s 4x5s", "1x5s 1x10s 2x20s")
    assert (bundle / MODEL_CARD).read_text(encoding="utf-8") == "A toy."
    assert not list(bundle.parent.glob(".toy*")), "nothing is left beside it"


@needs_tensorrt
def test_a_build_that_fails_leaves_the_bundle_as_it_was(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(self: EngineBuilder, graph: Path, ranges: Sequence[Any]) -> bytes:
        if graph.name == "encoder.onnx":
            return b"a plan"
        raise ExportError("no kernels")

    monkeypatch.setattr(EngineBuilder, "build", build)
    before = contents(bundle)
    result = run("engine", bundle, *SIZES)
    assert result.exit_code == 1
    assert "no kernels" in result.stderr
    assert contents(bundle) == before
    assert not list(bundle.parent.glob(".toy*"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--min", "2x1s"), "a lone request is a batch of one"),
        (("--max", "many"), "a size is rows x seconds, like 16x7s"),
        (
            ("--min", "1x1s", "--min", "1x2s", "--max", "4x4s"),
            "each profile has a --min, an --opt and a --max; got 2, 0",
        ),
    ],
)
def test_sizes_that_cannot_be_are_wrong_usage(bundle: Path, arguments: Sequence[str], why: str) -> None:
    result = run("engine", bundle, *arguments)
    assert result.exit_code == 2
    assert why in " ".join(result.stderr.split())


@needs_tensorrt
@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("--precision", "int8"), 2, "expected each precision once, of fp32, fp16; got int8"),
        (("--precision", "fp16"), 1, "has no ONNX graph for encoder in fp16"),
        (("--roles", "ear"), 2, "expected each role once"),
        (("--roles", "joiner"), 1, "no ONNX graph for joiner in fp32"),
        (("--min", "1", "--opt", "2", "--max", "4"), 2, "whole utterances, so sizes need seconds"),
    ],
)
def test_engines_that_cannot_be_built_are_refused_before_any_is(
    bundle: Path, arguments: Sequence[str], code: int, why: str
) -> None:
    result = run("engine", bundle, *arguments)
    assert result.exit_code == code
    assert why in " ".join(result.stderr.split())
    assert "building" not in result.stderr


@needs_tensorrt
def test_shipped_bundles_are_not_changed() -> None:
    result = run("engine", "demo-transducer")
    assert result.exit_code == 1
    assert "came with Tritone and is not changed" in result.stderr
    assert "--output DIR" in result.stderr


def test_without_tensorrt_the_command_says_what_to_install(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "installed", lambda: ())
    monkeypatch.setattr(library, "find_trtexec", lambda: None)
    result = run("engine", bundle)
    assert result.exit_code == 1
    assert "pip install tensorrt" in result.stderr
    assert "tensorrt-rtx-cu13-bindings" in result.stderr


def test_tensorrt_needs_the_gpu_that_it_builds_for(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "installed", lambda: ("tensorrt",))
    monkeypatch.setattr(library, "load_library", lambda name: Library("tensorrt", None, "10.13.3.9"))
    monkeypatch.setattr(library, "find_gpu", lambda: None)
    with pytest.raises(OperatorError, match=r"TensorRT 10\.13\.3\.9 builds engines on the GPU .* finds none here"):
        library.find_tools()
    monkeypatch.setattr(library, "find_gpu", lambda: Gpu("NVIDIA A/100", "9.0"))
    tools = library.find_tools()
    assert tools.usual_timing_cache().name == "tensorrt-10.13.3.9-NVIDIA-A-100.timing"


def test_trtexec_serves_where_only_that_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "trtexec"
    program.write_text("#!/bin/sh\necho '[TensorRT v101303]'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(library, "installed", lambda: ())
    monkeypatch.setattr(library, "find_gpu", lambda: Gpu("NVIDIA A", "9.0"))
    tools = library.find_tools()
    assert (tools.name, tools.version, tools.program) == ("tensorrt", "10.13.3", program)
    program.write_text("#!/bin/sh\necho '[TensorRT v8601]'\n", encoding="utf-8")
    with pytest.raises(MissingDependencyError, match=r"TensorRT 10 or newer is needed, TensorRT 8\.6\.1 .* is here"):
        library.find_tools()


@pytest.mark.slow
@needs_tensorrt
def test_ctrl_c_ends_a_build_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "engine", "demo-asr"]
    with subprocess.Popen([*command, "--output", tmp_path / "b"], stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stderr is not None
        assert any("building encoder.plan" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert "Traceback" not in process.stderr.read()
    assert list(tmp_path.iterdir()) == []


@needs_tensorrt
def test_an_export_for_tensorrt_is_one_for_onnxruntime_and_then_engines(bundle: Path, capsys: Any) -> None:
    plan = plan_runtimes(("torch", "tensorrt"), ("fp32", "fp16", "bf16"))
    assert (plan.runtimes, plan.engines) == (("torch", "onnxruntime"), ("fp32", "fp16"))
    assert "bf16 is left out there" in capsys.readouterr().err
    assert plan_runtimes(("onnxruntime", "torch"), ("bf16",)) == RuntimePlan(("onnxruntime", "torch"))
    with pytest.raises(ValueError, match=r"no engine can be in int8: tensorrt has fp32, fp16"):
        plan_runtimes(("tensorrt",), ("int8",))
    with pytest.raises(ValueError, match="expected each runtime once; got tensorrt, tensorrt"):
        plan_runtimes(("tensorrt", "tensorrt"), ("fp32",))
    with pytest.raises(Exception, match="in fp16"):
        plan.build_engines(Bundle.open(bundle))
    assert "is there, without engines" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["wenet", "icefall"])
def test_an_export_for_tensorrt_tells_that_it_is_missing_before_anything_is_read(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "installed", lambda: ())
    monkeypatch.setattr(library, "find_trtexec", lambda: None)
    options = ["--checkpoint", tmp_path / "no.pt", "--tokens", tmp_path / "no.txt", "--output", tmp_path / "b"]
    options += ["--config", tmp_path / "no.yaml"] if family == "wenet" else []
    result = run("export", family, *options, "--runtimes", "onnxruntime,tensorrt")
    assert result.exit_code == 1
    assert "pip install tensorrt" in result.stderr
    with pytest.raises(MissingDependencyError):
        plan_runtimes(("tensorrt",), ("fp32",))


@needs_tensorrt
def test_a_repository_is_built_of_engines_for_gpus_alone(built: tuple[Path, Result], tmp_path: Path) -> None:
    result = run("build", built[0], "--runtime", "tensorrt", "--device", "gpu", "--output", tmp_path / "repo")
    assert result.exit_code == 0, result.stderr
    for model in ("toy", "toy-streaming"):
        config = pb.ModelConfig()
        text_format.Parse((tmp_path / "repo" / model / "config.pbtxt").read_text(encoding="utf-8"), config)
        assert config.parameters["runtime"].string_value == "tensorrt"
        assert (tmp_path / "repo" / model / "1" / "bundle" / "encoder.plan").is_file()
    result = run("build", built[0], "--runtime", "tensorrt", "--output", tmp_path / "other")
    assert result.exit_code == 2
    assert "--device gpu" in result.stderr


def test_a_repository_without_engines_says_how_to_get_them(bundle: Path, tmp_path: Path) -> None:
    result = run("build", bundle, "--runtime", "tensorrt", "--device", "gpu", "--output", tmp_path / "repo")
    assert result.exit_code == 1
    assert f"tritone engine {bundle}" in " ".join(result.stderr.split())


def test_without_profiles_there_is_no_engine(bundle: Path) -> None:
    with pytest.raises(ValueError, match="at least one profile"):
        build_engines(Bundle.open(bundle), profiles=())
    assert str(Profile.parse("1x1s", "2x2s", "4x5s")) == "1x1s 2x2s 4x5s"


SHAPES = ("--min", "1x3x16x16", "--opt", "image:2x3x16x16", "--max", "4x3x16x16", "--level", "0")


@needs_tensorrt
def test_an_onnx_file_becomes_a_plan_and_the_line_of_trtexec_is_shown(tmp_path: Path) -> None:
    graph = graphs.images(tmp_path / "images.onnx")
    result = run("engine", graph, *SHAPES)
    assert result.exit_code == 0, result.stderr
    plan = tmp_path / "images.plan"
    assert result.stdout.strip() == str(plan)
    line = f"trtexec --onnx={graph} --saveEngine={plan} --stronglyTyped --noTF32 --skipInference"
    assert line in result.stderr
    assert "--minShapes=image:1x3x16x16 --optShapes=image:2x3x16x16 --maxShapes=image:4x3x16x16" in result.stderr
    stamp, tensors = read_description(plan)
    assert stamp.profiles == ("1x3x16x16 image:2x3x16x16 4x3x16x16",)
    assert tensors["inputs"] == {"image": ("FLOAT", [None, 3, 16, 16])}
    assert tensors["outputs"] == {"scores": ("FLOAT", [None, 4])}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images.onnx", "images.plan", "images.plan.json"]


@needs_tensorrt
@pytest.mark.parametrize("target", ["fp16", "int8-weights", "int8-static"])
def test_converted_graphs_become_plans_too(target: Target, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", image=np.random.default_rng(0).normal(size=(4, 1, 3, 16, 16)).astype(np.float32))
    graph = graphs.classifier(tmp_path / "g.onnx") if target == "int8-weights" else graphs.images(tmp_path / "g.onnx")
    static = target == "int8-static"
    calibration = InputFiles(paths=[tmp_path / "x.npz"]) if static else None
    convert_onnx(graph, tmp_path / "c.onnx", target=target, calibration=calibration, symmetric=static)
    sizes = ("--min", "1x1", "--opt", "2x4", "--max", "2x8") if target == "int8-weights" else SHAPES[:-2]
    result = run("engine", tmp_path / "c.onnx", *sizes, "--level", "0", "--output", tmp_path / "out.plan")
    assert result.exit_code == 0, result.stderr


@needs_tensorrt
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "these inputs vary: image (?x3x16x16). Give the smallest shapes, like --min image:1x3x16x16"),
        (("--min", "1x2s", "--opt", "1x2s", "--max", "1x2s"), "shapes are written NAME:8x128"),
        (("--min", "2x3x16x16", "--opt", "1x3x16x16", "--max", "4x3x16x16"), "must not fall from --min over --opt"),
        (("--min", "1x3x8x8", "--opt", "1x3x16x16", "--max", "4x3x16x16"), "does not fit input image"),
        (("--min", "1x3x16x16"), "got 1, 0 and 0"),
        (("--precision", "fp16"), "--precision and --roles are for bundles"),
    ],
)
def test_shapes_that_do_not_fit_a_file_are_wrong_usage(arguments: Sequence[str], why: str, tmp_path: Path) -> None:
    result = run("engine", graphs.images(tmp_path / "images.onnx"), *arguments)
    assert result.exit_code == 2
    assert why in " ".join(result.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["images.onnx"]


@needs_tensorrt
def test_engines_of_a_generic_bundle_take_its_rows_by_themselves_or_shapes(tmp_path: Path) -> None:
    bundle = generic_bundle(tmp_path / "bundle")
    result = run("engine", bundle, "--level", "0")
    assert result.exit_code == 0, result.stderr
    [artifact] = Bundle.open(bundle).artifacts("model", "tensorrt")
    assert artifact.engine is not None
    assert artifact.engine.profiles == ("image:1x3x16x16 image:2x3x16x16 image:4x3x16x16",)
    output = Bundle.open(bundle).manifest.part(GenericPart).outputs[0]
    assert labels_of(output, bundle / output.labels) == ("a", "b", "c", "d")
    few = run("engine", bundle, "--min", "1x3x16x16", "--opt", "1x3x16x16", "--max", "2x3x16x16")
    assert few.exit_code == 2
    assert "the model takes 1 to 4 rows, and image 1 to 2" in " ".join(few.stderr.split())
    seconds = run("engine", bundle, "--min", "1x1s", "--opt", "1x1s", "--max", "1x1s")
    assert seconds.exit_code == 2


@needs_tensorrt
def test_a_plan_becomes_a_bundle_with_the_tensors_and_rows_that_it_was_built_for(tmp_path: Path) -> None:
    assert run("engine", graphs.images(tmp_path / "images.onnx"), *SHAPES).exit_code == 0
    plan, labels = tmp_path / "images.plan", tmp_path / "names.txt"
    labels.write_text("a\nb\nc\nd\n", encoding="utf-8")
    result = run("export", "tensorrt", plan, "--output", tmp_path / "bundle", "--labels", labels, "--axes", "nchw")
    assert result.exit_code == 0, result.stderr
    bundle = Bundle.open(tmp_path / "bundle")
    bundle.verify()
    generic = bundle.manifest.part(GenericPart)
    assert [(each.name, each.type, each.dims) for each in generic.inputs] == [("image", "FP32", (3, 16, 16))]
    assert [(each.name, each.dims) for each in generic.outputs] == [("scores", (4,))]
    assert generic.max_batch_size == 4
    [artifact] = bundle.manifest.artifacts
    assert artifact.engine == read_description(plan)[0]
    many = run("export", "tensorrt", plan, "--output", tmp_path / "no", "--max-batch-size", "5")
    assert many.exit_code == 1
    assert "takes up to 4 rows" in many.stderr
    (tmp_path / "images.plan.json").unlink()
    alone = run("export", "tensorrt", plan, "--output", tmp_path / "no")
    assert "has no images.plan.json beside it" in alone.stderr
    assert not (tmp_path / "no").exists()


def generic_bundle(path: Path) -> Path:
    with BundleWriter(path) as writer:
        graphs.images(writer.folder / "model.onnx")
        (writer.folder / "labels.txt").write_text("a\nb\nc\nd\n", encoding="utf-8")
        tensors = GenericPart(
            inputs=(GenericInput(name="image", type="FP32", dims=(3, 16, 16)),),
            outputs=(GenericOutput(name="scores", type="FP32", dims=(4,), labels="labels.txt"),),
            max_batch_size=4,
        )
        artifacts = (writer.artifact("model", "model.onnx"),)
        manifest = {"name": "images", "kind": "generic", "generic": tensors, "artifacts": artifacts}
        writer.commit(Manifest(**manifest, provenance=Provenance(family="test")))
    return path
