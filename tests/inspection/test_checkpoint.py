"""What files and folders of toolkits are recognised as, from names and heads alone; hostile ones included."""

import io
import json
import pickle
import tarfile
import warnings
from pathlib import Path

import pytest
import torch

from graphs import scaled
from tritone.errors import BundleError
from tritone.families.known import is_pickled, recognise


def folder(path: Path, **files: str | bytes) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        target = path / name.replace("__", ".")
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def nemo(path: Path, config: str) -> Path:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("./model_config.yaml")
        member.size = len(config)
        archive.addfile(member, io.BytesIO(config.encode()))
    return path


def test_folders_are_known_by_what_their_toolkits_write(tmp_path: Path):
    whisper = folder(tmp_path / "fw", config__json="{}", model__bin=b"\6\0\0\0\14\0WhisperSpec\0", tokenizer__json="{}")
    found = recognise(whisper)
    assert (found.family, found.extra) == ("whisper", "")  # no torch is needed
    assert found.command("out") == f"tritone export whisper --checkpoint {whisper} --output out"
    for kind, family in (("whisper", "whisper"), ("wav2vec2", "hf")):
        config = json.dumps({"model_type": kind})
        found = recognise(folder(tmp_path / kind, config__json=config, model__safetensors=b""))
        assert (found.family, found.extra) == (family, "export")
    wenet = recognise(folder(tmp_path / "wenet", final__pt=b"", train__yaml="", units__txt="", global_cmvn=""))
    assert wenet.family == "wenet"
    assert {name: path.name for name, path in wenet.arguments.items()} == {
        "checkpoint": "final.pt",
        "config": "train.yaml",
        "tokens": "units.txt",
        "cmvn": "global_cmvn",
    }
    assert recognise(folder(tmp_path / "spk", config__yaml="", avg_model__pt=b"")).family == "wespeaker"
    assert recognise(folder(tmp_path / "sherpa", encoder__onnx=b"", tokens__txt="")).family == "sherpa-onnx"
    assert recognise(folder(tmp_path / "icefall", pretrained__pt=b"", tokens__txt="")).family == "icefall"


def test_files_are_known_by_their_heads(tmp_path: Path):
    script = tmp_path / "script.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a form of models that torch calls old
        torch.jit.save(torch.jit.script(torch.nn.ReLU()), script)
    program = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(2),)), program)
    (tmp_path / "gpt2.tiktoken").touch()
    openai = tmp_path / "tiny.pt"
    torch.save({"dims": {}, "model_state_dict": {"decoder.ln.weight": torch.zeros(2)}}, openai)
    (tmp_path / "tokens.txt").touch()
    icefall, old = tmp_path / "icefall.pt", tmp_path / "old.pt"
    torch.save({"model": {"joiner.output_linear.weight": torch.zeros(2)}}, icefall)
    torch.save({"joiner.output_linear.weight": torch.zeros(2)}, old, _use_new_zipfile_serialization=False)
    assert [recognise(each).family for each in (script, program, openai, icefall, old)] == [
        "torchscript",
        "torch-export",
        "whisper",
        "icefall",
        "icefall",
    ]
    assert recognise(script).program
    assert recognise(nemo(tmp_path / "a.nemo", "encoder: {d_model: 8}")).family == "nemo"
    assert recognise(nemo(tmp_path / "b.nemo", "encoder: {jasper: []}")).family == "jasper"
    scaled(tmp_path / "model.onnx", 2.0)
    assert (
        recognise(tmp_path / "model.onnx").command("out") == f"tritone export onnx {tmp_path}/model.onnx --output out"
    )


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, (str(Path(__file__).with_name("burst")), "w")  # type: ignore[return-value]


def test_a_hostile_pickle_is_taken_apart_and_not_run(tmp_path: Path):
    path = tmp_path / "bomb.pt"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BundleError):
        recognise(path)
    assert not Path(__file__).with_name("burst").exists()


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "has no files; needed is a bundle"),
        ({"config__json": "[]"}, "should hold settings by name"),
        ({"config__json": '{"model_type": "llama"}'}, "type 'llama', which no command exports"),
        ({"config__json": '{"model_type": "whisper"}'}, "model.safetensors is missing"),
        ({"train__yaml": "", "final__pt": ""}, "units.txt is missing"),
        ({"a__nemo": "", "b__nemo": ""}, "several models (a.nemo, b.nemo): name one of them"),
        ({"a__nemo": "no archive"}, "is no archive that can be read"),
        ({"a__pt": "no pickle"}, "is no checkpoint of torch, or is damaged"),
    ],
)
def test_what_is_missing_is_said(files: dict[str, str], complaint: str, tmp_path: Path):
    with pytest.raises(BundleError) as raised:
        recognise(folder(tmp_path / "it", **files))
    assert complaint in str(raised.value)


def test_names_say_what_is_pickled():
    assert [is_pickled(name) for name in ("a.pt", "sub/b.nemo", "pytorch_model.bin", "model.bin", "a.onnx")] == [
        *(True, True, True),
        *(False, False),
    ]


@pytest.mark.parametrize(("name", "family"), [("silero_vad", "silero"), ("smart-turn-v3.2-cpu", "smart-turn")])
def test_graphs_with_a_network_of_their_own_are_known_by_name(tmp_path: Path, name: str, family: str) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(b"")
    assert recognise(path).command("out") == f"tritone export {family} {path} --output out"
