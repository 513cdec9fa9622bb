"""Reading a Moonshine model: a folder of transformers, as UsefulSensors publishes them.

    config.json, preprocessor_config.json, tokenizer.json, model.safetensors  ->  Checkpoint

All of it is untrusted: no pickle is run, sizes are checked, and keys that would change a result are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.hf_folder import (
    CONFIG,
    TOKENIZER,
    read_extractor,
    read_pieces_by_id,
    read_special_ids,
    read_tensors,
    weight_files,
)
from tritone.families.export.json_files import read_json
from tritone.families.export.settings import Section
from tritone.families.export.tokens import tokens_of
from tritone.families.layers.rotary import rotary
from tritone.families.layers.text_decoder import DecoderSizes, of_transformers
from tritone.families.moonshine.model import MoonshineSizes

SAMPLE_RATE = 16_000
MAX_LAYERS = 256
# Of a text, above which upstream's examples cut it off: 6.5 in English, twice as many in other scripts.
TOKENS_PER_SECOND = 13.0


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained model.

    `start`, `end`: the tokens before and after a text; `silent`: those that are no text; `tokens_per_second`: the most
    of a text.
    """

    sizes: MoonshineSizes
    state: Mapping[str, Tensor] = field(repr=False)
    tokens: list[str] = field(repr=False)
    start: int
    end: int
    silent: tuple[int, ...]
    tokens_per_second: float = TOKENS_PER_SECOND
    sources: Mapping[str, Path]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a folder.

    Raises:
        ExportError: a file is missing, damaged or unsupported, or tensors do not fit the sizes.
    """
    config = Section("config", read_json(folder / CONFIG))
    try:
        sizes = _sizes(config)
    except ExportError as error:
        raise ExportError(f"{folder / CONFIG}: {error}") from error
    _check_extractor(folder)
    vocab = sizes.decoder.vocab
    named, special = read_pieces_by_id(folder / TOKENIZER), read_special_ids(folder / TOKENIZER)
    files = weight_files(folder)
    given: dict[str, Tensor] = {}
    for file in files:
        given |= read_tensors(file)
    state = {of_transformers(name): value for name, value in given.items()}
    if sizes.decoder.tied:
        state.pop("decoder.head.weight", None)
    turn(state, sizes)
    return Checkpoint(
        sizes=sizes,
        state=state,
        tokens=tokens_of([named.get(id, f"<unused-{id}>") for id in range(vocab)])[:-1],
        start=config.whole("decoder_start_token_id", 1, least=0, most=vocab - 1),
        end=config.whole("eos_token_id", 2, least=0, most=vocab - 1),
        silent=tuple(id for id in range(vocab) if id in special or id not in named),
        sources={each.name: each for each in files} | {"config": folder / CONFIG, "tokenizer": folder / TOKENIZER},
    )


def _sizes(config: Section) -> MoonshineSizes:
    config.choice("model_type", ("moonshine",))
    config.choice("encoder_hidden_act", ("gelu",), "gelu")
    config.choice("decoder_hidden_act", ("silu",), "silu")
    if config.flag("attention_bias", False):
        raise ExportError("attention_bias is true; only models without it can be exported")
    heads = config.whole("decoder_num_attention_heads", 8)
    same = ("encoder_num_attention_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads")
    for name in same:
        if (found := config.whole(name, heads)) != heads:
            raise ExportError(
                f"{name} is {found}, decoder_num_attention_heads {heads}; only equal ones can be exported"
            )
    width = config.whole("hidden_size", 288)
    if width % heads:
        raise ExportError(f"{heads} heads cannot share a hidden_size of {width}")
    if (found := config.whole("head_dim", width // heads)) != width // heads:
        raise ExportError(f"head_dim is {found}; only {width // heads}, hidden_size / heads, can be exported")
    # Written within rope_parameters since version 5 of transformers, beside each other before.
    positions = config.part("rope_parameters") if config.get("rope_parameters", None) else config
    if config.get("rope_scaling", None) is not None or positions.get("rope_type", "default") != "default":
        raise ExportError("positions are scaled (rope_scaling, rope_type); only plain rotary ones can be exported")
    share = positions.number("partial_rotary_factor", 0.9)
    size = int(width // heads * share)
    if not 2 <= size <= width // heads or size % 2:
        raise ExportError(f"partial_rotary_factor {share:g} turns {size} numbers of each head; expected an even number")
    decoder = DecoderSizes(
        vocab=config.whole("vocab_size", 32768, least=2),
        context=config.whole("max_position_embeddings", 512, least=8, most=2**16),
        width=width,
        heads=heads,
        layers=config.whole("decoder_num_hidden_layers", 6, most=MAX_LAYERS),
        hidden=config.whole("intermediate_size", 1152),
        tied=config.flag("tie_word_embeddings", True),
        biases=(),
        norm_bias=False,
        activation="gated-silu",
        rotary=size,
    )
    theta = positions.number("rope_theta", 10000.0)
    if theta <= 1:
        raise ExportError(f"rope_theta is {theta:g}, expected more than 1")
    layers = config.whole("encoder_num_hidden_layers", 6, most=MAX_LAYERS)
    return MoonshineSizes(decoder=decoder, encoder_layers=layers, theta=theta)


def _check_extractor(folder: Path) -> None:
    content, path = read_extractor(folder)
    section = Section(str(path), content)
    if (rate := section.whole("sampling_rate", SAMPLE_RATE)) != SAMPLE_RATE:
        raise ExportError(f"{path}: sampling_rate is {rate}, these models take {SAMPLE_RATE}")
    if section.flag("do_normalize", False):
        raise ExportError(f"{path}: do_normalize is true, but Moonshine takes samples as they are")


def turn(state: dict[str, Tensor], sizes: MoonshineSizes) -> None:
    """Order the numbers of queries and keys as our rotary positions have them, and add the decoder's angles.

    Upstream turns neighbours against each other, we turn halves; the products of queries with keys are the same.
    """
    form = sizes.decoder
    order = [*range(0, form.rotary, 2), *range(1, form.rotary, 2), *range(form.rotary, form.head_dim)]
    rows = (torch.arange(form.heads).unsqueeze(1) * form.head_dim + torch.tensor(order)).flatten()
    for name in state:
        if name.endswith((".attn.query.weight", ".attn.key.weight")) and len(state[name]) == len(rows):
            state[name] = state[name][rows]
    state["decoder.rotary"] = rotary(form.context, form.rotary, sizes.theta, torch.device("cpu"))
