"""Reading .nemo archives: a tar, mostly compressed, of model_config.yaml and model_weights.ckpt.

An archive may come from a stranger. Its members are read, never unpacked under names of its own; sizes are limited,
those of compressed archives by what comes out of them.
"""

import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import yaml

from tritone.errors import ExportError
from tritone.families.jasper.config import shown

NEMO_SUFFIX = ".nemo"
CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
MAX_MEMBERS = 1000
MAX_ARCHIVE_BYTES = 16 * 2**30  # with all that lies before a member
MAX_BYTES = {CONFIG: 16 * 2**20, WEIGHTS: 8 * 2**30}
BLOCK_BYTES = 2**20

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


def read_nemo_config(path: Path) -> dict[str, Any]:
    """The config of an archive in the layout of upstream's own.

    Raises:
        ExportError: it is no such archive, or its config lacks something.
    """
    with _member(path, CONFIG) as file:
        content = yaml.safe_load(file.read().decode("utf-8"))
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


def _settings(content: Any, key: str, path: Path) -> dict[str, Any]:
    if not isinstance(content, dict) or not isinstance(content.get(key), dict):
        raise ExportError(f"{path}, {CONFIG}: no settings `{key}`; only models of convolutions with CTC can be read")
    found: dict[str, Any] = content[key]
    return found


def _given(settings: dict[str, Any], name: str, path: Path) -> Any:
    key = name.rpartition(".")[2]
    if key not in settings:
        raise ExportError(f"{path}, {CONFIG}: {name} is missing; only Jasper and QuartzNet models can be read")
    return settings[key]


@contextmanager
def open_weights(path: Path) -> Iterator[IO[bytes]]:
    """The weights of an archive as a file that can be read anywhere.

    Raises:
        ExportError: it is no such archive, or too large.
    """
    with _member(path, WEIGHTS) as file, tempfile.TemporaryFile() as copy:
        while block := file.read(BLOCK_BYTES):
            copy.write(block)
        copy.seek(0)
        yield copy


@contextmanager
def _member(path: Path, wanted: str) -> Iterator[IO[bytes]]:
    try:
        with tarfile.open(path, "r:*") as archive:
            for count, member in enumerate(archive):
                if count >= MAX_MEMBERS or member.offset_data + member.size > MAX_ARCHIVE_BYTES:
                    raise ExportError(f"{path} is too large for a model: limits are {MAX_MEMBERS} files and 16 GiB")
                if not member.isfile() or PurePosixPath(member.name).parts != (wanted,):
                    continue
                if member.size > MAX_BYTES[wanted]:
                    raise ExportError(f"{path}: {wanted} has {member.size} bytes, at most {MAX_BYTES[wanted]} are read")
                file = archive.extractfile(member)
                assert file is not None
                yield file
                return
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise ExportError(f"{path} is no archive that can be read ({type(error).__name__}: {error})") from error
    raise ExportError(f"{path} holds no {wanted}: is it a .nemo file?")
