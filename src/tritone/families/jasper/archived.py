"""Jasper and QuartzNet in .nemo archives: NeMo's config in the layout of upstream's own."""

from pathlib import Path
from typing import Any

from tritone.errors import ExportError
from tritone.families.export.archive import CONFIG, read_config
from tritone.families.export.settings import shown

# Where NeMo keeps what upstream has elsewhere, as upstream's converter knows it.
FEATURES = {
    "dither": "dither",
    "frame_splicing": "frame_splicing",
    "n_fft": "n_fft",
    "features": "n_filt",
    "normalize": "normalize",
    "sample_rate": "sample_rate",
    "window": "window",
    "window_size": "window_size",
    "window_stride": "window_stride",
}
PAD_ALIGN = 16  # upstream's converter writes it whatever NeMo says


def read_archived_config(path: Path) -> dict[str, Any]:
    """The config of an archive in the layout of upstream's own.

    Raises:
        ExportError: it is no such archive, or its config lacks something.
    """
    content = read_config(path)
    parts = {key: _settings(content, key, path) for key in ("preprocessor", "encoder", "decoder")}
    preprocessor, encoder, decoder = parts["preprocessor"], parts["encoder"], parts["decoder"]
    blocks = []
    for block in _given(encoder, "encoder.jasper", path):
        if not isinstance(block, dict):
            raise ExportError(f"{path}, {CONFIG}: encoder.jasper should list blocks, found {shown(block)} there")
        blocks.append({"kernel_size" if key == "kernel" else key: value for key, value in block.items()})
    network: dict[str, Any] = {
        "in_feats": _given(encoder, "encoder.feat_in", path),
        "activation": _given(encoder, "encoder.activation", path),
        "blocks": blocks,
    }
    if "conv_mask" in encoder:
        network["use_conv_masks"] = encoder["conv_mask"]
    features = {ours: preprocessor[key] for key, ours in FEATURES.items() if key in preprocessor}
    dataset = {"sample_rate": preprocessor["sample_rate"]} if "sample_rate" in preprocessor else {}
    return {
        "labels": _given(decoder, "decoder.vocabulary", path),
        "input_val": {"audio_dataset": dataset, "filterbank_features": {**features, "pad_align": PAD_ALIGN}},
        "quartznet": {"encoder": network, "decoder": {"in_feats": _given(decoder, "decoder.feat_in", path)}},
    }


def _settings(content: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    if not isinstance(content.get(key), dict):
        raise ExportError(f"{path}, {CONFIG}: no settings `{key}`; only models of convolutions with CTC can be read")
    found: dict[str, Any] = content[key]
    return found


def _given(settings: dict[str, Any], name: str, path: Path) -> Any:
    key = name.rpartition(".")[2]
    if key not in settings:
        raise ExportError(
            f"{path}, {CONFIG}: {name} is missing; only Jasper and QuartzNet models can be read. "
            "A Conformer or FastConformer is for `tritone export nemo`."
        )
    return settings[key]
