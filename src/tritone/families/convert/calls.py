"""Inputs of a graph, from files: arrays, recordings, images and lines of text.

    [speech.wav, list.txt, inputs.npz, pictures/] + types and shapes of the inputs  ->  calls, as {input: array}

An npz file has arrays by the names of the inputs. Other files need a graph whose inputs say what they are: recordings
one float input (rows, samples), and maybe an integer one (rows,) of their lengths; images one input of 4 axes, one of
which is the channels; texts string inputs, or those that a tokenizer gives: input_ids, attention_mask, token_type_ids.
"""

import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from tritone.audio import read_audio
from tritone.audio.files import SUFFIXES as AUDIO
from tritone.errors import InputError, MissingDependencyError
from tritone.paths import plain_text
from tritone.runtime.graph import TensorSpec
from tritone.runtime.shapes import shown

Array = npt.NDArray[Any]
Call = Mapping[str, Array]
Specs = Mapping[str, TensorSpec]

ARRAYS = {".npz", ".npy"}
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
TEXTS = {".txt"}
CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}  # as Pillow calls them
TOKENIZED = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
MAX_PIXELS = 64_000_000  # of one image, so that a small file cannot take all memory
MAX_AUDIO_S = 60.0


@dataclass(frozen=True, kw_only=True)
class InputFiles:
    """Files, and how to read them.

    `paths`: files, and folders whose files of these kinds are taken in the order of their names. `rows`: samples in one
    call, where the graph takes any number. `sample_rate`: of recordings, in Hz. `pixel_scale`: pixels of 0 to 255 are
    divided by it for float inputs. `tokenizer`: tokenizer.json of Hugging Face's tokenizers.
    """

    paths: Sequence[Path]
    rows: int = 1
    sample_rate: int = 16_000
    pixel_scale: float = 255.0
    tokenizer: Path | None = None

    def __post_init__(self) -> None:
        if self.rows < 1 or self.pixel_scale <= 0:
            raise ValueError(f"rows and pixel_scale must be above 0, got {self.rows} and {self.pixel_scale:g}")

    def calls(self, inputs: Specs) -> Iterator[Call]:
        """Calls of a graph with these inputs.

        Raises:
            InputError: a file is missing, damaged, or does not fit the inputs; the message says which and why.
            MissingDependencyError: texts need the package `tokenizers`.
        """
        readers: Mapping[frozenset[str], Callable[[list[Path], Specs], Iterator[Call]]] = {
            frozenset(ARRAYS): self._arrays,
            frozenset(AUDIO): self._audio,
            frozenset(IMAGES): self._images,
            frozenset(TEXTS): self._texts,
        }
        files = self._files(frozenset().union(*readers))
        for suffixes, read in readers.items():
            if chosen := [file for file in files if file.suffix.lower() in suffixes]:
                yield from read(chosen, inputs)

    def _files(self, known: frozenset[str]) -> list[Path]:
        files = []
        for path in self.paths:
            if path.is_dir():
                found = [each for each in sorted(path.rglob("*")) if each.suffix.lower() in known and each.is_file()]
            elif not path.is_file():
                raise InputError(f"there is no file or folder {path}")
            else:
                found = [path] if path.suffix.lower() in known else []
            if not found:
                raise InputError(
                    f"{path} is or has none of the files that inputs are read from: {', '.join(sorted(known))}"
                )
            files += found
        return files

    def _arrays(self, files: list[Path], inputs: Specs) -> Iterator[Call]:
        for file in files:
            try:
                read = np.load(file, allow_pickle=False)
                arrays = {name: read[name] for name in read.files} if file.suffix == ".npz" else {"": read}
            except (OSError, ValueError, zipfile.BadZipFile) as error:
                raise InputError(f"{file} is not an array file of numpy, or has objects in it: {error}") from error
            if "" in arrays:
                if len(inputs) != 1:
                    raise InputError(f"{file} has one array, and the graph takes {', '.join(inputs)}; give an .npz")
                arrays = {name: arrays[""] for name in inputs}
            if lacking := sorted(set(inputs) - set(arrays)):
                raise InputError(f"{file} lacks {', '.join(lacking)}; it has {', '.join(arrays) or 'nothing'}")
            arrays = {name: arrays[name] for name in inputs}
            if all(array.ndim == len(inputs[name].shape) + 1 for name, array in arrays.items()):
                if len({len(array) for array in arrays.values()}) > 1:
                    raise InputError(f"{file}: the arrays hold different numbers of calls")
                for each in zip(*arrays.values(), strict=True):
                    yield _fitting(dict(zip(arrays, each, strict=True)), inputs, file)
            else:
                yield _fitting(arrays, inputs, file)

    def _audio(self, files: list[Path], inputs: Specs) -> Iterator[Call]:
        waves = [name for name, spec in inputs.items() if spec.dtype.kind == "f" and len(spec.shape) in (2, 3)]
        lengths = [name for name, spec in inputs.items() if spec.dtype.kind in "iu" and len(spec.shape) == 1]
        if len(waves) != 1 or len(lengths) > 1 or len(waves + lengths) < len(inputs):
            raise InputError(_unfit("recordings", "one float input (rows, samples), and lengths (rows,)", inputs))
        [wave] = waves
        spec = inputs[wave]
        if len(spec.shape) == 3 and spec.shape[1] not in (None, 1):
            raise InputError(_unfit("recordings", "a waveform (rows, 1, samples)", inputs))
        samples = []
        for file in files:
            waveform = read_audio(file, self.sample_rate)[: round(MAX_AUDIO_S * self.sample_rate)]
            waveform = waveform[: spec.shape[-1]]
            sample = {wave: waveform if len(spec.shape) == 2 else waveform[None]}
            samples.append(sample | {name: np.asarray(len(waveform)) for name in lengths})
        yield from self._batches(samples, inputs)

    def _images(self, files: list[Path], inputs: Specs) -> Iterator[Call]:
        if len(inputs) != 1:
            raise InputError(_unfit("images", "one input of 4 axes", inputs))
        [(name, spec)] = inputs.items()
        layout = [place for place in (1, 3) if len(spec.shape) == 4 and spec.shape[place] in CHANNELS]
        if len(layout) != 1 or spec.dtype.kind not in "fu":
            raise InputError(
                _unfit("images", "(rows, height, width, channels) or (rows, channels, height, width)", inputs)
            )
        yield from self._batches([{name: self._image(file, spec, layout[0])} for file in files], inputs)

    def _image(self, file: Path, spec: TensorSpec, place: int) -> Array:
        from PIL import Image, UnidentifiedImageError

        channels = spec.shape[place]
        height, width = spec.shape[1:3] if place == 3 else spec.shape[2:4]
        assert channels is not None
        try:
            with Image.open(file) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise InputError(f"{file} has {image.width} x {image.height} pixels; at most {MAX_PIXELS} are read")
                pixels = image.convert(CHANNELS[channels])
                if (size := (width or pixels.width, height or pixels.height)) != pixels.size:
                    pixels = pixels.resize(size)
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise InputError(f"{file} cannot be read as an image: {error}") from error
        array = np.asarray(pixels).reshape(pixels.height, pixels.width, channels)
        if spec.dtype.kind == "f":
            array = array.astype(np.float32) / np.float32(self.pixel_scale)
        return array if place == 3 else array.transpose(2, 0, 1)

    def _texts(self, files: list[Path], inputs: Specs) -> Iterator[Call]:
        lines = []
        for file in files:
            try:
                lines += [line for line in plain_text(file.read_bytes()).splitlines() if line.strip()]
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{file} cannot be read as lines of UTF-8: {error}") from error
        if all(spec.dtype.kind == "O" for spec in inputs.values()):
            samples: list[dict[str, Array]] = [
                {name: np.full([1] * (len(spec.shape) - 1), line, dtype=object) for name, spec in inputs.items()}
                for line in lines
            ]
        elif not set(inputs) <= set(TOKENIZED) or any(len(spec.shape) != 2 for spec in inputs.values()):
            raise InputError(_unfit("texts", f"strings, or {', '.join(TOKENIZED)} (rows, tokens)", inputs))
        else:
            longest = next((spec.shape[1] for spec in inputs.values() if spec.shape[1] is not None), None)
            samples = [
                {name: np.asarray(getattr(encoding, TOKENIZED[name])) for name in inputs}
                for encoding in self._tokenizer(longest).encode_batch(lines)
            ]
        yield from self._batches(samples, inputs)

    def _tokenizer(self, longest: int | None) -> Any:
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                "texts for token ids need the package tokenizers, which is not installed: pip install tokenizers"
            ) from error
        if self.tokenizer is None:
            raise InputError("the graph takes token ids, so texts need the model's tokenizer.json: --tokenizer FILE")
        try:
            tokenizer = Tokenizer.from_file(str(self.tokenizer))
        except Exception as error:  # what its library raises is a plain Exception
            raise InputError(f"{self.tokenizer} is not a tokenizer.json: {error}") from error
        tokenizer.no_padding()
        if longest is not None:
            tokenizer.enable_truncation(longest)
        return tokenizer

    def _batches(self, samples: Sequence[Mapping[str, Array]], inputs: Specs) -> Iterator[Call]:
        """Samples with a batch axis; padded with zeros to the longest of a call, or to the graph's size."""
        fixed = {spec.shape[0] for spec in inputs.values()} - {None}
        if len(fixed) > 1:
            raise InputError(_unfit("these files", "the same number of rows for all inputs", inputs))
        rows = next(iter(fixed), self.rows) or self.rows
        for start in range(0, len(samples), rows):
            chosen = list(samples[start : start + rows])
            if fixed:  # a graph for so many rows takes no fewer
                chosen += [chosen[-1]] * (rows - len(chosen))
            yield {name: _stacked([each[name] for each in chosen], spec, name) for name, spec in inputs.items()}


def input_specs(model: onnx.ModelProto) -> dict[str, TensorSpec]:
    """Types and shapes of what an ONNX graph must be fed."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return tensor_specs(value for value in model.graph.input if value.name not in weights)


def tensor_specs(values: Iterable[onnx.ValueInfoProto]) -> dict[str, TensorSpec]:
    """Types and shapes of inputs or outputs."""
    return {
        value.name: TensorSpec(
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
            tuple(axis.dim_value if axis.HasField("dim_value") else None for axis in value.type.tensor_type.shape.dim),
        )
        for value in values
    }


def merged(one: Specs, other: Specs) -> dict[str, TensorSpec]:
    """The inputs of two graphs that are to get the same calls: an axis has the size that either fixes.

    Raises:
        InputError: their inputs have other names, types or shapes.
    """
    if set(one) != set(other):
        raise InputError(f"the graphs take different inputs: {', '.join(sorted(one))} and {', '.join(sorted(other))}")
    found = {}
    for name, spec in one.items():
        axes, others = spec.shape, other[name].shape
        pairs = list(zip(axes, others, strict=False))
        kinds = {_kind(spec.dtype), _kind(other[name].dtype)}
        if len(axes) != len(others) or len(kinds) > 1 or any(None not in pair and pair[0] != pair[1] for pair in pairs):
            raise InputError(
                f"input {name} is {spec.dtype} {shown(axes)} in one graph and {other[name].dtype} {shown(others)} in "
                "the other; no array fits both"
            )
        found[name] = TensorSpec(spec.dtype, tuple(a if b is None else b for a, b in pairs))
    return found


def cast(call: Call, inputs: Specs) -> dict[str, Array]:
    """A call in the types of a graph's inputs: floats may become narrower, integers too."""
    return {
        name: array if array.dtype == inputs[name].dtype else array.astype(inputs[name].dtype)
        for name, array in call.items()
    }


def _kind(dtype: np.dtype[Any]) -> str:
    """Types among which arrays are cast: floats, integers, the rest as they are. bfloat16 is a void for numpy."""
    return "f" if dtype.kind in "fV" else "i" if dtype.kind in "iu" else dtype.kind


def _fitting(arrays: Mapping[str, Array], inputs: Specs, file: Path) -> Call:
    found = {}
    for name, array in arrays.items():
        spec = inputs[name]
        fits = array.ndim == len(spec.shape) and all(
            axis in (None, size) for axis, size in zip(spec.shape, array.shape, strict=True)
        )
        kind = "O" if array.dtype.kind in "US" else _kind(array.dtype)
        if not fits or kind != _kind(spec.dtype):
            raise InputError(
                f"{file}: {name} is {array.dtype} {shown(array.shape)}; "
                f"the graph takes {spec.dtype} {shown(spec.shape)}"
            )
        found[name] = array.astype(spec.dtype)
    return found


def _stacked(arrays: Sequence[Array], spec: TensorSpec, name: str) -> Array:
    sizes = [max(each) for each in zip(*(array.shape for array in arrays), strict=True)]
    sizes = [size if axis is None else axis for size, axis in zip(sizes, spec.shape[1:], strict=True)]
    stacked = np.zeros((len(arrays), *sizes), spec.dtype)
    for row, array in enumerate(arrays):
        if any(size > room for size, room in zip(array.shape, sizes, strict=True)):
            raise InputError(f"{name} would be {shown(array.shape)}, and the graph takes {shown(spec.shape[1:])}")
        place = (row, *map(slice, array.shape))
        stacked[place] = array
    return stacked


def _unfit(what: str, wanted: str, inputs: Specs) -> str:
    held = "; ".join(f"{name}: {spec.dtype} {shown(spec.shape)}" for name, spec in list(inputs.items())[:6])
    return f"{what} go into a graph that takes {wanted}; this one takes {held}. Give its inputs as .npz files"
