"""Canary: a FastConformer, and a decoder that is prompted with languages and whether to write punctuation and times.

    folder of transformers  ->  Checkpoint: network with its tensors, tokens, prompt

The prompt is the second of NeMo's formats for Canary (`canary2`), token by token. Facts: transformers 5.24,
models/canary; NeMo, nemo/collections/common/prompts/canary2.py.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tritone.errors import ExportError
from tritone.families.export.attended import filled
from tritone.families.export.hf_folder import (
    CONFIG,
    PROCESSOR,
    TOKENIZER,
    read_extractor,
    read_special_ids,
    read_tensors,
    weight_files,
)
from tritone.families.export.json_files import read_json, read_json_if_there
from tritone.families.export.settings import Section, read_bytes
from tritone.families.layers.log_mel import LogMel, LogMelConfig
from tritone.families.layers.text_decoder import PROJECTIONS, DecoderSizes, TextDecoder, of_transformers
from tritone.families.nemo.config import MAX_LAYERS, EncoderConfig
from tritone.families.nemo.encoder import ConformerEncoder
from tritone.families.nemo.folder import (
    ENCODER_KEYS,
    FEATURE_KEYS,
    GENERAL,
    encoder_of,
    log_mel_of,
    read_tokenizer,
    spelled,
)
from tritone.families.nemo.model import COUNTER
from tritone.kinds.encoder_decoder.part import Slot

MODEL_TYPE = "canary"
VOCAB, CONTEXT = 16384, 1024
# What transformers' encoder is where the config does not say it.
USUAL_ENCODER = {"num_hidden_layers": 32, "num_mel_bins": 128, "scale_input": False}
DECODER_KEYS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *(
        "num_key_value_heads",
        "hidden_act",
        "max_position_embeddings",
        "attention_bias",
        "attention_dropout",
        "head_dim",
    ),
)
PROMPT: tuple[str, ...] = (
    *("<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", "language", "target_language"),
    *("punctuation", "<|noitn|>", "word_times", "<|nodiarize|>"),
)
FIRST_PROMPT: tuple[str, ...] = ("<|startoftranscript|>", "language", "task", "target_language", "punctuation")
PROMPTS: Mapping[str, tuple[str, ...]] = {"canary2": PROMPT, "canary": FIRST_PROMPT}
"""By NeMo's name of the format: what stands before a text, and the places of what requests choose."""

TASKS = ("<|transcribe|>", "<|translate|>")
PUNCTUATION = ("<|nopnc|>", "<|pnc|>")
WORD_TIMES = ("<|notimestamp|>", "<|timestamp|>")
END = "<|endoftext|>"
CODE = re.compile(r"<\|(?!pnc|itn)([a-z]{2,3})\|>")  # the token of a language
# Those of canary-1b-v2; tokens there are for many more languages.
LANGUAGES = (
    *("en", "bg", "hr", "cs", "da", "nl", "et", "fi", "fr", "de", "el", "hu", "it", "lv", "lt", "mt", "pl", "pt"),
    *("ro", "sk", "sl", "es", "sv", "ru", "uk"),
)


class Encoder(nn.Module):
    """Features, FastConformer, and where the decoder is wider a projection: waveform to encoder frames."""

    front_end: LogMel

    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__()
        self.conformer = ConformerEncoder(config)
        own = self.conformer.output_dim
        self.projection = None if own == width else nn.Linear(own, width)

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, samples), (batch,) int64 -> (batch, frames, width), and how many of them are each row's own."""
        features, counts = self.front_end(waveform, num_samples)
        x, num_frames = self.conformer(features, counts)
        return x if self.projection is None else self.projection(x), num_frames


class Network(nn.Module):
    """Encoder and decoder of one model."""

    def __init__(self, encoder: EncoderConfig, decoder: DecoderSizes) -> None:
        super().__init__()
        self.encoder = Encoder(encoder, decoder.width)
        self.decoder = TextDecoder(decoder)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained model. `prompt`: as of `EncoderDecoderPart`; `switches`: the tokens of its places."""

    network: Network = field(repr=False)
    features: LogMelConfig
    encoder: EncoderConfig
    decoder: DecoderSizes
    tokens: Sequence[str] = field(repr=False)
    end: int
    prompt: tuple[int | Slot, ...]
    languages: Mapping[str, int]
    language: str
    task: tuple[int, int] | None
    punctuation: tuple[int, int]
    word_times: tuple[int, int] | None
    times: tuple[int, int] | None
    silent: tuple[int, ...]
    sources: Mapping[str, Path]


def made(
    state: dict[str, Tensor], features: LogMelConfig, encoder: EncoderConfig, decoder: DecoderSizes, origin: str
) -> Network:
    """A network of tensors by the names of our own."""
    with torch.device("meta"):  # what a config asks for takes no memory before it is known to be there
        network = Network(encoder, decoder)
    counters = {name: torch.zeros(()) for name in network.state_dict() if name.endswith(COUNTER)}
    filled(network, {name: value for name, value in state.items() if not name.endswith(COUNTER)} | counters, origin)
    network.encoder.conformer.fold()
    network.encoder.front_end = LogMel(features)
    network.encoder.front_end.in_float32 = True  # type: ignore[assignment]  # see `in_precision`
    return network.eval().requires_grad_(False)


def read_folder(folder: Path) -> Checkpoint:
    """Read a folder that transformers' save_pretrained wrote.

    Raises:
        ExportError: a file is missing, damaged or unsupported, or does not fit another.
    """
    content, processor = read_json(folder / CONFIG), read_json_if_there(folder / PROCESSOR)
    extractor, _ = read_extractor(folder)
    try:
        whole = Section("config", content, ("vocab_size", "encoder_config", "decoder_config", *GENERAL))
        given = whole.get("encoder_config", None) or USUAL_ENCODER
        encoder = encoder_of(Section("encoder_config", given, (*ENCODER_KEYS, *GENERAL)), processor, False)
        decoder = _decoder(whole)
        features = log_mel_of(Section("feature_extractor", extractor, FEATURE_KEYS), encoder.features, False)
        if encoder.width != decoder.width:
            raise ExportError(
                f"encoder_config.hidden_size is {encoder.width}, decoder_config.hidden_size {decoder.width}; "
                "transformers' Canary has nothing between them, so they must be equal"
            )
    except ExportError as error:
        raise ExportError(f"{folder}: {error}") from error
    tokens = read_tokenizer(folder / TOKENIZER, decoder.vocab)[:-1]
    files = weight_files(folder)
    state: dict[str, Tensor] = {}
    for file in files:
        state |= read_tensors(file)
    network = made(_own(state, encoder, decoder), features, encoder, decoder, str(folder))
    return Checkpoint(
        network=network,
        features=features,
        encoder=encoder,
        decoder=decoder,
        **prompt_of(tokens, str(folder / TOKENIZER), has_times=WORD_TIMES[1] in _template(folder)),
        silent=tuple(id for id in sorted(read_special_ids(folder / TOKENIZER)) if id < decoder.vocab),
        sources={each.name: each for each in files} | {"config": folder / CONFIG, "tokenizer": folder / TOKENIZER},
    )


def prompt_of(
    tokens: Sequence[str],
    origin: str,
    *,
    has_times: bool,
    languages: Sequence[str] = LANGUAGES,
    usual: str | None = None,
    form: str = "canary2",
) -> dict[str, Any]:
    """What of a `Checkpoint` follows from its tokens.

    Args:
        has_times: whether it was trained to write times.
        languages: that it knows, where there are tokens of them; if there are of none, all that tokens are of.
        usual: the one of its own prompts; None for English.
        form: the prompt's, of `PROMPTS`.

    Raises:
        ExportError: a token of the prompt is not there.
    """
    ids = {token: id for id, token in enumerate(tokens)}
    prompt = PROMPTS[form]
    choices = {"punctuation": PUNCTUATION, "task": TASKS, "word_times": WORD_TIMES[:1]}
    needed = [token for each in prompt for token in choices.get(each, (each,) if each.startswith("<|") else ())]
    if missing := [each for each in (*needed, END) if each not in ids]:
        raise ExportError(f"{origin} has no {', '.join(missing)}, which prompts of form {form} are made of")
    known = {code: ids[token] for code in (*languages, usual) if (token := f"<|{code}|>") in ids}
    known = known or {found[1]: id for token, id in ids.items() if (found := CODE.fullmatch(token))}
    if not known:
        raise ExportError(f"{origin} has no token of a language, such as <|en|>")
    first = ids.get("<|0|>")
    count = 0
    while first is not None and first + count < len(tokens) and tokens[first + count] == f"<|{count}|>":
        count += 1
    timed = has_times and "word_times" in prompt and count > 1 and WORD_TIMES[1] in ids
    assert not timed or first is not None

    def place(each: str) -> int | str:
        if each == "word_times" and not timed:
            return ids[WORD_TIMES[0]]
        return ids.get(each, each)

    return {
        "tokens": tokens,
        "end": ids[END],
        "prompt": tuple(map(place, prompt)),
        "languages": known,
        "language": next((each for each in (usual, "en") if each in known), next(iter(known))),
        "task": tuple(ids[each] for each in TASKS) if "task" in prompt else None,
        "punctuation": tuple(ids[each] for each in PUNCTUATION),
        "word_times": tuple(ids[each] for each in WORD_TIMES) if timed else None,
        "times": (first, first + count - 1) if timed and first is not None else None,
    }


def positions(context: int, width: int) -> Tensor:
    """Position vectors (context, width) of transformers' Canary: sines beside cosines, divided by √width.

    NeMo's have them in turn; transformers' converter orders all of the decoder's vectors so.
    """
    rates = torch.exp(torch.arange(width // 2).double() * -(math.log(10000.0) * 2 / width))
    angles = torch.arange(context).double().unsqueeze(1) * rates
    return (torch.cat([angles.sin(), angles.cos()], dim=1) / math.sqrt(width)).float()


def _own(state: Mapping[str, Tensor], encoder: EncoderConfig, decoder: DecoderSizes) -> dict[str, Tensor]:
    """Tensors by the names of our network; those that it has not keep upstream's."""
    with torch.device("meta"):
        names = ConformerEncoder(encoder).state_dict()
    ours = {f"model.{spelled(f'encoder.{name}', encoder)}": f"encoder.conformer.{name}" for name in names}
    found = {ours.get(name) or of_transformers(name): value for name, value in state.items()}
    if decoder.tied:
        found["decoder.head.weight"] = found.get("decoder.token_embedding.weight", torch.zeros(0))
    found["decoder.positional_embedding"] = positions(decoder.context, decoder.width)
    return found


def _decoder(whole: Section) -> DecoderSizes:
    section = whole.part("decoder_config", (*DECODER_KEYS, *GENERAL))
    section.choice("hidden_act", ("relu",), "relu")
    if not section.flag("attention_bias", True):
        raise ExportError("decoder_config.attention_bias is false; only models with it can be exported")
    heads, width = section.whole("num_attention_heads", 8), section.whole("hidden_size", 1024, least=4)
    if (found := section.whole("num_key_value_heads", heads)) != heads:
        raise ExportError(
            f"decoder_config.num_key_value_heads is {found}; only {heads}, as of queries, can be exported"
        )
    if section.whole("head_dim", 128) * heads != width or width % 2:
        raise ExportError(f"decoder_config: {heads} heads of head_dim do not make up an even hidden_size, {width}")
    vocab = section.whole("vocab_size", VOCAB, least=2)
    if (own := whole.whole("vocab_size", VOCAB)) != vocab:
        raise ExportError(f"config.vocab_size is {own}, decoder_config.vocab_size {vocab}; they must be equal")
    return canary_sizes(
        vocab=vocab,
        context=section.whole("max_position_embeddings", CONTEXT, least=32, most=2**16),
        width=width,
        heads=heads,
        layers=section.whole("num_hidden_layers", 8, most=MAX_LAYERS),
        hidden=section.whole("intermediate_size", 4096),
        tied=whole.flag("tie_word_embeddings", True),
    )


def canary_sizes(**sizes: Any) -> DecoderSizes:
    """The form of Canary's decoders, of these sizes."""
    return DecoderSizes(biases=PROJECTIONS, head_bias=True, embedding_norm=True, activation="relu", **sizes)


def _template(folder: Path) -> str:
    """The folder's template of prompts; empty if there is none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return read_bytes(path, "template of prompts").decode(errors="replace")
    return str(read_json_if_there(folder / PROCESSOR).get("chat_template", ""))
