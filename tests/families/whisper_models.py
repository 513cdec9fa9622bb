"""Small random Whisper models, as folders of transformers and as checkpoints of OpenAI's, and audio for them."""

import base64
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tritone.bundle.byte_level import CHARACTERS, piece_bytes

if TYPE_CHECKING:  # importing it takes seconds, which every worker would pay that collects the tests
    from transformers import WhisperConfig, WhisperForConditionalGeneration

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
# White space too: a segment of nothing else is dropped, as by OpenAI, but not by transformers.
SUPPRESS = [
    3,
    17,
    *range(9, 14),
    *range(28, 33),
    0x85,
    0xA0,
    IDS["<|translate|>"],
    IDS["<|transcribe|>"],
    IDS["<|startoflm|>"],
    IDS["<|startofprev|>"],
]
SUPPRESS += [IDS["<|startoftranscript|>"], IDS["<|nospeech|>"]]


def small_config(**changes: Any) -> "WhisperConfig":
    from transformers import WhisperConfig

    return WhisperConfig(
        **{
            "vocab_size": len(TOKENS),
            "num_mel_bins": 80,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
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


def random_model(seed: int = 3, **changes: Any) -> "WhisperForConditionalGeneration":
    """A model whose text depends strongly on its audio, and ends now and then."""
    from transformers import GenerationConfig, WhisperForConditionalGeneration

    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(small_config(**changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_tokens" in name:
                parameter.mul_(6.0)
                parameter[IDS["<|endoftext|>"]] *= 3.0
            elif "decoder.embed_positions" in name:
                parameter.mul_(40.0)
            elif "conv" in name and parameter.dim() > 1:
                parameter.mul_(6.0)
            elif parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(40.0 if "encoder_attn" in name else 30.0)
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


def write_folder(folder: Path, model: "WhisperForConditionalGeneration") -> Path:
    """Save a model as transformers does, with its token table."""
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(PIECES)}), encoding="utf-8")
    (folder / "added_tokens.json").write_text(json.dumps({token: IDS[token] for token in SPECIAL}), encoding="utf-8")
    return folder


def write_openai(folder: Path, model: "WhisperForConditionalGeneration") -> tuple[Path, Path]:
    """Save a model as OpenAI does: its checkpoint, and the table of its pieces."""
    config = model.config
    names = {
        "model.": "",
        "encoder.embed_positions.weight": "encoder.positional_embedding",
        "decoder.embed_positions.weight": "decoder.positional_embedding",
        "decoder.embed_tokens": "decoder.token_embedding",
        "encoder.layer_norm": "encoder.ln_post",
        "decoder.layer_norm": "decoder.ln",
        ".layers.": ".blocks.",
        ".self_attn_layer_norm": ".attn_ln",
        ".encoder_attn_layer_norm": ".cross_attn_ln",
        ".final_layer_norm": ".mlp_ln",
        ".self_attn.": ".attn.",
        ".encoder_attn.": ".cross_attn.",
        ".q_proj": ".query",
        ".k_proj": ".key",
        ".v_proj": ".value",
        ".out_proj": ".out",
        ".fc1": ".mlp.0",
        ".fc2": ".mlp.2",
    }
    state = {}
    for name, value in model.state_dict().items():
        if name == "proj_out.weight":
            continue
        for theirs, openais in names.items():
            name = name.replace(theirs, openais)
        state[name] = value.clone()
    dims = {
        "n_mels": config.num_mel_bins,
        "n_audio_ctx": config.max_source_positions,
        "n_audio_state": config.d_model,
        "n_audio_head": config.encoder_attention_heads,
        "n_audio_layer": config.encoder_layers,
        "n_vocab": config.vocab_size,
        "n_text_ctx": config.max_target_positions,
        "n_text_state": config.d_model,
        "n_text_head": config.decoder_attention_heads,
        "n_text_layer": config.decoder_layers,
    }
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"dims": dims, "model_state_dict": state}, folder / "small.pt")
    table = "".join(f"{base64.b64encode(piece_bytes(p) or b'').decode()} {id}\n" for id, p in enumerate(PIECES))
    (folder / "small.tiktoken").write_text(table, encoding="utf-8")
    return folder / "small.pt", folder / "small.tiktoken"


def write_ctranslate2(
    folder: Path, model: "WhisperForConditionalGeneration", quantization: str = "float32", **config: Any
) -> Path:
    """Save a model as CTranslate2's converters do: float32, float16 or int8, with a table of its tokens."""
    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    tensors: dict[str, np.ndarray] = {}

    def put(name: str, array: np.ndarray) -> None:
        if quantization == "int8" and array.ndim == 2 and "position" not in name:
            scale = (127 / np.maximum(np.abs(array).max(axis=1), 1e-9)).astype(np.float32)
            tensors[name], tensors[f"{name}_scale"] = np.rint(array * scale[:, None]).astype(np.int8), scale
        else:
            tensors[name] = array.astype(np.float16 if quantization == "float16" else np.float32)

    def linear(name: str, *theirs: str) -> None:
        for part in ("weight", "bias"):
            put(f"{name}/{part}", np.concatenate([_part(state, each, part) for each in theirs]))

    def norm(name: str, theirs: str) -> None:
        put(f"{name}/gamma", state[f"{theirs}.weight"])
        put(f"{name}/beta", state[f"{theirs}.bias"])

    for side in ("encoder", "decoder"):
        heads, layers = getattr(model.config, f"{side}_attention_heads"), getattr(model.config, f"{side}_layers")
        put(f"{side}/position_encodings/encodings", state[f"model.{side}.embed_positions.weight"])
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        fixed = {"num_heads": np.int16(heads), "pre_norm": np.int8(1), "activation": np.int8(3), "alibi": np.int8(0)}
        tensors.update({f"{side}/{name}": np.asarray(value) for name, value in fixed.items()})
        for layer in range(layers):
            ours, theirs = f"{side}/layer_{layer}", f"model.{side}.layers.{layer}"
            own = f"{theirs}.self_attn"
            linear(f"{ours}/self_attention/linear_0", f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj")
            linear(f"{ours}/self_attention/linear_1", f"{own}.out_proj")
            norm(f"{ours}/self_attention/layer_norm", f"{theirs}.self_attn_layer_norm")
            if side == "decoder":
                crossed = f"{theirs}.encoder_attn"
                linear(f"{ours}/attention/linear_0", f"{crossed}.q_proj")
                linear(f"{ours}/attention/linear_1", f"{crossed}.k_proj", f"{crossed}.v_proj")
                linear(f"{ours}/attention/linear_2", f"{crossed}.out_proj")
                norm(f"{ours}/attention/layer_norm", f"{theirs}.encoder_attn_layer_norm")
            linear(f"{ours}/ffn/linear_0", f"{theirs}.fc1")
            linear(f"{ours}/ffn/linear_1", f"{theirs}.fc2")
            norm(f"{ours}/ffn/layer_norm", f"{theirs}.final_layer_norm")
    for name in ("conv1", "conv2"):
        linear(f"encoder/{name}", f"model.encoder.{name}")
    put("decoder/embeddings/weight", state["model.decoder.embed_tokens.weight"])
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    if quantization == "int8":
        aliases["decoder/projection/weight_scale"] = "decoder/embeddings/weight_scale"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.bin").write_bytes(ctranslate2_bytes(tensors, aliases))
    told = {"suppress_ids": SUPPRESS, "suppress_ids_begin": [IDS["Ġ"], IDS["<|endoftext|>"]]}
    (folder / "config.json").write_text(json.dumps(told | {"alignment_heads": [[0, 1], [1, 0], [1, 3]]} | config))
    (folder / "vocabulary.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    return folder


def _part(state: dict[str, np.ndarray], name: str, part: str) -> np.ndarray:
    """A weight or bias; that of a key, which there is none of, is zero."""
    return state[f"{name}.{part}"] if f"{name}.{part}" in state else np.zeros(len(state[f"{name}.weight"]), np.float32)


def ctranslate2_bytes(
    tensors: dict[str, np.ndarray], aliases: dict[str, str], spec: str = "WhisperSpec", version: int = 6
) -> bytes:
    """A model.bin of CTranslate2's."""
    kinds = ["float32", "int8", "int16", "int32", "float16"]

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    parts = [struct.pack("<I", version), text(spec), struct.pack("<II", 3, len(tensors))]
    for name, array in tensors.items():
        parts += [text(name), struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)]
        parts += [struct.pack("<BI", kinds.index(str(array.dtype)), array.nbytes), array.tobytes()]
    parts.append(struct.pack("<I", len(aliases)))
    return b"".join([*parts, *(text(alias) + text(target) for alias, target in aliases.items())])


def speech(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise whose loudness and colour change every 40 ms, so that a model's tokens change too."""
    rng = np.random.default_rng(seed)
    samples = round(seconds * 16000)
    steps = samples // 640 + 1
    loudness = np.repeat(10 ** rng.uniform(-3, -0.5, steps), 640)[:samples]
    colour = np.repeat(rng.uniform(-0.95, 0.95, steps), 640)[:samples]
    noise = rng.normal(0, 1, samples)
    return (loudness * (noise + colour * np.roll(noise, 1))).clip(-1, 1).astype(np.float32)
