"""Folders of Whisper models in sherpa-onnx's layout, with the graphs, names and metadata of its export script.

Written from the facts of sherpa-onnx's scripts/whisper/export-onnx.py (634265c). Biases and matrices lose their names
in its files, since the network of openai-whisper casts them when it runs.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper
from torch import Tensor, nn

from tritone.families.whisper.checkpoint import Checkpoint
from tritone.families.whisper.model import Network

CACHES = ("n_layer_self_k_cache", "n_layer_self_v_cache")
CROSSED = ("n_layer_cross_k", "n_layer_cross_v")


class CastLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.linear(x, self.weight.to(x.dtype), bias)


class Encoder(nn.Module):
    """mel (N, bins, T) -> keys and values of cross-attention, each (layers, N, T / 2, width)."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.audioEncoder, self.textDecoder = network.encoder, network.decoder

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        found = self.audioEncoder(mel.transpose(1, 2))
        crossed: list[Any] = [block.cross_attn for block in self.textDecoder.blocks]
        return torch.stack([each.key(found) for each in crossed]), torch.stack([each.value(found) for each in crossed])


class Decoder(nn.Module):
    """Writes keys and values of the new tokens into the caches (layers, N, context, width) in place."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.textDecoder = network.decoder
        self.heads = network.dims.text_heads

    def forward(
        self, tokens: Tensor, keys: Tensor, values: Tensor, cross_k: Tensor, cross_v: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        decoder: Any = self.textDecoder
        end = offset[0] + tokens.shape[-1]
        x = decoder.token_embedding(tokens) + decoder.positional_embedding[offset[0] : end]
        for index, block in enumerate(decoder.blocks):
            y = block.attn_ln(x)
            past_keys, past_values = keys[index, :, :end, :], values[index, :, :end, :]
            key = block.attn.key(y)
            past_keys[:, -key.shape[1] :, :] = key
            past_values[:, -key.shape[1] :, :] = block.attn.value(y)
            x = x + block.attn.out(self.mixed(block.attn.query(y), past_keys, past_values))
            keys[index, :, :end, :], values[index, :, :end, :] = past_keys, past_values
            query = block.cross_attn.query(block.cross_attn_ln(x))
            x = x + block.cross_attn.out(self.mixed(query, cross_k[index], cross_v[index]))
            x = x + block.mlp(block.mlp_ln(x))
        return decoder.ln(x) @ decoder.token_embedding.weight.T, keys, values

    def mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        split = [each.view(*each.shape[:2], self.heads, -1).permute(0, 2, 1, 3) for each in (query, key, value)]
        scale = (query.shape[2] // self.heads) ** -0.25
        weights = torch.softmax((split[0] * scale) @ (split[1] * scale).transpose(2, 3), dim=-1)
        return (weights @ split[2]).permute(0, 2, 1, 3).flatten(start_dim=2)


def write_sherpa(folder: Path, model: Checkpoint, pieces: Path, name: str = "small") -> Path:
    """Write a folder of a model whose pieces are in a `.tiktoken` file."""
    dims = model.dims
    network = Network(dims).eval()
    network.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in model.state.items()})
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.__class__ = CastLinear
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(pieces, folder / f"{name}-tokens.txt")
    sizes = {
        "n_mels": dims.num_bins,
        "n_audio_ctx": dims.audio_context,
        "n_audio_state": dims.audio_width,
        "n_audio_head": dims.audio_heads,
        "n_audio_layer": dims.audio_layers,
        "n_vocab": dims.vocab,
        "n_text_ctx": dims.text_context,
        "n_text_state": dims.audio_width,
        "n_text_head": dims.text_heads,
        "n_text_layer": dims.text_layers,
    }
    mel = {"mel": torch.randn(1, dims.num_bins, 2 * dims.audio_context)}
    axes = {"mel": {0: "n_audio"}} | {each: {1: "n_audio"} for each in CROSSED}
    _write(folder / f"{name}-encoder.onnx", Encoder(network), mel, CROSSED, axes, sizes)
    cache = torch.zeros(dims.text_layers, 1, dims.text_context, dims.audio_width)
    crossed = torch.randn(dims.text_layers, 1, dims.audio_context, dims.audio_width)
    inputs = {"tokens": torch.tensor([[1]]), **{f"in_{each}": cache.clone() for each in CACHES}}
    inputs |= {**{each: crossed for each in CROSSED}, "offset": torch.tensor([3])}
    axes = {each: {1: "n_audio"} for each in inputs if "layer" in each} | {"tokens": {0: "n_audio", 1: "n_tokens"}}
    outputs = ("logits", *(f"out_{each}" for each in CACHES))
    _write(folder / f"{name}-decoder.onnx", Decoder(network), inputs, outputs, axes, {})
    return folder


def _write(
    path: Path,
    module: nn.Module,
    inputs: dict[str, Tensor],
    outputs: tuple[str, ...],
    axes: dict[str, dict[int, str]],
    metadata: dict[str, int],
) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is the older exporter, whose form upstream's files have
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            path,
            dynamo=False,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=17,
            dynamic_axes=axes,
        )
    model = onnx.load(path)
    helper.set_model_props(model, {key: str(value) for key, value in metadata.items()})
    path.write_bytes(model.SerializeToString())
