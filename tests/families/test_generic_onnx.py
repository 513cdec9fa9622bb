"""`export onnx`: what is proposed of a graph, what a user says instead, and graphs that cannot be trusted."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import tritone
from generic_models import onnx_model, running_sum, scaled
from tritone.bundle import Bundle, BundleWriter
from tritone.cli.main import app
from tritone.errors import BundleError, ExportError, TritoneError
from tritone.families.generic.onnx import export_onnx
from tritone.families.graphs.onnx_file import read_onnx
from tritone.families.graphs.proposal import Proposal, TensorOptions
from tritone.kinds.generic.part import GenericPart, ServingPart
from tritone.repository import ModelOptions, build_repository
from tritone.repository.config import from_text
from tritone.repository.serving import ServingOptions

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def proposed(model: onnx.ModelProto, folder: Path, **options: Any) -> Proposal:
    found = export_onnx(model=saved(model, folder / "graph.onnx"), output=None, options=TensorOptions(**options))
    assert isinstance(found, Proposal)
    return found


def exported(model: onnx.ModelProto, folder: Path, **options: Any) -> Path:
    others = {name: options.pop(name) for name in ("rename", "opset", "serving", "name") if name in options}
    path = saved(model, folder / "graph.onnx")
    export_onnx(model=path, output=folder / "bundle", options=TensorOptions(**options), **others)
    return folder / "bundle"


def table(proposal: Proposal) -> str:
    return "\n".join(proposal.lines())


def image(batch: int | str | None = "batch") -> onnx.ModelProto:
    """The mean of each channel of an image, NHWC; and the image's maximum over all."""
    return onnx_model(
        [
            helper.make_node("ReduceMean", ["image"], ["means"], axes=[1, 2], keepdims=0),
            helper.make_node("ReduceMax", ["image"], ["most"], axes=[1, 2, 3], keepdims=0),
        ],
        {"image": (FLOAT, [batch, "height", "width", 3])},
        {"means": (FLOAT, [batch, 3]), "most": (FLOAT, [batch])},
    )


def test_names_types_dims_and_the_batch_axis_are_read_from_the_graph(tmp_path: Path) -> None:
    labels = tmp_path / "rgb.txt"
    labels.write_text("red\ngreen\nblue\n", encoding="utf-8")
    proposal = proposed(image(), tmp_path, layout=["nhwc"], labels=[f"means={labels}"])
    assert proposal.generic.max_batch_size == 8
    (pixels,), (means, most) = proposal.generic.inputs, proposal.generic.outputs
    assert (pixels.type, pixels.dims, pixels.format, pixels.sample) == ("FP32", (-1, -1, 3), "nhwc", (224, 224, 3))
    assert (means.dims, means.num_classes) == ((3,), 3)
    assert (most.dims, most.reshape) == ((1,), ())  # Triton has no scalars
    told = table(proposal).splitlines()
    assert told[0].startswith("model    graph (graph.onnx, opset 17, ")
    assert told[1] == "batch    first axis, up to 8 rows in a call"
    assert [" ".join(line.split()) for line in told[3:]] == [
        "input image FP32 -1,-1,3 nhwc",
        "output means FP32 3 3 labels",
        "output most FP32 1 [] in the graph",
    ]


def test_a_model_is_called_as_its_folder_or_in_a_dry_run_without_one_as_its_file(tmp_path: Path) -> None:
    assert Bundle.open(exported(scaled(), tmp_path)).manifest.name == "bundle"
    proposal = export_onnx(model=tmp_path / "graph.onnx", output=None)
    assert isinstance(proposal, Proposal)
    assert proposal.name == "graph"
    told = [CliRunner().invoke(app, ["export", "onnx", str(tmp_path / "graph.onnx"), "--dry-run", *more]).stdout
            for more in ([], ["--output", "letters"])]  # fmt: skip
    assert [text.split()[1] for text in told] == ["graph", "letters"]


def test_every_field_can_be_given_otherwise(tmp_path: Path) -> None:
    bundle = exported(
        scaled(),
        tmp_path,
        max_batch_size=0,
        dims=["input=2,3", "a=b=2,3"],
        reshape=["a=b=6"],
        samples=["input=2,3"],
        rename={"x": "input", "y": "a=b"},
        name="twice",
    )
    manifest = Bundle.open(bundle).manifest
    assert manifest.name == "twice"
    (x,), (y,) = manifest.part(GenericPart).inputs, manifest.part(GenericPart).outputs
    assert (x.name, x.dims, x.sample, y.name, y.dims, y.reshape) == ("input", (2, 3), (2, 3), "a=b", (6,), (2, 3))


def test_a_first_axis_whose_rows_depend_on_each_other_is_no_batch_axis(tmp_path: Path) -> None:
    model = onnx_model(
        [helper.make_node("CumSum", ["x", "axis"], ["y"])],
        {"x": (FLOAT, ["batch", 3])},
        {"y": (FLOAT, ["batch", 3])},
        {"axis": np.int64(0)},
    )
    proposal = proposed(model, tmp_path)
    assert proposal.generic.max_batch_size == 0
    assert "rows depend on each other" in table(proposal)
    assert "was --max-batch-size meant?" in table(proposed(model, tmp_path, max_batch_size=4))


def test_a_vector_is_not_taken_for_a_batch_of_scalars(tmp_path: Path) -> None:
    model = onnx_model([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["time"])}, {"y": (FLOAT, ["time"])})
    proposal = proposed(model, tmp_path)
    assert (proposal.generic.max_batch_size, proposal.generic.inputs[0].dims) == (0, (-1,))
    assert "(time) was not taken for a batch axis" in table(proposal)
    (x,) = proposed(model, tmp_path, max_batch_size=2).generic.inputs
    assert (x.dims, x.reshape) == ((1,), ())


def test_outputs_of_unknown_rank_are_found_by_a_trial(tmp_path: Path) -> None:
    model = scaled()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    bundle = exported(model, tmp_path)
    assert Bundle.open(bundle).manifest.part(GenericPart).outputs[0].dims == (-1,)
    assert tritone.load(bundle, threads=1).infer({"x": [[1, 2, 3]]})["y"].tolist() == [[3, 5, 7]]


def test_a_graph_is_converted_to_another_opset(tmp_path: Path) -> None:
    bundle = exported(image(), tmp_path, opset=18)
    assert read_onnx(bundle / "model.onnx").opset == 18
    row = np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3)
    assert tritone.load(bundle, threads=1).infer({"image": row})["most"].tolist() == [[11]]


def test_weights_beside_the_graph_come_along(tmp_path: Path) -> None:
    path = tmp_path / "graph.onnx"
    table_ = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    model = onnx_model(
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        {"x": (INT64, ["batch", "n"])},
        {"y": (FLOAT, ["batch", "n", 3])},
        {"table": table_},
    )
    onnx.save(model, path, save_as_external_data=True, location="weights.data", size_threshold=100)
    export_onnx(model=path, output=tmp_path / "bundle", rename={"x": "ids"})
    found = tritone.load(tmp_path / "bundle", threads=1).infer({"ids": [[7, 999]]})["y"]
    assert found.tolist() == [table_[[7, 999]].tolist()]
    assert Bundle.open(tmp_path / "bundle").manifest.artifacts[0].files == ("model.onnx", "weights.data")


def outside(location: str, folder: Path) -> Path:
    """A graph whose weights are said to be at `location`."""
    (folder / "graph").mkdir()
    (folder / "secret.bin").write_bytes(np.zeros(30, np.float32).tobytes())
    path = folder / "graph" / "graph.onnx"
    weights = np.zeros((10, 3), np.float32)
    model = onnx_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (FLOAT, ["batch", 10])},
        {"y": (FLOAT, ["batch", 3])},
        {"w": weights},
    )
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "link.bin"])
def test_weights_outside_of_the_graphs_folder_are_refused(tmp_path: Path, location: str) -> None:
    path = outside(location, tmp_path)
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ExportError, match=r"takes weights from .* not a file beside it"):
        export_onnx(model=path, output=tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("location", "message"), [("gone.bin", "not beside it"), ("manifest.json", "a name that a bundle")]
)
def test_weights_that_are_missing_or_in_the_way_are_told(tmp_path: Path, location: str, message: str) -> None:
    path = outside(location, tmp_path)
    if location != "gone.bin":
        (path.parent / location).write_bytes(bytes(120))
    with pytest.raises(ExportError, match=message):
        export_onnx(model=path, output=tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def two_outputs_of_one_name() -> onnx.ModelProto:
    model = scaled()
    model.graph.output.append(model.graph.output[0])
    return model


def changed(**type_: int) -> onnx.ModelProto:
    """A graph whose input has another element type or a gigantic or an empty axis."""
    model = scaled()
    tensor = model.graph.input[0].type.tensor_type
    for name, value in type_.items():
        if name == "elem_type":
            tensor.elem_type = value
        else:
            tensor.shape.dim[1].dim_value = value
    return model


def a_sequence() -> onnx.ModelProto:
    model = scaled()
    element = helper.make_tensor_type_proto(FLOAT, ["n"])
    model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(element))
    return model


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no ONNX graph: it has no outputs"),
        (b"\x00\x01garbage" * 50, "no ONNX graph"),
        (scaled().SerializeToString()[:-7], "graph"),
        (two_outputs_of_one_name().SerializeToString(), "y occurs twice|not valid ONNX"),
        (
            changed(elem_type=TensorProto.COMPLEX64).SerializeToString(),
            "COMPLEX64, which Triton does not know|not valid",
        ),
        (changed(dim_value=2**40).SerializeToString(), "elements|sizes|cannot open|less than or equal"),
        (changed(dim_value=0).SerializeToString(), "axis of 0 elements|not valid"),
        (a_sequence().SerializeToString(), "is a sequence, and Triton knows tensors alone|not valid"),
    ],
)
def test_a_graph_that_cannot_be_served_is_refused_and_nothing_is_written(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "graph.onnx"
    path.write_bytes(content)
    with pytest.raises(ExportError, match=message):
        export_onnx(model=path, output=tmp_path / "bundle")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["graph.onnx"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": ["z=3"]}, "give NAME=VALUE, with one of the names x, y"),
        ({"dims": ["x=4"]}, r"the graph's shape is \[batch, 3\], whose 3 cannot become 4"),
        ({"dims": ["x=1,2,3"]}, "give its axes without the batch axis"),
        ({"dims": ["x=many"]}, "should be whole numbers"),
        ({"reshape": ["x=4"]}, "must have as many elements"),
        ({"layout": ["x=nhwc"]}, "format nhwc is of images with 3 axes"),
        ({"layout": ["x=cube"]}, "format"),
        ({"states": ["x=z"]}, "the graph has no output 'z'"),
        ({"controls": ["begin=x"]}, "--control begin=x"),
        ({"controls": ["start=x"]}, None),
        ({"labels": ["y=/nowhere/labels.txt"]}, "there is no file /nowhere/labels.txt"),
        ({"max_batch_size": -1}, "must be 0 .* or more, got -1"),
        ({"max_batch_size": 10**9}, "max_batch_size"),
    ],
)
def test_what_does_not_fit_the_graph_is_refused(tmp_path: Path, options: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert proposed(scaled(), tmp_path, **options).generic.controls[0].kind == "start"
        return
    with pytest.raises(ExportError, match=message):
        proposed(scaled(), tmp_path, **options)


@pytest.mark.parametrize(("count", "message"), [(2, "has 2 labels, but a row of output y has 3"), (4, "has 4 labels")])
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, count: int, message: str) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("label\n" * count, encoding="utf-8")
    with pytest.raises(ExportError, match=message):
        proposed(scaled(), tmp_path, labels=[str(labels)])
    labels.write_bytes(b"\xff\xfe\nb\nc\n")
    with pytest.raises(ExportError, match="not UTF-8"):
        proposed(scaled(), tmp_path, labels=[str(labels)])


def test_label_files_cannot_lead_out_of_a_bundle_and_must_fit(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\nc\n", encoding="utf-8")
    bundle = exported(scaled(), tmp_path, labels=[str(labels)])
    manifest = (bundle / "manifest.json").read_text(encoding="utf-8")
    for name, message in (("../labels.txt", "must stay inside the bundle"), ("more.txt", "more.txt is missing")):
        (bundle / "manifest.json").write_text(
            manifest.replace('"labels": "labels.txt"', f'"labels": "{name}"'), encoding="utf-8"
        )
        with pytest.raises(BundleError, match=message):
            Bundle.open(bundle)
    (bundle / "manifest.json").write_text(manifest, encoding="utf-8")
    (bundle / "labels.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(BundleError, match="has 2 labels, but output y has 3 elements"):
        Bundle.open(bundle)
    (bundle / "labels.txt").unlink()
    (bundle / "labels.txt").symlink_to(labels)
    with pytest.raises(BundleError, match=r"is a link to .*, outside the bundle"):
        Bundle.open(bundle)


def test_a_name_that_is_a_path_is_refused_where_it_would_be_a_folder(tmp_path: Path) -> None:
    bundle = exported(scaled(), tmp_path, name="../../etc")
    with pytest.raises(ValueError, match=r"model name '\.\./\.\./etc'"):
        build_repository([bundle], tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def config_of(path: Path) -> Any:
    return from_text((path / "config.pbtxt").read_text(encoding="utf-8"))


def test_the_native_repository_has_the_same_tensors_and_what_triton_needs_for_states(tmp_path: Path) -> None:
    bundle = exported(running_sum(), tmp_path, states=["before=next:2"], max_batch_size=4)
    build_repository([bundle], tmp_path / "ours", names=["sum"])
    build_repository([bundle], tmp_path / "native", names=["sum"], platform="native")
    ours, native = config_of(tmp_path / "ours" / "sum"), config_of(tmp_path / "native" / "sum")
    assert (native.platform, native.backend, ours.backend) == ("onnxruntime_onnx", "onnxruntime", "python")
    assert list(native.input) == list(ours.input)
    assert list(native.output) == list(ours.output)
    (state,) = native.sequence_batching.state
    assert (state.input_name, state.output_name, list(state.dims)) == ("before", "next", [2])
    folder = tmp_path / "native" / "sum"
    initial = folder / "initial_state" / state.initial_state[0].data_file
    assert np.frombuffer(initial.read_bytes(), np.float32).tolist() == [2, 2]
    assert sorted(os.listdir(folder / "1")) == ["model.onnx"]


def test_a_script_of_torch_becomes_a_native_repository_too(tmp_path: Path) -> None:
    manifest = Bundle.open(exported(scaled(), tmp_path)).manifest
    with BundleWriter(tmp_path / "other") as writer:
        (writer.folder / "model.ts").write_bytes(b"never opened")
        script = writer.artifact("model", "model.ts", runtime="torchscript")
        writer.commit(manifest.model_copy(update={"artifacts": (script,)}))
    build_repository([tmp_path / "other"], tmp_path / "native", names=["m"], platform="native")
    config = config_of(tmp_path / "native" / "m")
    assert (config.platform, config.default_model_filename) == ("pytorch_libtorch", "model.pt")
    assert [each.name for each in (*config.input, *config.output)] == ["x", "y__0"]  # as that backend calls outputs
    assert (tmp_path / "native" / "m" / "1" / "model.pt").read_bytes() == b"never opened"


@pytest.mark.parametrize(
    "options",
    [{"max_audio_s": 5.0}, {"max_queued_s": 5.0}, {"memory_mb": 500}, {"compile": "auto"}, {"search": "rescoring"}],
)
def test_options_of_speech_are_refused_for_generic_models(tmp_path: Path, options: dict[str, Any]) -> None:
    flag = "--" + next(iter(options)).replace("_", "-")
    with pytest.raises(BundleError, match=rf"is a generic model, and {flag} is for models"):
        build_repository([exported(scaled(), tmp_path)], tmp_path / "repository", options=ModelOptions(**options))


def test_serving_is_fixed_at_export_and_changed_by_a_build(tmp_path: Path) -> None:
    from tritone.repository.serving import checked

    serving = checked({"version_policy": "latest:2", "timeout_ms": 50.0, "priorities": 3, "response_cache": True})
    bundle = exported(scaled(), tmp_path, serving=serving)
    build_repository([bundle], tmp_path / "repository", names=["m"])
    missing = ServingOptions(version=3, version_policy="specific:1,2")
    with pytest.raises(TritoneError, match=r"names version 2, but there are 1, 3\. Build the others first"):
        build_repository([bundle], tmp_path / "repository", names=["m"], serving=missing)
    build = ServingOptions(
        version=2, version_policy="specific:1,2", priorities=2, default_priority=1, priority_timeouts_ms="10,0"
    )
    build_repository(
        [bundle], tmp_path / "repository", names=["m"], serving=build, options=ModelOptions(queue_timeout_ms=20)
    )
    folder = tmp_path / "repository" / "m"
    assert sorted(each.name for each in folder.iterdir()) == ["1", "2", "config.pbtxt"]
    config = config_of(folder)
    assert list(config.version_policy.specific.versions) == [1, 2]
    batching = config.dynamic_batching
    assert (batching.priority_levels, batching.default_priority_level) == (2, 1)
    assert batching.default_queue_policy.default_timeout_microseconds == 20_000
    assert batching.priority_queue_policy[1].default_timeout_microseconds == 10_000
    assert config.response_cache.enable


def test_options_of_generic_models_are_refused_for_speech(tmp_path: Path, toy_bundle: Path) -> None:
    with pytest.raises(BundleError, match="options of generic models are for others"):
        build_repository([toy_bundle], tmp_path / "repository", serving=ServingOptions(response_cache=True))
    with pytest.raises(BundleError, match="--platform native and options of generic models"):
        build_repository([toy_bundle], tmp_path / "repository", platform="native")


def test_a_check_that_fails_leaves_the_repository_as_it_was(tmp_path: Path) -> None:
    bundle = exported(scaled(), tmp_path)
    build_repository([bundle], tmp_path / "repository", names=["m"])
    before = (tmp_path / "repository" / "m" / "config.pbtxt").read_bytes()

    def refuse(folder: Path, models: Any) -> None:
        assert (folder / "m" / "config.pbtxt").is_file()
        raise TritoneError("no")

    with pytest.raises(TritoneError, match="no"):
        build_repository(
            [bundle], tmp_path / "repository", names=["m"], check=refuse, options=ModelOptions(max_batch_size=2)
        )
    assert (tmp_path / "repository" / "m" / "config.pbtxt").read_bytes() == before
    assert os.listdir(tmp_path / "repository") == ["m"]


def test_the_command_shows_the_table_before_it_writes(tmp_path: Path) -> None:
    path = saved(scaled(), tmp_path / "letters.onnx")
    dry = CliRunner().invoke(app, ["export", "onnx", str(path), "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert dry.stdout.splitlines()[0].startswith("model    letters (letters.onnx, ")
    assert not (tmp_path / "bundle").exists()
    done = CliRunner().invoke(
        app,
        ["export", "onnx", str(path), "--output", str(tmp_path / "bundle"), "--response-cache", "--priorities", "2"],
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "bundle")
    serving = Bundle.open(tmp_path / "bundle").manifest.find(ServingPart)
    assert serving is not None
    assert (serving.response_cache, serving.priorities) == (True, 2)
    wrong = CliRunner().invoke(app, ["export", "onnx", str(path)])
    assert wrong.exit_code == 2
    assert "name where to write the bundle" in wrong.output


def test_axes_of_minus_one_and_of_a_question_mark_are_open(tmp_path: Path) -> None:
    """As paddle2onnx writes them."""
    model = image(-1)
    for axis in (*model.graph.input[0].type.tensor_type.shape.dim[1:3],):
        axis.dim_param = "?"
    found = proposed(model, tmp_path).generic
    assert (found.inputs[0].dims, found.max_batch_size) == ((-1, -1, 3), 8)
    export_onnx(model=tmp_path / "graph.onnx", output=tmp_path / "bundle")
    answers = tritone.load(tmp_path / "bundle").infer({"image": np.full((2, 4, 5, 3), 7, np.float32)})
    assert np.array_equal(answers["means"], np.full((2, 3), 7))


def test_the_batch_axis_is_tried_with_bytes_where_0_and_1_say_nothing(tmp_path: Path) -> None:
    """Of bytes below 2 the graph gives what depends on the other row, of others the byte's square root."""
    model = onnx_model(
        [
            helper.make_node("ReduceMean", ["bytes"], ["mean"], keepdims=0),
            helper.make_node("ReduceMax", ["bytes"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "two"], ["small"]),
            helper.make_node("Sqrt", ["bytes"], ["roots"]),
            helper.make_node("Where", ["small", "mean", "roots"], ["y"]),
        ],
        {"ids": (INT64, ["unk__1", 4])},
        {"y": (FLOAT, ["unk__2", 4])},
        {"two": np.float32(2)},
    )
    model.graph.node.insert(0, helper.make_node("Cast", ["ids"], ["bytes"], to=FLOAT))
    assert proposed(model, tmp_path).generic.max_batch_size == 8


def test_of_a_zipmap_the_option_is_named_that_turns_it_off(tmp_path: Path) -> None:
    zipped = helper.make_node("ZipMap", ["x"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    model = onnx_model([zipped], {"x": (FLOAT, ["n", 2])}, {})
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, [])))
    model.graph.output.append(helper.make_value_info("probabilities", kind))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    with pytest.raises(ExportError, match=r'tensors alone.*options=\{"zipmap": False\}'):
        proposed(model, tmp_path)
