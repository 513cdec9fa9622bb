"""Small random models of transformers that are NeMo's under other names, and the folders that it writes of them."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from families.conftest import babble
from families.hf_models import write_json
from families.nemo_models import balance, pieces_model
from tritone.families.export.tokens import pieces_of
from tritone.families.nemo.export import export_nemo
from tritone.families.nemo.folder import parse_folder, spelled
from tritone.families.nemo.model import NemoModel

PIECES = 24
HIDDEN = 12
LANGUAGES = {"en-US": 0, "de": 2, "auto": 5}
ENCODER: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_kernel_size": 5,
    "subsampling_conv_channels": 6,
    "num_mel_bins": 24,
    "scale_input": False,
}
STREAMING = {"sliding_window": 7, "default_num_lookahead_tokens": 2}
CLASSES = {
    "parakeet_ctc": ("ParakeetCTC", "ParakeetForCTC"),
    "parakeet_rnnt": ("ParakeetRNNT", "ParakeetForRNNT"),
    "parakeet_tdt": ("ParakeetTDT", "ParakeetForTDT"),
    "nemotron_asr_streaming": ("NemotronAsrStreaming", "NemotronAsrStreamingForRNNT"),
    "nemotron3_5_asr": ("Nemotron3_5Asr", "Nemotron3_5AsrForRNNT"),
}


def config_of(kind: str, **encoder: Any) -> dict[str, Any]:
    """Settings of a small model as transformers has them; `encoder` in place of its encoder's."""
    streaming = kind.startswith("nemotron")
    inner = ENCODER | (STREAMING if streaming else {}) | encoder
    if streaming:
        inner["model_type"] = "nemotron_asr_streaming_encoder"
    found: dict[str, Any] = {"vocab_size": PIECES + 1, "encoder_config": inner}
    if kind == "parakeet_ctc":
        return found | {"pad_token_id": PIECES}
    # Upstream has no limit of symbols for TDT models.
    symbols = 10 if kind == "parakeet_tdt" else 3
    found |= {"blank_token_id": PIECES, "decoder_hidden_size": HIDDEN, "max_symbols_per_step": symbols}
    if kind == "nemotron3_5_asr":
        found |= {"num_prompts": 7, "prompt_intermediate_size": 20, "default_prompt_id": LANGUAGES["auto"]}
    return found


def random_model(kind: str, seed: int = 0) -> Any:
    """A model of transformers with random weights: no norm or bias is without effect, no token wins everywhere."""
    import transformers  # takes seconds

    config, network = CLASSES[kind]
    torch.manual_seed(seed)
    model = getattr(transformers, network)(getattr(transformers, f"{config}Config")(**config_of(kind))).eval()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith("running_var"):
                value.copy_(0.5 + torch.rand(value.shape))
            elif value.is_floating_point():
                value.add_(0.3 * torch.randn(value.shape))
        features, mask = features_of(kind, babble(48000, seed=seed)).values()
        if kind == "parakeet_ctc":
            balance(model.ctc_head, model(features, attention_mask=mask).logits[0], PIECES)
        else:
            encoded = model.get_audio_features(features, attention_mask=mask).pooler_output
            predicted = model.decoder(torch.tensor([[PIECES]]))
            balance(model.joint.head, model.joint(predicted, encoded)[0], PIECES)
        if kind == "parakeet_tdt":
            model.joint.head.bias[PIECES + 1] -= 4.0  # of no frames, for upstream has no limit of tokens in a frame
    return model.requires_grad_(False)


def features_of(kind: str, waveform: np.ndarray) -> Any:
    """What upstream's feature extractor makes of one utterance, as the arguments of its models."""
    found = processor_of(kind).feature_extractor(waveform, sampling_rate=16000, return_tensors="pt")
    return {"input_features": found["input_features"], "attention_mask": found["attention_mask"]}


@cache
def processor_of(kind: str, bands: int = ENCODER["num_mel_bins"]) -> Any:
    """The processor of such a model, with a tokenizer of the form that upstream's converter of NeMo's models writes."""
    import tokenizers
    import transformers

    vocab = {piece: id for id, piece in enumerate(pieces_of(pieces_model(PIECES), "pieces"))}
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True)  # encodes nothing here
    )
    inner.decoder = tokenizers.decoders.Metaspace()
    tokenizer = transformers.ParakeetTokenizer(tokenizer_object=inner, clean_up_tokenization_spaces=False)
    blank = "<pad>" if kind == "parakeet_ctc" else "<blank>"
    tokenizer.add_special_tokens({"pad_token": blank, "unk_token": "<unk>"})
    name = "NemotronAsrStreaming" if kind.startswith("nemotron") else "Parakeet"
    extractor = getattr(transformers, f"{name}FeatureExtractor")(feature_size=bands)
    if kind == "nemotron3_5_asr":
        return transformers.Nemotron3_5AsrProcessor(
            extractor, tokenizer, supported_num_lookahead_tokens=[2, 0], prompt_dictionary=LANGUAGES, num_prompts=7
        )
    if name != "Parakeet":
        return transformers.NemotronAsrStreamingProcessor(extractor, tokenizer, supported_num_lookahead_tokens=[2, 0])
    return transformers.ParakeetProcessor(extractor, tokenizer, decoder_type=kind.removeprefix("parakeet_"))


def save(folder: Path, kind: str, model: Any, **how: Any) -> Path:
    """The folder that transformers writes of a model and its processor."""
    folder.mkdir(parents=True)
    processor_of(kind).save_pretrained(folder)
    model.save_pretrained(folder, **how)
    return folder


def export_streams(folder: Path) -> Path:
    """A model that takes the language, for whole utterances and for streams."""
    kind = "nemotron3_5_asr"
    return export_nemo(
        archive=save(folder / "m", kind, random_model(kind)), output=folder / "b", streaming=True
    ).bundle.path


def write(folder: Path, kind: str = "parakeet_tdt") -> Path:
    """Such a folder with random weights, written without transformers."""
    streaming = kind.startswith("nemotron")
    content = {"model_type": kind, **config_of(kind)}
    processor = {
        "feature_extractor": {
            "feature_extractor_type": f"{'NemotronAsrStreaming' if streaming else 'Parakeet'}FeatureExtractor",
            "feature_size": ENCODER["num_mel_bins"],
        },
        **({"prompt_dictionary": LANGUAGES} if kind == "nemotron3_5_asr" else {}),
    }
    config, count = parse_folder(content, processor, processor["feature_extractor"])
    wanted = NemoModel(config, count).upstream_state()
    random = torch.Generator().manual_seed(0)
    state = {
        spelled(name, config.encoder): torch.randn(value.shape, generator=random) for name, value in wanted.items()
    }
    folder.mkdir(parents=True)
    save_file(state, folder / "model.safetensors")
    pieces = [[piece, 0.0] for piece in pieces_of(pieces_model(PIECES), "pieces")]
    write_json(folder / "config.json", content)
    write_json(folder / "processor_config.json", processor)
    write_json(folder / "tokenizer.json", {"added_tokens": [], "model": {"type": "Unigram", "vocab": pieces}})
    return folder
