"""Small random CTC models of transformers for tests: its own classes, with weights that do something, and folders."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tritone.families.hf.config import PREFIXES, parse_config
from tritone.families.hf.granite_features import GraniteFbank
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
    "wav2vec2-conformer": "Wav2Vec2Conformer",
    "wav2vec2-bert": "Wav2Vec2Bert",
    "omniasr_ctc": "OmniASR",
    "lasr_ctc": "Lasr",
    "granite_speech5_ctc": "GraniteSpeech5",
}
WHOLE = ("vocab_size",)  # settings beside those of the part of a network
PARTS = {"omniasr_ctc": "audio_config", "lasr_ctc": "encoder_config", "granite_speech5_ctc": "encoder_config"}
EXTRACTORS = {"wav2vec2-bert": "SeamlessM4T", "omniasr_ctc": "OmniASR", "lasr_ctc": "Lasr"}
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"ABCDE'"]


def random_model(model_type: str = "wav2vec2", seed: int = 0, **settings: Any) -> Any:
    """A model of transformers with random weights, in which no norm or bias is without effect."""
    import transformers  # takes seconds

    name = CLASSES[model_type]
    settings = {**SMALL, **settings}
    if model_type in PARTS:
        whole = {key: settings[key] for key in WHOLE}
        kind, part = getattr(transformers, f"{name}CTCConfig"), PARTS[model_type]
        own = getattr(kind(), part).__dataclass_fields__
        config = kind(**{part: {key: value for key, value in settings.items() if key in own}}, **whole)
    else:
        config = getattr(transformers, f"{name}Config")(**settings)
    torch.manual_seed(seed)  # biases of convolutions stay as they are made, but for the noise
    model = getattr(transformers, f"{name}ForCTC")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if not value.is_floating_point() or key.endswith("inv_freq"):
                continue
            noise = torch.randn(value.shape, generator=generator)
            if key.endswith("running_var"):
                value.copy_(0.5 + noise.abs())
            elif value.dim() > 1:
                value.copy_(noise * (1.5 / value[0].numel()) ** 0.5 if value.shape[0] > 1 else 0.5 + noise.abs())
            else:
                value.add_(0.3 * noise)
        head_of(model).weight.mul_(3.0)
    return model


def head_of(model: Any) -> Any:
    """The layer of the logits."""
    return model.ctc_head if hasattr(model, "ctc_head") else model.lm_head


class GraniteExtractor:
    """In the place of upstream's, which needs torchaudio; tests/families/hf/granite.py has what that one makes."""

    def to_dict(self) -> dict[str, Any]:
        return {"feature_extractor_type": "GraniteSpeech5FeatureExtractor", "sampling_rate": 16000, "num_mel_bins": 80}

    def save_pretrained(self, folder: Path) -> None:
        write_json(folder / "preprocessor_config.json", self.to_dict())

    def __call__(self, waveform: np.ndarray, **_options: Any) -> dict[str, Tensor]:
        found, frames = GraniteFbank(16000, 400, 160, 512, 80, 8.0)(
            torch.from_numpy(waveform)[None], torch.tensor([len(waveform)])
        )
        features = found[:, : int(frames)]
        return {"input_features": features, "attention_mask": torch.ones(features.shape[:2], dtype=torch.int64)}


def extractor_of(model_type: str, do_normalize: bool = True) -> Any:
    """Upstream's feature extractor of a type of models."""
    import transformers

    if model_type == "granite_speech5_ctc":
        return GraniteExtractor()
    settings = {} if model_type in ("wav2vec2-bert", "lasr_ctc") else {"do_normalize": do_normalize}
    return getattr(transformers, f"{EXTRACTORS.get(model_type, 'Wav2Vec2')}FeatureExtractor")(**settings)


def save(folder: Path, model: Any, *, do_normalize: bool = True, vocab: Any = None, **tokenizer: Any) -> Path:
    """The folder that transformers writes of a model and its processor."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    model_type = model.config.model_type
    if model_type in PARTS:
        extractor_of(model_type, do_normalize).save_pretrained(folder)
        pieces_tokenizer().save_pretrained(folder)
        model.save_pretrained(folder)
        return folder
    vocab = {token: id for id, token in enumerate(VOCAB)} if vocab is None else vocab
    write_json(folder / "vocab.json", vocab)
    kind = transformers.Wav2Vec2BertProcessor if model_type == "wav2vec2-bert" else transformers.Wav2Vec2Processor
    processor = kind(
        extractor_of(model_type, do_normalize),
        transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), **tokenizer),
    )
    processor.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def pieces_tokenizer() -> Any:
    """A tokenizer of pieces, whose blank is the first of them."""
    import tokenizers
    import transformers

    inner = tokenizers.Tokenizer(
        tokenizers.models.Unigram([(piece, -float(id)) for id, piece in enumerate(PIECES)], unk_id=3)
    )
    inner.decoder = tokenizers.decoders.Metaspace()
    tokenizer = transformers.ParakeetTokenizer(tokenizer_object=inner, clean_up_tokenization_spaces=False)
    tokenizer.add_special_tokens({"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"})
    return tokenizer


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
    """What transformers computes for one utterance, alone: (frames, tokens), those that its attention mask shows."""
    found = extractor_of(model.config.model_type, do_normalize)(waveform, sampling_rate=16000, return_tensors="pt")
    if "input_features" not in found:
        return torch.log_softmax(model(found["input_values"]).logits[0].float(), dim=-1)
    mask = found.get("attention_mask")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using padding='same'")  # of LASR's even kernels
        logits = model(found["input_features"], attention_mask=mask).logits[0]
    return torch.log_softmax(logits[: None if mask is None else int(mask.sum())].float(), dim=-1)
