"""Small random models of transformers' Canary, as folders that it writes."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from families.conftest import babble
from families.moonshine_models import write
from families.parakeet_models import ENCODER

TIMES = 60
SPECIAL = [
    *("<unk>", "<|nospeech|>", "<pad>", "<|endoftext|>", "<|startoftranscript|>", "<|pnc|>", "<|nopnc|>"),
    *("<|startofcontext|>", "<|itn|>", "<|noitn|>", "<|timestamp|>", "<|notimestamp|>", "<|diarize|>"),
    *("<|nodiarize|>", "<|emo:undefined|>", "<|en|>", "<|de|>", "<|aa|>"),
    *(f"<|{number}|>" for number in range(TIMES)),
]
PIECES = [*SPECIAL, "▁", "a", "e", "i", "n", "o", "s", "t", "▁a", "▁the", "▁in", "er", "on", "▁ß", "ä"]
IDS = {piece: id for id, piece in enumerate(PIECES)}
END, CONTEXT = IDS["<|endoftext|>"], 64
TEMPLATE = "{{ '<|startofcontext|><|startoftranscript|>' }}{% if t %}<|timestamp|>{% else %}<|notimestamp|>{% endif %}"
EXTRACTOR = {"feature_extractor_type": "ParakeetFeatureExtractor", "feature_size": ENCODER["num_mel_bins"]}


def prompt(source: str = "en", target: str = "en", *, punctuation: bool = True, times: bool = False) -> list[int]:
    """The tokens before a text."""
    switches = "<|pnc|>" if punctuation else "<|nopnc|>", "<|timestamp|>" if times else "<|notimestamp|>"
    names = ["<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", f"<|{source}|>", f"<|{target}|>"]
    return [IDS[each] for each in (*names, switches[0], "<|noitn|>", switches[1], "<|nodiarize|>")]


def random_model(seed: int = 0) -> Any:
    """A Canary whose text depends on its audio and its prompt, and ends now and then."""
    from transformers import CanaryConfig, CanaryForConditionalGeneration  # takes seconds

    torch.manual_seed(seed)
    decoder = {
        "vocab_size": len(PIECES),
        "hidden_size": ENCODER["hidden_size"],
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": ENCODER["hidden_size"] // 2,
        "max_position_embeddings": CONTEXT,
    }
    config = CanaryConfig(
        vocab_size=len(PIECES),
        encoder_config={"model_type": "parakeet_encoder", **ENCODER},
        decoder_config=decoder,
    )
    model = CanaryForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith("running_var"):
                value.copy_(0.5 + torch.rand(value.shape))
            elif ".decoder.layers" in name and value.dim() > 1:
                value.normal_(0, 1.5 if "encoder_attn" in name else 0.7)
            elif "embed_tokens" in name:
                value.normal_(0, 0.4)
            elif value.is_floating_point() and "pos_emb" not in name and name != "proj_out.weight":
                value.add_(0.3 * torch.randn(value.shape))
        # No token wins everywhere.
        given = {**heard(babble(48000, seed=seed)), "decoder_input_ids": torch.arange(CONTEXT)[None]}
        model.proj_out.bias.sub_(model(**given).logits[0].mean(dim=0))
        model.proj_out.bias[END] -= 0.5
    return model.requires_grad_(False)


def save(folder: Path, model: Any) -> Path:
    """Such a folder, with a tokenizer of few pieces."""
    model.save_pretrained(folder)
    added = [
        {"id": id, "content": piece, "special": True, **dict.fromkeys(("single_word", "lstrip", "rstrip"), False)}
        for id, piece in enumerate(SPECIAL)
    ]
    vocab = [[piece, 0.0] for piece in PIECES]
    write(folder / "tokenizer.json", {"added_tokens": added, "model": {"type": "Unigram", "vocab": vocab}})
    write(folder / "processor_config.json", {"feature_extractor": EXTRACTOR})
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def heard(waveform: npt.NDArray[np.float32]) -> dict[str, torch.Tensor]:
    """What upstream's feature extractor makes of a recording."""
    from transformers import ParakeetFeatureExtractor

    extractor = ParakeetFeatureExtractor(feature_size=ENCODER["num_mel_bins"])
    found = extractor(waveform, sampling_rate=16000, return_tensors="pt")
    return {"input_features": found["input_features"], "attention_mask": found["attention_mask"]}


@torch.no_grad()
def generated(model: Any, waveform: npt.NDArray[np.float32], before: list[int], **options: Any) -> list[int]:
    """The tokens that upstream writes of a recording alone after its prompt, without the end."""
    given = {**heard(waveform), "decoder_input_ids": torch.tensor([before])}
    found = model.generate(**given, do_sample=False, **options)[0].tolist()
    assert found[: len(before)] == before
    return [token for token in found[len(before) :] if token not in (END, IDS["<pad>"])]
