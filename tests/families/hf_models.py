"""Small random CTC models of transformers for tests: its own classes, with weights that do something, and folders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tritone.families.hf.config import PREFIXES, parse_config
from tritone.families.hf.model import FIRST_POSITIONS, POSITIONS, Network

VOCAB = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDE'"]
SMALL: dict[str, Any] = {
    "vocab_size": len(VOCAB),
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "conv_dim": [12, 12, 16],
    "conv_kernel": [10, 8, 8],
    "conv_stride": [5, 8, 8],  # 320 samples a frame, as usual
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
EXTRACTOR = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": True, "sampling_rate": 16000}
CLASSES = {
    "wav2vec2": "Wav2Vec2",
    "hubert": "Hubert",
    "wavlm": "WavLM",
    "data2vec-audio": "Data2VecAudio",
    "unispeech": "UniSpeech",
    "unispeech-sat": "UniSpeechSat",
}


def random_model(model_type: str = "wav2vec2", seed: int = 0, **settings: Any) -> Any:
    """A model of transformers with random weights, in which no norm or bias is without effect."""
    import transformers  # takes seconds

    name = CLASSES[model_type]
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **settings})
    torch.manual_seed(seed)  # biases of convolutions stay as they are made, but for the noise
    model = getattr(transformers, f"{name}ForCTC")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=generator)
            if key.endswith("running_var"):
                value.copy_(0.5 + noise.abs())
            elif value.dim() > 1:
                value.copy_(noise * (1.5 / value[0].numel()) ** 0.5 if value.shape[0] > 1 else 0.5 + noise.abs())
            else:
                value.add_(0.3 * noise)
        model.lm_head.weight.mul_(3.0)
    return model


def save(folder: Path, model: Any, *, do_normalize: bool = True, vocab: Any = None, **tokenizer: Any) -> Path:
    """The folder that transformers writes of a model and its processor."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    vocab = {token: id for id, token in enumerate(VOCAB)} if vocab is None else vocab
    write_json(folder / "vocab.json", vocab)
    processor = transformers.Wav2Vec2Processor(
        transformers.Wav2Vec2FeatureExtractor(do_normalize=do_normalize),
        transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), **tokenizer),
    )
    processor.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def write(folder: Path, **config: Any) -> Path:
    """A folder as older versions of transformers write it, with random weights."""
    content = {"model_type": "wav2vec2", **SMALL, **config}
    settings = parse_config(content, "config.json")
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name, value in Network(settings).state_dict().items():
        name = FIRST_POSITIONS if name == POSITIONS else name
        prefix = "" if name.startswith("lm_head") else PREFIXES[settings.model_type]
        state[f"{prefix}{name}"] = torch.randn(value.shape, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors")
    write_json(folder / "config.json", content)
    write_json(folder / "preprocessor_config.json", EXTRACTOR)
    write_json(folder / "vocab.json", {token: id for id, token in enumerate(VOCAB)})
    return folder


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@torch.no_grad()
def upstream_log_probs(model: Any, waveform: np.ndarray, do_normalize: bool = True) -> Tensor:
    """What transformers computes for one utterance, alone and without padding: (frames, tokens)."""
    import transformers

    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=do_normalize)
    inputs = extractor(waveform, sampling_rate=16000, return_tensors="pt").input_values
    return torch.log_softmax(model(inputs).logits[0].float(), dim=-1)
