"""Small random models of transformers' Canary, as folders that it writes."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sentencepiece
import torch
import yaml

from families.conftest import babble
from families.moonshine_models import write
from families.nemo_models import small_config, write_nemo
from families.parakeet_models import ENCODER as PARAKEET
from tritone.families.export.settings import Section
from tritone.families.layers.text_decoder import of_transformers
from tritone.families.nemo.canary import positions
from tritone.families.nemo.canary_archive import RENAMED
from tritone.families.nemo.encoder import ConformerEncoder
from tritone.families.nemo.folder import encoder_of, spelled

ENCODER = PARAKEET | {"intermediate_size": 32}  # twice as wide, as archives can say it
TIMES = 60
SPECIAL = [
    *("<unk>", "<|nospeech|>", "<pad>", "<|endoftext|>", "<|startoftranscript|>", "<|pnc|>", "<|nopnc|>"),
    *("<|startofcontext|>", "<|itn|>", "<|noitn|>", "<|timestamp|>", "<|notimestamp|>", "<|diarize|>"),
    *("<|nodiarize|>", "<|emo:undefined|>", "<|en|>", "<|de|>", "<|aa|>"),
    *(f"<|{number}|>" for number in range(TIMES)),
]
PIECES = [*SPECIAL, "▁", "a", "e", "i", "n", "o", "s", "t", "▁a", "▁the", "▁in", "er", "on", "▁ß", "ä"]
IDS = {piece: id for id, piece in enumerate(PIECES)}
WRITTEN = (81, 82, 83)  # a, b and a space, among the pieces of `write_archive`
FIRST_TASKS = {"<|emo:undefined|>": "<|transcribe|>", "<|noitn|>": "<|translate|>"}  # tokens of Canary's first prompt
END, CONTEXT = IDS["<|endoftext|>"], 64
TEMPLATE = "{{ '<|startofcontext|><|startoftranscript|>' }}{% if t %}<|timestamp|>{% else %}<|notimestamp|>{% endif %}"
EXTRACTOR = {"feature_extractor_type": "ParakeetFeatureExtractor", "feature_size": ENCODER["num_mel_bins"]}


def prompt(source: str = "en", target: str = "en", *, punctuation: bool = True, times: bool = False) -> list[int]:
    """The tokens before a text."""
    switches = "<|pnc|>" if punctuation else "<|nopnc|>", "<|timestamp|>" if times else "<|notimestamp|>"
    names = ["<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", f"<|{source}|>", f"<|{target}|>"]
    return [IDS[each] for each in (*names, switches[0], "<|noitn|>", switches[1], "<|nodiarize|>")]


def first_prompt(source: str, target: str, *, punctuation: bool = True) -> list[int]:
    """The tokens before a text by the first form, in archives of `prompt_format` canary."""
    task = "<|emo:undefined|>" if source == target else "<|noitn|>"
    names = ["<|startoftranscript|>", f"<|{source}|>", task, f"<|{target}|>", "<|pnc|>" if punctuation else "<|nopnc|>"]
    return [IDS[each] for each in names]


def random_model(seed: int = 0, width: int = ENCODER["hidden_size"]) -> Any:
    """A Canary whose text depends on its audio and its prompt, and ends now and then.

    With a decoder of another width it has a `projection` in front of that, as NeMo's 180m-flash, and writes text alone.
    """
    from transformers import CanaryConfig, CanaryForConditionalGeneration  # takes seconds

    torch.manual_seed(seed)
    decoder = {
        "vocab_size": len(PIECES),
        "hidden_size": width,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": width // 2,
        "max_position_embeddings": CONTEXT,
    }
    config = CanaryConfig(
        vocab_size=len(PIECES),
        encoder_config={"model_type": "parakeet_encoder", **ENCODER},
        decoder_config=decoder,
    )
    model = CanaryForConditionalGeneration(config).eval()
    model.projection = None if width == ENCODER["hidden_size"] else torch.nn.Linear(ENCODER["hidden_size"], width)
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
        given = {**spoken(model, babble(48000, seed=seed)), "decoder_input_ids": torch.arange(CONTEXT)[None]}
        model.proj_out.bias.sub_(model(**given).logits[0].mean(dim=0))
        model.proj_out.bias[END] -= 0.5
        if model.projection is not None:
            model.proj_out.bias[[id for id in range(len(PIECES)) if id not in (END, *WRITTEN)]] = -1e4
            model.proj_out.bias[END] -= 1.0
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
def spoken(model: Any, waveform: npt.NDArray[np.float32]) -> dict[str, Any]:
    """What upstream's model takes of a recording."""
    given = heard(waveform)
    if model.projection is None:
        return given
    found = model.model.encoder(**given)
    found.last_hidden_state = model.projection(found.last_hidden_state)
    return {"encoder_outputs": found}


@torch.no_grad()
def generated(model: Any, waveform: npt.NDArray[np.float32], before: list[int], **options: Any) -> list[int]:
    """The tokens that upstream writes of a recording alone after its prompt, without the end."""
    given = {**spoken(model, waveform), "decoder_input_ids": torch.tensor([before])}
    found = model.generate(**given, do_sample=False, decoder_start_token_id=before[0], **options)[0].tolist()
    assert found[: len(before)] == before
    return [token for token in found[len(before) :] if token not in (END, IDS["<pad>"])]


def write_archive(path: Path, model: Any, prompt_format: str = "canary2") -> Path:
    """The same weights in an archive of NeMo's, with a tokenizer of the prompt's tokens and one of English."""
    given, encoder = model.state_dict(), encoder_of(Section("encoder", ENCODER), {}, False)
    state = {
        f"encoder.{name}": given[f"model.{spelled(f'encoder.{name}', encoder)}"]
        for name in ConformerEncoder(encoder).state_dict()
    }
    for name, value in given.items():
        if ".decoder." in name or name.startswith("proj_out"):
            theirs = of_transformers(name)
            for old, new in reversed(RENAMED):  # later names are parts of earlier ones
                theirs = theirs.replace(new, old)
            state[theirs] = value
    if model.projection is not None:
        state |= {f"encoder_decoder_proj.{name}": value for name, value in model.projection.state_dict().items()}
    width = model.config.decoder_config.hidden_size
    state["transf_decoder._embedding.position_embedding.pos_enc"] = positions(CONTEXT, width)
    content = small_config(
        feat_in=ENCODER["num_mel_bins"],
        n_layers=ENCODER["num_hidden_layers"],
        d_model=ENCODER["hidden_size"],
        n_heads=ENCODER["num_attention_heads"],
        ff_expansion_factor=ENCODER["intermediate_size"] // ENCODER["hidden_size"],
        conv_kernel_size=ENCODER["conv_kernel_size"],
        subsampling="dw_striding",
        subsampling_factor=8,
        subsampling_conv_channels=ENCODER["subsampling_conv_channels"],
        xscaling=False,
    )
    content["preprocessor"]["features"] = ENCODER["num_mel_bins"]
    is_first = prompt_format == "canary"
    parts = ["spl_tokens", "en", *(["de"] if is_first else [])]
    content |= {
        "target": "nemo.collections.asr.models.aed_multitask_models.EncDecMultiTaskModel",
        "prompt_format": prompt_format,
        "prompt_defaults": [
            {"role": "user", "slots": {"source_lang": "<|en|>", "pnc": "<|pnc|>"}},
            {"role": "partial"},
        ],
        "transf_encoder": {"num_layers": 0},
        "transf_decoder": {
            "pre_ln_final_layer_norm": True,
            "config_dict": {"num_attention_heads": 2, "pre_ln": True, "hidden_act": "relu"},
        },
        "tokenizer": {
            "type": "agg",
            "langs": {name: {"model_path": f"nemo:{'s' if name == 'spl_tokens' else 'e'}.model"} for name in parts},
        },
    }
    special = [FIRST_TASKS.get(each, each) if is_first else each for each in SPECIAL[1:]]
    weights = io.BytesIO()
    torch.save(state, weights)
    files = {"./s.model": _pieces(["a"], special), "./e.model": _pieces(["ab ba"], [])}
    config = yaml.safe_dump(content, sort_keys=False).encode()  # ids go on from tokenizer to tokenizer
    return write_nemo(path, {"./model_config.yaml": config, "./model_weights.ckpt": weights.getvalue(), **files}, "w")


def _pieces(sentences: list[str], symbols: list[str]) -> bytes:
    """A sentencepiece model with these symbols behind <unk>, and few pieces."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences * 20),
        model_writer=trained,
        vocab_size=1 + len(symbols) + 1 + len(set("".join(sentences)) - {" "}),
        model_type="bpe",
        user_defined_symbols=symbols,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )
    return trained.getvalue()
