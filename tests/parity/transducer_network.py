"""Predictor and joiner of a golden icefall checkpoint in plain numpy: nothing of the exporter's, so search is alone."""

import json
from typing import Any

import numpy as np

from parity.golden_cases import Case


class NumpyNetwork:
    """See `tritone.search.transducer.network.Network`."""

    def __init__(self, case: Case) -> None:
        sizes = json.loads((case.path / "hparams.json").read_text(encoding="utf-8"))
        self.tensors = read_tensors(case)
        self.vocab_size = int(sizes["vocab_size"])
        self.blank_id = int(sizes["blank_id"])
        self.unk_id: int | None = sizes.get("unk_id")
        self.context_size = int(sizes["context_size"])
        self.start: tuple[int, ...] = (-1,) * (self.context_size - 1) + (0,)
        self.is_conformer = "decoder.embedding.scale" in self.tensors

    def project(self, encoder_out: np.ndarray) -> np.ndarray:
        """What the joiner sees of encoder outputs."""
        return self._linear("joiner.encoder_proj", encoder_out)

    def predict(self, contexts: np.ndarray) -> np.ndarray:
        table = self._folded("decoder.embedding.weight", "decoder.embedding.scale")
        vectors = np.where(contexts[..., None] >= 0, table[np.maximum(contexts, 0)], 0)  # (rows, context, dim)
        if self.context_size > 1:
            kernel = self._folded(
                "decoder.conv.weight", "decoder.conv.weight_scale"
            )  # (dim, inputs of a group, context)
            groups = kernel.shape[0] // kernel.shape[1]
            grouped = vectors.reshape(len(vectors), self.context_size, groups, kernel.shape[1])
            weights = kernel.reshape(groups, -1, *kernel.shape[1:])
            vectors = np.einsum("ntgi,goit->ngo", grouped, weights).reshape(len(vectors), -1)
        else:
            vectors = vectors[:, 0]
        if self.context_size > 1 or self.is_conformer:
            vectors = np.maximum(vectors, 0)
        return self._linear("joiner.decoder_proj", vectors)

    def join(self, encoder_out: np.ndarray, predictor_out: np.ndarray) -> np.ndarray:
        return self._linear("joiner.output_linear", np.tanh(encoder_out + predictor_out))

    def _folded(self, name: str, scale: str) -> np.ndarray:
        return self.tensors[name] * np.exp(self.tensors.get(scale, np.float32(0)))

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        weight = self._folded(f"{name}.weight", f"{name}.weight_scale")
        return x @ weight.T + self._folded(f"{name}.bias", f"{name}.bias_scale")


def read_tensors(case: Case) -> dict[str, Any]:
    import torch

    state = torch.load(case.path / "pretrained.pt", map_location="cpu", weights_only=True)["model"]
    return {name: value.numpy() for name, value in state.items() if name.startswith(("decoder.", "joiner."))}
