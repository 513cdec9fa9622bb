"""Canary in NeMo's own archives: canary-1b, canary-180m-flash, canary-1b-flash, canary-1b-v2.

    FILE.nemo  ->  canary.Checkpoint

Facts: NeMo, nemo/collections/asr/modules/transformer, models/aed_multitask_models.py, and the tokenizers of
nemo/collections/common, which stand one after the other where there are several.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from tritone.bundle.bytewise import fallback_byte
from tritone.errors import ExportError
from tritone.families.export.archive import ARCHIVE_SUFFIX, open_member, open_weights, read_config
from tritone.families.export.checkpoint import load_checkpoint, state_of, without
from tritone.families.export.settings import Section, shown
from tritone.families.export.tokens import pieces_of
from tritone.families.nemo.canary import CODE, LANGUAGES, PROMPTS, Checkpoint, canary_sizes, made, prompt_of
from tritone.families.nemo.config import ENCODER_KEYS, FEATURE_KEYS, MAX_LAYERS, encoder_config, feature_config
from tritone.families.nemo.model import BANDS, TRAINING, check_bands

TARGET = "EncDecMultiTaskModel"
SPECIAL = "spl_tokens"  # the tokenizer of the prompt's tokens
MAX_TOKENIZERS = 256
SILENT = re.compile(r"<[^<>]+>")  # <unk>, <|en|>, <unused-7>; a piece of text has no such brackets
EMBEDDING, HEAD = "transf_decoder._embedding", "log_softmax.mlp.layer0"
RENAMED = (
    ("encoder_decoder_proj.", "encoder.projection."),
    (f"{EMBEDDING}.token_embedding.", "decoder.token_embedding."),
    (f"{EMBEDDING}.position_embedding.pos_enc", "decoder.positional_embedding"),
    (f"{EMBEDDING}.layer_norm.", "decoder.embedding_ln."),
    ("transf_decoder._decoder.final_layer_norm.", "decoder.ln."),
    ("transf_decoder._decoder.layers.", "decoder.blocks."),
    ("layer_norm_1.", "attn_ln."),
    ("first_sub_layer.", "attn."),
    ("layer_norm_2.", "cross_attn_ln."),
    ("second_sub_layer.", "cross_attn."),
    ("layer_norm_3.", "mlp_ln."),
    ("third_sub_layer.dense_in.", "mlp.0."),
    ("third_sub_layer.dense_out.", "mlp.2."),
    ("query_net.", "query."),
    ("key_net.", "key."),
    ("value_net.", "value."),
    ("out_projection.", "out."),
    (f"{HEAD}.", "decoder.head."),
)


def is_canary(path: Path) -> bool:
    """Whether an archive holds a Canary; errors as of `read_config`."""
    return str(read_config(path).get("target")).rpartition(".")[2] == TARGET


def read_archive(path: Path) -> Checkpoint:
    """Read an archive.

    Raises:
        ExportError: a file is missing, damaged or unsupported, or does not fit another.
        MissingDependencyError: sentencepiece is not installed.
    """
    whole = Section("config", read_config(path))
    with open_weights(path) as file:
        plain = "Restore the model in NeMo and save it again with model.save_to."
        loaded = load_checkpoint(path, plain=plain, usual=f"{ARCHIVE_SUFFIX} archive", file=file)
    given = without(state_of(loaded, path).tensors, TRAINING)
    try:
        features = feature_config(whole.section("preprocessor", FEATURE_KEYS))
        encoder = encoder_config(whole.section("encoder", ENCODER_KEYS), features)
        form, heads = str(whole.get("prompt_format", None)), _heads(whole)
    except ExportError as error:
        raise ExportError(f"{path}: {error}") from error
    if BANDS in (tensors := state_of(loaded, path).tensors):
        check_bands(tensors[BANDS], features, path)
    state = {_own(name): value for name, value in given.items()}
    decoder = canary_sizes(heads=heads, **_sizes(state, path))
    if decoder.width % heads:
        raise ExportError(f"{path}: {heads} heads cannot share a width of {decoder.width}")
    pieces, languages = _pieces(path, whole)
    if len(pieces) > decoder.vocab:
        raise ExportError(f"{path}: its tokenizers have {len(pieces)} pieces, its decoder {decoder.vocab} tokens")
    tokens = [*pieces, *(f"<unused-{id}>" for id in range(len(pieces), decoder.vocab))]
    found = prompt_of(
        tokens, str(path), has_times=languages != LANGUAGES, languages=languages, usual=_usual(whole), form=form
    )
    return Checkpoint(
        network=made(state, features, encoder, decoder, str(path)),
        features=features,
        encoder=encoder,
        decoder=decoder,
        **found,
        silent=tuple(id for id, token in enumerate(tokens) if SILENT.fullmatch(token) and fallback_byte(token) is None),
        sources={"archive": path},
    )


def _own(name: str) -> str:
    """What a tensor of NeMo's is called here."""
    if name.startswith("encoder."):
        return f"encoder.conformer.{name.removeprefix('encoder.')}"
    for old, new in RENAMED:
        name = name.replace(old, new)
    return name


def _sizes(state: Mapping[str, Tensor], path: Path) -> dict[str, int]:
    """The sizes of the decoder, which tensors tell."""
    needed = ["decoder.token_embedding.weight", "decoder.positional_embedding", "decoder.blocks.0.mlp.0.weight"]
    if missing := [name for name in needed if name not in state or state[name].dim() != 2]:
        raise ExportError(f"{path} has no {', '.join(missing)}, of a decoder with fixed positions")
    (vocab, width), (context, _), (hidden, _) = (state[name].shape for name in needed)
    layers = {name.split(".")[2] for name in state if name.startswith("decoder.blocks.")}
    if len(layers) > MAX_LAYERS:
        raise ExportError(f"{path}: its decoder has {len(layers)} layers, at most {MAX_LAYERS} can be exported")
    sizes = {"vocab": vocab, "width": width, "context": context, "hidden": hidden, "layers": len(layers)}
    return {**sizes, "tied": False}


def _heads(whole: Section) -> int:
    """The number of the decoder's heads, after making sure that its form is the one that is computed here."""
    if (found := whole.get("prompt_format", None)) not in PROMPTS:
        raise ExportError(f"prompt_format is {shown(found)}; those that can be exported are {', '.join(PROMPTS)}")
    if "transf_encoder" in whole and whole.section("transf_encoder").whole("num_layers", 0, least=0):
        raise ExportError("transf_encoder has layers; only models without a second encoder can be exported")
    section = whole.section("transf_decoder")
    if not section.flag("pre_ln_final_layer_norm", True):
        raise ExportError("transf_decoder.pre_ln_final_layer_norm is false; only true can be exported")
    settings = section.section("config_dict")
    settings.choice("hidden_act", ("relu",), "relu")
    for name, only in (("learn_positional_encodings", False), ("pre_ln", True)):
        if settings.flag(name, False) != only:
            raise ExportError(f"transf_decoder.config_dict.{name} is {not only}; only {only} can be exported")
    return settings.whole("num_attention_heads")


def _usual(whole: Section) -> str | None:
    """The language of the prompts that the model was trained with last, if the config says it."""
    turns = whole.get("prompt_defaults", None)
    slots = [turn.get("slots") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    named = [str(each.get("source_lang")) for each in slots if isinstance(each, dict)]
    return next((found[1] for each in named if (found := CODE.fullmatch(each))), None)


def _pieces(path: Path, whole: Section) -> tuple[list[str], tuple[str, ...]]:
    """The pieces of all tokenizers, one after the other, and the languages of the model."""
    section = whole.section("tokenizer")
    files, languages = [section], tuple[str, ...](LANGUAGES)
    if section.get("type", None) == "agg":
        each = section.section("langs")
        names = [str(name) for name in section.get("langs")]
        if not names or len(names) > MAX_TOKENIZERS:
            raise ExportError(f"{path}: tokenizer.langs has {len(names)} tokenizers, expected 1 to {MAX_TOKENIZERS}")
        files, languages = [each.section(name) for name in names], tuple(name for name in names if name != SPECIAL)
    found: list[str] = []
    for part in files:
        name = part.get("model_path", None)
        if not isinstance(name, str) or not name:
            raise ExportError(f"{path}: {part.path}.model_path is missing: it should name sentencepiece's model")
        with open_member(path, name.removeprefix("nemo:")) as file:
            found += pieces_of(file.read(), f"{name} in {path}")
    return found, languages
