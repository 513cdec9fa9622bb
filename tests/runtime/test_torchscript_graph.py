"""TorchScript files: scripts compute what their modules compute, and are loaded only where somebody asks for them."""

import json
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pt2
from toy import write_toy_bundle
from tritone.bundle import Bundle
from tritone.errors import BundleError, ExportError, OperatorError
from tritone.families.export.torch_script import save_script
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import Placement
from tritone.repository import build_repository
from tritone.runtime import TensorSpec, obstacle, open_graph
from tritone.runtime.torch.script import ALLOW_TF32, read_script

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
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.backends.cudnn, "allow_tf32", True)  # as torch has it, whoever turned it off before
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


def test_convolutions_of_a_script_are_not_rounded_to_tf32(script: Path) -> None:
    """As those of other programs on a GPU, whatever the settings were where it was traced."""
    assert torch.ops.aten._convolution.default._schema.arguments[ALLOW_TF32].name == "allow_tf32"
    kept, settled = torch.jit.load(script), read_script(script, torch.device("cpu")).module
    for module, allowed in ((kept, True), (settled, False)):
        nodes = module.graph.findAllNodes("aten::_convolution")
        assert [list(node.inputs())[ALLOW_TF32].toIValue() for node in nodes] == [allowed]


@pytest.mark.gpu
def test_a_script_that_was_traced_on_the_cpu_runs_on_a_gpu(script: Path, tmp_path: Path) -> None:
    graph, names = open_graph(script, "cuda"), ["log_probs", "num_frames", "best_tokens"]
    for _ in range(5):
        for batch, samples in ((1, 400), (7, 31)):
            inputs = feed(batch, samples)
            log_probs, num_frames = expected(Net(), inputs)
            found, frames, tokens = graph(inputs, names)
            np.testing.assert_allclose(found, log_probs, atol=1e-3)
            np.testing.assert_array_equal(frames, num_frames)
            np.testing.assert_array_equal(tokens, found.argmax(axis=2))
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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script of a few lines."""

    class Small(nn.Module):
        def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
            return waveform.unsqueeze(2).relu(), num_samples.clamp(min=0)

    return save(Small(), tmp_path_factory.mktemp("small") / "small.ts")


def code(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".py")]
        return archive.read(name).decode()


def test_a_script_that_tritone_did_not_write_is_refused_before_any_of_its_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @torch.jit.script
    def double(x: Tensor) -> Tensor:
        return x * 2

    torch.jit.save(double, str(tmp_path / "double.ts"))
    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(BundleError, match=r"double\.ts: it does not say what its inputs and outputs are"):
        open_graph(tmp_path / "double.ts")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"extra/tritone.json": None}, "does not say what its inputs and outputs are"),
        ({"extra/tritone.json": b"[]"}, "must hold an object"),
        ({"extra/tritone.json": b"{"}, "not valid JSON"),
        ({"extra/tritone.json": b'{"inputs": [], "outputs": []}'}, "it takes 2 tensors and calls them"),
        ({"extra/tritone.json": b'{"inputs": [{"name": "a", "dtype": "object", "shape": []}]}'}, "of type 'object'"),
        ({"extra/tritone.json": b'{"inputs": [{"name": "a", "dtype": "int64", "shape": [-1]}]}'}, "shape \\[-1\\]"),
        ({"extra/tritone.json": b'{"inputs": [{"name": "a"}]}'}, "dtype must be a str"),
        ({"byteorder": b"big"}, "not little-endian"),
        ({"constants.pkl": b""}, "torch cannot load it"),
    ],
)
def test_records_that_are_not_what_they_should_be_are_refused(
    small: Path, tmp_path: Path, changes: dict[str, bytes | None], said: str
) -> None:
    with pytest.raises(BundleError, match=said):
        open_graph(pt2.rewrite(small, tmp_path / "g.ts", changes))


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.ts").write_bytes(b"no archive")
    with pytest.raises(BundleError, match=r"not an archive of torch\.jit"):
        open_graph(tmp_path / "g.ts")


def test_an_output_that_a_script_does_not_have_is_an_error_with_those_it_has(script: Path) -> None:
    with pytest.raises(ValueError, match="no output logits; it has log_probs, num_frames, best_tokens"):
        open_graph(script)(feed(1, 9), ["logits"])


def test_a_bundles_scripts_run_only_where_somebody_asks_for_them(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write_toy_bundle(tmp_path / "b", streaming=False)
    (bundle / "encoder.ts").write_bytes(small.read_bytes())
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    [encoder] = [each for each in manifest["artifacts"] if each["role"] == "encoder"]
    digest = sha256(small.read_bytes()).hexdigest()
    script = {**encoder, "runtime": "torchscript", "files": ["encoder.ts"], "sha256": [digest]}
    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("it was loaded"))

    def with_artifacts(*artifacts: dict[str, Any]) -> Bundle:
        (bundle / "manifest.json").write_text(json.dumps({**manifest, "artifacts": artifacts}), encoding="utf-8")
        return Bundle.open(bundle)

    assert open_chosen(with_artifacts(script, encoder), "encoder")[0].runtime == "onnxruntime"
    alone = with_artifacts(script)
    with pytest.raises(OperatorError, match="scripts of torch run only where they are asked for: runtime torchscript"):
        open_chosen(alone, "encoder")
    with pytest.raises(BundleError, match="scripts of torch run only where they are asked for: runtime torchscript"):
        build_repository([bundle], tmp_path / "repository", modes="offline")
    assert not (tmp_path / "repository").exists()
    with pytest.raises(pytest.fail.Exception, match="it was loaded"):
        open_chosen(alone, "encoder", Placement(runtime="torchscript"))
