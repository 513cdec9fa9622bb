"""A model's folder as transformers saves it: its JSON files and its tensors.

    config.json, processor_config.json | preprocessor_config.json, vocab.json, …
    model.safetensors | pytorch_model.bin, whole or in shards that an index lists

All of it is untrusted: no code in it runs, sizes are limited, and an index cannot name files elsewhere.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.checkpoint import load_checkpoint, unwrapped
from tritone.families.export.json_files import read_json, read_json_if_there
from tritone.families.export.settings import shown
from tritone.families.known import refuse_foreign

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
PROCESSOR, PREPROCESSOR = "processor_config.json", "preprocessor_config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first one that is there is read, as upstream does
SAFE = ".safetensors"
PIECES = ("BPE", "Unigram")  # kinds of tokenizers that are made of sentencepiece's models
# Of all configs of transformers, without influence on what a model computes.
GENERAL = (
    *("model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "initializer_range"),
    *("_name_or_path", "name_or_path", "_commit_hash", "_attn_implementation", "_attn_implementation_autoset"),
    *("return_dict", "output_hidden_states", "output_attentions", "id2label", "label2id", "num_labels", "problem_type"),
    *("is_encoder_decoder", "chunk_size_feed_forward", "use_cache", "tie_word_embeddings", "torchscript"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
)


def read_extractor(folder: Path) -> tuple[dict[str, Any], Path]:
    """The settings of a folder's feature extractor, and the file that has them.

    Raises:
        ExportError: there are none, or the file is damaged.
    """
    within = read_json_if_there(folder / PROCESSOR).get("feature_extractor")
    if isinstance(within, dict):
        return within, folder / PROCESSOR
    if not (folder / PREPROCESSOR).is_file():
        raise ExportError(
            f"{folder} has neither {PREPROCESSOR} nor a feature extractor in {PROCESSOR}, which say what is made of "
            "audio; save the model's processor into the folder, with its save_pretrained"
        )
    return read_json(folder / PREPROCESSOR), folder / PREPROCESSOR


def read_pieces_by_id(path: Path) -> dict[int, str]:
    """The tokens in a tokenizer.json made of a sentencepiece model, special ones among them, by their ids.

    Raises:
        ExportError: the file is missing or damaged, of another kind, or names two tokens for an id.
    """
    content = read_json(path)
    model = content.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind not in PIECES or "ByteLevel" in str(content.get("decoder")):
        raise ExportError(f"{path} is of a tokenizer of type {shown(kind)}; expected one made of sentencepiece's")
    vocab, added = model.get("vocab"), content.get("added_tokens") or []
    pairs: list[tuple[Any, Any]] = []
    if isinstance(vocab, dict):
        pairs += [(id, token) for token, id in vocab.items()]
    elif isinstance(vocab, list):
        pairs += [(id, each[0] if isinstance(each, list) and each else each) for id, each in enumerate(vocab)]
    if not isinstance(added, list) or not all(isinstance(each, dict) for each in added):
        raise ExportError(f"{path}: added_tokens should be a list of tokens with their ids")
    pairs += [(each.get("id"), each.get("content")) for each in added]
    named: dict[int, str] = {}
    for id, token in pairs:
        if isinstance(id, bool) or not isinstance(id, int) or not isinstance(token, str):
            raise ExportError(f"{path}: expected an id for each token, got {shown(id)} for {shown(token)}")
        if named.setdefault(id, token) != token:
            raise ExportError(f"{path}: {shown(named[id])} and {shown(token)} have the same id {id}")
    return named


def read_special_ids(path: Path) -> frozenset[int]:
    """The ids of the tokens in a tokenizer.json that upstream leaves out of texts; errors as of `read_pieces_by_id`."""
    added = read_json(path).get("added_tokens") or []
    return frozenset(each["id"] for each in added if each.get("special"))


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's tensors.

    Raises:
        ExportError: there are none, or an index names a file that is missing or elsewhere.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        if (index := folder / f"{name}.index.json").is_file():
            listed = read_json(index).get("weight_map")
            if not isinstance(listed, dict) or not all(isinstance(each, str) for each in listed.values()):
                raise ExportError(f"{index} has no weight_map that says which file holds which tensor")
            names = sorted(set(listed.values()))
            if wrong := [each for each in names if Path(each).name != each or not (folder / each).is_file()]:
                raise ExportError(f"{index} names {wrong[0]!r}, which is not a file of {folder}")
            return [folder / each for each in names]
    refuse_foreign(folder)
    raise ExportError(f"{folder} has no weights: expected {' or '.join(WEIGHTS)}, or an index of shards")


def read_tensors(path: Path) -> Mapping[str, Tensor]:
    """The tensors of one file, by the names that its model has by itself; errors as `stored_tensors`, `unwrapped`."""
    return unwrapped(stored_tensors(path), path)[0]


def stored_tensors(path: Path) -> Mapping[str, Tensor]:
    """The tensors of one file, .safetensors or of torch, by the names that it has.

    Raises:
        ExportError: it is not a readable file of tensors.
    """
    if path.suffix == SAFE:
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ExportError(f"{path} is not a readable safetensors file: {error}") from error
    content = load_checkpoint(
        path, plain="Save the model again as safetensors, with save_pretrained.", usual=WEIGHTS[1]
    )
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ExportError(f"{path} must hold tensors by name; save the model again with save_pretrained")
    return content
