"""Folders of FunASR with the small random models of `funasr/upstream.py`."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import yaml

from families.funasr import upstream
from tritone.families.export.settings import Section
from tritone.families.funasr.config import CONTEXTUAL, PARAFORMERS, SEACO, ModelConfig, encoder_of, parse_config
from tritone.families.funasr.hotwords import ContextualParaformer, PhraseEncoder, SeacoDecoder
from tritone.families.funasr.model import SenseVoice
from tritone.families.funasr.paraformer import Paraformer
from tritone.families.funasr.punctuation import CtTransformer

MARKS = [
    *("<|zh|>", "<|en|>", "<|yue|>", "<|ja|>", "<|ko|>", "<|nospeech|>", "<|HAPPY|>", "<|SAD|>", "<|NEUTRAL|>"),
    *("<|Speech|>", "<|BGM|>", "<|Laughter|>", "<|withitn|>", "<|woitn|>"),
]


def sense_voice_content(**changes: Any) -> dict[str, Any]:
    """The content of config.yaml, with changes of the encoder's settings."""
    return {
        "encoder": "SenseVoiceEncoderSmall",
        "encoder_conf": upstream.ENCODER | changes,
        "model": "SenseVoiceSmall",
        "model_conf": {"length_normalized_loss": True, "sos": 1, "eos": 2, "ignore_id": -1},
        "tokenizer": "SentencepiecesTokenizer",
        "tokenizer_conf": {"bpemodel": None, "unk_symbol": "<unk>", "split_with_space": True},
        "frontend": "WavFrontend",
        "frontend_conf": upstream.FRONT_END | {"cmvn_file": None},
        "dataset": "SenseVoiceCTCDataset",
        "dataset_conf": {"index_ds": "IndexDSJsonl"},
        "train_conf": {"max_epoch": 20},
        "optim": "adamw",
        "optim_conf": {"lr": 0.00002},
        "specaug": "SpecAugLFR",
        "specaug_conf": {"apply_time_warp": False},
    }


def pieces_model(size: int = upstream.VOCAB) -> bytes:
    """A sentencepiece model with marks among its pieces."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world", "the wide world is low", "你好", "今天"] * 20),
        model_writer=trained,
        vocab_size=size,
        model_type="bpe",
        user_defined_symbols=MARKS,
        minloglevel=2,
    )
    return trained.getvalue()


def sense_voice_state(config: ModelConfig, vocab_size: int = upstream.VOCAB) -> dict[str, torch.Tensor]:
    """The tensors of model.pt."""
    shapes = {name: tuple(value.shape) for name, value in SenseVoice(config, vocab_size).state_dict().items()}
    return {name: torch.from_numpy(value) for name, value in upstream.tensors(shapes).items()}


def write_sense_voice(folder: Path, content: dict[str, Any] | None = None) -> Path:
    """Write config.yaml, model.pt, am.mvn and the tokens as the hub has them."""
    content = sense_voice_content() if content is None else content
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    (folder / "am.mvn").write_text(upstream.statistics(), encoding="utf-8")
    (folder / "chn_jpn_yue_eng_ko_spectok.bpe.model").write_bytes(pieces_model())
    torch.save(sense_voice_state(parse_config(content)), folder / "model.pt")
    return folder


PARAFORMER_TOKENS = upstream.TOKENS


def paraformer_content(model: str = "Paraformer", **changes: Any) -> dict[str, Any]:
    """The content of config.yaml, with changes of its parts."""
    content = sense_voice_content() | {
        "model": model,
        "model_conf": {"ctc_weight": 0.0, "lsm_weight": 0.1, "predictor_bias": 1, "sampling_ratio": 0.75},
        "encoder": "SANMEncoder",
        "encoder_conf": upstream.PLAIN_ENCODER,
        "decoder": "ParaformerSANMDecoder",
        "decoder_conf": upstream.DECODER,
        "predictor": PARAFORMERS[model][0],
        "predictor_conf": upstream.PREDICTOR,
        "tokenizer": "CharTokenizer",
        "tokenizer_conf": {"unk_symbol": "<unk>", "split_with_space": True},
    }
    return content | {
        name: content[name] | value if isinstance(value, dict) else value for name, value in changes.items()
    }


def seaco_content(**changes: Any) -> dict[str, Any]:
    """The content of config.yaml of a SeACo-Paraformer, with changes of its `model_conf`."""
    content = paraformer_content(SEACO, predictor_conf=upstream.FINE_TIMES)
    content["model_conf"] |= upstream.HOTWORDS | changes
    return content | {"seaco_decoder": "ParaformerSANMDecoder", "seaco_decoder_conf": upstream.HOTWORD_DECODER}


def contextual_content(**changes: Any) -> dict[str, Any]:
    """The content of config.yaml of a ContextualParaformer, with changes of its `model_conf`."""
    content = paraformer_content(CONTEXTUAL, decoder="ContextualParaformerDecoder")
    content["model_conf"] |= upstream.CONTEXTUAL | changes
    return content


def told_state(config: ModelConfig, seed: int = 42) -> dict[str, torch.Tensor]:
    """The tensors of model.pt with a part for hotwords, those of training and of finer times too."""
    assert config.hotwords is not None
    is_seaco = config.hotwords.decoder is not None
    network = (Paraformer if is_seaco else ContextualParaformer)(config, upstream.VOCAB)
    parts: list[torch.nn.Module] = [network, PhraseEncoder(config, upstream.VOCAB)]
    if is_seaco:
        parts.append(SeacoDecoder(config, upstream.VOCAB))
    own = {name: tuple(value.shape) for part in parts for name, value in part.state_dict().items()}
    own[config.hotwords.embedding] = own["decoder.embed.0.weight"] = own.pop("embed.weight")
    if seed == 42:
        own |= upstream.FINE_SHAPES
    tensors = {name: torch.from_numpy(value) for name, value in upstream.tensors(own, seed).items()}
    return upstream.told_apart(tensors)


def write_seaco(folder: Path, content: dict[str, Any] | None = None, words: str | None = None, seed: int = 42) -> Path:
    """Write a Paraformer's folder with a part for hotwords; `words`: the text of seg_dict."""
    content = seaco_content() if content is None else content
    write_paraformer(folder, content)
    torch.save(told_state(parse_config(content), seed), folder / "model.pt")
    if words is not None:
        (folder / "seg_dict").write_text(words, encoding="utf-8")
    return folder


def stream_content(factor: float = upstream.PREDICTOR["smooth_factor"], **changes: Any) -> dict[str, Any]:
    """The content of config.yaml of a Paraformer for streams; `factor`: of its predictor."""
    content = paraformer_content("ParaformerStreaming") | {
        "encoder": "SANMEncoderChunkOpt",
        "encoder_conf": upstream.STREAM_ENCODER,
        "decoder_conf": upstream.STREAM_DECODER,
        "predictor_conf": upstream.PREDICTOR | {"smooth_factor": factor},
        "frontend": "WavFrontendOnline",
    }
    return content | {name: content[name] | value for name, value in changes.items()}


def paraformer_state(config: ModelConfig, vocab: int = upstream.VOCAB) -> dict[str, torch.Tensor]:
    """The tensors of model.pt, those of training too: upstream made its results with all of them."""
    shapes = {name: tuple(value.shape) for name, value in Paraformer(config, vocab).state_dict().items()}
    shapes["decoder.embed.0.weight"] = (vocab, config.encoder.output_size)
    return {name: torch.from_numpy(value) for name, value in upstream.tensors(shapes).items()}


def write_paraformer(
    folder: Path,
    content: dict[str, Any] | None = None,
    *,
    tokens: Sequence[str] = PARAFORMER_TOKENS,
    **more: torch.Tensor,
) -> Path:
    """Write config.yaml, model.pt, am.mvn and tokens.json as the hub has them."""
    content = paraformer_content() if content is None else content
    settings = parse_config(content)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    (folder / "am.mvn").write_text(upstream.statistics(settings.front_end.size), encoding="utf-8")
    (folder / "tokens.json").write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    torch.save(paraformer_state(settings, len(tokens)) | more, folder / "model.pt")
    return folder


def punctuation_content(**changes: Any) -> dict[str, Any]:
    """The content of config.yaml of a CT-Transformer, with changes of its parts."""
    content: dict[str, Any] = {
        "model": "CTTransformer",
        "model_conf": upstream.PUNCTUATION,
        "encoder": "SANMEncoder",
        "encoder_conf": upstream.PUNCTUATION_ENCODER,
        "tokenizer": "CharTokenizer",
        "tokenizer_conf": {"unk_symbol": "<unk>"},
    }
    return content | {
        name: content[name] | value if isinstance(value, dict) else value for name, value in changes.items()
    }


def write_punctuation(folder: Path, number: int = 0, content: dict[str, Any] | None = None) -> Path:
    """Write config.yaml, model.pt, tokens.json, and jieba's dictionary of the third, of upstream's networks."""
    words = upstream.LONG_WORDS if number == 2 else upstream.WORDS
    encoder = encoder_of(Section("encoder_conf", upstream.PUNCTUATION_ENCODER), 24, 1e-12, "pe")
    network = CtTransformer(encoder, len(words), len(upstream.MARKS))
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    state = {name: torch.from_numpy(value) for name, value in upstream.tensors(shapes).items()}
    state["decoder.bias"] = torch.tensor(upstream.BIASES[number % 2])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(content or punctuation_content()), encoding="utf-8")
    (folder / "tokens.json").write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
    if number == 2:
        lines = [f"{word} 1000\n" for word in words if len(word) > 1]
        (folder / "jieba_usr_dict").write_text("".join(lines), encoding="utf-8")
    torch.save(state, folder / "model.pt")
    return folder
