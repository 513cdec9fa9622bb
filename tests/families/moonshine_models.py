"""Small random models of transformers whose decoder attends to audio of any length, as folders that it writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from google.protobuf.json_format import MessageToDict

from tritone.bundle import Bundle
from tritone.client.models import ModelInfo
from tritone.repository.config import ModelOptions, model_config

PIECES = [
    *("<unk>", "<s>", "</s>"),
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *("▁", "a", "e", "i", "n", "o", "s", "t", "▁a", "▁the", "▁in", "er", "on", "▁ß", "ä"),
]
SPECIAL = ["<<ST_0>>", "<<ST_1>>"]
START, END = 1, 2
CONTEXT = 48


def random_model(seed: int = 1, **changes: Any) -> Any:
    """A Moonshine whose text depends on its audio, and ends now and then."""
    from transformers import MoonshineConfig, MoonshineForConditionalGeneration  # takes seconds

    torch.manual_seed(seed)
    config = MoonshineConfig(
        **{
            "vocab_size": len(PIECES) + len(SPECIAL),
            "hidden_size": 32,
            "intermediate_size": 40,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 2,
            "decoder_num_attention_heads": 2,
            "max_position_embeddings": CONTEXT,
            "partial_rotary_factor": 0.9,  # 14 of 16
        }
        | changes
    )
    model = MoonshineForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.add_(0.3 * torch.randn(value.shape))
            elif "conv" in name:
                value.normal_(0, 4.0 if "conv1" in name else 0.2)
            elif "embed_tokens" in name:
                value.normal_(0, 0.6)
                value[END] *= 2.0
            else:
                value.normal_(0, 1.2 if "encoder_attn" in name else 0.4)
    return model


def save(folder: Path, model: Any) -> Path:
    """The files of the published folders, with a tokenizer of few pieces."""
    model.save_pretrained(folder)
    extractor = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": False, "sampling_rate": 16000}
    write(folder / "preprocessor_config.json", {**extractor, "feature_size": 1, "padding_value": 0.0})
    added = [{"id": id, "content": PIECES[id], "special": True} for id in range(3)]
    added += [{"id": len(PIECES) + place, "content": each, "special": True} for place, each in enumerate(SPECIAL)]
    for each in added:
        each |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    write(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                "type": "BPE",
                "unk_token": "<unk>",
                "fuse_unk": True,
                "byte_fallback": True,
                "vocab": {piece: id for id, piece in enumerate(PIECES)},
                "merges": [],
            },
        },
    )
    write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return folder


def served_info(bundle: Bundle) -> ModelInfo:
    """A served model as its configuration tells clients."""
    config = model_config("m", "offline", ModelOptions(), bundle)
    return ModelInfo.from_config(MessageToDict(config, preserving_proto_field_name=True))


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


@torch.no_grad()
def generated(model: Any, waveform: npt.NDArray[np.float32], **options: Any) -> list[int]:
    """The tokens that upstream writes of a recording alone, without its start and end."""
    found = model.generate(torch.from_numpy(waveform)[None], do_sample=False, **options)[0].tolist()
    return [token for token in found[1:] if token != END]
