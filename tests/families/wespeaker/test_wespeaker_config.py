"""WeSpeaker's config.yaml: what it becomes, and what is refused with a word about it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from families.wespeaker_models import content_of, small_content
from tritone.errors import ExportError
from tritone.families.export.settings import MAX_CONFIG_BYTES
from tritone.families.wespeaker.checkpoint import read_config
from tritone.families.wespeaker.config import (
    CamPPlusConfig,
    EcapaConfig,
    FeatureConfig,
    ResNetConfig,
    parse_config,
)


def test_a_resnets_arguments_are_those_of_upstreams_functions() -> None:
    config = parse_config(content_of("ResNet293", embed_dim=256, pooling_func="ASTP", two_emb_layer=True))
    assert config.name == "ResNet293"
    assert config.network == ResNetConfig(
        bottleneck=True,
        blocks=(10, 20, 64, 3),
        feat_dim=80,
        embed_dim=256,
        pooling="ASTP",
        two_emb_layer=True,
        width=32,
    )
    assert parse_config(content_of("ResNet18", m_channels=8)).network == ResNetConfig(
        bottleneck=False, blocks=(2, 2, 2, 2), feat_dim=80, embed_dim=16, width=8
    )


@pytest.mark.parametrize(
    ("model", "channels", "context"),
    [
        ("ECAPA_TDNN_c512", 512, False),
        ("ECAPA_TDNN_c1024", 1024, False),
        ("ECAPA_TDNN_GLOB_c512", 512, True),
        ("ECAPA_TDNN_GLOB_c1024", 1024, True),
    ],
)
def test_an_ecapas_name_says_its_width_and_context(model: str, channels: int, context: bool) -> None:
    network = parse_config(content_of(model, embed_dim=192, emb_bn=True)).network
    assert network == EcapaConfig(channels=channels, global_context=context, emb_bn=True)


@pytest.mark.parametrize(("model", "network"), [("ECAPA_TDNN", EcapaConfig()), ("CAMPPlus", CamPPlusConfig())])
def test_classes_have_defaults_for_everything(model: str, network: object) -> None:
    config = parse_config({"model": model})
    assert (config.network, config.features, config.num_frames) == (network, FeatureConfig(), 200)


def test_features_are_those_of_the_data_section() -> None:
    content = content_of("CAMPPlus", feat_dim=40)
    content["dataset_args"] |= {"resample_rate": 8000, "num_frms": 300, "cmvn_args": {"norm_var": True}}
    content["dataset_args"]["fbank_args"] |= {"frame_length": 32, "frame_shift": 12.5}
    config = parse_config(content)
    assert config.num_frames == 300
    assert config.features == FeatureConfig(
        sample_rate=8000, num_mel_bins=40, frame_length_ms=32, frame_shift_ms=12.5, divide_by_deviation=True
    )
    assert (config.features.frame_length, config.features.frame_shift) == (256, 100)
    content["dataset_args"]["cmvn"] = False
    features = parse_config(content).features
    assert not features.subtract_mean
    assert not features.divide_by_deviation


def test_the_old_feature_section_is_read() -> None:
    content = content_of("ResNet34", feat_dim=40)
    del content["dataset_args"]["fbank_args"]
    content["feature_args"] = {"raw_wav": True, "feat_dim": 40, "num_frms": 150}
    config = parse_config(content)
    assert (config.features.num_mel_bins, config.num_frames) == (40, 150)
    content["fbank_args"] = {"num_mel_bins": 40, "frame_shift": 12}
    assert parse_config(content).features.frame_shift_ms == 12


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        ("ResNet34", {"channels": 8}, "model_args: unknown channels; upstream knows feat_dim"),
        ("ECAPA_TDNN_c512", {"channels": 64}, "unknown channels"),
        ("CAMPPlus", {"two_emb_layer": True}, "unknown two_emb_layer"),
        ("ResNet34", {"pooling_func": "XI"}, "pooling_func is 'XI'; upstream knows TSTP, TAP"),
        ("ResNet34", {"feat_dim": 0}, "feat_dim is 0, expected 1 to"),
        ("ResNet34", {"embed_dim": "256"}, "embed_dim is '256', expected a whole number"),
        ("ResNet34", {"embed_dim": 2**30}, "embed_dim is 1073741824"),
        ("ResNet34", {"two_emb_layer": 1}, "two_emb_layer is 1, expected true or false"),
        ("ResNet34", {"feat_dim": 81}, "feat_dim is 81; ResNets and CAM\\+\\+ need a multiple of 8"),
        ("CAMPPlus", {"config_str": "batchnorm-gelu"}, "'gelu' is none of batchnorm"),
        ("CAMPPlus", {"config_str": "relu-relu"}, "says one thing twice"),
        ("CAMPPlus", {"init_channels": 8, "growth_rate": 4, "pooling_func": "MHASTP"}, "MHASTP has 2 heads"),
        ("ECAPA_TDNN", {"channels": 20}, "channels is 20, not a multiple of 8"),
    ],
)
def test_arguments_that_cannot_be_are_named(model: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        parse_config(content_of(model, **args))


@pytest.mark.parametrize("model", ["ERes2Net34_Base", "XVEC", "REPVGG_TINY_A0", "ResNet", "whisper_PMFA", 7, None, []])
def test_other_models_are_refused_with_those_that_are_read(model: Any) -> None:
    with pytest.raises(ExportError, match=r"model is .*; this version reads ResNet18, .*CAMPPlus"):
        parse_config({"model": model})


def test_functions_without_defaults_need_their_arguments() -> None:
    with pytest.raises(ExportError, match=r"model_args\.feat_dim is missing"):
        parse_config({"model": "ResNet34", "model_args": {"embed_dim": 256}})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"frontend": "s3prl"}, "dataset_args.frontend is 's3prl'"),
        (
            {"fbank_args": {"num_mel_bins": 80, "window": "povey"}},
            "fbank_args: unknown window; upstream knows",
        ),
        ({"fbank_args": {"num_mel_bins": 64}}, "feat_dim is 80, but fbank_args.num_mel_bins is 64"),
        ({"fbank_args": {"frame_shift": 0}}, "frame_shift is 0 ms"),
        ({"fbank_args": {"frame_length": float("nan")}}, "frame_length is nan, expected a number"),
        ({"fbank_args": [80]}, "dataset_args.fbank_args should hold settings"),
        ({"resample_rate": 16}, "resample_rate is 16 Hz"),
        ({"cmvn": "yes"}, "cmvn is 'yes', expected true or false"),
        ({"cmvn_args": {"norm": True}}, "cmvn_args: unknown norm"),
    ],
)
def test_features_that_cannot_be_are_named(section: dict[str, Any], message: str) -> None:
    content = content_of("ResNet34")
    content["dataset_args"] |= section
    with pytest.raises(ExportError, match=message):
        parse_config(content)


@pytest.mark.parametrize("content", [None, [], "text", {"model": "ResNet34", "model_args": [1]}])
def test_what_is_no_config_is_refused(content: Any) -> None:
    with pytest.raises(ExportError, match="should hold settings"):
        parse_config(content)


def test_a_file_of_upstream_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(small_content("resnet")), encoding="utf-8")
    assert read_config(path) == parse_config(small_content("resnet"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"model: [", "not valid YAML"),
        (b"model: !!python/object/apply:os.system ['true']", "not valid YAML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"# " + b"x" * MAX_CONFIG_BYTES, "cannot be right"),
        (b"", "should hold settings"),
    ],
)
def test_files_that_are_no_configs_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(data)
    with pytest.raises(ExportError, match=message):
        read_config(path)
    with pytest.raises(ExportError, match="config not found"):
        read_config(tmp_path / "another.yaml")
