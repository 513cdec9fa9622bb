"""A Paraformer for streams from sherpa-onnx's folder: two graphs as FunASR exports them, with metadata.

    encoder.onnx, decoder.onnx (or .int8.onnx), tokens.txt  ->  a network as of FunASR's folder

The weights are read, and not the graphs taken over: between them stands what says where tokens are, and neither keeps
the past of the encoder. Norms, biases and convolutions have upstream's names in the graphs; matrices have none, and
are told by the biases behind them. The network that is made of them is compared with the graphs, which also
says how many heads it has. Sources: funasr/models/paraformer_streaming/export_meta.py; sherpa-onnx,
csrc/online-paraformer-model.cc and online-recognizer-paraformer-impl.h.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from tritone.bundle.vocabulary import read_tokens
from tritone.errors import BundleError, ExportError
from tritone.families.funasr.config import (
    STREAMS,
    DecoderConfig,
    EncoderConfig,
    FrontEndConfig,
    ModelConfig,
    PredictorConfig,
)
from tritone.families.funasr.export import StreamingModel
from tritone.families.funasr.front_end import StackedFbank
from tritone.families.funasr.options import FunasrOptions
from tritone.families.funasr.paraformer import Paraformer
from tritone.families.funasr.ready_made import Rows
from tritone.families.funasr.stream_files import StreamFiles
from tritone.families.funasr.streaming import StreamSizes
from tritone.families.layers.attention import HIDDEN
from tritone.families.onnx.large import array_of
from tritone.families.onnx.products import Array, Products
from tritone.families.onnx.source import Source, read_source
from tritone.families.onnx.trial import largest_difference, opened, run

NAMED = re.compile(r"(?P<part>encoder|decoder|predictor)\.(?:model\.)?(?P<name>.+)")
OF_ENCODER = ("self_attn.linear_q_k_v", "self_attn.linear_out", "feed_forward.w_1", "feed_forward.w_2")
OF_DECODER = ("feed_forward.w_1", "feed_forward.w_2", "src_attn.linear_q", "src_attn.linear_k_v", "src_attn.linear_out")
HEADS = (4, 8, 2, 1, 16, 12, 6, 3, 20, 32)
UNNAMED = "?"
TAIL = 0.45  # the weight of the silence behind a stream, of all published models; no graph has it
EPS = 1e-12
ALLOWED = 1e-3, 0.2  # of the size of what comes out, in float32 and in int8
TRIED = 20, 3  # frames and tokens that network and graphs are compared on


class SherpaStreamingModel(StreamingModel):
    """A trained Paraformer for streams, read from sherpa-onnx's folder."""

    def __init__(self, options: FunasrOptions, files: StreamFiles) -> None:
        encoder, decoder = read_source(files.encoder), read_source(files.decoder)
        rows, self.tokens = Rows(encoder), _tokens(files)
        state = read_state(encoder, decoder)
        settings = _settings(encoder, rows, state, self.tokens)
        self.options, self.files, self.hotwords = options, {}, None
        self.sources = {each.name: each for each in (files.encoder, files.decoder, files.tokens)}
        self.sample_rate = settings.front_end.sample_rate
        shift, scale = (torch.from_numpy(each) for each in (rows.shift, rows.scale))
        self.front_end = StackedFbank(settings.front_end, shift, scale)
        self.settings = _checked(settings, state, files, encoder, decoder)
        self.network = _network(self.settings, state, files)
        self.sizes = StreamSizes.chosen(options)
        self.choices = {"model": STREAMS} | asdict(self.sizes)
        self.notes = (
            f"the graphs do not say how much of a token the silence behind a stream is; taken is {TAIL}, as of all "
            "published models",
        )


def read_state(encoder: Source, decoder: Source) -> dict[str, Tensor]:
    """The tensors of model.pt.

    Raises:
        ExportError: the graphs are no Paraformer's as FunASR exports them.
    """
    return _Graph(encoder).encoder() | _Graph(decoder).decoder()


def _tokens(files: StreamFiles) -> list[str]:
    try:
        return read_tokens(files.tokens)
    except BundleError as error:
        raise ExportError(str(error)) from error


def _network(settings: ModelConfig, state: Mapping[str, Tensor], files: StreamFiles) -> Paraformer:
    vocab = len(state["decoder.output_layer.bias"])
    return Paraformer.of(settings, state, vocab, f"{files.encoder} and {files.decoder.name}")


def _settings(source: Source, rows: Rows, state: Mapping[str, Tensor], tokens: list[str]) -> ModelConfig:
    """What a config.yaml would say, but for the heads."""
    if missing := [name for name in NEEDED if name not in state or not state[name].dim()]:
        raise ExportError(f"{source.path} and its decoder have no {', '.join(missing)}. Read are {_Graph.written_by}.")
    memory, seen, kernel = (state[name].shape[-1] for name in NEEDED[:3])
    hidden, decoder_hidden, width, _ = (len(state[name]) for name in NEEDED[3:])
    stacks = {"encoder.encoders.": 0, "decoder.decoders.": 0}
    for stack in stacks:
        stacks[stack] = len({name.split(".")[2] for name in state if name.startswith(stack)})
    layers, blocks = stacks.values()
    for key, found in zip(SIZES, (width, blocks, kernel), strict=True):
        if source.integer(key) != found:
            raise ExportError(f"{source.path}: the metadata has {key} = {source.metadata[key]}, the graphs {found}")
    vocab = source.integer("vocab_size")
    if len(tokens) != vocab or len(state["decoder.output_layer.bias"]) != vocab:
        raise ExportError(f"{source.path} has {vocab} tokens by its vocab_size, and there are {len(tokens)} tokens")
    usual = FrontEndConfig()
    if (rows.width, rows.step) != (usual.width, usual.step):
        raise ExportError(f"{source.path}: of models for streams, supported are lfr_window_size 7 and shift 6 alone")
    factor, floor = _Graph(source).weights()
    blank, sos, eos = (tokens.index(each) if each in tokens else id for id, each in enumerate(SPECIAL))
    return ModelConfig(
        model=STREAMS,
        front_end=replace(usual, num_mel_bins=rows.features.num_mel_bins, sample_scale=rows.features.sample_scale),
        encoder=EncoderConfig(
            input_size=len(rows.shift),
            output_size=width,
            hidden=hidden,
            blocks=layers + 1,
            kernel=memory,
            norm_eps=EPS,
        ),
        decoder=DecoderConfig(
            hidden=decoder_hidden,
            blocks=blocks,
            kernel=kernel,
            shift=kernel - 1 - (kernel - 1) // 2,
        ),
        predictor=PredictorConfig(left=(seen - 1) // 2, right=seen // 2, factor=factor, floor=floor, tail=TAIL),
        blank_id=blank,
        sos_id=sos,
        eos_id=eos,
    )


NEEDED = (
    *("encoder.encoders0.0.self_attn.fsmn_block.weight", "predictor.cif_conv1d.weight"),
    *("decoder.decoders.0.self_attn.fsmn_block.weight", "encoder.encoders0.0.feed_forward.w_1.bias"),
    *("decoder.decoders.0.feed_forward.w_1.bias", "encoder.after_norm.weight", "decoder.output_layer.bias"),
)
SIZES = ("encoder_output_size", "decoder_num_blocks", "decoder_kernel_size")  # of the metadata
SPECIAL = ("<blank>", "<s>", "</s>")  # with their usual ids


@torch.no_grad()
def _checked(
    settings: ModelConfig, state: Mapping[str, Tensor], files: StreamFiles, encoder: Source, decoder: Source
) -> ModelConfig:
    """The settings with the numbers of heads with which the network computes what the graphs do.

    Raises:
        ExportError: there are none.
    """
    assert settings.decoder is not None
    random = np.random.default_rng(0)
    frames, tokens = TRIED
    width = settings.encoder.output_size
    rows = random.normal(0, 1, (1, frames, settings.encoder.input_size)).astype(np.float32)
    lengths = {each: np.array([size], np.int32) for each, size in (("frames", frames), ("tokens", tokens))}
    names = [each.name for each in encoder.inputs]
    enc, _, alphas = run(
        opened(files.encoder), encoder, dict(zip(names, (rows, lengths["frames"]), strict=True)), _outputs(encoder, 3)
    )
    vectors = random.normal(0, 1, (1, tokens, width)).astype(np.float32)
    past = np.zeros((1, width, settings.decoder.kernel - 1), np.float32)
    names = [each.name for each in decoder.inputs]
    given = (enc, lengths["frames"], vectors, lengths["tokens"], *[past] * (len(names) - 4))
    [logits] = run(opened(files.decoder), decoder, dict(zip(names, given, strict=True)), _outputs(decoder, 1))
    log_probs = logits - np.logaddexp.reduce(logits.astype(np.float64), axis=-1, keepdims=True)

    def of_encoder(heads: int) -> float:
        network = _network(replace(settings, encoder=replace(settings.encoder, heads=heads)), state, files)
        valid = torch.ones(1, frames, dtype=torch.bool)
        found = _encoded(network, torch.from_numpy(rows))
        theirs = {"enc": (found, enc), "alphas": (network.predictor.weights(torch.from_numpy(enc), valid), alphas)}
        return max(_difference(a.numpy(), b, name) for name, (a, b) in theirs.items())

    def of_decoder(heads: int) -> float:
        assert settings.decoder is not None
        network = _network(replace(settings, decoder=replace(settings.decoder, heads=heads)), state, files)
        hidden = torch.zeros(1, 1, 1, frames)
        memory, valid = torch.from_numpy(enc), torch.ones(1, tokens, 1)
        found = network.decoder.decoded(torch.from_numpy(vectors), valid, memory, hidden)[0]
        return _difference(found.numpy(), log_probs.astype(np.float32), "decoder")

    heads = []
    for path, differs in ((files.encoder, of_encoder), (files.decoder, of_decoder)):
        tried = {each: differs(each) for each in HEADS if width % each == 0}
        best = min(tried, key=lambda each: tried[each])
        if not tried[best] <= ALLOWED[files.int8]:
            raise ExportError(
                f"{path}: a network of its weights differs by {tried[best]:.2g} of the size of what comes out, so that "
                f"they are not what they were taken for. Read are {_Graph.written_by}."
            )
        heads.append(best)
    return replace(
        settings,
        encoder=replace(settings.encoder, heads=heads[0]),
        decoder=replace(settings.decoder, heads=heads[1]),
    )


def _difference(found: Array, wanted: Array, name: str) -> float:
    """As a share of the size of what is wanted, both as root mean squares: single numbers of int8 are far off."""
    largest_difference(found, wanted, name)  # refuses what is misshapen or not finite
    return float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)))


def _encoded(network: Paraformer, rows: Tensor) -> Tensor:
    """What the encoder makes of rows to which positions were added."""
    hidden = torch.where(torch.ones(1, 1, 1, rows.shape[1], dtype=torch.bool), 0.0, HIDDEN)
    x, valid = rows, torch.ones(1, rows.shape[1], 1)
    for layer in (*network.encoder.encoders0, *network.encoder.encoders):
        x, _ = layer(x, hidden, valid)
    return network.encoder.after_norm(x)


def _outputs(source: Source, count: int) -> list[str]:
    if len(source.outputs) < count:
        raise ExportError(f"{source.path} has {len(source.outputs)} outputs; Paraformer's graph has {count} or more")
    return [each.name for each in source.outputs[:count]]


class _Graph(Products):
    """Finds the tensors of encoder and predictor, or of the decoder, by upstream's names."""

    models = "Paraformers for streams"
    written_by = "the graphs that FunASR exports of ParaformerStreaming, and their int8 forms"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._named: dict[str, str] = {}
        for name in self._tensors:
            if found := NAMED.fullmatch(name):
                self._named[f"{found['part']}.{found['name']}"] = name

    def _find_norms(self) -> dict[str, str]:
        return {}  # they have names

    def encoder(self) -> dict[str, Tensor]:
        """Encoder and predictor."""
        return self._state(*self._layers("encoder", OF_ENCODER), "predictor.cif_output")

    def decoder(self) -> dict[str, Tensor]:
        last = (f"decoder.decoders3.0.{each}" for each in OF_DECODER[:2])
        return self._state(*self._layers("decoder", OF_DECODER), *last, "decoder.output_layer")

    def weights(self) -> tuple[float, float]:
        """What weights of frames are multiplied with, and what is taken off, between the sigmoid and the ReLU."""
        [*sigmoids] = (node for node in self._nodes if node.op_type == "Sigmoid")
        if len(sigmoids) != 1:
            raise self._lacks("predictor.cif_output")
        made, found = sigmoids[0].output[0], [1.0, 0.0]
        for place, kind in enumerate(("Mul", "Sub")):
            for node in self._next(made, kind):
                values = [array_of(self._tensors[each]) for each in node.input if each in self._tensors]
                if values and values[0].size == 1:
                    made, found[place] = node.output[0], float(values[0].reshape(-1)[0])
        return found[0], found[1]

    def _layers(self, part: str, names: tuple[str, ...]) -> Iterator[str]:
        """The matrices of a part's layers."""
        for stack in ("encoders0", "encoders") if part == "encoder" else ("decoders",):
            found = {name.split(".")[2] for name in self._named if name.startswith(f"{part}.{stack}.")}
            for layer in found:
                yield from (f"{part}.{stack}.{layer}.{each}" for each in names)

    def _state(self, *matrices: str) -> dict[str, Tensor]:
        """All tensors: those with names, and matrices, told by their biases; those without follow `w_1`."""
        biased = {product.bias or "": product for product in self._products.values()}
        found: dict[str, Array] = {}
        for name in matrices:
            theirs = self._named.get(f"{name}.bias", UNNAMED)
            product = biased.get(theirs)
            if theirs == UNNAMED and name.endswith("w_2"):
                first = biased.get(self._named.get(f"{name.removesuffix('2')}1.bias", UNNAMED))
                product = self._only(self._after(first.made if first else None), name)
            if product is None:
                raise self._lacks(name)
            found[f"{name}.weight"] = self._matrix(product, name)
        found |= {name: self._array(theirs, name) for name, theirs in self._named.items()}
        return {name: torch.tensor(value) for name, value in found.items()}
