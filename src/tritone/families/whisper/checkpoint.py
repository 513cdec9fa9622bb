"""Reading a trained Whisper model: a folder of transformers, CTranslate2 or sherpa-onnx, or a checkpoint of OpenAI's.

    config.json, generation_config.json, model.safetensors (or its shards, or pytorch_model.bin), tokenizer files
    config.json, model.bin, tokenizer.json (or vocabulary.json, vocabulary.txt)
    NAME-encoder.onnx, NAME-decoder.onnx, NAME-tokens.txt
    NAME.pt with `dims` and `model_state_dict`, and a .tiktoken file
        ->  Checkpoint: sizes, tensors by OpenAI's names, tokens, the manifest's part `whisper`

All of it is untrusted: no pickle is run, sizes are checked, and no name leads out of the folder. A folder of
CTranslate2's, which faster-whisper takes, and one of sherpa-onnx's are read without torch.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tritone.bundle.part import MAX_COUNT
from tritone.errors import ExportError
from tritone.families.export.fit import require_shapes
from tritone.families.export.json_files import read_json, read_json_if_there
from tritone.families.layers.clipped_mel import FRAME_SHIFT, SAMPLE_RATE
from tritone.families.whisper.ctranslate2 import MODEL, is_ctranslate2, read_model
from tritone.families.whisper.dims import Dims, State
from tritone.families.whisper.sherpa_onnx import SherpaFiles, find_files
from tritone.families.whisper.sherpa_onnx import read_model as read_onnx
from tritone.families.whisper.tokens import (
    LANGUAGES,
    first_suppressed,
    read_ctranslate2_tokens,
    read_tiktoken,
    read_transformers_tokens,
    special_tokens,
    suppressed_tokens,
)
from tritone.kinds.whisper.part import WhisperPart

ENGLISH_ONLY = 51864  # tokens of OpenAI's models of English alone; all others are multilingual
FIRST_TIME_S = 1.0  # OpenAI's limit of the first time of a window
MOST_HEADS = 64  # whose attention is taken where it is not given which heads follow the audio
USUAL = -1  # in lists of suppressed tokens, as OpenAI's option has it; to transformers it is no token
CONFIG = "config.json"
MODEL_PREFIX = "model."  # of all tensors of transformers but the head

# Parts of transformers' names, and OpenAI's in their place.
RENAMED = (
    ("encoder.embed_positions.weight", "encoder.positional_embedding"),
    ("decoder.embed_positions.weight", "decoder.positional_embedding"),
    ("embed_tokens", "token_embedding"),
    ("layers", "blocks"),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("encoder_attn", "cross_attn"),
    ("self_attn_layer_norm", "attn_ln"),
    ("self_attn", "attn"),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
    ("final_layer_norm", "mlp_ln"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("proj_out", "decoder.head"),
)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained model. `special`: the manifest's part. `sources`: the files it was read from, by what they are."""

    dims: Dims
    state: State = field(repr=False)
    tokens: list[str] = field(repr=False)
    special: WhisperPart
    sources: Mapping[str, Path]
    notes: tuple[str, ...] = ()


def read_checkpoint(path: Path, tokens: Path | None = None) -> Checkpoint:
    """Read a model.

    Args:
        path: a folder of transformers, of CTranslate2's or of sherpa-onnx's, or OpenAI's .pt file.
        tokens: the .tiktoken file of a .pt.

    Raises:
        ExportError: a file is missing, damaged or unsupported, or tensors do not fit the sizes.
        ModuleNotFoundError: torch, which a folder of transformers and a .pt need, is not installed.
    """
    if path.is_dir():
        if tokens is not None:
            raise ExportError(f"{path} is a folder, which has its own tokens; leave out {tokens}")
        if is_ctranslate2(path):
            return _read_ctranslate2(path)
        files = find_files(path)
        return _read_folder(path) if files is None else _read_sherpa_onnx(files)
    return _read_openai(path, tokens)


def _read_ctranslate2(folder: Path) -> Checkpoint:
    dims, state = read_model(folder)
    _check(dims, state, str(folder))
    config = read_json(folder / CONFIG)
    table, origin = read_ctranslate2_tokens(folder, dims.vocab)
    heads, notes = _alignment_heads(dims, config.get("alignment_heads"))

    def listed(name: str, usual: Callable[[list[str]], tuple[int, ...]]) -> tuple[int, ...]:
        return _ids(dims, config.get(name), f"{folder}: {name}", lambda: usual(table))

    special = _special(
        dims,
        special_tokens(table, str(origin)),
        multilingual=dims.vocab != ENGLISH_ONLY,
        suppress=listed("suppress_ids", suppressed_tokens) or suppressed_tokens(table),
        suppress_first=listed("suppress_ids_begin", first_suppressed) or first_suppressed(table),
        max_initial_timestamp=round(FIRST_TIME_S * SAMPLE_RATE / (2 * FRAME_SHIFT)),
        alignment_heads=heads,
    )
    sources = {"config": folder / CONFIG, "tokens": origin, "weights": folder / MODEL}
    return Checkpoint(dims=dims, state=state, tokens=table, special=special, sources=sources, notes=notes)


def _read_openai(path: Path, tokens: Path | None) -> Checkpoint:
    from tritone.families.whisper.torch_files import openai_state

    given, state, prefix = openai_state(path)
    names = ["mels", "audio_ctx", "audio_state", "audio_head", "audio_layer", "vocab"]
    names += ["text_ctx", "text_state", "text_head", "text_layer"]
    size = _sizes(given, [f"n_{name}" for name in names], f"{path}: dims")
    if size["n_audio_state"] != size["n_text_state"]:
        raise ExportError(f"{path}: encoder and decoder have different widths, which no Whisper model has")
    dims = Dims(
        num_bins=size["n_mels"],
        audio_context=size["n_audio_ctx"],
        audio_width=size["n_audio_state"],
        audio_heads=size["n_audio_head"],
        audio_layers=size["n_audio_layer"],
        audio_hidden=4 * size["n_audio_state"],
        vocab=size["n_vocab"],
        text_context=size["n_text_ctx"],
        text_heads=size["n_text_head"],
        text_layers=size["n_text_layer"],
        text_hidden=4 * size["n_text_state"],
    )
    _check(dims, state, str(path), lambda name: prefix + name)
    if tokens is None:
        name = "gpt2.tiktoken" if dims.vocab == ENGLISH_ONLY else "multilingual.tiktoken"
        raise ExportError(
            f"{path} has no tokens: give {name} of the package openai-whisper (whisper/assets/) with --tokens"
        )
    return _with_tiktoken(dims, state, tokens, {"checkpoint": path})


def _read_sherpa_onnx(files: SherpaFiles) -> Checkpoint:
    dims, state = read_onnx(files)
    _check(dims, state, str(files.encoder.parent))
    found = _with_tiktoken(dims, state, files.tokens, {"encoder": files.encoder, "decoder": files.decoder})
    if not files.int8:
        return found
    note = f"weights are those of {files.encoder.name} and {files.decoder.name}, in int8 with one scale for each matrix"
    return replace(found, notes=(*found.notes, note))


def _with_tiktoken(dims: Dims, state: State, tokens: Path, sources: Mapping[str, Path]) -> Checkpoint:
    """A model of OpenAI's sizes and names with the table of its pieces."""
    table = read_tiktoken(tokens, dims.vocab, dims.audio_context + 1)
    heads, notes = _alignment_heads(dims, None)
    special = _special(
        dims,
        special_tokens(table, str(tokens)),
        multilingual=dims.vocab != ENGLISH_ONLY,
        suppress=suppressed_tokens(table),
        suppress_first=first_suppressed(table),
        max_initial_timestamp=round(FIRST_TIME_S * SAMPLE_RATE / (2 * FRAME_SHIFT)),
        alignment_heads=heads,
    )
    return Checkpoint(
        dims=dims,
        state=state,
        tokens=table,
        special=special,
        sources={**sources, "tokens": tokens},
        notes=notes,
    )


def _read_folder(folder: Path) -> Checkpoint:
    config = read_json(folder / CONFIG)
    if config.get("model_type") != "whisper":
        raise ExportError(f"{folder}/config.json: model_type is {config.get('model_type')!r}, expected 'whisper'")
    if config.get("activation_function", "gelu") != "gelu" or config.get("scale_embedding"):
        raise ExportError(
            f"{folder}/config.json: activation_function {config.get('activation_function')!r} and scale_embedding "
            f"{config.get('scale_embedding')!r} are not supported; Whisper models have gelu and false"
        )
    names = ["num_mel_bins", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers"]
    names += ["encoder_ffn_dim", "vocab_size", "max_target_positions", "decoder_attention_heads", "decoder_layers"]
    size = _sizes(config, [*names, "decoder_ffn_dim"], f"{folder}/config.json")
    from tritone.families.whisper.torch_files import folder_state

    files, given, prefix = folder_state(folder)
    state = {_renamed(name): each for name, each in given.items()}
    tied = config.get("tie_word_embeddings", True) or "decoder.head.weight" not in state
    if tied:
        state.pop("decoder.head.weight", None)
    dims = Dims(
        num_bins=size["num_mel_bins"],
        audio_context=size["max_source_positions"],
        audio_width=size["d_model"],
        audio_heads=size["encoder_attention_heads"],
        audio_layers=size["encoder_layers"],
        audio_hidden=size["encoder_ffn_dim"],
        vocab=size["vocab_size"],
        text_context=size["max_target_positions"],
        text_heads=size["decoder_attention_heads"],
        text_layers=size["decoder_layers"],
        text_hidden=size["decoder_ffn_dim"],
        tied=bool(tied),
    )
    inner = MODEL_PREFIX if any(name.startswith(MODEL_PREFIX) for name in given) else ""

    def stored(name: str) -> str:
        return prefix + (inner if name != "decoder.head.weight" else "") + _renamed(name, back=True)

    _check(dims, state, str(folder), stored)
    path = folder / "generation_config.json"
    generation = read_json_if_there(path)
    table, origin = read_transformers_tokens(folder, dims.vocab)
    heads, notes = _alignment_heads(dims, generation.get("alignment_heads"))

    def listed(name: str, usual: Callable[[list[str]], tuple[int, ...]]) -> tuple[int, ...]:
        return _ids(dims, {**config, **generation}.get(name), f"{folder}: {name}", lambda: usual(table))

    special = _special(
        dims,
        special_tokens(table, str(origin)),
        multilingual=bool(generation.get("is_multilingual", dims.vocab != ENGLISH_ONLY)),
        suppress=listed("suppress_tokens", suppressed_tokens),
        suppress_first=listed("begin_suppress_tokens", first_suppressed),
        max_initial_timestamp=generation.get("max_initial_timestamp_index"),
        alignment_heads=heads,
    )
    sources = {"config": folder / CONFIG, "tokens": origin} | {
        f"weights{index or ''}": file for index, file in enumerate(files)
    }
    if path.is_file():
        sources["generation_config"] = path
    return Checkpoint(dims=dims, state=state, tokens=table, special=special, sources=sources, notes=notes)


def _special(dims: Dims, ids: Mapping[str, Any], *, multilingual: bool, **fields: Any) -> WhisperPart:
    if not multilingual:
        ids = {**ids, "languages": {}, "tasks": {}}
    elif not ids["languages"] or len(ids["tasks"]) < 2:
        raise ExportError(
            f"the token table has no tokens of languages ({', '.join(LANGUAGES[:3])}, …) and tasks, which a "
            "multilingual model needs"
        )
    return WhisperPart(
        window_frames=2 * dims.audio_context,
        text_context=dims.text_context,
        layers=dims.text_layers,
        heads=dims.text_heads,
        head_dim=dims.head_dim,
        encoder_heads=dims.audio_heads,
        **ids,
        **fields,
    )


def _alignment_heads(dims: Dims, given: Any) -> tuple[tuple[tuple[int, int], ...], tuple[str, ...]]:
    """The heads that times of words are made of, and what should be known of them."""
    notes: list[str] = []
    try:
        pairs = [(int(layer), int(head)) for layer, head in given or ()]
    except (TypeError, ValueError) as error:
        raise ExportError(f"alignment_heads must be pairs of a layer and a head, got {str(given)[:80]}") from error
    known = [pair for pair in pairs if 0 <= pair[0] < dims.text_layers and 0 <= pair[1] < dims.text_heads]
    if len(known) < len(pairs):
        notes.append(
            f"{len(pairs) - len(known)} of {len(pairs)} alignment_heads are of layers or heads that this model does "
            f"not have ({dims.text_layers} layers of {dims.text_heads} heads), as those of a distilled model's teacher "
            "are; they are left out"
        )
    if known:
        return tuple(known), tuple(notes)
    layers = range(dims.text_layers // 2, dims.text_layers)
    heads = tuple((layer, head) for layer in layers for head in range(dims.text_heads))
    if len(heads) > MOST_HEADS:
        return (), (*notes, "nothing says which heads follow the audio (alignment_heads), so words get no times")
    return heads, tuple(notes)


def _ids(dims: Dims, given: Any, origin: str, usual: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """A list of ids of tokens, empty if there is none; `origin`: for errors; `usual`: what `USUAL` in it stands for."""
    ids = [] if given is None else given
    if isinstance(ids, list) and USUAL in ids:
        ids = [*(id for id in ids if id != USUAL), *usual()]
    if not isinstance(ids, list) or not all(type(id) is int and 0 <= id < dims.vocab for id in ids):
        raise ExportError(
            f"{origin} must be a list of token ids below {dims.vocab}, or of {USUAL} for OpenAI's usual ones, got "
            f"{str(given)[:80]}"
        )
    return tuple(dict.fromkeys(ids))


def _check(dims: Dims, state: State, origin: str, stored: Callable[[str], str] = str) -> None:
    """Compare the tensors with the sizes; `stored`: the name that a file has in place of OpenAI's, for errors."""
    for heads in (dims.audio_heads, dims.text_heads):
        if dims.audio_width % heads:
            raise ExportError(f"{origin}: {heads} heads cannot share a width of {dims.audio_width}")

    values = {stored(name): value for name, value in state.items()}

    def wrong_numbers(name: str) -> str | None:
        return None if np.isfinite(values[name]).all() else "NaN or Inf"

    shapes = {name: value.shape for name, value in values.items()}
    wanted = {stored(name): shape for name, shape in dims.shapes().items()}
    require_shapes(wanted, shapes, origin, "its sizes", wrong_numbers)


def _renamed(name: str, *, back: bool = False) -> str:
    """A name of transformers by OpenAI's parts, or the other way round."""
    if not back:
        name = name.removeprefix(MODEL_PREFIX)
    for theirs, ours in RENAMED:
        old, new = (ours, theirs) if back else (theirs, ours)
        name = re.sub(rf"(?<![^.]){re.escape(old)}(?![^.])", new, name)  # whole parts alone
    return name


def _sizes(given: Any, names: list[str], origin: str) -> dict[str, int]:
    if not isinstance(given, Mapping):
        raise ExportError(f"{origin} must be a mapping of sizes, got a {type(given).__name__}")
    wrong = [name for name in names if not isinstance(given.get(name), int) or not 0 < given[name] <= MAX_COUNT]
    if wrong:
        raise ExportError(f"{origin}: {', '.join(f'{name} is {given.get(name)!r}' for name in wrong)}; expected sizes")
    return {name: given[name] for name in names}
