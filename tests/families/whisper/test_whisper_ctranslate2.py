"""Folders of CTranslate2: the tensors that they stand for, what is wrong with them, and their export without torch."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from families.whisper_models import (
    IDS,
    SUPPRESS,
    TOKENS,
    ctranslate2_bytes,
    random_model,
    speech,
    write_ctranslate2,
    write_folder,
)
from tritone.bundle.bundle import Bundle
from tritone.errors import ExportError
from tritone.families.whisper.checkpoint import read_checkpoint
from tritone.families.whisper.ctranslate2 import read_tensors
from tritone.families.whisper.export import export_whisper
from tritone.families.whisper.model import Network
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.pipeline import WhisperPipeline

STEP = {
    "float32": 0.0,
    "float16": 2**-10,
    "int8": 1 / 127,
}  # largest error of a number, as a share of its row's largest


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, model = tmp_path_factory.mktemp("ctranslate2"), random_model()
    write_folder(path / "transformers", model)
    for quantization in STEP:
        write_ctranslate2(path / quantization, model, quantization)
    return path


@pytest.mark.parametrize("quantization", STEP)
def test_a_folder_holds_the_tensors_that_transformers_has(saved: Path, quantization: str) -> None:
    theirs, ours = read_checkpoint(saved / "transformers"), read_checkpoint(saved / quantization)
    assert ours.dims == theirs.dims
    assert ours.state.keys() == theirs.state.keys()
    for name, value in ours.state.items():
        expected = theirs.state[name]
        largest = np.abs(expected).max(axis=-1, keepdims=True)
        assert np.all(np.abs(value - expected) <= STEP[quantization] * largest), name
    assert ours.tokens == TOKENS
    assert ours.special.suppress == tuple(SUPPRESS)
    assert ours.special.suppress_first == (IDS["Ġ"], IDS["<|endoftext|>"])
    assert ours.special.alignment_heads == ((0, 1), (1, 0), (1, 3))
    assert set(ours.sources) == {"config", "tokens", "weights"}


def test_the_shapes_of_sizes_are_those_of_the_network(saved: Path) -> None:
    dims = read_checkpoint(saved / "float32").dims
    assert dims.shapes() == {name: tuple(value.shape) for name, value in Network(dims).state_dict().items()}


def test_integers_become_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    tensors = {"a": np.array([[2, -4], [6, 127]], np.int8), "a_scale": np.array([2, 0.5], np.float32)}
    (tmp_path / "model.bin").write_bytes(ctranslate2_bytes(tensors, {"b": "a"}))
    found = read_tensors(tmp_path / "model.bin")
    assert found["b"] is found["a"]
    np.testing.assert_array_equal(found["a"], tensors["a"])


Spoil = Callable[[dict[str, np.ndarray]], object]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            lambda t: t.update({"decoder/layer_0/extra": np.zeros(3, np.float32)}),
            "no Whisper model has: decoder/layer_0/ex",
        ),
        (lambda t: t.pop("encoder/layer_1/ffn/linear_0/bias"), "has no tensor encoder/layer_1/ffn/linear_0/bias"),
        (
            lambda t: t.update({"encoder/alibi": np.array(1, np.int8)}),
            "encoder/alibi is 1, Whisper models have 0 there",
        ),
        (lambda t: t.update({"encoder/activation": np.array(0, np.int8)}), "encoder/activation is 0"),
        (
            lambda t: t["decoder/layer_0/attention/linear_1/bias"].fill(1),
            "keys of decoder/layer_0/attention have a bias",
        ),
        (
            lambda t: t.update({"encoder/conv2/bias": np.full(32, np.nan, np.float32)}),
            "encoder.conv2.bias holds NaN or",
        ),
        (lambda t: t.update({"encoder/conv2/bias": np.zeros(31, np.float32)}), r"encoder.conv2.bias is \(31,\)"),
        (lambda t: t.update({"encoder/num_heads": np.array(5, np.int16)}), "5 heads cannot share a width of 32"),
        (lambda t: t.pop("decoder/layer_0/ffn/linear_0/weight"), "has no tensor decoder/layer_0/ffn/linear_0/weight"),
        (lambda t: [t.pop(name) for name in list(t) if "encoder/layer_0" in name], "has no tensors encoder/layer_0 to"),
    ],
)
def test_what_is_wrong_with_tensors_is_named(saved: Path, tmp_path: Path, spoil: Spoil, told: str) -> None:
    tensors = {name: np.array(value) for name, value in read_tensors(saved / "float32" / "model.bin").items()}
    tensors.pop("decoder/projection/weight")
    spoil(tensors)
    (tmp_path / "model.bin").write_bytes(ctranslate2_bytes(tensors, {}))
    with pytest.raises(ExportError, match=told):
        read_checkpoint(tmp_path)


def test_files_that_are_no_whisper_or_damaged_are_refused(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    whole = (saved / "float32" / "model.bin").read_bytes()
    for content, told in (
        (b"", "cannot read"),
        (whole[:5000], "is cut off: it ends at byte 5000"),
        (whole[:-3], "is cut off"),
        (ctranslate2_bytes({}, {}, version=5), r"not a model of CTranslate2 in version 6 .*it says 5"),
        (ctranslate2_bytes({}, {}, spec="TransformerSpec"), "holds a model of CTranslate2's TransformerSpec"),
        (ctranslate2_bytes({}, {"a": "b"}), "is damaged: a stands for b"),
        (ctranslate2_bytes({}, {}), "has no tensors encoder/layer_0"),
    ):
        path.write_bytes(content)
        with pytest.raises(ExportError, match=told):
            read_checkpoint(tmp_path)
    for at in range(0, 3000, 7):  # whatever is changed, it is an error of ours or still a model
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with contextlib.suppress(ExportError):
            read_tensors(path)


def test_heads_that_a_model_does_not_have_are_left_out_with_a_note(tmp_path: Path) -> None:
    model = random_model()
    some = write_ctranslate2(tmp_path / "some", model, alignment_heads=[[7, 0], [1, 2], [0, 9]])
    found = read_checkpoint(some)
    assert found.special.alignment_heads == ((1, 2),)
    assert "2 of 3 alignment_heads are of layers or heads that this model does not have" in found.notes[0]
    none = write_ctranslate2(tmp_path / "none", model, alignment_heads=[[7, 0], [8, 11]])
    assert read_checkpoint(none).special.alignment_heads == ((1, 0), (1, 1), (1, 2), (1, 3)), "the upper half"


WITHOUT_TORCH = """
import importlib.util, sys
from pathlib import Path

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
sys.meta_path.insert(0, Absent())
from tritone.families.whisper.export import export_whisper
report = export_whisper(checkpoint=Path(sys.argv[1]), output=Path(sys.argv[2]), precisions=("fp32", "int8"), force=True)
assert "torch" not in sys.modules
assert set(report.drifts) == {"encoder.int8.onnx", "decoder.int8.onnx"}, report.drifts
assert not report.differences and "torch is not installed" in report.notes[0]
try:
    export_whisper(checkpoint=Path(sys.argv[1]), output=Path(sys.argv[2] + "-torch"), runtimes=("torch",))
except Exception as error:
    assert "made of a network of torch, which is not installed" in str(error), error
"""


@pytest.mark.slow
def test_without_torch_a_folder_is_exported_to_the_same_graphs(saved: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(saved / "float32"), str(tmp_path / "without")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = export_whisper(
        checkpoint=saved / "transformers", output=tmp_path / "with", precisions=("fp32", "int8"), force=True
    )
    without = Bundle.open(tmp_path / "without")
    for name in ("features.onnx", "encoder.onnx", "decoder.onnx", "weights.bin", "weights.int8.bin", "tokens.txt"):
        assert without.file(name).read_bytes() == report.bundle.file(name).read_bytes(), name
    pipeline = WhisperPipeline(without, placement=Placement(threads=1))
    assert pipeline.transcribe([speech(1.5)], [DecodingOptions(language="de", temperature=(0.0,))])[0].text


def test_a_precision_that_is_refused_takes_no_other_with_it(saved: Path, tmp_path: Path) -> None:
    asked = {"checkpoint": saved / "float32", "precisions": ("fp32", "fp16", "int8"), "max_drift": 1e-9}
    report = export_whisper(output=tmp_path / "lenient", lenient=True, **asked)
    assert {each.precision for each in report.bundle.manifest.artifacts} == {"fp32"}
    assert [note.split(" drifts too far")[0] for note in report.notes] == ["encoder.fp16.onnx", "encoder.int8.onnx"]
    assert not any(".int8." in path.name or ".fp16." in path.name for path in report.bundle.path.iterdir())
    with pytest.raises(ExportError, match=r"encoder\.int8\.onnx drifts too far .*was written without it, in fp32"):
        export_whisper(output=tmp_path / "strict", **{**asked, "precisions": ("int8",)})
    assert {each.precision for each in Bundle.open(tmp_path / "strict").manifest.artifacts} == {"fp32"}
