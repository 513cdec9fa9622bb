"""What a file or folder of a trained model is, and which command exports it; nothing of it is loaded.

    FILE.nemo, final.pt, a folder of transformers, ggml-base.bin, …  ->  Recognised

Torch's files are looked through for the names in their pickles, opcode by opcode: no object is made of them.
"""

import json
import pickletools
import re
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tritone.errors import ExportError

MAX_TEXT_BYTES = 64 * 2**20  # of a pickle, a header or a config
MAX_NAMES = 200_000
MAX_MEMBERS = 1000
SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """`what`: a sentence's part. `command`: that exports it, or empty. `needed`: what would be, where none does.

    `foreign`: whether it is in a form that no family reads, whatever model it is.
    """

    what: str
    command: str = ""
    needed: str = ""
    foreign: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """For errors."""
        return f"this is {self.what}; " + (f"export it with `{self.command}`" if self.command else self.needed)


NEMO = re.compile(r"^target:\s*['\"]?([\w.]+)", re.MULTILINE)
NEMO_MODELS = {
    "EncDecMultiTaskModel": ("Canary, an encoder with an attention decoder", "its decoder would be needed here"),
    "SortformerEncLabelModel": ("Sortformer, which says who speaks when", "its transformer would be needed here"),
}
MODEL_TYPES = {
    "whisper": ("a Whisper model", "tritone export whisper --checkpoint {path} --output BUNDLE"),
    "wav2vec2": ("a wav2vec 2.0 model", "tritone export hf {path} --output BUNDLE"),
    "hubert": ("a HuBERT model", "tritone export hf {path} --output BUNDLE"),
    "wavlm": ("a WavLM model", "tritone export hf {path} --output BUNDLE"),
}
GGML = {b"lmgg": "ggml", b"ggml": "ggml", b"GGUF": "GGUF"}
# Names in a checkpoint of torch, all of a line together, and what they tell.
SIGNS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("dims", "model_state_dict"),
        "a checkpoint of OpenAI's Whisper",
        "tritone export whisper --checkpoint {path} --tokens multilingual.tiktoken --output BUNDLE",
    ),
    (
        ("encoder.embed.", "ctc.ctc_lo.weight"),
        "a checkpoint of WeNet",
        "tritone export wenet --checkpoint {path} --config train.yaml --tokens units.txt --output BUNDLE",
    ),
    (
        ("encoder_embed.",),
        "a zipformer of icefall",
        "tritone export icefall --checkpoint {path} --tokens tokens.txt --output BUNDLE",
    ),
    (
        ("encoder.encoder_embed.", "joiner."),
        "a conformer of icefall",
        "tritone export icefall --checkpoint {path} --tokens tokens.txt --output BUNDLE",
    ),
    (
        ("jasper_encoder.",),
        "a Jasper or QuartzNet",
        "tritone export jasper --checkpoint {path} --config CONFIG.yaml --output BUNDLE",
    ),
    (
        ("encoder.layers.0.", "decoder.layers.0."),
        "a Jasper or QuartzNet",
        "tritone export jasper --checkpoint {path} --config CONFIG.yaml --output BUNDLE",
    ),
    (
        ("projection.weight",),
        "a speaker model of WeSpeaker",
        "tritone export wespeaker --checkpoint {path} --config config.yaml --output BUNDLE",
    ),
    (
        ("seg_1.", "pool."),
        "a speaker model of WeSpeaker",
        "tritone export wespeaker --checkpoint {path} --config config.yaml --output BUNDLE",
    ),
)
SENSEVOICE = Recognised(
    foreign=True,
    what="SenseVoice of FunASR",
    needed="its encoder with memory (SAN-M) and its features (low frame rate) would be needed here; sherpa-onnx has it",
)


def recognise(path: Path) -> Recognised | None:
    """What a trained model's file or folder is; None if nothing here knows it."""
    try:
        return _folder(path) if path.is_dir() else _file(path)
    except (OSError, ValueError, EOFError, struct.error, tarfile.TarError, zipfile.BadZipFile):
        return None


def refuse_foreign(path: Path) -> None:
    """Refuse a file or folder in a form that no family reads, with what it is and what would be needed.

    Raises:
        ExportError: it is one: of whisper.cpp, MLX, PEFT, SenseVoice, CTranslate2 without Whisper.
    """
    if path.exists() and (known := recognise(path)) is not None and known.foreign:
        raise ExportError(f"{path} cannot be exported: {known.sentence}")


def _folder(path: Path) -> Recognised | None:
    names = {each.name for each in path.iterdir()}
    if "adapter_config.json" in names:
        base = _json(path / "adapter_config.json").get("base_model_name_or_path")
        return Recognised(
            what=f"a PEFT adapter for {base!r}, without the model that it changes",
            foreign=True,
            needed="merge it into its model in peft (merge_and_unload), save that, and export its folder",
        )
    if "model.bin" in names and (found := _ctranslate2(path)):
        return found
    config = _json(path / "config.json") if "config.json" in names else {}
    if {"weights.npz", "weights.safetensors"} & names:
        return Recognised(
            what="a folder of MLX (weights with Apple's names and layout)",
            foreign=True,
            needed="its names and layouts would be needed here; take the folder of transformers that it was made of",
        )
    if "configuration.json" in names or "config.yaml" in names:
        text = " ".join(_text(path / name) for name in ("configuration.json", "config.yaml") if name in names)
        if "SenseVoice" in text:
            return SENSEVOICE
    if (kind := config.get("model_type")) in MODEL_TYPES:
        what, command = MODEL_TYPES[kind]
        return Recognised(what=f"{what} as transformers saves it", command=command.format(path=path))
    if isinstance(kind, str):
        return Recognised(
            what=f"a folder of transformers with a model of type {kind[:40]!r}",
            needed=f"its network would be needed here; known are {', '.join(MODEL_TYPES)}",
        )
    if "final.pt" in names and "train.yaml" in names:
        return Recognised(
            what="a folder of WeNet",
            command=f"tritone export wenet --checkpoint {path}/final.pt --config {path}/train.yaml "
            f"--tokens {path}/units.txt --output BUNDLE",
        )
    if "avg_model.pt" in names and "config.yaml" in names:
        return Recognised(
            what="a folder of WeSpeaker",
            command=f"tritone export wespeaker --checkpoint {path}/avg_model.pt --config {path}/config.yaml "
            "--output BUNDLE",
        )
    if "tokens.txt" in names and any(name.endswith(".onnx") for name in names):
        return Recognised(what="a folder of sherpa-onnx", command=f"tritone export sherpa-onnx {path} --output BUNDLE")
    return None


def _ctranslate2(path: Path) -> Recognised | None:
    with (path / "model.bin").open("rb") as file:
        version, length = struct.unpack("<IH", file.read(6))
        name = file.read(length)
    if not 1 <= version <= 100 or not 1 < length <= 200 or not name.endswith(b"Spec\0"):
        return None
    spec = name[:-1].decode("ascii", "replace")
    if spec == "WhisperSpec":
        return Recognised(
            what="a Whisper model as faster-whisper (CTranslate2) has it",
            command=f"tritone export whisper --checkpoint {path} --output BUNDLE",
        )
    return Recognised(
        what=f"a CTranslate2 model of type {spec}, which is no Whisper",
        foreign=True,
        needed="its network would be needed here; take the model that it was converted from",
    )


def _file(path: Path) -> Recognised | None:
    with path.open("rb") as file:
        start = file.read(8)
    if form := GGML.get(start[:4]):
        return Recognised(
            what=f"a {form} file, as whisper.cpp has them",
            foreign=True,
            needed="its quantised layouts would be needed here; take the model in transformers' or OpenAI's form",
        )
    if path.suffix == ".nemo":
        return _nemo(path)
    if path.suffix == ".safetensors":
        (size,) = struct.unpack("<Q", start)
        if size > MAX_TEXT_BYTES:
            return None
        with path.open("rb") as file:
            file.seek(8)
            header = json.loads(file.read(size))
        shown = ", ".join(name for name in list(header)[:SHOWN] if name != "__metadata__")
        beside = _folder(path.parent)
        if beside is not None:
            return beside
        return Recognised(
            what=f"tensors in safetensors ({shown}, …) without a config beside them",
            needed="give the whole folder that save_pretrained wrote",
        )
    names = _pickled(path)
    if names is None:
        return None
    return _torch(path, names)


def _torch(path: Path, names: list[str]) -> Recognised:
    plain = [re.sub(r"^(module\.|_orig_mod\.|model\.)+", "", name) for name in names]
    for signs, what, command in SIGNS:
        if all(any(name.startswith(sign) for name in plain) for sign in signs):
            return Recognised(what=what, command=command.format(path=path))
    if "pytorch-lightning_version" in names:
        return Recognised(
            what="a checkpoint of Lightning of a model that is not known here",
            needed="its toolkit's config would be needed; NeMo's are exported as .nemo (model.save_to)",
        )
    shown = ", ".join(name for name in plain if "." in name or name in ("weight", "bias"))[:200]
    return Recognised(
        what=f"a file of torch with tensors of a network that is not known here: {shown or 'no names'}",
        needed="families that can be exported are listed by `tritone export --help`",
    )


def _nemo(path: Path) -> Recognised | None:
    with tarfile.open(path, "r:*") as archive:
        for count, member in enumerate(archive):
            if count > MAX_MEMBERS:
                return None
            if member.isfile() and Path(member.name).name == "model_config.yaml" and member.size <= MAX_TEXT_BYTES:
                file = archive.extractfile(member)
                assert file is not None
                return _nemo_model(path, file.read().decode("utf-8", "replace"))
    return None


def _nemo_model(path: Path, config: str) -> Recognised:
    match = NEMO.search(config)
    name = match[1].rpartition(".")[2] if match else ""
    facts = {"target": match[1]} if match else {}
    if name in NEMO_MODELS:
        what, needed = NEMO_MODELS[name]
        return Recognised(what=f"an archive of NeMo: {what}", needed=needed, facts=facts)
    if "jasper:" in config:
        command = f"tritone export jasper --checkpoint {path} --output BUNDLE"
        return Recognised(what="an archive of NeMo with a Jasper or QuartzNet", command=command, facts=facts)
    return Recognised(
        what=f"an archive of NeMo{f' with a model of class {name}' if name else ''}",
        command=f"tritone export nemo {path} --output BUNDLE",
        facts=facts,
    )


def _pickled(path: Path) -> list[str] | None:
    """All texts in a torch file's pickle; None if it is no such file."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in each.filename for each in archive.infolist()):  # a program: TorchScript
                return None
            pickles = [each for each in archive.infolist() if each.filename.endswith("/data.pkl")]
            if len(pickles) != 1 or pickles[0].file_size > MAX_TEXT_BYTES:
                return None
            with archive.open(pickles[0]) as file:
                return _texts(file)  # type: ignore[arg-type]
    with path.open("rb") as file:
        if file.read(1) != b"\x80":
            return None
        file.seek(0)
        found: list[str] = []
        for _ in range(4):  # older files have several, one after the other
            found += _texts(file)
        return found


def _texts(file: BinaryIO) -> list[str]:
    found = []
    for opcode, argument, _ in pickletools.genops(file):
        if isinstance(argument, str) and "UNICODE" in opcode.name:
            found.append(argument)
            if len(found) > MAX_NAMES:
                break
    return found


def _json(path: Path) -> dict[str, Any]:
    content = json.loads(_text(path))
    return content if isinstance(content, dict) else {}


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_TEXT_BYTES:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")
