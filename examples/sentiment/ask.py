"""Ask a served sentiment model about texts, with a plain Triton client.

"a great film"  ->  positive 1.32, neutral -0.10, negative -0.85

python examples/sentiment/ask.py sentiment-model/tokenizer.json "a great film" "the plot was dull"
"""

import argparse

import numpy as np
import tritonclient.http as triton
from tokenizers import Tokenizer


def main() -> None:
    """Print a line for each text."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("tokenizer")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("--model", default="sentiment")
    chosen = parser.parse_args()
    tokenizer = Tokenizer.from_file(chosen.tokenizer)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(chosen.texts)
    inputs = []
    for name, rows in (
        ("input_ids", [each.ids for each in encoded]),
        ("attention_mask", [each.attention_mask for each in encoded]),
    ):
        inputs.append(triton.InferInput(name, [len(rows), len(rows[0])], "INT64"))
        inputs[-1].set_data_from_numpy(np.array(rows, np.int64))
    with triton.InferenceServerClient(chosen.url) as client:
        answer = client.infer(chosen.model, inputs, outputs=[triton.InferRequestedOutput("logits", class_count=3)])
    for text, guesses in zip(chosen.texts, answer.as_numpy("logits"), strict=True):
        shown = [guess.decode().split(":") for guess in guesses]
        print(f"{text}: " + ", ".join(f"{label} {float(value):.2f}" for value, _, label in shown))


if __name__ == "__main__":
    main()
