"""Writes moonshine.tar.xz: a small random Moonshine of upstream's own code in the form that sherpa-onnx has, and the
texts that sherpa-onnx writes of it.

    pip install keras==3.6.0 tensorflow-cpu==2.18.1 tf2onnx==1.17.0 onnx==1.17.0 onnxruntime einops tokenizers
    pip install --no-deps useful-moonshine==20241016 sherpa-onnx==2.0.1 sherpa-onnx-core==2.0.1
    python tests/families/attending/make_sherpa_moonshine.py tests/families/attending/moonshine.tar.xz

Weights have few values, and most of those of the convolutions are zero, so that the file is small.
"""

import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

PREPROCESS, ENCODE, UNCACHED, CACHED = "preprocess", "encode", "uncached_decode", "cached_decode"
HEADS, WIDTH, LAYERS = 2, 68, 2
PIECES = ["<unk>", "<s>", "</s>", "▁", *"aeinost", "▁a", "▁the", "▁in", "er", "on", "▁ß", "ä", "u", "▁re"]
SEED = 3
LENGTHS = (16000, 24000, 9000, 32123)


def sound(length: int) -> np.ndarray:
    """Noise (length,) float32 whose loudness goes up and down."""
    noise = np.random.default_rng(length).normal(0, 0.1, length)
    return (noise * (1 + np.sin(np.arange(length) / 1500))).astype(np.float32)


def write(folder: Path) -> None:
    """Write the four graphs in float32, three of them in int8 too, and the table of tokens."""
    os.environ |= {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
    import onnx
    import tensorflow as tf
    from moonshine.model import Moonshine
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from tf2onnx.convert import from_keras

    model = Moonshine(WIDTH, WIDTH, HEADS, LAYERS, LAYERS, enc_ff_mult=1, dec_ff_mult=1, vocab_size=len(PIECES))
    random = np.random.default_rng(SEED)
    whole = (model.preprocessor.preprocess, model.encoder.encoder, model.decoder.uncached_call)
    for part in whole:
        part.set_weights([_weights(each.path, np.asarray(each), random) for each in part.weights])
    spec, text = tf.TensorSpec, [tf.TensorSpec([None, None], tf.int32)]
    frames, length = spec([None, None, WIDTH], tf.float32), spec([1], tf.int32)
    caches = [spec([None, None, HEADS, WIDTH // HEADS], tf.float32)] * (4 * LAYERS)
    for name, part, taken in (
        (PREPROCESS, whole[0], [spec([None, None], tf.float32)]),
        (ENCODE, whole[1], [frames, length]),
        (UNCACHED, whole[2], [*text, frames, length]),
        (CACHED, model.decoder.cached_call, [*text, frames, length, *caches]),
    ):
        part.output_names = [f"output_{place}" for place in range(len(part.outputs))]
        onnx.save_model(from_keras(part, input_signature=taken)[0], folder / f"{name}.onnx")
        if name != PREPROCESS:  # which is published in float32 alone
            quantize_dynamic(folder / f"{name}.onnx", folder / f"{name}.int8.onnx", weight_type=QuantType.QInt8)
    (folder / "tokens.txt").write_text("".join(f"{piece} {id}\n" for id, piece in enumerate(PIECES)), encoding="utf-8")


def _weights(path: str, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Random values in place of those of a parameter; the angles of positions stay."""
    if values.shape == (16,):
        return values
    if "embeddings" in path:
        found = random.normal(0, 0.7, values.shape)
        found[:3] *= np.array([[0.1], [0.1], [2.0]])
    elif values.ndim == 1:
        found = values + random.normal(0, 0.2, values.shape)
    elif "conv" in path:
        kept = random.random(values.shape) < (0.3 if values.shape[0] > 100 else 0.08)
        found = random.normal(0, 4.0 if values.shape[0] > 100 else 0.5, values.shape) * kept
    else:
        found = random.normal(0, 0.35, values.shape)
    return (np.round(found * 8) / 8).astype(np.float32)


def texts(folder: Path, form: str) -> list[str]:
    """What sherpa-onnx writes of each sound."""
    import sherpa_onnx

    files = {"preprocessor": PREPROCESS, "encoder": ENCODE, "uncached_decoder": UNCACHED, "cached_decoder": CACHED}
    paths: dict[str, Any] = {
        part: str(folder / f"{name}{'' if part == 'preprocessor' else form}.onnx") for part, name in files.items()
    }
    recognizer = sherpa_onnx.OfflineRecognizer.from_moonshine(**paths, tokens=str(folder / "tokens.txt"))
    found = []
    for length in LENGTHS:
        stream = recognizer.create_stream()
        stream.accept_waveform(16000, sound(length))
        recognizer.decode_stream(stream)
        found.append(stream.result.text)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        expected = {form or "float32": texts(folder, form) for form in ("", ".int8")}
        (folder / "texts.json").write_text(json.dumps(expected, ensure_ascii=False), encoding="utf-8")
        with tarfile.open(sys.argv[1], "w:xz", preset=9) as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name)


if __name__ == "__main__":
    main()
