"""Moonshine in the form of sherpa-onnx: graphs of upstream's own code, and texts that sherpa-onnx wrote with them.

The graphs and texts are in moonshine.tar.xz, which `make_sherpa_moonshine.py` writes.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import tritone
from families.attending.make_sherpa_moonshine import LENGTHS, sound
from families.moonshine_models import served_info
from tritone.errors import ExportError
from tritone.families.known import recognise
from tritone.families.moonshine.sherpa_onnx import find_moonshine, read_files
from tritone.families.sherpa_onnx.export import export_sherpa_onnx

GOLDEN = Path(__file__).parent / "moonshine.tar.xz"


def unpacked(path: Path, form: str) -> tuple[Path, list[str]]:
    """A folder as it is published, in float32 ("") or ".int8", and the texts that sherpa-onnx wrote with it."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(path, filter="data")
    texts = json.loads((path / "texts.json").read_text(encoding="utf-8"))[form or "float32"]
    for each in path.glob("*.onnx"):
        if (".int8" in each.name) != bool(form) and each.name != "preprocess.onnx":
            each.unlink()
    (path / "texts.json").unlink()
    return path, texts


@pytest.mark.parametrize("form", [".int8", pytest.param("", marks=pytest.mark.slow)])
def test_texts_are_those_of_sherpa_onnx_alone_and_in_company(form: str, tmp_path: Path) -> None:
    path, texts = unpacked(tmp_path / "m", form)
    report = export_sherpa_onnx(folder=path, output=tmp_path / "b")
    info = served_info(report.bundle)
    assert (info.decodes, info.languages, info.has_prompt, info.translates) == (True, (), False, False)
    assert all(difference < 1e-3 for difference in report.differences.values())
    model = tritone.load(tmp_path / "b")
    waveforms = [sound(length) for length in LENGTHS]
    found = []
    for waveform in waveforms:  # no text of a random model ends: it is cut off where sherpa-onnx does it
        limit = {"max_tokens": int((len(waveform) - 895) // 384 * 384 / 16000 * 6)}
        found.append(model.transcribe([waveform], options=limit)[0].text)
    alike = sum(ours == theirs for ours, theirs in zip(found, texts, strict=True))
    assert alike >= (3 if form else 4), found  # in int8 sherpa-onnx rounds what goes into products, too
    together = [each.text for each in model.transcribe(waveforms)]
    assert all(whole.startswith(text) for whole, text in zip(together, found, strict=True))
    assert len(set(texts)) == len(texts)


def test_weights_in_int8_are_within_half_a_step(tmp_path: Path) -> None:
    whole, rough = (find_moonshine(unpacked(tmp_path / form, form)[0]) for form in ("", ".int8"))
    assert whole is not None
    assert rough is not None
    exact, read = read_files(whole), read_files(rough)
    assert (exact.sizes.decoder.tied, read.sizes.decoder.tied) == (True, False)
    for name, value in read.state.items():
        wanted = exact.state[name.replace("decoder.head", "decoder.token_embedding")]
        step = float(wanted.abs().max()) / 127
        assert float((value - wanted).abs().max()) <= 0.51 * step, name


def test_such_a_folder_is_recognised(tmp_path: Path) -> None:
    folder, _ = unpacked(tmp_path / "m", ".int8")
    found = recognise(folder)
    assert (found.family, found.arguments, found.extra) == ("moonshine", {"folder": folder}, "export")
    assert {each.name for each in found.files} == {each.name for each in folder.iterdir()}


def test_what_is_missing_or_of_another_model_is_named(tmp_path: Path) -> None:
    def broken(name: str) -> Path:
        return unpacked(tmp_path / name, "")[0]

    def refused(path: Path, why: str) -> None:
        with pytest.raises(ExportError, match=why):
            export_sherpa_onnx(folder=path, output=tmp_path / "b")

    path = broken("steps")
    (path / "cached_decode.onnx").unlink()
    refused(path, r"without cached_decode\.onnx")
    path = broken("tokens")
    (path / "tokens.txt").write_text("a 0\nb 1\n", encoding="utf-8")
    refused(path, "has 2 tokens, but the graphs")
    path = broken("turned")
    model = onnx.load(path / "encode.onnx")
    for node in model.graph.node:  # the softmax over the other side of queries and keys
        if node.op_type == "Softmax":
            node.attribute[0].i = 3
    onnx.save_model(model, path / "encode.onnx")
    refused(path, "differs by .* of the size of what comes out")
    path = broken("angles")
    model = onnx.load(path / "encode.onnx")
    for tensor in model.graph.initializer:  # positions that turn by other angles
        values = onnx.numpy_helper.to_array(tensor)
        if values.shape == (1, 16):
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(values * 2), tensor.name))
    onnx.save_model(model, path / "encode.onnx")
    refused(path, "angles of rotary positions")
    path = broken("scaled")
    model = onnx.load(path / "encode.onnx")
    node = next(each for each in model.graph.node if each.op_type == "Softmax")
    node.op_type = "Identity"
    del node.attribute[:]
    onnx.save_model(model, path / "encode.onnx")
    refused(path, r"has no encoder\.blocks")
    merged = tmp_path / "merged"
    merged.mkdir()
    (merged / "encoder_model.ort").touch()
    refused(merged, "the two files of later Moonshine models")
