"""Reading .pt2 files: programs that say what they should, and strangers' files that must do no harm."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pt2
from effort import examples
from tritone.errors import BundleError
from tritone.families.export.torch_program import rounded, save_program
from tritone.runtime import Graph, TensorSpec, open_graph
from tritone.runtime.files.program import read_program

CPU = torch.device("cpu")


class Net(nn.Module):
    """Some of everything that a description can hold: weights that are views, constants, numbers, lists, choices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(1, 8, 5, stride=2)
        self.norm = nn.BatchNorm1d(8)
        self.wide = nn.Linear(8, 300)
        self.narrow = nn.Linear(300, 6)
        self.transposed = nn.Parameter(torch.randn(6, 8).T)
        self.register_buffer("shift", torch.randn(6), persistent=False)

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        x = self.norm(self.conv(waveform.unsqueeze(1))).transpose(1, 2)
        y = self.narrow(torch.nn.functional.gelu(self.wide(x), approximate="tanh")) + x @ self.transposed
        left, right = torch.chunk(y + self.shift, 2, dim=-1)
        steps = torch.arange(y.shape[1], dtype=torch.float32).unsqueeze(0)
        mask = steps < torch.clamp(num_samples - 5, min=0).unsqueeze(1) / 2 + 1
        scores = torch.cat([left.masked_fill(~mask.unsqueeze(2), float("-inf")), right], dim=-1)
        return torch.log_softmax(scores, dim=-1), torch.clamp(num_samples - 3, min=0) // 2


def save(module: nn.Module, path: Path, **options: Any) -> Path:
    inputs = {"waveform": torch.zeros(3, 21), "num_samples": torch.tensor([21, 8, 0])}
    dynamic = {"waveform": {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}}
    save_program(module.eval(), path, inputs, ["log_probs", "num_frames"], dynamic, {}, **options)
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(Net(), tmp_path_factory.mktemp("program") / "net.pt2")


def feed(batch: int, samples: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 1000 + samples)
    waveform = rng.normal(size=(batch, samples)).astype(np.float32)
    return {"waveform": waveform, "num_samples": rng.integers(0, samples + 1, batch)}


def expected(module: nn.Module, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    with torch.no_grad():
        return [result.numpy() for result in module.eval()(*map(torch.from_numpy, inputs.values()))]


@pytest.mark.parametrize(("batch", "samples"), [(1, 5), (1, 400), (2, 21), (7, 6)])
def test_a_program_says_what_its_module_says_for_batches_and_lengths_that_were_not_traced(
    program: Path, batch: int, samples: int
) -> None:
    inputs = feed(batch, samples)
    log_probs, num_frames = expected(Net(), inputs)
    found, frames, tokens, best = open_graph(program, threads=1)(
        inputs, ["log_probs", "num_frames", "best_tokens", "best_log_probs"]
    )
    np.testing.assert_allclose(found, log_probs, atol=1e-5)
    np.testing.assert_array_equal(frames, num_frames)
    np.testing.assert_array_equal(tokens, found.argmax(axis=2))
    np.testing.assert_array_equal(best, found.max(axis=2))


def test_inputs_and_outputs_have_the_names_that_they_were_given(program: Path) -> None:
    graph = open_graph(program)
    float32, int64 = np.dtype(np.float32), np.dtype(np.int64)
    assert graph.inputs == {"waveform": TensorSpec(float32, (None, None)), "num_samples": TensorSpec(int64, (None,))}
    assert graph.outputs == {
        "log_probs": TensorSpec(float32, (None, None, 6)),
        "num_frames": TensorSpec(int64, (None,)),
        "best_tokens": TensorSpec(int64, (None, None)),
        "best_log_probs": TensorSpec(float32, (None, None)),
    }


def test_a_file_of_torch_itself_has_torchs_names(tmp_path: Path) -> None:
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    torch.export.save(
        torch.export.export(nn.Linear(3, 2), (torch.zeros(4, 3),), dynamic_shapes=dynamic), tmp_path / "g.pt2"
    )
    graph = open_graph(tmp_path / "g.pt2")
    assert (list(graph.inputs), list(graph.outputs)) == (["input"], ["linear"])


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # of torch 2.11's loader
def test_torchs_own_loader_reads_what_we_write(program: Path) -> None:
    inputs = feed(2, 60)
    loaded = torch.export.load(program).module()
    with torch.no_grad():
        found = loaded(*map(torch.from_numpy, inputs.values()))
    np.testing.assert_allclose(found[0].numpy(), expected(Net(), inputs)[0], atol=1e-5)


def test_a_function_computes_no_more_than_what_is_asked_for(program: Path) -> None:
    read = read_program(program, CPU)
    counting = {node.name for node in read.function(["num_frames"]).__self__.graph.nodes if node.op == "call_function"}  # type: ignore[attr-defined]
    assert 0 < len(counting) <= 3
    with pytest.raises(ValueError, match="the graph has no output text; it has log_probs, num_frames"):
        read.function(["num_frames", "text"])


def test_what_does_not_depend_on_the_inputs_is_computed_once(tmp_path: Path) -> None:
    class Table(nn.Module):
        def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
            rates = torch.exp(torch.arange(0, 8, dtype=torch.float32) * -0.5)
            return waveform.unsqueeze(2) * rates, num_samples

    save(Table(), tmp_path / "g.pt2")
    read = read_program(tmp_path / "g.pt2", CPU)
    targets = {str(node.target) for node in read.graph.nodes if node.op == "call_function"}
    assert not targets & {"aten.arange.start", "aten.arange.start_step", "aten.exp.default"}
    np.testing.assert_allclose(read.constants["c0"], np.exp(-0.5 * np.arange(8)), rtol=1e-6)


def test_narrow_weights_take_half_the_room_and_are_widened_when_the_file_is_opened(tmp_path: Path) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.linear = nn.Linear(400, 400)

        def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
            return self.linear(waveform.unsqueeze(2).expand(-1, -1, 400)), num_samples

    module = Wide()
    save(module, tmp_path / "wide.pt2")
    save(rounded(module), tmp_path / "narrow.pt2", narrow_weights=True)
    sizes = [(tmp_path / f"{name}.pt2").stat().st_size for name in ("wide", "narrow")]
    assert sizes[1] < 0.6 * sizes[0]
    read = read_program(tmp_path / "narrow.pt2", CPU)
    assert {constant.dtype for constant in read.constants.values()} == {torch.float32}
    assert not [node for node in read.graph.nodes if "to" in str(node.target)]
    inputs = feed(2, 9)
    (found,) = open_graph(tmp_path / "narrow.pt2", threads=1)(inputs, ["log_probs"])
    np.testing.assert_allclose(found, expected(rounded(module), inputs)[0], atol=1e-5)
    assert np.abs(found - expected(module, inputs)[0]).max() > 0, "rounding is no loss for this model"


def test_a_constant_result_can_be_written_to(tmp_path: Path) -> None:
    class Constant(nn.Module):
        def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
            return waveform * 2, torch.arange(3)

    save(Constant(), tmp_path / "g.pt2")
    graph = open_graph(tmp_path / "g.pt2")
    for _ in range(2):
        (result,) = graph(feed(1, 4), ["num_frames"])
        assert result.tolist() == [0, 1, 2]
        result[:] = 7


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def code(path: Path) -> str:
    return f"__import__('pathlib').Path({str(path)!r}).touch()"


def harmless(tmp_path: Path, program: Path) -> dict[str, Path]:
    """Files with traps in places that are never looked at, and that torch's own loader would step into."""
    trap, trapped = tmp_path / "trap", {}
    pickled = pickle.dumps(Bomb(trap))
    trapped["example inputs"] = pt2.rewrite(program, tmp_path / "a.pt2", {"data/sample_inputs/model.pt": pickled})
    trapped["compiled code"] = pt2.rewrite(program, tmp_path / "b.pt2", {"data/aotinductor/model/x.so": b"\x7fELF"})

    def guard(model: Any) -> None:
        model["guards_code"] = [code(trap)]

    def symbol(model: Any) -> None:
        for value in model["graph_module"]["graph"]["sym_int_values"].values():
            value["as_expr"]["expr_str"] = code(trap)

    def tree(model: Any) -> None:
        entry = model["graph_module"]["module_call_graph"][0]["signature"]
        entry["in_spec"] = json.dumps([1, {"type": "builtins.tuple", "context": code(trap), "children_spec": []}])

    for name, change in (("guards", guard), ("symbols", symbol), ("trees", tree)):
        trapped[name] = pt2.edited(program, tmp_path / f"{name}.pt2", pt2.MODEL, change)
    return trapped


def test_traps_outside_of_what_is_needed_are_not_stepped_into(program: Path, tmp_path: Path) -> None:
    inputs = feed(2, 30)
    (before,) = open_graph(program, threads=1)(inputs, ["log_probs"])
    for name, path in harmless(tmp_path, program).items():
        (found,) = open_graph(path, threads=1)(inputs, ["log_probs"])
        np.testing.assert_array_equal(found, before, err_msg=name)
    assert not (tmp_path / "trap").exists()


def pickled_weight(config: Any) -> None:
    next(iter(config["config"].values())).update(use_pickle=True)


def custom_object(config: Any) -> None:
    config["config"]["object"] = {"path_name": "custom_obj_0", "is_param": False, "use_pickle": True}


def beyond_its_record(config: Any) -> None:
    next(iter(config["config"].values()))["tensor_meta"]["sizes"] = [{"as_int": 2**40}]


def before_its_record(config: Any) -> None:
    next(iter(config["config"].values()))["tensor_meta"]["storage_offset"] = {"as_int": -8}


def another_type(config: Any) -> None:
    next(iter(config["config"].values()))["tensor_meta"]["dtype"] = 99


def another_file(config: Any) -> None:
    next(iter(config["config"].values()))["path_name"] = "../../../../../etc/passwd"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (pickled_weight, r"module\.transposed is a pickled object, which could run any code"),
        (custom_object, "object is a pickled object"),
        (beyond_its_record, r"does not fit its record: \[1099511627776\]"),
        (before_its_record, "does not fit its record"),
        (another_type, "tensors of type 99"),
        (another_file, r"has no record 'data/weights/\.\./\.\./"),
        (lambda config: config.update(config=[]), "config must be a dict"),
        (lambda config: config["config"].pop("module.wide.weight"), "KeyError: 'module.wide.weight'"),
    ],
)
def test_weights_that_are_not_plain_numbers_of_the_file_are_refused(
    program: Path, tmp_path: Path, change: Callable[[Any], object], told: str
) -> None:
    trap = tmp_path / "trap"
    bomb = {f"data/weights/weight_{index}": pickle.dumps(Bomb(trap)) for index in range(12)}
    content = pt2.read_json(program, pt2.WEIGHTS)
    change(content)
    changes = {pt2.WEIGHTS: json.dumps(content).encode(), **(bomb if change is pickled_weight else {})}
    with pytest.raises(BundleError, match=told):
        open_graph(pt2.rewrite(program, tmp_path / "g.pt2", changes))
    assert not trap.exists()


def call(target: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        pt2.nodes(model)[5]["target"] = target

    return change


def argument(value: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        pt2.node(model, "torch.ops.aten.gelu.default")["inputs"][1]["arg"] = value

    return change


def another_input(kind: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model["graph_module"]["signature"]["input_specs"].append({kind: {"arg": {"name": "x"}}})

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (call("torch.ops.aten.from_file.default"), r"calls aten\.from_file, which is not among the operators"),
        (call("torch.ops.aten.normal_.default"), r"calls aten\.normal_, which is not"),
        (call("torch.ops.aten.add.out"), r"aten\.add\.out, which changes its arguments"),
        (call("torch.ops.aten.add.__class__"), r"aten\.add\.__class__, which torch .* does not have"),
        (call("torch.ops.mylib.anything.default"), r"calls 'torch\.ops\.mylib\.anything\.default', which is not"),
        (call("os.system"), r"calls 'os\.system', which is not"),
        (call("_operator.attrgetter"), r"calls '_operator\.attrgetter', which is not"),
        (call("torch.ops.higher_order.cond"), "which is not among the operators"),
        (argument({"as_string": "/etc/passwd"}), "has the argument .*/etc/passwd.*, which is not allowed"),
        (argument({"as_graph": {"name": "g", "graph": {}}}), "has the argument"),
        (argument({"as_tensor": {"name": "nobody"}}), "not usable .*nobody"),
        (argument({"as_int": "1; import os"}), "expected a number"),
        (another_input("custom_obj"), "an input of kind 'custom_obj'"),
        (another_input("token"), "an input of kind 'token'"),
        (lambda m: m["graph_module"]["signature"]["output_specs"].append({"buffer_mutation": {}}), "must not change"),
        (lambda m: m["schema_version"].update(major=9), r"in schema \{'major': 9.*known is 8"),
        (lambda m: m.pop("graph_module"), "graph_module must be a dict"),
        (lambda m: m["graph_module"]["graph"].update(nodes=[[]] * (2**18 + 1)), "at most 262144 are allowed"),
        (lambda m: m["graph_module"]["graph"].update(nodes=[1]), "its description is not usable"),
    ],
)
def test_descriptions_that_ask_for_more_than_arithmetic_are_refused(
    program: Path, tmp_path: Path, change: Callable[[Any], object], told: str
) -> None:
    with pytest.raises(BundleError, match=told):
        open_graph(pt2.edited(program, tmp_path / "g.pt2", pt2.MODEL, change))


def with_names(program: Path, path: Path, names: Any) -> Path:
    return pt2.rewrite(program, path, {"extra/tritone.json": json.dumps(names).encode()})


@pytest.mark.parametrize("names", [{"inputs": ["a"]}, {"inputs": ["a", "a"]}, {"inputs": [1, 2]}, {"outputs": 7}, []])
def test_names_that_do_not_fit_are_refused(program: Path, tmp_path: Path, names: Any) -> None:
    with pytest.raises(BundleError, match=r"cannot open .*g\.pt2"):
        open_graph(with_names(program, tmp_path / "g.pt2", names))


def test_what_is_no_archive_of_torch_export_is_refused(program: Path, tmp_path: Path) -> None:
    def refused(content: bytes) -> str:
        (tmp_path / "g.pt2").write_bytes(content)
        with pytest.raises(BundleError, match=r"cannot open .*g\.pt2") as caught:
            open_graph(tmp_path / "g.pt2")
        return str(caught.value)

    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(Bomb(tmp_path / "trap")))
    whole = program.read_bytes()
    assert "not an archive" in refused(b"")
    assert "not an archive" in refused(whole[: len(whole) // 2])
    assert "has no record 'archive_format'" in refused(other.getvalue())
    pt2.rewrite(program, tmp_path / "h.pt2", {"archive_format": b"pt9"})
    assert "of kind b'pt9'" in refused((tmp_path / "h.pt2").read_bytes())
    pt2.rewrite(program, tmp_path / "h.pt2", {pt2.MODEL: b"[" * 100_000})
    assert "is not valid JSON" in refused((tmp_path / "h.pt2").read_bytes())
    pt2.rewrite(program, tmp_path / "h.pt2", {pt2.MODEL: None})
    assert "has no record 'models/model.json'" in refused((tmp_path / "h.pt2").read_bytes())
    assert not (tmp_path / "trap").exists()


def test_a_small_file_cannot_unpack_to_a_huge_one(program: Path, tmp_path: Path) -> None:
    zeros = {"data/weights/weight_0": bytes(2**22)}
    pt2.rewrite(program, tmp_path / "g.pt2", zeros, zipfile.ZIP_DEFLATED)
    with pytest.raises(BundleError, match="is compressed, as torch never writes it"):
        open_graph(tmp_path / "g.pt2")


def test_a_flipped_bit_of_a_weight_is_noticed(program: Path, tmp_path: Path) -> None:
    content = bytearray(program.read_bytes())
    with zipfile.ZipFile(program) as archive:
        first = next(each for each in archive.infolist() if each.filename.endswith("weight_0"))
    content[first.header_offset + 200] ^= 4
    (tmp_path / "g.pt2").write_bytes(content)
    with pytest.raises(BundleError, match=r"record .* is damaged"):
        open_graph(tmp_path / "g.pt2")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in items for place in places(each, (*path, key)))]


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_a_description_gives_a_graph_or_a_bundle_error(
    program: Path, tmp_path: Path, data: st.DataObject
) -> None:
    record = data.draw(st.sampled_from([pt2.MODEL, pt2.WEIGHTS, pt2.CONSTANTS, "extra/tritone.json"]))
    content = pt2.read_json(program, record)
    place = data.draw(st.sampled_from(places(content)))
    value = data.draw(json_values)
    if place:
        parent = content
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = value
    else:
        content = value
    path = pt2.rewrite(program, tmp_path / "g.pt2", {record: json.dumps(content).encode()})
    graph: Graph | None = None
    try:
        graph = open_graph(path, threads=1)
    except BundleError as error:
        assert str(path) in str(error)  # noqa: PT017  either outcome is right
    assert graph is None or graph.outputs
