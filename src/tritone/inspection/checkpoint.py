"""What a file or folder of a toolkit is: which `tritone export` reads it, and with which arguments.

    final.pt, train.yaml, units.txt   ->  Checkpoint("wenet", checkpoint=..., config=..., tokens=...)
    config.json, model.bin            ->  Checkpoint("whisper", checkpoint=...)
    model.onnx                        ->  Checkpoint("onnx", model=...)

Names of files, a few fields of configs and the names in a pickle decide. Files may come from strangers: sizes are
limited, a pickle's words are read without loading it, and nothing of it runs.
"""

import json
import pickletools
import re
import shlex
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tritone.errors import BundleError, TritoneError
from tritone.paths import open_file
from tritone.runtime.foreign import foreign
from tritone.yaml_text import read_yaml

MAX_CONFIG_BYTES = 16 * 2**20
MAX_PICKLE_BYTES = 64 * 2**20  # of names, types and sizes; tensors lie beside them
MAX_FILES = 10_000
MAX_MEMBERS = 1000
# The values of `model_type` in folders of transformers, by the command that exports them.
WAVEFORM_CTC = (
    *("wav2vec2", "hubert", "wavlm", "data2vec-audio", "unispeech", "unispeech-sat"),
    *("wav2vec2-conformer", "wav2vec2-bert", "omniasr_ctc", "lasr_ctc", "granite_speech5_ctc"),
)
OF_NEMO = (
    *("parakeet_ctc", "parakeet_rnnt", "parakeet_tdt", "nemotron_asr_streaming", "nemotron3_5_asr"),
    "nemotron3_diarization",
)
TYPES: Mapping[str, str] = {
    "whisper": "whisper",
    **dict.fromkeys((*WAVEFORM_CTC, "moonshine"), "hf"),
    **dict.fromkeys((*OF_NEMO, "canary"), "nemo"),
}
ARGUMENTS = {"whisper": "checkpoint", "hf": "folder", "nemo": "archive"}  # of these commands, that take the folder
PICKLED = ("*.pt", "*.pth", "*.ckpt", "*.nemo", "*.tar", "pytorch_model*.bin", "campplus*.bin", "*.pkl", "*.pickle")
"""Names of files that hold a pickle, in which code can hide; ours are read without running it."""
OF_FOLDERS = ("config.json", "model.bin", "model.safetensors")  # files that mean their folder
BINARY = "pytorch_model.bin"  # of transformers with a config.json beside it, else of pyannote.audio
SPEECHBRAIN, HYPERPARAMS = "embedding_model.ckpt", "hyperparams.yaml"  # its weights and its config
CAMPPLUS = "campplus*.bin"  # of 3D-Speaker
ENDS = ("onnx", "weights", "data")  # of graphs of sherpa-onnx, and of files that weights lie in beside them
PREFIXES = re.compile(r"^((module|_orig_mod|base_model\.model|model)\.)+")  # of names that were saved as they trained
SEGMENTATION = "pyannote-segmentation"  # in names of ONNX files of it, or of their folders
TORCH = ("*.pt", "*.pth", "*.ckpt", "*.ts", "*.tar", BINARY, CAMPPLUS)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What `tritone export FAMILY` reads.

    `what`: in words. `arguments`: of the family's export, files and folders by the names of its options. `first`: the
    name of the one that is the command's argument; empty if all are options. `files`: all that is read. `extra`: what
    of Tritone's extras the export needs, empty if none. `int8`: whether it can be exported so, and
    chosen by a gate. `program`: it is code that runs as soon as it is loaded.
    """

    what: str
    family: str
    arguments: Mapping[str, Path]
    first: str = ""
    files: Sequence[Path] = field(repr=False)
    extra: str = ""
    int8: bool = False
    program: bool = False

    def command(self, output: str, **options: str) -> str:
        """The line of a shell that exports it; options with the value "" are switches."""
        words = ["tritone", "export", self.family]
        if self.first:
            words.append(str(self.arguments[self.first]))
        for name, value in {**self.arguments, "output": output, **options}.items():
            if name != self.first:
                words += [f"--{name.replace('_', '-')}", *([str(value)] if str(value) else [])]
        return shlex.join(words)


def recognise(path: Path) -> Checkpoint:
    """Say what a file or folder is.

    Raises:
        BundleError: it is nothing that a command exports, or something of it is missing; says what.
    """
    if (known := foreign(path)) is not None:
        raise BundleError(f"{path} cannot be exported: {known.sentence}")
    return _folder(path) if path.is_dir() else _file(path)


def check_type(config: Mapping[str, Any], where: object) -> None:
    """Refuse a model of transformers, by its `config.json`, that no command exports.

    Raises:
        BundleError: says of which type it is, and which there are.
    """
    kind = config.get("model_type")
    if kind is not None and str(kind) not in TYPES:
        raise BundleError(
            f"{where} is a model of transformers of type {str(kind)[:80]!r}, which no command exports. Those that are "
            f"exported are {', '.join(TYPES)}"
        )


def is_pickled(name: str) -> bool:
    """Does a file of this name hold a pickle?"""
    return any(fnmatchcase(name.rpartition("/")[2].lower(), pattern) for pattern in PICKLED)


def _folder(folder: Path) -> Checkpoint:
    try:
        names = sorted(each.name for each, _ in zip(folder.iterdir(), range(MAX_FILES), strict=False))
    except OSError as error:
        raise BundleError(f"cannot read the folder {folder}: {error.strerror}") from error

    def some(*patterns: str) -> list[Path]:
        return [folder / each for pattern in patterns for each in names if fnmatchcase(each, pattern)]

    for graph in (folder / "model.onnx", folder / "onnx" / "model.onnx"):  # sherpa-onnx's folder, and the hub's
        if SEGMENTATION in folder.name and graph.is_file():
            return _file(graph)
    if "config.json" in names:
        config = _json(folder / "config.json")
        if "model.bin" in names and ("model_type" not in config or _is_whisper_binary(folder / "model.bin")):
            return Checkpoint(
                what="a Whisper model in a folder of CTranslate2, as faster-whisper reads it",
                family="whisper",
                arguments={"checkpoint": folder},
                files=some("*.json", "model.bin", "vocabulary.txt"),
                int8=True,
            )
        kind = config.get("model_type")
        weights = some("model*.safetensors*") or some("pytorch_model*.bin*")
        family = TYPES.get(str(kind))
        if family is not None and (weights or not some("*.nemo")):
            if not weights:
                raise BundleError(f"{folder} is a {kind} of transformers without weights: model.safetensors is missing")
            argument = ARGUMENTS[family]
            return Checkpoint(
                what=f"a model of transformers, {kind}",
                family=family,
                arguments={argument: folder},
                first="" if family == "whisper" else argument,
                files=list(dict.fromkeys([*some("*.json", "*.txt"), *weights])),
                extra="export",
                int8=True,
            )
        check_type(config, folder)
    if (wenet := some("train.yaml")) and (weights := some("final.pt") or some("avg*.pt") or some("*.pt")):
        if not (tokens := some("units.txt", "lang_char.txt", "words.txt", "dict.txt")):
            raise BundleError(f"{folder} is a model of WeNet without its tokens: units.txt is missing")
        return _of_wenet(weights[0], wenet[0], tokens[0], some("global_cmvn"))
    if {"config.yaml", "model.pt", "am.mvn"} <= set(names):
        return Checkpoint(
            what="a model of FunASR",
            family="funasr",
            arguments={"folder": folder},
            first="folder",
            files=some("config.yaml", "model.pt", "am.mvn", "*.bpe.model", "tokens.json", "seg_dict"),
            extra="export",
            int8=True,
        )
    if {"config.yaml", "model.pt", "tokens.json"} <= set(names):
        return Checkpoint(
            what="a punctuation model of FunASR",
            family="funasr",
            arguments={"folder": folder},
            first="folder",
            files=some("config.yaml", "model.pt", "tokens.json", "jieba_usr_dict"),
            extra="export",
        )
    if (config_yaml := some("config.yaml")) and (weights := some("avg_model.pt", "model_*.pt")):
        return _of_wespeaker(weights[0], config_yaml[0])
    if some("*-encoder*.onnx") and some("*-decoder*.onnx") and (table := some("*-tokens.txt")):
        form = "" if some("*-encoder.onnx") else ".int8"
        return Checkpoint(
            what="a Whisper model in a folder of sherpa-onnx",
            family="whisper",
            arguments={"checkpoint": folder},
            files=[*some(*(f"*-{part}{form}.{end}" for part in ("encoder", "decoder") for end in ENDS)), *table],
            int8=True,
        )
    if some("uncached_decode*.onnx") and some("tokens.txt"):
        return Checkpoint(
            what="a Moonshine in a folder of sherpa-onnx",
            family="sherpa-onnx",
            arguments={"folder": folder},
            first="folder",
            files=some("preprocess*.onnx", "*code.onnx", "*code.int8.onnx", "tokens.txt"),
            extra="export",
        )
    if speechbrain := some(SPEECHBRAIN):
        return _file(speechbrain[0])
    if some("encoder*.onnx", "model*.onnx", "ctc*.onnx") and some("tokens.txt"):
        pair = some("encoder*.onnx") and some("decoder*.onnx") and not some("joiner*.onnx", "model*.onnx")
        return Checkpoint(
            what="a ready-made model of sherpa-onnx",
            family="sherpa-onnx",
            arguments={"folder": folder},
            first="folder",
            files=some(*(f"*.{end}" for end in ENDS), "tokens.txt"),
            extra="export" if pair else "",  # of a Paraformer for streams the weights are read
        )
    if some("model.onnx", "model.int8.onnx") and some("tokens.json"):
        return Checkpoint(
            what="a punctuation model of sherpa-onnx",
            family="sherpa-onnx",
            arguments={"folder": folder},
            first="folder",
            files=some("model.onnx", "model.int8.onnx"),
        )
    if icefall := some("pretrained.pt", "jit_script*.pt", "epoch-*.pt", "checkpoint-*.pt"):
        chosen = icefall[-1] if icefall[0].name != "pretrained.pt" else icefall[0]
        if chosen.name != "pretrained.pt" or _tokens_of_icefall(chosen):  # Resemblyzer's has the same name
            return _of_icefall(chosen)
    single = some("*.nemo") or some("*.pt2") or some("*.onnx") or some(*TORCH)
    if len(single) == 1:
        return _file(single[0])
    seen = ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")
    why = f"several models ({', '.join(each.name for each in single[:4])}): name one of them" if single else "no model"
    raise BundleError(
        f"{folder} holds {why}. It has {seen or 'no files'}; needed is a bundle (manifest.json), a model repository, "
        "or a folder as a toolkit writes it: config.json with model.safetensors (transformers) or model.bin "
        "(CTranslate2), train.yaml with final.pt (WeNet), config.yaml with avg_model.pt (WeSpeaker) or with model.pt "
        "and am.mvn (FunASR), hyperparams.yaml with embedding_model.ckpt (SpeechBrain), "
        "pretrained.pt with tokens.txt (icefall), encoder.onnx with tokens.txt (sherpa-onnx), or a .nemo file"
    )


NAMED_GRAPHS = {
    "silero_vad": ("silero", "a voice activity detector of silero"),
    "smart-turn": ("smart-turn", "a classifier of ends of turns"),
}
"""ONNX files that are known by a part of their name: the export, and what they are."""


def _file(path: Path) -> Checkpoint:
    suffix = path.suffix.lower()
    if path.name in OF_FOLDERS or (path.name == BINARY and (path.parent / "config.json").is_file()):
        return _folder(path.parent)
    if suffix == ".nemo":
        return _of_nemo(path)
    if suffix == ".onnx" and any(SEGMENTATION in part for part in path.parts[-4:]):
        return Checkpoint(
            what="a segmentation network of pyannote.audio in ONNX",
            family="pyannote",
            arguments={"checkpoint": path},
            files=[path],
            extra="export",
        )
    if suffix == ".onnx" and (config := path.with_name(f"{path.name}.json")).is_file():
        return Checkpoint(
            what="a voice of Piper", family="piper", arguments={"voice": path}, first="voice", files=[path, config]
        )
    if suffix == ".onnx":
        family, what = next(
            (found for name, found in NAMED_GRAPHS.items() if name in path.name), ("onnx", "a graph in ONNX")
        )
        argument = "model" if family == "onnx" else "file"
        beside = [each for each in path.parent.glob(f"{path.stem}*") if each.is_file()]
        return Checkpoint(
            what=what,
            family=family,
            arguments={argument: path},
            first=argument,
            files=sorted({path, *beside}),
        )
    if not any(fnmatchcase(path.name.lower(), each) for each in (*TORCH, "*.pt2")):
        raise BundleError(
            f"{path} is a file of a kind that no command exports: known are .onnx, .pt2, TorchScript (.pt, .ts), "
            "checkpoints of torch (.pt, .pth, .ckpt) and .nemo"
        )
    inner = _members(path)
    if any(name.endswith("archive_format") for name in inner):
        return Checkpoint(
            what="a program of torch.export",
            family="torch-export",
            arguments={"model": path},
            first="model",
            files=[path],
            extra="export",
        )
    if any(name.partition("/")[2].startswith("code/") for name in inner):
        return Checkpoint(
            what="a TorchScript, which is a program",
            family="torchscript",
            arguments={"model": path},
            first="model",
            files=[path],
            extra="export",
            program=True,
        )
    return _of_torch(path, _words(path, inner))


def _of_torch(path: Path, words: frozenset[str]) -> Checkpoint:
    """A checkpoint of torch.save, by the names of its tensors, and the files that lie beside it."""
    folder = path.parent
    if {"dims", "model_state_dict"} <= words:
        tokens = next(iter(sorted(folder.glob("*.tiktoken"))), None)
        if tokens is None:
            raise BundleError(
                f"{path} is a Whisper of OpenAI's, which has no tokens: put multilingual.tiktoken or gpt2.tiktoken of "
                "the package openai-whisper (whisper/assets/) beside it, or use `tritone export whisper --tokens`"
            )
        return Checkpoint(
            what="a Whisper model of OpenAI's",
            family="whisper",
            arguments={"checkpoint": path, "tokens": tokens},
            files=[path, tokens],
            extra="export",
            int8=True,
        )
    if any(word.startswith(("joiner.", "encoder_embed.")) for word in words):
        return _of_icefall(path)
    if any(word.startswith("ctc.ctc_lo.") for word in words):
        config, tokens = folder / "train.yaml", folder / "units.txt"
        if missing := [each.name for each in (config, tokens) if not each.is_file()]:
            raise BundleError(f"{path} is a model of WeNet; {' and '.join(missing)} must lie beside it")
        return _of_wenet(path, config, tokens, [each for each in [folder / "global_cmvn"] if each.is_file()])
    if "pyannote.audio" in words:
        if "sincnet.wav_norm1d.weight" in words and "classifier.weight" in words:
            return Checkpoint(
                what="a segmentation network of pyannote.audio",
                family="pyannote",
                arguments={"checkpoint": path},
                files=[path],
                extra="export",
            )
        if "resnet.seg_1.weight" not in words:
            raise BundleError(
                f"{path} is a model of pyannote.audio that is neither a segmentation network (PyanNet) nor one of "
                "WeSpeaker's ResNets, which can be exported"
            )
        return Checkpoint(
            what="a speaker model of pyannote.audio, a ResNet of WeSpeaker",
            family="wespeaker",
            arguments={"checkpoint": path},
            files=[path],
            extra="export",
        )
    if "xvector.tdnn.linear.weight" in words and "projection.weight" not in words:
        if fnmatchcase(path.name, CAMPPLUS) or not (folder / "config.yaml").is_file():
            return Checkpoint(
                what="a CAM++ of 3D-Speaker",
                family="wespeaker",
                arguments={"checkpoint": path},
                files=[path],
                extra="export",
            )
        return _of_wespeaker(path, folder / "config.yaml")
    if any(word.startswith(("projection.weight", "seg_1.")) for word in words):
        if not (folder / "config.yaml").is_file():
            raise BundleError(f"{path} is a speaker model of WeSpeaker; config.yaml must lie beside it")
        return _of_wespeaker(path, folder / "config.yaml")
    if {"model_state", "similarity_weight", "lstm.weight_hh_l0"} <= words:
        return Checkpoint(
            what="the voice encoder of Resemblyzer",
            family="resemblyzer",
            arguments={"checkpoint": path},
            files=[path],
            extra="export",
        )
    if path.name == SPEECHBRAIN or "asp.tdnn.conv.conv.weight" in words:
        if "asp.tdnn.conv.conv.weight" not in words:
            raise BundleError(
                f"{path} is a model of SpeechBrain's that is no ECAPA-TDNN, which alone can be exported of those that "
                "embed voices"
            )
        if not (folder / HYPERPARAMS).is_file():
            raise BundleError(f"{path} is an ECAPA-TDNN of SpeechBrain; {HYPERPARAMS} must lie beside it")
        return Checkpoint(
            what="an ECAPA-TDNN of SpeechBrain",
            family="speechbrain",
            arguments={"checkpoint": path, "config": folder / HYPERPARAMS},
            files=[path, folder / HYPERPARAMS],
            extra="export",
        )
    configs = [*folder.glob("*.yaml"), *folder.glob("*.yml")]
    if len(configs) == 1 and {"state_dict", "ema_state_dict"} <= words:
        return Checkpoint(
            what="a Jasper or QuartzNet of NVIDIA's DeepLearningExamples",
            family="jasper",
            arguments={"checkpoint": path, "config": configs[0]},
            files=[path, configs[0]],
            extra="export",
        )
    raise BundleError(
        f"{path} is a checkpoint of torch whose toolkit is not known by its tensors ({_some(words)}). `tritone export "
        "FAMILY` with its options reads those of WeNet, icefall, NeMo, WeSpeaker, SpeechBrain, Jasper, transformers "
        "and Whisper"
    )


def _of_wenet(weights: Path, config: Path, tokens: Path, cmvn: Sequence[Path]) -> Checkpoint:
    arguments = {"checkpoint": weights, "config": config, "tokens": tokens}
    if cmvn:
        arguments["cmvn"] = cmvn[0]
    return Checkpoint(
        what="a U2 or U2++ model of WeNet",
        family="wenet",
        arguments=arguments,
        files=list(arguments.values()),
        extra="export",
        int8=True,
    )


def _of_wespeaker(weights: Path, config: Path) -> Checkpoint:
    return Checkpoint(
        what="a speaker model of WeSpeaker",
        family="wespeaker",
        arguments={"checkpoint": weights, "config": config},
        files=[weights, config],
        extra="export",
    )


def _tokens_of_icefall(path: Path) -> tuple[str, Path] | None:
    """The file of a model's tokens, and the option that takes it."""
    places = [path.parent, path.parent.parent / "data" / "lang_bpe_500", path.parent.parent]
    tables = [("tokens", "tokens.txt"), ("bpe_model", "bpe.model")]
    return next(((name, place / file) for place in places for name, file in tables if (place / file).is_file()), None)


def _of_icefall(path: Path) -> Checkpoint:
    found = _tokens_of_icefall(path)
    if found is None:
        raise BundleError(f"{path} is a model of icefall; tokens.txt or bpe.model must lie beside it")
    return Checkpoint(
        what="a conformer or zipformer of icefall",
        family="icefall",
        arguments={"checkpoint": path, found[0]: found[1]},
        files=[path, found[1]],
        extra="export",
        int8=True,
    )


def _of_nemo(path: Path) -> Checkpoint:
    try:
        with tarfile.open(path, "r:*") as archive:
            for member, _ in zip(archive, range(MAX_MEMBERS), strict=False):
                if member.isfile() and Path(member.name).parts == ("model_config.yaml",):
                    file = archive.extractfile(member)
                    assert file is not None
                    config = _settings(file.read(MAX_CONFIG_BYTES), str(path))
                    break
            else:
                raise BundleError(f"{path} holds no model_config.yaml: it is no archive of NeMo's")
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise BundleError(f"{path} is no archive that can be read ({type(error).__name__}: {error})") from error
    encoder = config.get("encoder")
    blocks = isinstance(encoder, Mapping) and "jasper" in encoder
    return Checkpoint(
        what=f"{'a Jasper or QuartzNet' if blocks else 'a Conformer or FastConformer'} of NeMo",
        family="jasper" if blocks else "nemo",
        arguments={"checkpoint" if blocks else "archive": path},
        first="" if blocks else "archive",
        files=[path],
        extra="export",
        int8=not blocks,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        with open_file(path) as file:
            content = json.loads(file.read(MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not JSON that can be read: {str(error)[:200]}") from error
    if not isinstance(content, dict):
        raise BundleError(f"{path} should hold settings by name, it holds a {type(content).__name__}")
    return content


def _settings(content: bytes, origin: str) -> Mapping[str, Any]:
    found = read_yaml(content, f"the config of {origin}", BundleError)
    if not isinstance(found, dict):
        raise BundleError(f"the config of {origin} should hold settings by name")
    return found


def _is_whisper_binary(path: Path) -> bool:
    """Does a `model.bin` begin as CTranslate2's of a Whisper do, and not as a pickle?"""
    with open_file(path) as file:
        return b"WhisperSpec" in file.read(64)


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return []  # torch's older form is one pickle after the other


def _words(path: Path, inner: Sequence[str]) -> frozenset[str]:
    """The texts in a pickle, which is taken apart and not loaded."""
    try:
        if inner:
            with zipfile.ZipFile(path) as archive:
                name = next(each for each in inner if each.endswith("data.pkl"))
                if archive.getinfo(name).file_size > MAX_PICKLE_BYTES:
                    raise BundleError(f"{path}: its pickle has more than {MAX_PICKLE_BYTES} bytes, which none has")
                operations = list(pickletools.genops(archive.read(name)))
        else:
            with open_file(path) as file:
                operations = []
                for _ in range(4):  # a magic number, a version, the machine, the content
                    operations += list(pickletools.genops(file))
    except TritoneError:
        raise
    except Exception as error:  # pickletools raises what comes, as unpickling does
        raise BundleError(f"{path} is no checkpoint of torch, or is damaged ({type(error).__name__})") from error
    texts = (argument for _, argument, _ in operations if isinstance(argument, str))
    return frozenset(PREFIXES.sub("", text) for text in texts)


def _some(words: frozenset[str]) -> str:
    dotted = sorted(word for word in words if "." in word and " " not in word)
    return ", ".join(each[:60] for each in dotted[:3]) or "it has none"
