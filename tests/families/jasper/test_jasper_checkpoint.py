"""Checkpoints of both releases and .nemo archives: whose weights are read, and what is refused."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from families.jasper_models import random_state, small_config, write_model
from families.nemo_models import write_nemo
from tritone.errors import ExportError
from tritone.families.export import archive
from tritone.families.jasper.checkpoint import check_state, read_config, read_weights
from tritone.families.jasper.config import parse_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jasper")
    write_model(folder, small_config())
    return folder


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_averaged_weights_are_read_unless_the_plain_ones_are_asked_for(model: Path) -> None:
    config = read_config(model / "config.yaml")
    averaged = read_weights(model / "checkpoint.pt")
    assert averaged.averaged
    assert same(averaged.state, random_state(config, 0))
    plain = read_weights(model / "checkpoint.pt", ema=False)
    assert not plain.averaged
    assert same(plain.state, random_state(config, 1))


def test_without_averaged_weights_the_plain_ones_are_read(tmp_path: Path) -> None:
    state = random_state(parse_config(small_config()))
    for content in ({"state_dict": state, "ema_state_dict": None}, {"state_dict": state}, state):
        torch.save(content, tmp_path / "model.pt")
        found = read_weights(tmp_path / "model.pt")
        assert not found.averaged
        assert same(found.state, state)


def test_names_of_the_first_release_are_read(tmp_path: Path) -> None:
    state = random_state(parse_config(small_config()))
    old = {
        name.replace("encoder.layers.", "jasper_encoder.encoder.", 1)
        if name.startswith("encoder")
        else name.replace("decoder.layers.", "jasper_decoder.decoder_layers.", 1): value
        for name, value in state.items()
    }
    old |= {"acoustic_model.x": torch.ones(1), "audio_preprocessor.featurizer.fb": torch.ones(2, 2)}
    for prefix in ("", "module."):
        content = {"state_dict": {prefix + name: value for name, value in old.items()}}
        torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
        assert same(read_weights(tmp_path / "old.pt").state, state)


def nemo_files(kind: str = "quartznet") -> dict[str, bytes]:
    """What a .nemo archive holds, of the model of seed 0."""
    content = small_config(kind)
    encoder = content[kind]["encoder"]
    blocks = [
        {"kernel" if key == "kernel_size" else key: value for key, value in block.items()}
        for block in encoder["blocks"]
    ]
    config = {
        "target": "nemo.collections.asr.models.ctc_models.EncDecCTCModel",
        "preprocessor": {
            "_target_": "nemo…AudioToMelSpectrogramPreprocessor",
            "sample_rate": 16000,
            "features": 16,
            "n_fft": 512,
            "window": "hann",
            "normalize": "per_feature",
            "window_size": 0.02,
            "window_stride": 0.01,
            "dither": 1e-5,
            "frame_splicing": 1,
        },
        "encoder": {"feat_in": 16, "activation": "relu", "conv_mask": True, "jasper": blocks},
        "decoder": {"feat_in": 16, "num_classes": 10, "vocabulary": content["labels"]},
    }
    state = {
        (name.replace("encoder.layers", "encoder.encoder").replace("decoder.layers", "decoder.decoder_layers")): value
        for name, value in random_state(parse_config(content)).items()
    }
    renamed = {
        name.removesuffix("weight") + "conv.weight" if value.dim() == 3 and "mconv" in name else name: value
        for name, value in state.items()
    }
    weights = io.BytesIO()
    torch.save(renamed | {"preprocessor.featurizer.fb": torch.ones(1)}, weights)
    return {"./model_config.yaml": yaml.safe_dump(config).encode(), "./model_weights.ckpt": weights.getvalue()}


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_a_nemo_archive_holds_both_config_and_weights(tmp_path: Path, mode: str) -> None:
    path = write_nemo(tmp_path / "model.nemo", nemo_files(), mode)
    config = read_config(path)
    assert config.features.pad_align == 16
    assert config.blocks == parse_config(small_config("quartznet")).blocks
    weights = read_weights(path)
    check_state(config, weights.state, str(path))
    assert same(weights.state, random_state(config))


def test_archives_of_strangers_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = nemo_files()
    outside = {f"../{name.removeprefix('./')}": data for name, data in files.items()}
    with pytest.raises(ExportError, match="holds no model_config"):
        read_config(write_nemo(tmp_path / "outside.nemo", outside))
    assert [path.name for path in tmp_path.parent.glob("model_*")] == []
    cut = tmp_path / "cut.nemo"
    cut.write_bytes(write_nemo(tmp_path / "whole.nemo", files).read_bytes()[:-2000])
    with pytest.raises(ExportError, match=r"is no archive that can be read|not a readable torch file"):
        read_weights(cut)
    (tmp_path / "text.nemo").write_text("not a tar", encoding="utf-8")
    with pytest.raises(ExportError, match="is no archive that can be read"):
        read_config(tmp_path / "text.nemo")
    monkeypatch.setitem(archive.MAX_BYTES, archive.WEIGHTS, 1000)
    with pytest.raises(ExportError, match="at most 1000 are read"):
        read_weights(tmp_path / "whole.nemo")
    monkeypatch.setattr(archive, "MAX_ARCHIVE_BYTES", 100)
    with pytest.raises(ExportError, match="too large"):
        read_config(tmp_path / "whole.nemo")


def test_a_block_setting_that_upstream_does_not_know_is_refused_in_an_archive_too(tmp_path: Path) -> None:
    files = nemo_files()
    content = yaml.safe_load(files["./model_config.yaml"])
    content["encoder"]["jasper"][1]["se"] = True
    path = write_nemo(tmp_path / "se.nemo", files | {"./model_config.yaml": yaml.safe_dump(content).encode()})
    with pytest.raises(ExportError, match=r"blocks\[1\]: unknown se"):
        read_config(path)


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("unpickled",)


def test_files_that_are_no_checkpoint_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.pt").write_text("no checkpoint", encoding="utf-8")
    torch.save({"state_dict": Harmful()}, tmp_path / "code.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    for name, said in (
        ("text.pt", "cannot be read safely|not a readable torch file"),
        ("code.pt", "cannot be read safely"),
        ("list.pt", "holds a list"),
        ("empty.pt", "epoch are something else"),
        ("none.pt", "not found"),
    ):
        with pytest.raises(ExportError, match=said):
            read_weights(tmp_path / name)
    assert "unpickled" not in capsys.readouterr().out


def test_every_tensor_that_does_not_fit_is_named() -> None:
    config = parse_config(small_config())
    state = random_state(config)
    state["encoder.layers.1.conv.0.weight"] = torch.zeros(8, 8, 3)
    del state["decoder.layers.0.bias"]
    state["encoder.layers.9.conv.0.weight"] = torch.zeros(1)
    with pytest.raises(ExportError) as caught:
        check_state(config, state, "model.pt")
    for said in (
        "missing decoder.layers.0.bias (11,)",
        "encoder.layers.1.conv.0.weight is (8, 8, 3), the network asks for (8, 8, 5)",
        "unknown encoder.layers.9.conv.0.weight (1,)",
    ):
        assert said in str(caught.value)
    state = random_state(config)
    state["decoder.layers.0.bias"][2] = torch.nan
    with pytest.raises(ExportError, match=r"decoder\.layers\.0\.bias holds NaN"):
        check_state(config, state, "model.pt")
