"""Upstream's configs: what is read, filled in and refused, each with the key's name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from families.jasper_models import small_config
from tritone.errors import ExportError
from tritone.families.jasper.checkpoint import read_config
from tritone.families.jasper.config import parse_config
from tritone.families.jasper.names import tensor_shapes


def changed(path: str, value: Any, kind: str = "jasper") -> dict[str, Any]:
    """A config with one value set, or taken away with `...`; `path` has dots, and numbers for the items of lists."""
    content = small_config(kind)
    *parents, last = path.split(".")
    place: Any = content
    for name in parents:
        place = place[int(name) if isinstance(place, list) else name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return content


def test_a_published_layout_is_read_with_its_anchors(tmp_path: Path) -> None:
    text = """
name: Jasper
labels: [" ", a, b, c, "'"]
input_val:
  audio_dataset: &val {sample_rate: &rate 16000, trim_silence: true, normalize_transcripts: true}
  filterbank_features: {normalize: per_feature, sample_rate: *rate, window_size: 0.02, window_stride: 0.01,
    window: &window hann, n_filt: &bins 64, n_fft: 512, frame_splicing: &splicing 1, dither: 0.00001, pad_align: 16}
jasper:
  encoder:
    init: xavier_uniform
    in_feats: *bins
    frame_splicing: *splicing
    activation: relu
    use_conv_masks: true
    blocks:
    - &first {filters: 256, repeat: 1, kernel_size: [11], stride: [2], dilation: [1], dropout: 0.2, residual: false}
    - &second {filters: 256, repeat: 5, kernel_size: [11], stride: [1], dilation: [1], dropout: 0.2, residual: true,
        residual_dense: true}
    - *second
  decoder: {in_feats: 256, init: xavier_uniform}
"""
    (tmp_path / "jasper.yaml").write_text(text, encoding="utf-8")
    config = read_config(tmp_path / "jasper.yaml")
    assert (config.num_classes, config.blank_id, config.subsampling_rate) == (6, 5, 2)
    assert config.panes == ((), (256,), (256, 256))
    features = config.features
    assert (features.frame_length, features.frame_shift, features.pad_align, features.high_freq) == (320, 160, 16, 8000)
    shapes = tensor_shapes(config)
    assert shapes["encoder.layers.0.conv.0.weight"] == (256, 64, 11)
    assert shapes["encoder.layers.2.conv.17.running_var"] == (256,)  # the fifth repeat's norm: 4 · 4 + 1
    assert shapes["encoder.layers.2.res.1.0.weight"] == (256, 256, 1)


def test_what_is_left_out_has_the_defaults_of_upstreams_classes() -> None:
    content = small_config()
    content["input_val"] = {"audio_dataset": {"sample_rate": 8000}, "filterbank_features": {"n_filt": 16}}
    content["jasper"]["encoder"] |= {"blocks": [{"filters": 16}]}
    del content["jasper"]["encoder"]["use_conv_masks"]
    config = parse_config(content)
    features = config.features
    assert (features.sample_rate, features.window, features.pad_align, features.n_fft) == (8000, "hamming", 8, 256)
    assert (features.normalize, features.preemphasis, features.high_freq) == ("per-feature", 0.97, 4000.0)
    assert (config.blocks[0].repeat, config.blocks[0].kernel_size, config.blocks[0].residual) == (3, 11, True)
    assert not config.masked


def test_quartznets_kernels_are_odd_and_scaled() -> None:
    for factor, kernel in ((1.0, 11), (0.5, 5), (0.9, 9), (1.1, 13), (0.01, 1)):
        config = parse_config(changed("quartznet.encoder.blocks.0.kernel_size_factor", factor, "quartznet"))
        assert config.blocks[0].kernel_size == kernel
    assert parse_config(changed("quartznet.encoder.blocks.0.kernel_size", 12, "quartznet")).blocks[0].kernel_size == 13


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("labels", ..., "config.labels is missing"),
        ("labels", ["a", True], "labels should be a list of characters"),
        ("input_val", ..., "config.input_val is missing"),
        ("jasper", ..., "expected a section `jasper` or one `quartznet`, found neither"),
        ("input_val.audio", {}, "input_val: unknown audio;"),
        ("input_val.filterbank_features.n_mels", 64, "input_val.filterbank_features: unknown n_mels"),
        ("input_val.filterbank_features.frame_splicing", 3, "frame_splicing is 3; upstream knows 1 alone"),
        ("input_val.filterbank_features.sample_rate", 8000, "sample_rate should match"),
        ("input_val.filterbank_features.max_duration", 16.7, "max_duration should match"),
        ("input_val.filterbank_features.pad_to_max_duration", True, "pad_to_max_duration should match"),
        ("input_val.filterbank_features.window", "none", "window is 'none'"),
        ("input_val.filterbank_features.window_size", "long", "window_size is 'long', expected a number"),
        ("jasper.encoder.activation", ..., "jasper.encoder.activation is missing"),
        ("jasper.encoder.activation", "swish", "upstream knows relu, hardtanh, selu"),
        (
            "jasper.encoder.in_feats",
            80,
            "jasper.encoder.in_feats is 80, but input_val.filterbank_features.n_filt are 16",
        ),
        ("jasper.encoder.dropout", 0.1, "jasper.encoder: unknown dropout"),
        ("jasper.decoder.in_feats", 1024, "jasper.decoder.in_feats is 1024, but the filters of the last block are 16"),
        ("jasper.encoder.blocks.1.filters", ..., "jasper.encoder.blocks\\[1\\].filters is missing"),
        ("jasper.encoder.blocks.1.separable", True, "jasper.encoder.blocks\\[1\\]: unknown separable"),
        ("jasper.encoder.blocks.1.padding", "valid", "padding is 'valid'; upstream knows 'same' alone"),
        ("jasper.encoder.blocks.1.kernel_size", [3, 3], "kernel_size is \\[3, 3\\], expected a whole number"),
        ("jasper.encoder.blocks.1.repeat", 0, "repeat is 0, expected 1 to"),
        ("jasper.encoder.blocks.1.stride", [2], "stride \\(2\\) should be 1"),
        ("jasper.encoder.blocks.1.kernel_size", [4], "kernel_size \\(4\\) odd"),
        ("jasper.encoder.blocks.0.dilation", [2], "stride \\(2\\) and dilation \\(2\\) cannot both exceed 1"),
        ("jasper.encoder.blocks", [], "0 blocks make no model"),
    ],
)
def test_errors_name_the_key(path: str, value: Any, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("quartznet.encoder.blocks.1.groups", 3, "filters \\(8\\) are not a multiple of groups \\(3\\)"),
        ("quartznet.encoder.blocks.1.normalization", "rms", "upstream knows batch, group, instance, layer"),
        ("quartznet.encoder.blocks.1.heads", 4, "heads is 4; upstream knows -1 alone"),
        ("jasper", {}, "found jasper and quartznet"),
    ],
)
def test_errors_of_a_quartznet_name_the_key(path: str, value: Any, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(changed(path, value, "quartznet"))


def test_a_group_norm_needs_groups_that_divide_the_filters() -> None:
    content = changed("quartznet.encoder.blocks.1.normalization", "group", "quartznet")
    content["quartznet"]["encoder"]["blocks"][1]["norm_groups"] = 3
    with pytest.raises(ExportError, match=r"filters \(8\) are not a multiple of norm_groups \(3\)"):
        parse_config(content)


def test_files_that_are_no_config_are_told_apart(tmp_path: Path) -> None:
    for name, data, said in (
        ("jasper.toml", b"[jasper]", "has left TOML for YAML"),
        ("a.yaml", b"\xff\xfe", "not UTF-8"),
        ("b.yaml", b"a: [", "not valid YAML"),
        ("c.yaml", b"- a", "should hold settings"),
        ("d.yaml", b"!!python/object/apply:os.getcwd []", "not valid YAML"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ExportError, match=said):
            read_config(tmp_path / name)
    with pytest.raises(ExportError, match="not found"):
        read_config(tmp_path / "none.yaml")


def test_an_error_stays_short_whatever_a_config_repeats() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for name, before in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    content = yaml.safe_load(bomb)
    with pytest.raises(ExportError) as caught:
        parse_config(small_config() | {"labels": content["h"]})
    assert len(str(caught.value)) < 2000
