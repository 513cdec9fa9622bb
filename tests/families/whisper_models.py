"""Small random Whisper models, as folders of transformers and as checkpoints of OpenAI's, and audio for them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

from tritone.bundle.byte_level import CHARACTERS

CONTEXT = 50  # positions of the encoder: windows of one second
LANGUAGES = ("en", "zh", "de")
# Merges in the order of their ids; each is made of two earlier pieces.
MERGES = ("Ġt", "he", "Ġthe", "in", "Ġa", "re", "on", "Ġs", "er", "an", "Ġand", "or", "Ġin", "is", "Ġis", "ll")
PIECES = [*CHARACTERS, *MERGES]
SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
    *(f"<|{step * 0.02:.2f}|>" for step in range(CONTEXT + 1)),
]
TOKENS = [*PIECES, *SPECIAL]
IDS = {token: id for id, token in enumerate(TOKENS)}
SUPPRESS = [3, 17, IDS["<|translate|>"], IDS["<|transcribe|>"], IDS["<|startoflm|>"], IDS["<|startofprev|>"]]
SUPPRESS += [IDS["<|startoftranscript|>"], IDS["<|nospeech|>"]]


def small_config(**changes: Any) -> WhisperConfig:
    return WhisperConfig(
        **{
            "vocab_size": len(TOKENS),
            "num_mel_bins": 80,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 40,
            "d_model": 32,
            "max_source_positions": CONTEXT,
            "max_target_positions": 64,
            "decoder_start_token_id": IDS["<|startoftranscript|>"],
            "pad_token_id": IDS["<|endoftext|>"],
            "bos_token_id": IDS["<|endoftext|>"],
            "eos_token_id": IDS["<|endoftext|>"],
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        }
        | changes
    )


def random_model(seed: int = 3, **changes: Any) -> WhisperForConditionalGeneration:
    """A model whose text depends strongly on its audio, and ends now and then."""
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(small_config(**changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" in name or "conv" in name:
                parameter.mul_(1.0 if "encoder.embed" in name else 6.0)
            elif parameter.dim() > 1:
                parameter.mul_(20.0 if "encoder_attn" in name else 12.0)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.2)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=IDS["<|startoftranscript|>"],
        pad_token_id=IDS["<|endoftext|>"],
        bos_token_id=IDS["<|endoftext|>"],
        eos_token_id=IDS["<|endoftext|>"],
        max_length=64,
    )
    for name, value in {
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": IDS[f"<|{code}|>"] for code in LANGUAGES},
        "task_to_id": {task: IDS[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "no_timestamps_token_id": IDS["<|notimestamps|>"],
        "prev_sot_token_id": IDS["<|startofprev|>"],
        "suppress_tokens": SUPPRESS,
        "begin_suppress_tokens": [IDS["Ġ"], IDS["<|endoftext|>"]],
        "max_initial_timestamp_index": 25,
        "return_timestamps": False,
        "alignment_heads": [[0, 1], [1, 0], [1, 3]],
    }.items():
        setattr(model.generation_config, name, value)
    return model


def write_folder(folder: Path, model: WhisperForConditionalGeneration) -> Path:
    """Save a model as transformers does, with its token table."""
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(PIECES)}))
    (folder / "added_tokens.json").write_text(json.dumps({token: IDS[token] for token in SPECIAL}))
    return folder


def speech(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise whose loudness and colour change every 40 ms, so that a model's tokens change too."""
    rng = np.random.default_rng(seed)
    samples = round(seconds * 16000)
    steps = samples // 640 + 1
    loudness = np.repeat(10 ** rng.uniform(-3, -0.5, steps), 640)[:samples]
    colour = np.repeat(rng.uniform(-0.95, 0.95, steps), 640)[:samples]
    noise = rng.normal(0, 1, samples)
    return (loudness * (noise + colour * np.roll(noise, 1))).clip(-1, 1).astype(np.float32)
