"""A Whisper model's folder as sherpa-onnx's export scripts write it. Needs no torch.

    NAME-encoder.onnx, NAME-decoder.onnx (or .int8.onnx), NAME-tokens.txt
        ->  the sizes and tensors of a Whisper model, by OpenAI's names

The weights are read, and not the graphs taken over: their decoder knows one number of earlier tokens for all rows of a
call, copies its whole caches in every step, and gives nothing of its attention, so prompts of different lengths, beams
that share a recording, and times of words could not be had of it.

Norms and embeddings have their names in the files. Matrices and their biases have none; which they are is told by what
they take and what takes their results: a query comes of a norm, a value goes to where attention is mixed, and a key has
no bias.
Source: k2-fsa/sherpa-onnx scripts/whisper/export-onnx.py.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.errors import ExportError
from tritone.families.onnx.products import Product, Products
from tritone.families.onnx.source import read_source
from tritone.families.whisper.dims import Dims, State

ENCODER = re.compile(r"(?:(.+)-)?encoder(\.int8)?\.onnx")
MAX_FILES = 10_000
PREFIXES = {"audioEncoder.": "encoder.", "textDecoder.": "decoder."}  # upstream's names, and OpenAI's
SIZES = {
    "num_bins": "n_mels",
    "audio_context": "n_audio_ctx",
    "audio_width": "n_audio_state",
    "audio_heads": "n_audio_head",
    "audio_layers": "n_audio_layer",
    "vocab": "n_vocab",
    "text_context": "n_text_ctx",
    "text_heads": "n_text_head",
    "text_layers": "n_text_layer",
}
SIDES = {"audio": "encoder", "text": "decoder"}
NORM_BIAS = re.compile(r"(_ln|\.ln|\.ln_post)\.bias$")
CROSSED = {"key": "n_layer_cross_k", "value": "n_layer_cross_v"}  # outputs of the encoder's file


@dataclass(frozen=True)
class SherpaFiles:
    """The files of one model. `int8`: whether its matrices are stored so, since float32 is not there."""

    encoder: Path
    decoder: Path
    tokens: Path
    int8: bool


def find_files(folder: Path) -> SherpaFiles | None:
    """The files of a Whisper model in a folder, those in float32 before those in int8; None if it holds none.

    Raises:
        ExportError: it cannot be read, or holds several models, or one without its decoder or tokens.
    """
    try:
        names = [path.name for path, _ in zip(folder.iterdir(), range(MAX_FILES), strict=False)]
    except OSError as error:
        raise ExportError(f"cannot read the folder {folder}: {error.strerror}") from error
    found = [match for match in map(ENCODER.fullmatch, sorted(names)) if match and match[1]]
    models = sorted({match[1] for match in found})
    if not models:
        return None
    if len(models) > 1:
        raise ExportError(f"{folder} holds several Whisper models ({', '.join(models[:5])}): give each its own folder")
    form = next((match[2] or "" for match in found if not match[2]), ".int8")
    encoder, decoder = (folder / f"{models[0]}-{part}{form}.onnx" for part in ("encoder", "decoder"))
    files = SherpaFiles(encoder, decoder, folder / f"{models[0]}-tokens.txt", bool(form))
    if missing := [path.name for path in (files.decoder, files.tokens) if not path.is_file()]:
        raise ExportError(f"{folder} holds a Whisper model of sherpa-onnx without {' and '.join(missing)}")
    return files


def read_model(files: SherpaFiles) -> tuple[Dims, State]:
    """The sizes and float32 tensors of a model.

    Raises:
        ExportError: a file is damaged, or no Whisper model as upstream's scripts write it; says what is missing.
    """
    source = read_source(files.encoder)
    size: dict[str, Any] = {ours: source.integer(theirs) for ours, theirs in SIZES.items()}
    if source.integer("n_text_state") != size["audio_width"]:
        raise ExportError(f"{files.encoder}: encoder and decoder have different widths, which no Whisper model has")
    encoder, decoder = _Graph(source), _Graph(read_source(files.decoder))
    state: State = {
        **encoder.named("encoder.positional_embedding"),
        **encoder.convolutions("encoder.conv1", "encoder.conv2"),
        **encoder.norm("encoder.ln_post"),
        **decoder.named("decoder.positional_embedding", "decoder.token_embedding.weight"),
        **decoder.norm("decoder.ln"),
    }
    for block in (f"encoder.blocks.{layer}" for layer in range(size["audio_layers"])):
        state |= encoder.self_attention(block) | encoder.mlp(block)
    for layer in range(size["text_layers"]):
        block = f"decoder.blocks.{layer}"
        state |= decoder.self_attention(block) | decoder.cross_attention(block) | decoder.mlp(block)
        state |= encoder.crossed(f"{block}.cross_attn", layer)
    hidden = {f"{ours}_hidden": len(state[f"{side}.blocks.0.mlp.0.bias"]) for ours, side in SIDES.items()}
    return Dims(**(size | hidden), tied=True), state


class _Graph(Products):
    """Finds the tensors of a network in one of its graphs, by OpenAI's names."""

    models = "Whisper models"
    written_by = (
        "folders that sherpa-onnx's scripts/whisper/export-onnx.py has written; the checkpoint that was exported can "
        "be read, too"
    )

    def _find_norms(self) -> dict[str, str]:
        self._theirs = {
            name.replace(theirs, ours, 1): name
            for theirs, ours in PREFIXES.items()
            for name in self._tensors
            if name.startswith(theirs)
        }
        biases = {name: theirs for name, theirs in self._theirs.items() if NORM_BIAS.search(name)}
        return {
            name.removesuffix(".bias"): self._takers[theirs][0].output[0]
            for name, theirs in biases.items()
            if theirs in self._takers
        }

    def named(self, *names: str) -> State:
        """Tensors that have their names in the file."""
        return {name: self._array(self._theirs.get(name), name) for name in names}

    def norm(self, name: str) -> State:
        """A norm."""
        return self.named(f"{name}.weight", f"{name}.bias")

    def convolutions(self, *names: str) -> State:
        """All of the graph's, in their order."""
        found = [node for node in self._nodes if node.op_type == "Conv" and len(node.input) == 3]
        if len(found) != len(names):
            raise self._lacks(names[0])
        return {
            f"{name}.{part}": self._array(each, name)
            for name, node in zip(names, found, strict=True)
            for part, each in zip(("weight", "bias"), node.input[1:], strict=True)
        }

    def self_attention(self, block: str) -> State:
        """A block's, with its norm. Of query and value, which have biases, the value alone is not behind a softmax."""
        name = f"{block}.attn"
        beside = self._after(self._norms.get(f"{name}_ln"))
        key = self._only([each for each in beside if each.bias is None], f"{name}.key")
        biased = [each for each in beside if each.bias is not None]
        # What follows all of them: later blocks' caches are made of earlier ones, with the keys and values in them.
        following = [self._after(each.made) for each in beside]
        out = self._only([each for each in following[0] if all(each in other for other in following)], f"{name}.out")
        mixed = self._before(out.of, past_softmax=False)
        value = self._only([each for each in biased if each.made in mixed], f"{name}.value")
        query = self._only([each for each in biased if each.made not in mixed], f"{name}.query")
        found = {"query": query, "key": key, "value": value, "out": out}
        return self.norm(f"{name}_ln") | self._linears({f"{name}.{part}": each for part, each in found.items()})

    def cross_attention(self, block: str) -> State:
        """What the decoder has of a block's, with its norm: query and output."""
        name = f"{block}.cross_attn"
        query = self._only(self._after(self._norms.get(f"{name}_ln")), f"{name}.query")
        out = self._only(self._after(query.made), f"{name}.out")
        return self.norm(f"{name}_ln") | self._linears({f"{name}.query": query, f"{name}.out": out})

    def mlp(self, block: str) -> State:
        """A block's, with its norm."""
        first = self._only(self._after(self._norms.get(f"{block}.mlp_ln")), f"{block}.mlp.0")
        last = self._only(self._after(first.made), f"{block}.mlp.2")
        return self.norm(f"{block}.mlp_ln") | self._linears({f"{block}.mlp.0": first, f"{block}.mlp.2": last})

    def crossed(self, name: str, layer: int) -> State:
        """What the encoder has of a block's cross-attention: key and value, by their place in its outputs."""
        found: dict[str, Product] = {}
        for part, output in CROSSED.items():
            joined = self._makers.get(output)
            parts = list(joined.input) if joined is not None and joined.op_type == "Concat" else [output]
            apart = self._makers.get(parts[layer]) if layer < len(parts) else None
            made = self._products.get(apart.input[0]) if apart is not None and apart.op_type == "Unsqueeze" else None
            found[f"{name}.{part}"] = self._only([made] if made else [], f"{name}.{part}")
        return self._linears(found)
