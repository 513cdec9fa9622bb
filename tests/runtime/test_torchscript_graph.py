"""TorchScript files: scripts that say what their modules say, and strangers' files that must do no harm."""

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
from tritone.errors import BundleError, ExportError, OperatorError
from tritone.families.export.torch_script import save_script
from tritone.runtime import TensorSpec, obstacle, open_graph
from tritone.runtime.torch.script import read_script

CPU = torch.device("cpu")
DYNAMIC = {"waveform": {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}}
# torch tells whoever makes or loads a script that torch.export is newer
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Net(nn.Module):
    """Some of everything that tracing writes: sizes and sums of them, lists, choices of types, indices, constants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(1, 8, 5, stride=2)
        self.norm = nn.BatchNorm1d(8)
        self.wide = nn.Linear(8, 30)
        self.narrow = nn.Linear(30, 6)
        self.transposed = nn.Parameter(torch.randn(6, 8).T)
        self.register_buffer("shift", torch.randn(6), persistent=False)

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        x = self.norm(self.conv(waveform.unsqueeze(1))).transpose(1, 2)
        y = self.narrow(torch.nn.functional.gelu(self.wide(x), approximate="tanh")) + x @ self.transposed
        left, right = torch.chunk(y + self.shift, 2, dim=-1)
        frames = waveform.shape[1] // 2 - 2 + waveform.shape[1] % 2  # as many as the convolution has
        places = torch.arange(frames + 1, 1, -1, dtype=torch.float32).flip(0).unsqueeze(0) - 2
        mask = places < torch.clamp(num_samples - 5, min=0).unsqueeze(1) / 2 + 1
        rows = torch.arange(y.shape[0]).unsqueeze(1) * frames + torch.arange(frames)
        right = right.reshape(-1, 3).index_select(0, rows.flatten()).reshape(y.shape[0], frames, 3)
        left = torch.where(left > 3, left, left.to(torch.float16).to(torch.float32)).masked_fill(
            ~mask[:, : left.shape[1], None], float("-inf")
        )
        scores = torch.nn.functional.pad(torch.cat([left, right], dim=-1), (0, 0, 0, -frames % 4))[:, :frames]
        return torch.log_softmax(scores, dim=-1), torch.clamp(num_samples - 3, min=0) // 2


def save(module: nn.Module, path: Path) -> Path:
    inputs = {"waveform": torch.randn(3, 21), "num_samples": torch.tensor([21, 8, 0])}
    save_script(module.eval(), path, inputs, ["log_probs", "num_frames"], DYNAMIC, {"made": "here"})
    return path


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(Net(), tmp_path_factory.mktemp("script") / "net.ts")


def feed(batch: int, samples: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 1000 + samples)
    waveform = rng.normal(size=(batch, samples)).astype(np.float32)
    return {"waveform": waveform, "num_samples": rng.integers(0, samples + 1, batch)}


def expected(module: nn.Module, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    with torch.no_grad():
        return [result.numpy() for result in module.eval()(*map(torch.from_numpy, inputs.values()))]


@pytest.mark.parametrize(("batch", "samples"), [(1, 5), (1, 400), (2, 21), (7, 6)])
def test_a_script_says_what_its_module_says_for_batches_and_lengths_that_were_not_traced(
    script: Path, batch: int, samples: int
) -> None:
    inputs = feed(batch, samples)
    log_probs, num_frames = expected(Net(), inputs)
    found, frames, tokens, best = open_graph(script, threads=1)(
        inputs, ["log_probs", "num_frames", "best_tokens", "best_log_probs"]
    )
    np.testing.assert_allclose(found, log_probs, atol=1e-5)
    np.testing.assert_array_equal(frames, num_frames)
    np.testing.assert_array_equal(tokens, found.argmax(axis=2))
    np.testing.assert_array_equal(best, found.max(axis=2))


def test_inputs_and_outputs_have_their_names_types_and_free_axes(script: Path) -> None:
    graph = open_graph(script)
    float32, int64 = np.dtype(np.float32), np.dtype(np.int64)
    assert graph.inputs == {"waveform": TensorSpec(float32, (None, None)), "num_samples": TensorSpec(int64, (None,))}
    assert graph.outputs == {
        "log_probs": TensorSpec(float32, (None, None, 6)),
        "num_frames": TensorSpec(int64, (None,)),
        "best_tokens": TensorSpec(int64, (None, None)),
        "best_log_probs": TensorSpec(float32, (None, None)),
    }
    assert obstacle("torchscript", "cpu") is None


def test_torchs_own_loader_reads_what_we_write_and_no_device_is_written_into_it(script: Path) -> None:
    inputs = feed(2, 60)
    loaded = torch.jit.load(script)
    found = loaded(*map(torch.from_numpy, inputs.values()))
    np.testing.assert_allclose(found[0].numpy(), expected(Net(), inputs)[0], atol=1e-5)
    assert "device(" in code(script)
    assert '"cpu"' not in code(script)


def test_a_function_computes_no_more_than_what_is_asked_for(script: Path) -> None:
    read = read_script(script, CPU)
    counting = {node.name for node in read.function(["num_frames"]).__self__.graph.nodes if node.op == "call_function"}  # type: ignore[attr-defined]
    assert 0 < len(counting) <= 3


class Counter(nn.Module):
    """A state that is kept from step to step."""

    def forward(self, waveform: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        total = total + waveform.sum(dim=1)
        return total * 2, total


def test_streams_keep_their_states_between_steps(tmp_path: Path) -> None:
    inputs = {"waveform": torch.ones(2, 3), "total": torch.zeros(2)}
    dynamic = {name: {0: "batch"} for name in inputs}
    save_script(Counter(), tmp_path / "g.ts", inputs, ["doubled", "next_total"], dynamic, {})
    graph = open_graph(tmp_path / "g.ts", threads=1)
    slots = graph.slots({"total": TensorSpec(np.dtype(np.float32), ())}, 3)
    for slot in range(3):
        slots.clear(slot)
    slots.reserve(2)
    assert slots([2, 0], {"waveform": np.float32([[1, 2, 3], [1, 1, 1]])}, ["doubled"])[0].tolist() == [12, 6]
    assert slots([0, 1], {"waveform": np.float32([[0, 0, 1], [0, 0, 2]])}, ["doubled"])[0].tolist() == [8, 4]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
def test_a_script_that_was_traced_on_the_cpu_runs_on_a_gpu_also_when_calls_are_recorded(
    script: Path, tmp_path: Path
) -> None:
    graph, names = open_graph(script, "cuda"), ["log_probs", "num_frames", "best_tokens"]
    for _ in range(5):
        for batch, samples in ((1, 400), (7, 31)):
            inputs = feed(batch, samples)
            log_probs, num_frames = expected(Net(), inputs)
            found, frames, tokens = graph(inputs, names)
            np.testing.assert_allclose(found, log_probs, atol=1e-3)
            np.testing.assert_array_equal(frames, num_frames)
            np.testing.assert_array_equal(tokens, found.argmax(axis=2))
    assert len(graph._replays._recorded) == 2  # type: ignore[attr-defined]
    inputs = {"waveform": torch.ones(2, 3), "total": torch.zeros(2)}
    dynamic = {name: {0: "batch"} for name in inputs}
    save_script(Counter(), tmp_path / "g.ts", inputs, ["doubled", "next_total"], dynamic, {})
    slots = open_graph(tmp_path / "g.ts", "cuda").slots({"total": TensorSpec(np.dtype(np.float32), ())}, 2)
    for slot in range(2):
        slots.clear(slot)
    for step in range(1, 5):
        [doubled] = slots([1, 0], {"waveform": np.float32([[1, 0, 0], [0, 0, 2]])}, ["doubled"])
        assert doubled.tolist() == [2 * step, 4 * step]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scripts_compute_in_half_precisions(tmp_path: Path, dtype: torch.dtype) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.linear = nn.Linear(7, 5).to(dtype)

        def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
            return self.linear(waveform[:, :7].to(dtype)).unsqueeze(1).float(), num_samples

    inputs = feed(3, 9)
    [found] = open_graph(save(Half(), tmp_path / "half.ts"), threads=1)(inputs, ["log_probs"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(Half(), inputs)[0], atol=1e-2)


def of_one_size(waveform: Tensor, num_samples: Tensor) -> Tensor:
    return waveform.unsqueeze(2) + torch.zeros(int(waveform.shape[1]), 4)


def of_one_value(waveform: Tensor, num_samples: Tensor) -> Tensor:
    return waveform.unsqueeze(2) * float(num_samples.max())


def of_one_branch(waveform: Tensor, num_samples: Tensor) -> Tensor:
    return waveform.unsqueeze(2) if waveform.mean() > 0.01 * waveform[0, 0].sign() else -waveform.unsqueeze(2)


@pytest.mark.parametrize("function", [of_one_size, of_one_value, of_one_branch])
def test_what_tracing_would_take_for_a_constant_is_refused(tmp_path: Path, function: Any) -> None:
    class Module(nn.Module):
        def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
            return function(waveform, num_samples), num_samples

    torch.manual_seed(0)
    with pytest.raises(ExportError, match=r"g\.ts would hold for inputs of one size.*test_torchscript_graph\.py:\d+"):
        save(Module(), tmp_path / "g.ts")
    assert not (tmp_path / "g.ts").exists()


# Strangers' files.


def code_record(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".py")]
    return name.partition("/")[2]


def code(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return archive.read(f"{archive.namelist()[0].partition('/')[0]}/{code_record(path)}").decode()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script of a few lines with one constant, of two numbers in the middle of a record of six."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("c", torch.arange(6.0)[1:3])

        def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
            return (waveform.unsqueeze(2) + self.c).relu(), num_samples.clamp(min=0)

    return save(Small(), tmp_path_factory.mktemp("small") / "small.ts")


def with_body(source: Path, target: Path, *lines: str, rest: str = "") -> Path:
    """A script whose function has other statements."""
    text = code(source)
    head = text[: text.index("Tensor]:") + len("Tensor]:")] if "Tensor]:" in text else text
    body = "".join(f"\n    {line}" for line in lines)
    return pt2.rewrite(source, target, {code_record(source): f"{head}{body}\n{rest}".encode()})


RETURN = "return (_0, num_samples, num_samples, _0)"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('torch.save(waveform, "{file}")', "does more than to compute one value after the other"),
        ('_1 = torch.save(waveform, "{file}")', "aten.save, which is not among the operators"),
        ('_1 = torch.from_file("{file}", True, 4, dtype=0)', "aten.from_file, which is not among"),
        ('_1 = ops.aten.save(waveform, "{file}")', "aten.save, which is not among"),
        ("_1 = ops.prim.Print(waveform)", "'ops.prim.Print', which is not among the operators"),
        ("_1 = ops.rpc.rpc_sync(waveform)", "'ops.rpc.rpc_sync'"),
        ("_1 = __torch__.torch.classes.x.Y.__new__(waveform)", "which is not among the operators"),
        ("_1 = open('{file}', 'w')", "'open', which is not among"),
        ("_1 = self.training", "it uses 'self.training'"),
        ("_1 = torch.relu_(waveform)", "aten.relu_, which is not among the operators"),
        ("_1 = torch.as_strided(waveform, [9], [1], 0)", "aten.as_strided, which is not among"),
        ("_1 = torch.empty([3])", "aten.empty, which is not among"),
        ("_1 = torch.rand([3])", "aten.rand, which is not among"),
        ("_1 = torch.add(waveform, waveform, out=waveform)", r"aten.add.out, which changes its arguments"),
        ("_1 = torch.relu(waveform, 3)", "aten.relu with arguments that no form of it takes"),
        ("_1 = int(torch.max(num_samples))", "a number with 'int' of something other than a size"),
        ("_1 = torch.div(waveform, waveform, rounding_mode='__import__(os)')", "arguments that no form of it takes"),
        ("_1 = CONSTANTS.c99", "IndexError"),
        ("_1 = [x for x in waveform]", "which a graph must not"),
        ("_1 = [[1], [2]]", "which a graph must not"),
        ("_1 = (lambda: waveform)()", "'', which is not among the operators"),
        ("while True:\n      pass", "does more than to compute one value after the other"),
        ("import os", "does more than to compute one value after the other"),
        ("_1 = torch.zeros([1099511627776, 4096])", "too little free memory|not usable"),
    ],
)
def test_what_a_graph_must_not_do_is_refused_by_name_before_anything_runs(
    small: Path, tmp_path: Path, line: str, said: str
) -> None:
    path = with_body(
        small, tmp_path / "g.ts", "_0 = torch.relu(waveform)", line.replace("{file}", str(tmp_path / "out")), RETURN
    )
    with pytest.raises((BundleError, OperatorError), match=said):
        open_graph(path)
    assert not (tmp_path / "out").exists()


def test_code_that_torch_would_run_when_it_loads_a_file_is_not_run(small: Path, tmp_path: Path) -> None:
    rest = f'  def __setstate__(self: __torch__.S, state: int) -> None:\n    torch.save(state, "{tmp_path / "out"}")\n'
    path = with_body(small, tmp_path / "g.ts", "_0 = torch.relu(waveform)", RETURN, rest=rest)
    with pytest.raises(BundleError, match="function forward and no other, this one has forward, __setstate__"):
        open_graph(path)
    assert not (tmp_path / "out").exists()


def test_a_file_of_torchs_own_compiler_is_refused(tmp_path: Path) -> None:
    @torch.jit.script
    def loop(x: Tensor) -> Tensor:
        while bool(x.sum() > 0):
            x = x - 1
        return x

    torch.jit.save(loop, str(tmp_path / "loop.ts"))
    with pytest.raises(BundleError, match=r"loop\.ts: it does not say what its inputs and outputs are"):
        open_graph(tmp_path / "loop.ts")


class Call:
    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def table(small: Path, change: Callable[[bytes], bytes]) -> bytes:
    with zipfile.ZipFile(small) as archive:
        return change(archive.read("small/constants.pkl"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: pickle.dumps(Call(print, "harm"), 2), r"more than tensors \(.*print\)"),
        (lambda content: pickle.dumps((1, 2), 2), "more than tensors"),
        (lambda content: pickle.dumps(Call(torch.zeros, 3), 2), r"more than tensors"),
        (lambda content: content.replace(b"_rebuild_tensor_v2", b"_rebuild_parameter"), "_rebuild_parameter"),
        (lambda content: content.replace(b"(K\x02t", b"(M\xff\x7ft"), r"does not fit its record: \(32767,\)"),
        (lambda content: content.replace(b"FloatStorage", b"WildStorage_"), r"torch\.WildStorage_"),
        (lambda content: content[:40], "is damaged or holds more than tensors"),
        (lambda content: b"", "not usable"),
    ],
)
def test_a_table_of_constants_can_make_nothing_but_tensors_over_its_records(
    small: Path, tmp_path: Path, change: Callable[[bytes], bytes], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = table(small, change)
    assert changed != table(small, bytes)
    path = pt2.rewrite(small, tmp_path / "g.ts", {"constants.pkl": changed})
    with pytest.raises(BundleError, match=said):
        open_graph(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"extra/tritone.json": None}, "does not say what its inputs and outputs are"),
        ({"extra/tritone.json": b"[]"}, "must hold an object"),
        ({"extra/tritone.json": b'{"inputs": [], "outputs": []}'}, "it takes 2 tensors and calls them"),
        (
            {"extra/tritone.json": b'{"inputs": [{"name": "a", "dtype": "object", "shape": []}]}'},
            "has the type 'object'",
        ),
        ({"extra/tritone.json": b'{"inputs": [{"name": "a", "dtype": "int64", "shape": [-1]}]}'}, "has the shape"),
        ({"code/__torch__/more.py": b"class A(Module):\n  x : int\n"}, "it has 2 files of code"),
        ({"byteorder": b"big"}, "not little-endian"),
        ({"constants/0": b"abc"}, "no multiple of 4"),
    ],
)
def test_records_that_are_not_what_they_should_be_are_refused(
    small: Path, tmp_path: Path, changes: dict[str, bytes | None], said: str
) -> None:
    with pytest.raises(BundleError, match=said):
        open_graph(pt2.rewrite(small, tmp_path / "g.ts", changes))


@pytest.mark.parametrize(
    "text", [b"\x00", b"x = 1\n", b"class A(Module):\n  " + b"(" * 5000, b"\xff\xfe", b" " * (2**23 + 1)]
)
def test_code_that_is_none_is_refused(small: Path, tmp_path: Path, text: bytes) -> None:
    with pytest.raises(BundleError):
        open_graph(pt2.rewrite(small, tmp_path / "g.ts", {code_record(small): text}))


def test_deeply_nested_code_is_refused_and_not_followed(small: Path, tmp_path: Path) -> None:
    deep = "torch.relu(" * 80 + "waveform" + ")" * 80
    path = with_body(small, tmp_path / "g.ts", f"_0 = {deep}", RETURN)
    assert open_graph(path).inputs
    deeper = "-" * 100_000 + "1"
    with pytest.raises(BundleError):
        open_graph(with_body(small, tmp_path / "h.ts", f"_0 = {deeper}", RETURN))


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.ts").write_bytes(b"no archive")
    with pytest.raises(BundleError, match=r"not an archive of torch\.jit"):
        open_graph(tmp_path / "g.ts")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_is_an_error_that_names_the_file_or_does_not_matter(
    small: Path, tmp_path: Path, data: st.DataObject
) -> None:
    record = data.draw(st.sampled_from([code_record(small), "constants.pkl", "extra/tritone.json"]))
    with zipfile.ZipFile(small) as archive:
        content = bytearray(archive.read(f"small/{record}"))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = pt2.rewrite(small, tmp_path / "g.ts", {record: bytes(content)})
    try:
        graph = open_graph(path, threads=1)
    except (BundleError, OperatorError) as error:
        assert str(path) in str(error)  # noqa: PT017  either outcome is right
    else:
        assert len(graph.inputs) == 2
