"""A model's folder as CTranslate2's converters write it, which faster-whisper reads. Needs no torch.

    model.bin, config.json, tokenizer.json | vocabulary.json | vocabulary.txt
        ->  the sizes and tensors of a Whisper model, by OpenAI's names

The file is version 6 of CTranslate2's binary format: little-endian; a u32 version, the name of a specification, its
u32 revision; a u32 count of tensors, each a name, u8 rank, u32 sizes, u8 type, u32 bytes and the numbers; then a u32
count of aliases, each a name and the name of a tensor. A string is its u16 length, counted with the NUL at its end.
Integers have a scale beside them (NAME_scale), of each row or of all: a number is the integer divided by it.

Query, key and value of self-attention are one product `linear_0`, key and value of cross-attention one `linear_1`; the
key's bias, which Whisper does not have, is zero there.
Source: OpenNMT/CTranslate2 python/ctranslate2/specs/model_spec.py, whisper_spec.py.
"""

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.bfloat16 import from_bfloat16
from tritone.errors import ExportError
from tritone.families.whisper.dims import Dims, State

MODEL = "model.bin"
VERSION, SPEC, REVISION = 6, "WhisperSpec", 3
FLOAT32, INT8, INT16, INT32, FLOAT16, BFLOAT16 = range(6)
TYPES = {FLOAT32: "<f4", INT8: "i1", INT16: "<i2", INT32: "<i4", FLOAT16: "<f2", BFLOAT16: "<u2"}
MOST_TENSORS, MOST_RANK = 2**16, 8
SCALE = "_scale"
# What a tensor of one number must be, in this order: attention of Whisper's kind, GELU as it is defined.
FIXED = {
    "pre_norm": 1,
    "activation": 3,
    "alibi": 0,
    "alibi_use_positive_positions": 0,
    "scale_alibi": 0,
    "scale_embeddings": 0,
    "start_from_zero_embedding": 0,
}
IGNORED = ("alignment_heads", "alignment_layer")  # of translation; Whisper's heads are in config.json


def is_ctranslate2(folder: Path) -> bool:
    """Does the folder hold a model of CTranslate2's?"""
    return (folder / MODEL).is_file()


def read_model(folder: Path) -> tuple[Dims, State]:
    """The sizes and float32 tensors of a folder.

    Raises:
        ExportError: it is no Whisper model in this form, it is damaged, or it holds a tensor that no Whisper has.
    """
    path = folder / MODEL
    tensors = _Tensors(read_tensors(path), path)
    state: State = {}
    layers = {side: tensors.count(f"{side}/layer_") for side in ("encoder", "decoder")}
    heads = {side: tensors.number(f"{side}/num_heads") for side in layers}
    for side, count in layers.items():
        state[f"{side}.positional_embedding"] = tensors.take(f"{side}/position_encodings/encodings")
        state |= tensors.norm(f"{side}.{'ln_post' if side == 'encoder' else 'ln'}", f"{side}/layer_norm")
        for layer in range(count):
            ours, theirs = f"{side}.blocks.{layer}", f"{side}/layer_{layer}"
            state |= tensors.attention(f"{ours}.attn", f"{theirs}/self_attention", crossed=False)
            if side == "decoder":
                state |= tensors.attention(f"{ours}.cross_attn", f"{theirs}/attention", crossed=True)
            state |= tensors.norm(f"{ours}.mlp_ln", f"{theirs}/ffn/layer_norm")
            state |= tensors.linear(f"{ours}.mlp.0", f"{theirs}/ffn/linear_0")
            state |= tensors.linear(f"{ours}.mlp.2", f"{theirs}/ffn/linear_1")
    for name in ("conv1", "conv2"):
        state |= tensors.linear(f"encoder.{name}", f"encoder/{name}")
    state["decoder.token_embedding.weight"] = tensors.take("decoder/embeddings/weight")
    tied = tensors.is_same("decoder/projection/weight", "decoder/embeddings/weight")
    if not tied:
        state["decoder.head.weight"] = tensors.take("decoder/projection/weight")
    tensors.account()
    try:
        vocab, width = state["decoder.token_embedding.weight"].shape
        dims = Dims(
            num_bins=state["encoder.conv1.weight"].shape[1],
            audio_context=len(state["encoder.positional_embedding"]),
            audio_width=width,
            audio_heads=heads["encoder"],
            audio_layers=layers["encoder"],
            audio_hidden=len(state["encoder.blocks.0.mlp.0.weight"]),
            vocab=vocab,
            text_context=len(state["decoder.positional_embedding"]),
            text_heads=heads["decoder"],
            text_layers=layers["decoder"],
            text_hidden=len(state["decoder.blocks.0.mlp.0.weight"]),
            tied=tied,
        )
    except (IndexError, KeyError, ValueError) as error:
        raise ExportError(f"{path} has tensors of shapes that no Whisper model has") from error
    return dims, state


def count_numbers(path: Path) -> int | None:
    """How many numbers a model.bin holds, an alias once; None of other files. Raises as `read_tensors`."""
    if path.name != "model.bin":
        return None
    return sum({id(each): each.size for each in read_tensors(path).values()}.values())


def read_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a model.bin as they are in the file, which stays mapped; an alias is the same array.

    Raises:
        ExportError: the file is damaged, or holds another model than a Whisper in this form.
    """
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # of an empty file
        raise ExportError(f"cannot read {path}: {error}") from error
    reader = _Reader(content, path)
    version = reader.number("<I")
    if version != VERSION:
        raise ExportError(
            f"{path} is not a model of CTranslate2 in version {VERSION} of its format (it says {version}). Convert the "
            "model again with a CTranslate2 from 3.0 on"
        )
    spec, revision = reader.text(), reader.number("<I")
    if (spec, revision) != (SPEC, REVISION):
        raise ExportError(
            f"{path} holds a model of CTranslate2's {spec} (revision {revision}), and {SPEC} (revision {REVISION}) is "
            "what is read here: export the model that it was converted from"
        )
    tensors: dict[str, npt.NDArray[Any]] = {}
    for _ in range(reader.count(MOST_TENSORS)):
        name = reader.text()
        shape = tuple(reader.number("<I") for _ in range(reader.count(MOST_RANK, "<B")))
        kind = reader.number("<B")
        data = reader.take(reader.number("<I"))
        if kind not in TYPES:
            raise ExportError(f"{path}: {name} has the type {kind}, known are {', '.join(map(str, TYPES))}")
        array = np.frombuffer(data, TYPES[kind]) if len(data) % np.dtype(TYPES[kind]).itemsize == 0 else None
        size = 1
        for each in shape:
            size *= each
        if array is None or array.size != size or name in tensors:
            raise ExportError(
                f"{path} is damaged: {name[:80]} has {len(data)} bytes for a shape of {shape}, or is twice"
            )
        array = from_bfloat16(array) if kind == BFLOAT16 else array
        tensors[name] = array.reshape(shape)
    for _ in range(reader.count(MOST_TENSORS)):
        alias, target = reader.text(), reader.text()
        if target not in tensors or alias in tensors:
            raise ExportError(f"{path} is damaged: {alias[:80]} stands for {target[:80]}")
        tensors[alias] = tensors[target]
    return tensors


class _Reader:
    """Reads a file from its start to its end."""

    def __init__(self, content: memoryview, path: Path) -> None:
        self._content, self._path, self._place = content, path, 0

    def take(self, size: int) -> memoryview:
        end = self._place + size
        if end > len(self._content):
            raise ExportError(f"{self._path} is cut off: it ends at byte {len(self._content)} and goes on to {end}")
        part = self._content[self._place : end]
        self._place = end
        return part

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def count(self, most: int, form: str = "<I") -> int:
        if (found := self.number(form)) > most:
            raise ExportError(f"{self._path} is damaged: it speaks of {found} where at most {most} can be")
        return found

    def text(self) -> str:
        data = bytes(self.take(self.number("<H")))
        try:
            return data.removesuffix(b"\0").decode()
        except UnicodeDecodeError as error:
            raise ExportError(f"{self._path} is damaged: {data[:40]!r} is no name") from error


class _Tensors:
    """Takes tensors by CTranslate2's names, and knows which were not taken."""

    def __init__(self, tensors: Mapping[str, npt.NDArray[Any]], path: Path) -> None:
        self._tensors, self._path = tensors, path
        self._left = dict.fromkeys(tensors)

    def count(self, prefix: str) -> int:
        """How many layers begin with a prefix, at least one."""
        numbers = {name.removeprefix(prefix).partition("/")[0] for name in self._tensors if name.startswith(prefix)}
        numbers = {each for each in numbers if each.isdecimal()}
        if numbers != {str(each) for each in range(len(numbers))} or not numbers:
            raise ExportError(f"{self._path} has no tensors {prefix}0 to the last without a gap")
        return len(numbers)

    def number(self, name: str) -> int:
        found = self._of(name)
        if found.size != 1 or found.dtype.kind != "i" or found.item() < 1:
            raise ExportError(f"{self._path}: {name} should be one number above 0")
        return int(found.item())

    def take(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as float32."""
        found = self._of(name)
        if found.dtype.kind == "f":
            return np.ascontiguousarray(found, np.float32)
        scale = self._of(name + SCALE)
        if scale.dtype.kind != "f" or scale.shape not in ((), (1,), found.shape[:1]) or not np.all(scale != 0):
            raise ExportError(f"{self._path}: {name}{SCALE} should hold a number for each of the rows of {name}")
        wide = scale.astype(np.float32).reshape(-1, *(1,) * (found.ndim - 1))
        return found.astype(np.float32) / wide

    def norm(self, ours: str, theirs: str) -> State:
        return {f"{ours}.weight": self.take(f"{theirs}/gamma"), f"{ours}.bias": self.take(f"{theirs}/beta")}

    def linear(self, ours: str, theirs: str) -> State:
        return {f"{ours}.weight": self.take(f"{theirs}/weight"), f"{ours}.bias": self.take(f"{theirs}/bias")}

    def attention(self, ours: str, theirs: str, *, crossed: bool) -> State:
        """The four products of attention and the norm before it."""
        found = self.norm(f"{ours}_ln", f"{theirs}/layer_norm")
        joined = [("query",), ("key", "value")] if crossed else [("query", "key", "value")]
        for index, parts in enumerate([*joined, ("out",)]):
            whole = self.linear("", f"{theirs}/linear_{index}")
            for each, array in whole.items():
                if len(array) % len(parts):
                    raise ExportError(f"{self._path}: {theirs}/linear_{index} is not of {' and '.join(parts)}")
                for part, piece in zip(parts, np.split(array, len(parts)), strict=True):
                    found[f"{ours}.{part}{each}"] = np.ascontiguousarray(piece)
        if np.any(found.pop(f"{ours}.key.bias")):
            raise ExportError(f"{self._path}: keys of {theirs} have a bias, which no Whisper model has")
        return found

    def is_same(self, alias: str, name: str) -> bool:
        """Is a tensor the same as another, or not there at all?"""
        if alias not in self._tensors:
            return True
        if self._tensors[alias] is self._tensors[name]:
            for each in (alias, alias + SCALE):
                self._left.pop(each, None)
            return True
        return False

    def account(self) -> None:
        """Make sure that every tensor was taken, or says of the model what holds of all Whispers."""
        for name in list(self._left):
            side, _, last = name.partition("/")
            if side not in ("encoder", "decoder") or last not in (*FIXED, *IGNORED, "num_heads"):
                continue
            value = self._of(name)
            if last in FIXED and (value.size != 1 or value.item() != FIXED[last]):
                raise ExportError(f"{self._path}: {name} is {value!s:.40}, Whisper models have {FIXED[last]} there")
        if self._left:
            named = ", ".join(list(self._left)[:10])
            raise ExportError(f"{self._path} has tensors that no Whisper model has: {named}")

    def _of(self, name: str) -> npt.NDArray[Any]:
        if name not in self._tensors:
            raise ExportError(f"{self._path} has no tensor {name}, which every Whisper model has")
        self._left.pop(name, None)
        return self._tensors[name]
