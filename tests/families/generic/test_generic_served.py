"""Generic models on one Triton: random graphs answer as onnxruntime does, and what Triton itself adds to a model."""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tritone
from generic_models import onnx_model, running_sum, scaled
from serving import quiet_options
from tritone.bfloat16 import from_bfloat16, to_bfloat16
from tritone.client import Client
from tritone.errors import InputError, TritoneError
from tritone.families.generic.onnx import export_onnx
from tritone.families.graphs.proposal import TensorOptions
from tritone.repository import ModelOptions, build_repository
from tritone.repository.serving import ServingOptions, checked
from tritone.server import TritonServer

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "STRING": TensorProto.STRING,
}
BOTH = {"STRING", "BF16"}  # which onnxruntime cannot pass on together
LETTERS = [f"letter {chr(ord('a') + index)}" for index in range(3)]


@dataclass
class Served:
    """A running server whose models can be changed. `ready`: random graphs that it has, by their descriptions."""

    server: TritonServer
    repository: Path
    client: Client


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("generic")
    repository = folder / "repository"
    (folder / "labels.txt").write_text("\n".join(LETTERS) + "\n", encoding="utf-8")
    onnx.save(scaled(), folder / "letters.onnx")
    onnx.save(running_sum(), folder / "sums.onnx")
    export(folder / "letters.onnx", folder / "letters", labels=(str(folder / "labels.txt"),))
    export(folder / "sums.onnx", folder / "sums", states=("before=next:0.5",))
    export(folder / "letters.onnx", folder / "lone", max_batch_size=0)
    serving = ServingOptions(response_cache=True, priorities=2, priority_timeouts_ms="0,5000", resources="memory=2")
    build_repository([folder / "letters"], repository, serving=serving)
    build_repository([folder / "sums", folder / "lone"], repository, names=["sums", "lone"])
    export(folder / "letters.onnx", folder / "again", reshape=("y=3,1",))
    for version in (1, 2):
        both = ServingOptions(version=version, version_policy="all", priorities=2)
        build_repository([folder / "again"], repository, names=["versions"], serving=both)
    options = quiet_options(open="control")
    with TritonServer(repository, options) as server, Client(server.grpc_address) as client:
        yield Served(server, repository, client)


def export(path: Path, output: Path, **options: Any) -> Path:
    export_onnx(model=path, output=output, options=TensorOptions(**options))
    return output


def control(served: Served, model: str, what: str) -> None:
    url = f"http://{served.server.http_address}/v2/repository/models/{model}/{what}"
    with urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method="POST"), timeout=120) as answer:
        answer.read()


def test_a_model_answers_with_its_labels_and_again_from_the_cache(served: Served) -> None:
    inputs = [{"x": [1.0, 3.0, 2.0]}]
    for _ in range(2):
        (result,) = served.client.infer(inputs, "letters", classes=2)
        assert result.get()["y"].tolist() == [b"7.000000:1:letter b", b"5.000000:2:letter c"]
    with urllib.request.urlopen(f"http://{served.server.http_address}/v2/models/letters/stats", timeout=60) as answer:
        (statistics,) = json.loads(answer.read())["model_stats"]
    assert statistics["inference_stats"]["cache_hit"]["count"] == 1
    with Client(f"http://{served.server.http_address}") as client:
        (result,) = client.infer(inputs, "letters", classes=1)
        assert result.get()["y"].tolist() == [b"7.000000:1:letter b"]


def test_a_model_without_a_batch_axis_takes_its_tensors_as_they_are(served: Served) -> None:
    (result,) = served.client.infer([{"x": np.float32([[1, 2, 3], [4, 5, 6]])}], "lone")
    assert result.get()["y"].tolist() == [[3, 5, 7], [9, 11, 13]]


def test_versions_are_served_side_by_side_and_clients_see_the_shape_that_was_asked_for(served: Served) -> None:
    index = served.server.models()
    assert [each["version"] for each in index if each["name"] == "versions"] == ["1", "2"]
    (result,) = served.client.infer([{"x": [1.0, 2.0, 3.0]}], "versions")
    assert result.get()["y"].tolist() == [[3], [5], [7]]


def test_states_come_back_with_the_next_request_of_a_sequence(served: Served) -> None:
    requests = [{"x": [value, 10.0]} for value in (1.0, 2.0, 3.0)]
    answers = list(served.client.infer_sequence(requests, "sums"))
    assert [each["sum"].tolist() for each in answers] == [[1.5, 10.5], [3.5, 20.5], [6.5, 30.5]]
    with closing(served.client.infer_sequence(iter(requests), "sums")) as broken:
        assert next(broken)["sum"].tolist() == [1.5, 10.5]
    # which ended the sequence; the next one starts a new one
    assert next(served.client.infer_sequence(requests[:1], "sums"))["sum"].tolist() == [1.5, 10.5]
    with pytest.raises(InputError, match=r"'sums' is for streams; use Client\.infer_sequence"):
        served.client.infer(requests, "sums")
    with pytest.raises(InputError, match="'letters' keeps no states"):
        next(served.client.infer_sequence([{"x": [1, 2, 3]}], "letters"))


def test_a_bad_request_is_told_what_the_model_takes(served: Served) -> None:
    (result,) = served.client.infer([{"x": [1.0, 2.0, 3.0]}], "letters", parameters={"volume": 11})
    with pytest.raises(InputError, match="this model takes no request parameters, got volume"):
        result.get()


@dataclass(frozen=True)
class Plan:
    """A random graph: each input of a type goes to an output of its own, changed in a way that its type has."""

    types: tuple[str, ...]
    shapes: tuple[tuple[int | str, ...], ...]  # without the batch axis; text is an open axis
    batched: bool


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    types = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=2, max_size=5))
    types = [kind for kind in types if kind != "BF16"] if {*types} >= BOTH else types
    axis = st.one_of(st.integers(1, 3), st.sampled_from(["width", "length"]))
    shapes = [tuple(draw(st.lists(axis, max_size=3))) for _ in types]
    return Plan(tuple(types), tuple(shapes), draw(st.booleans()))


def graph_of(plan: Plan) -> onnx.ModelProto:
    nodes, inputs, outputs = [], {}, {}
    for index, (kind, shape) in enumerate(zip(plan.types, plan.shapes, strict=True)):
        name, out = f"in/{index}", f"out:{index}"
        full = [*(["batch"] if plan.batched else []), *shape]
        inputs[name] = outputs[out] = (TYPES[kind], full)
        if kind == "STRING":
            nodes.append(helper.make_node("Identity", [name], [out]))
        elif kind == "BOOL":
            nodes.append(helper.make_node("Not", [name], [out]))
        else:  # whose arithmetic onnxruntime has in float64 for all types
            wide = [f"{name}-{step}" for step in range(2)]
            nodes.append(helper.make_node("Cast", [name], [wide[0]], to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Add", [wide[0], wide[0]], [wide[1]]))
            nodes.append(helper.make_node("Cast", [wide[1]], [out], to=TYPES[kind]))
    return onnx_model(nodes, inputs, outputs)


def row_of(plan: Plan, generator: np.random.Generator) -> dict[str, Any]:
    """Arrays of one row, without the batch axis."""
    sizes = {"width": int(generator.integers(1, 5)), "length": int(generator.integers(1, 5))}
    row: dict[str, Any] = {}
    for index, (kind, shape) in enumerate(zip(plan.types, plan.shapes, strict=True)):
        full = tuple(sizes.get(each, each) if isinstance(each, str) else each for each in shape)
        if kind == "STRING":
            row[f"in/{index}"] = generator.choice(np.array([b"", "grün".encode(), b"a\nb"], object), full or (1,))
        elif kind in ("FP16", "FP32", "FP64", "BF16"):
            numbers = generator.normal(size=full or (1,)) * 100
            row[f"in/{index}"] = numbers.astype(np.float32 if kind == "BF16" else f"float{kind[2:]}")
        else:
            row[f"in/{index}"] = generator.integers(0, 2 if kind == "BOOL" else 60, full or (1,)).astype(kind.lower())
    return row


def expected_of(plan: Plan, row: Mapping[str, Any]) -> dict[str, Any]:
    """What onnxruntime itself computes, of float32 where it has no arrays of BF16 to give."""
    session = onnxruntime.InferenceSession(graph_of(_without_bfloat16(plan)).SerializeToString())
    fed = {}
    for index, (kind, shape) in enumerate(zip(plan.types, plan.shapes, strict=True)):
        array = row[f"in/{index}"].reshape(row[f"in/{index}"].shape if shape else ())
        if kind == "BF16":
            array = from_bfloat16(to_bfloat16(array))
        if kind == "STRING":
            array = np.array([each.decode() for each in array.ravel()], object).reshape(array.shape)
        fed[f"in/{index}"] = array[None] if plan.batched else array
    names = [f"out:{index}" for index in range(len(plan.types))]
    found = {}
    for name, kind, array in zip(names, plan.types, session.run(names, fed), strict=True):
        array = np.asarray(array)
        value = array.reshape(array.shape[int(plan.batched) :] or (1,))
        found[name] = from_bfloat16(to_bfloat16(value)) if kind == "BF16" else value
    return found


def _without_bfloat16(plan: Plan) -> Plan:
    return Plan(tuple("FP32" if kind == "BF16" else kind for kind in plan.types), plan.shapes, plan.batched)


def same(found: Any, expected: Any) -> bool:
    if expected.dtype == object:
        return found.shape == expected.shape and [each.decode() for each in found.flat] == list(expected.flat)
    return found.dtype == expected.dtype and found.shape == expected.shape and np.array_equal(found, expected)


@pytest.mark.slow
@settings(max_examples=2, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans=st.lists(plans(), min_size=4, max_size=4, unique=True), seed=st.integers(0, 2**31))
def test_random_graphs_answer_as_onnxruntime_does(
    served: Served, tmp_path_factory: pytest.TempPathFactory, plans: list[Plan], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("random")
    names = [f"{folder.name}-{index}" for index in range(len(plans))]
    for name, plan in zip(names, plans, strict=True):
        onnx.save(graph_of(plan), folder / f"{name}.onnx")
        export(folder / f"{name}.onnx", folder / name, **({} if plan.batched else {"max_batch_size": 0}))
        build_repository([folder / name], served.repository, names=[name], options=ModelOptions(threads=1))
    with ThreadPoolExecutor(len(names)) as pool:  # loading takes a second or more, most of it Python's start
        list(pool.map(lambda name: control(served, name, "load"), names))
    served.client.models()
    generator = np.random.default_rng(seed)
    for name, plan in zip(names, plans, strict=True):
        rows = [row_of(plan, generator) for _ in range(3)]
        model = tritone.load(folder / name, threads=1)
        assert bool(model.tensors.max_batch_size) == plan.batched
        for row, result in zip(rows, served.client.infer(rows, name), strict=True):
            expected = expected_of(plan, row)
            inside = model.infer({each: array[None] if plan.batched else array for each, array in row.items()})
            for output, array in result.get().items():
                assert same(array, expected[output]), (plan, output, array, expected[output])
                assert same(inside[output][0] if plan.batched else inside[output], expected[output])
        control(served, name, "unload")


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    for told, message in (
        ({"default_priority": 3, "priorities": 2}, "--default-priority must be 1 to --priorities"),
        ({"priority_timeouts_ms": (1.0,), "priorities": 2}, "must have one for each of --priorities"),
        ({"version_policy": "newest"}, "--version-policy"),
        ({"instances": "many"}, "does not say how many instances"),
    ):
        with pytest.raises((ValueError, TritoneError), match=message):
            checked(told)
