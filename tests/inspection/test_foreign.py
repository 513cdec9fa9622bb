"""Forms of models that no family reads: what `tritone inspect` and exports say of them."""

import io
import json
import re
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tritone
from tritone.cli.main import app
from tritone.errors import BundleError, ExportError
from tritone.families.known import refuse_foreign
from tritone.prepare import explain


def nemo(path: Path, target: str) -> None:
    data = f"target: {target}\nencoder: {{}}\n".encode()
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("./model_config.yaml")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))


def folder(path: Path, **files: Any) -> None:
    path.mkdir()
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (path / name.replace("__", ".")).write_bytes(data)


def translated(spec: bytes) -> bytes:
    return struct.pack("<IH", 6, len(spec) + 1) + spec + b"\0" + struct.pack("<II", 3, 0)


FOREIGN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "ggml-base.bin": (lambda path: path.write_bytes(b"lmgg" + bytes(60)), "a ggml file, as whisper.cpp"),
    "model.gguf": (lambda path: path.write_bytes(b"GGUF" + bytes(60)), "a GGUF file"),
    "mlx": (lambda path: folder(path, config__json={"n_mels": 80}, weights__npz=b"PK"), "a folder of MLX"),
    "adapter": (
        lambda path: folder(path, adapter_config__json={"base_model_name_or_path": "openai/whisper-tiny"}),
        "a PEFT adapter for 'openai/whisper-tiny'.*merge",
    ),
    "translator": (lambda path: folder(path, model__bin=translated(b"TransformerSpec")), "of type TransformerSpec"),
    "sortformer.nemo": (lambda path: nemo(path, "nemo.x.SortformerEncLabelModel"), "Sortformer"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_it_is_known_and_what_it_would_need(tmp_path: Path, name: str) -> None:
    make, said = FOREIGN[name]
    make(tmp_path / name)
    found = explain(str(tmp_path / name))
    assert re.search(said, " ".join([found.what, *found.facts.values()]), re.DOTALL)
    assert found.facts["needed"]
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / name)])
    assert result.exit_code == 0, result.output
    with pytest.raises(BundleError, match="cannot be exported: this is"):
        tritone.load(tmp_path / name)


@pytest.mark.parametrize("name", FOREIGN)
def test_an_export_of_what_no_family_reads_says_what_it_is(tmp_path: Path, name: str) -> None:
    make, said = FOREIGN[name]
    make(tmp_path / name)
    with pytest.raises(ExportError, match=f"cannot be exported: this is (?s:.*){said.split('.*')[0]}"):
        refuse_foreign(tmp_path / name)
    options = ["--checkpoint", str(tmp_path / name), "--output", str(tmp_path / "bundle")]
    result = CliRunner().invoke(app, ["export", "whisper", *options])
    assert result.exit_code != 0
    assert "cannot be exported" in f"{result.output} {result.exception}"
