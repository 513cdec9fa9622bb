"""Whisper models in sherpa-onnx's folders: the tensors of the checkpoint, and folders that should be refused."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from families.whisper_models import random_model, write_openai
from shared import Shared
from sherpa_whisper import write_sherpa
from tritone.errors import ExportError
from tritone.families.known import recognise
from tritone.families.sherpa_onnx.export import export_sherpa_onnx
from tritone.families.whisper.checkpoint import read_checkpoint


def make(folder: Path) -> tuple[Path, Path, Path]:
    model = random_model()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("layer_norm.weight"):
                value.normal_(1, 0.1)  # equal ones would be written once
    checkpoint, pieces = write_openai(folder / "o", model)
    return write_sherpa(folder / "s", read_checkpoint(checkpoint, pieces), pieces), checkpoint, pieces


@pytest.fixture(scope="session")
def written(shared: Shared) -> tuple[Path, Path, Path]:
    """A folder of sherpa-onnx's, and the checkpoint and pieces that it was made of."""
    return shared("sherpa-whisper", make)


def test_tensors_and_tokens_are_those_of_the_checkpoint(written: tuple[Path, Path, Path]) -> None:
    folder, checkpoint, pieces = written
    wanted, found = read_checkpoint(checkpoint, pieces), read_checkpoint(folder)
    assert (found.dims, found.tokens, found.special) == (wanted.dims, wanted.tokens, wanted.special)
    assert found.state.keys() == wanted.state.keys()
    for name, value in wanted.state.items():
        np.testing.assert_array_equal(found.state[name], value, err_msg=name)


def test_files_in_int8_are_read_where_there_are_no_others(written: tuple[Path, Path, Path], tmp_path: Path) -> None:
    folder, checkpoint, pieces = written
    for part in ("encoder", "decoder"):
        quantize_dynamic(
            folder / f"small-{part}.onnx",
            tmp_path / f"small-{part}.int8.onnx",
            op_types_to_quantize=["MatMul"],
            weight_type=QuantType.QInt8,
        )
    shutil.copy(folder / "small-tokens.txt", tmp_path)
    wanted, found = read_checkpoint(checkpoint, pieces), read_checkpoint(tmp_path)
    for name, value in wanted.state.items():
        matrix = name.endswith((*("query.weight", "key.weight", "value.weight", "out.weight"), "0.weight", "2.weight"))
        step = np.ptp(value) / 255 if matrix else 0
        np.testing.assert_allclose(found.state[name], value, rtol=0, atol=1.01 * step, err_msg=name)
    assert "in int8 with one scale for each matrix" in found.notes[-1]
    for part in ("encoder", "decoder"):
        shutil.copy(folder / f"small-{part}.onnx", tmp_path)
    np.testing.assert_array_equal(read_checkpoint(tmp_path).state["decoder.ln.bias"], wanted.state["decoder.ln.bias"])
    assert read_checkpoint(tmp_path).notes == wanted.notes


def test_the_command_of_sherpa_onnx_imports_it(written: tuple[Path, Path, Path], tmp_path: Path) -> None:
    folder, _, _ = written
    found = recognise(folder)
    assert (found.family, found.arguments) == ("whisper", {"checkpoint": folder})
    names = {path.name for path in found.files}
    assert names == {"small-encoder.onnx", "small-decoder.onnx", "small-tokens.txt"}
    report = export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    assert report.bundle.manifest.kind == "whisper"
    assert report.bundle.manifest.provenance.sources.keys() == {"encoder", "decoder", "tokens"}
    with pytest.raises(ExportError, match="which has no --tail-padding-ms: leave it out"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "c", tail_padding_ms=100)


def changed(path: Path, change: str) -> None:
    model = onnx.load(path)
    graph = model.graph
    kept = {entry.key: entry.value for entry in model.metadata_props}
    if change == "no sizes":
        kept.pop("n_audio_head")
    elif change == "more layers":
        kept["n_audio_layer"] = "900000"
    elif change == "huge vocabulary":
        kept["n_vocab"] = "9" * 30
    elif change == "other heads":
        kept["n_text_head"] = "5"
    elif change == "other width":
        kept["n_text_state"] = "64"
    elif change == "no norm":
        for tensor in graph.initializer:
            if tensor.name == "audioEncoder.blocks.1.mlp_ln.bias":
                tensor.name = "renamed"
        for node in graph.node:
            node.input[:] = ["renamed" if each.endswith("1.mlp_ln.bias") else each for each in node.input]
    elif change == "one convolution":
        node = next(each for each in graph.node if each.op_type == "Conv")
        graph.node.add(op_type="Conv", input=node.input, output=["more"])
    elif change == "no stack":
        graph.output[0].name = "others"
        for node in graph.node:
            node.output[:] = ["others" if each == "n_layer_cross_k" else each for each in node.output]
    elif change == "weights elsewhere":
        tensor = graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../secret")
    helper.set_model_props(model, kept)
    path.write_bytes(model.SerializeToString())


FAULTS = {
    "no sizes": "the metadata has no 'n_audio_head'",
    "more layers": "has no encoder.blocks.2.attn.key where Whisper models have it",
    "huge vocabulary": "n_vocab = '9999.*expected decimal numbers",
    "other heads": "5 heads cannot share a width of 32",
    "other width": "encoder and decoder have different widths",
    "no norm": "has no encoder.blocks.1.mlp.0 where",
    "one convolution": "has no encoder.conv1 where|not a valid ONNX graph",
    "no stack": "has no decoder.blocks.0.cross_attn.key where",
    "weights elsewhere": r"takes weights from '\.\./secret'",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_folders_that_are_not_what_they_say_are_refused(
    fault: str, written: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(written[0], tmp_path / "m")
    changed(folder / "small-encoder.onnx", fault)
    with pytest.raises(ExportError, match=FAULTS[fault]):
        read_checkpoint(folder)


def test_what_is_missing_or_twice_is_named(written: tuple[Path, Path, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(written[0], tmp_path / "m")
    (folder / "small-decoder.onnx").rename(folder / "kept")
    with pytest.raises(ExportError, match=r"without small-decoder\.onnx"):
        read_checkpoint(folder)
    shutil.copy(folder / "small-encoder.onnx", folder / "small-decoder.onnx")
    with pytest.raises(ExportError, match=r"small-decoder\.onnx has no decoder\.positional_embedding where"):
        read_checkpoint(folder)
    shutil.copy(folder / "kept", folder / "small-decoder.onnx")
    shutil.copy(folder / "small-encoder.onnx", folder / "other-encoder.onnx")
    with pytest.raises(ExportError, match=r"several Whisper models \(other, small\)"):
        read_checkpoint(folder)
