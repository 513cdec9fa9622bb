"""Ask a served `handwriting` which letters images show: three guesses each, by Triton's classification extension.

letters/1-T.png  ->  T 11.2, I 4.0, Y 3.1

python examples/handwriting/ask.py letters/*.png --url localhost:8000
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from PIL import Image

SIZE = 128


def read(path: Path) -> np.ndarray:
    """An image as the model takes it: (128, 128, 3) float32 in [0, 1]."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE)), np.float32) / 255


def main() -> None:
    """Print a line for each image."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("--model", default="handwriting")
    chosen = parser.parse_args()
    with triton.InferenceServerClient(chosen.url) as client:
        for path in chosen.images:
            image = triton.InferInput("image", [1, SIZE, SIZE, 3], "FP32")
            image.set_data_from_numpy(read(path)[None])
            answer = client.infer(chosen.model, [image], outputs=[triton.InferRequestedOutput("logits", class_count=3)])
            # Each guess is "value:index:label".
            guesses = [guess.decode().split(":") for guess in answer.as_numpy("logits")[0]]
            print(f"{path}: " + ", ".join(f"{label} {float(value):.1f}" for value, _, label in guesses))


if __name__ == "__main__":
    main()
