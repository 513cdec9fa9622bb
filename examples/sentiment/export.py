"""A classifier of sentiment as its owner exports it: transformers, and the usual call of `torch.onnx.export`.

    random weights  ->  sentiment.onnx, tokenizer.json, labels.txt

    python examples/sentiment/export.py sentiment-model

The weights are random: this is about the way of a model to a server, not about what it says.
"""

import argparse
import warnings
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertForSequenceClassification

LABELS = ("negative", "neutral", "positive")
WORDS = ("the", "a", "film", "was", "is", "good", "bad", "great", "dull", "not", "very", "and", "plot", "cast", "music")


def main() -> None:
    """Write the model's folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0} | {word: place for place, word in enumerate(WORDS, 1)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(chosen.folder / "tokenizer.json"))
    (chosen.folder / "labels.txt").write_text("\n".join(LABELS) + "\n", encoding="utf-8")

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS) + 1,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=128,
        num_labels=len(LABELS),
        initializer_range=0.2,
    )
    model = BertForSequenceClassification(config).eval()
    input_ids = torch.ones(2, 16, dtype=torch.int64)
    attention_mask = torch.ones(2, 16, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that are constants of the trace, and mean to be
        torch.onnx.export(
            model,
            (input_ids, attention_mask),
            str(chosen.folder / "sentiment.onnx"),
            input_names=["input_ids", "attention_mask"],
            output_names=["logits"],
            dynamic_axes={
                "input_ids": {0: "batch", 1: "length"},
                "attention_mask": {0: "batch", 1: "length"},
                "logits": {0: "batch"},
            },
            opset_version=17,
            dynamo=False,
        )
    print(chosen.folder)


if __name__ == "__main__":
    main()
