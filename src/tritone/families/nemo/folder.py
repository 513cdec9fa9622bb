"""A model's folder of transformers as a NeMo model: Parakeet, and Nemotron's models for streams.

    config.json, processor_config.json | preprocessor_config.json, tokenizer.json  ->  ModelConfig, tokens
    model.safetensors, whole or in shards                                          ->  NemoModel with its tensors

The networks are NeMo's, their parts have other names. What would change a result and is not computed here is refused by
its name, and so is a key that transformers' classes did not have when this was written. Facts: transformers 5.24,
models/{parakeet,nemotron_asr_streaming,nemotron3_5_asr}.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.hf_folder import (
    CONFIG,
    GENERAL,
    PROCESSOR,
    TOKENIZER,
    read_extractor,
    read_pieces_by_id,
    read_tensors,
    weight_files,
)
from tritone.families.export.json_files import read_json, read_json_if_there
from tritone.families.export.settings import Section, shown
from tritone.families.export.tokens import tokens_of
from tritone.families.layers.log_mel import LogMelConfig
from tritone.families.nemo.config import (
    LOG_GUARD,
    MAX_CONTEXTS,
    MAX_LAYERS,
    MAX_PROMPTS,
    MAX_SYMBOLS,
    Activation,
    EncoderConfig,
    ModelConfig,
    PromptConfig,
    TransducerConfig,
    durations_of,
    numbered,
)
from tritone.families.nemo.model import NemoModel

VOCAB_SIZES: Mapping[str, int] = {
    "parakeet_ctc": 1025,
    "parakeet_rnnt": 8193,
    "parakeet_tdt": 8193,
    "nemotron_asr_streaming": 1025,
    "nemotron3_5_asr": 13088,
}
"""The supported values of `model_type`, and how many tokens with the blank each has by default."""

STREAMING = ("nemotron_asr_streaming", "nemotron3_5_asr")
PROMPTED = "nemotron3_5_asr"
KERNEL, STRIDE = 3, 2  # of the subsampling
LOOKAHEADS = (13, 6, 1, 0)  # encoder frames; what processors have by default

TRANSDUCER_KEYS = (
    *("vocab_size", "encoder_config", "decoder_hidden_size", "num_decoder_layers", "hidden_act"),
    *("max_symbols_per_step", "blank_token_id"),
)
KEYS: Mapping[str, tuple[str, ...]] = {
    "parakeet_ctc": ("vocab_size", "encoder_config", "ctc_loss_reduction", "ctc_zero_infinity"),
    "parakeet_rnnt": TRANSDUCER_KEYS,
    "parakeet_tdt": (*TRANSDUCER_KEYS, "durations"),
    "nemotron_asr_streaming": TRANSDUCER_KEYS,
    "nemotron3_5_asr": (*TRANSDUCER_KEYS, "num_prompts", "prompt_intermediate_size", "default_prompt_id"),
}
ENCODER_KEYS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("hidden_act", "attention_bias", "convolution_bias", "conv_kernel_size", "subsampling_factor"),
    *("subsampling_conv_channels", "num_mel_bins", "subsampling_conv_kernel_size", "subsampling_conv_stride"),
    *("dropout", "dropout_positions", "layerdrop", "activation_dropout", "attention_dropout"),
    *("max_position_embeddings", "scale_input"),
)
STREAMING_KEYS = ("sliding_window", "default_num_lookahead_tokens")
EXTRACTORS = ("ParakeetFeatureExtractor", "NemotronAsrStreamingFeatureExtractor")
FEATURE_KEYS = (
    *("feature_extractor_type", "feature_size", "sampling_rate", "hop_length", "n_fft", "win_length", "preemphasis"),
    *("padding_value", "padding_side", "return_attention_mask", "processor_class", "mel_filters_dtype"),
)

# NeMo's parts and what transformers calls them; the subsampling see `spelled`.
NAMES = (
    ("encoder.pre_encode.out.", "encoder.subsampling.linear."),
    (".self_attn.linear_q.", ".self_attn.q_proj."),
    (".self_attn.linear_k.", ".self_attn.k_proj."),
    (".self_attn.linear_v.", ".self_attn.v_proj."),
    (".self_attn.linear_out.", ".self_attn.o_proj."),
    (".self_attn.linear_pos.", ".self_attn.relative_k_proj."),
    (".self_attn.pos_bias_", ".self_attn.bias_"),
    (".conv.batch_norm.", ".conv.norm."),
    ("decoder.decoder_layers.0.", "ctc_head."),
    ("decoder.prediction.embed.", "decoder.embedding."),
    ("decoder.prediction.dec_rnn.lstm.", "decoder.lstm."),
    ("joint.enc.", "encoder_projector."),
    ("joint.pred.", "decoder.decoder_projector."),
    ("joint.joint_net.1.", "joint.head."),
    ("prompt_kernel.0.", "prompt_projector.linear_1."),
    ("prompt_kernel.2.", "prompt_projector.linear_2."),
)


def read_folder(folder: Path) -> tuple[NemoModel, list[str], dict[str, Path]]:
    """Read a folder that transformers' save_pretrained wrote.

    Returns:
        The network, its tokens in the order of their ids, the blank last, and the files that were read.

    Raises:
        ExportError: a file is missing, damaged or unsupported, or does not fit another.
    """
    content, processor = read_json(folder / CONFIG), read_json_if_there(folder / PROCESSOR)
    extractor, _ = read_extractor(folder)
    try:
        config, num_tokens = parse_folder(content, processor, extractor)
    except ExportError as error:
        raise ExportError(f"{folder}: {error}") from error
    tokens = read_tokenizer(folder / TOKENIZER, num_tokens)
    files = weight_files(folder)
    state: dict[str, Tensor] = {}
    for file in files:
        state |= read_tensors(file)
    model = NemoModel.of(config, num_tokens, state, str(folder), partial(spelled, config=config.encoder))
    sources = {each.name: each for each in files} | {"config": folder / CONFIG, "tokenizer": folder / TOKENIZER}
    return model, tokens, sources


def spelled(name: str, config: EncoderConfig) -> str:
    """What a tensor of NeMo's is called in transformers; causal subsamplings have parts, others a row of layers."""
    convolutions = {"encoder.pre_encode.conv.": "encoder.subsampling.layers."}
    if config.causal:
        convolutions = {"encoder.pre_encode.conv.0.": "encoder.subsampling.conv_in."}
        for layer in range(config.halvings - 1):
            for place, part in ((2, "depthwise_conv"), (3, "pointwise_conv")):
                old = f"encoder.pre_encode.conv.{3 * layer + place}."
                convolutions[old] = f"encoder.subsampling.layers.{layer}.{part}."
    for old, new in (*convolutions.items(), *NAMES):
        name = name.replace(old, new)
    return name


def parse_folder(
    content: Mapping[str, Any], processor: Mapping[str, Any], extractor: Mapping[str, Any]
) -> tuple[ModelConfig, int]:
    """Read the content of config.json, of the processor's file and of the feature extractor's.

    Returns:
        The settings, and the number of tokens without the blank.

    Raises:
        ExportError: a key is missing, unknown or of the wrong type, or names something that this version cannot read.
    """
    kind = str(content.get("model_type"))
    if kind not in VOCAB_SIZES:
        raise ExportError(
            f"config.json has model_type {shown(kind)}; this command reads folders of transformers of type "
            f"{', '.join(VOCAB_SIZES)}, and NeMo's archives (.nemo)"
        )
    whole = Section("config", content, (*KEYS[kind], *GENERAL))
    own = (*ENCODER_KEYS, *(STREAMING_KEYS if kind in STREAMING else ()))
    encoder = encoder_of(whole.part("encoder_config", (*own, *GENERAL)), processor, kind in STREAMING)
    size = whole.whole("vocab_size", VOCAB_SIZES[kind], least=2)
    blank = "pad_token_id" if kind == "parakeet_ctc" else "blank_token_id"
    if (id := whole.whole(blank, VOCAB_SIZES[kind] - 1, least=0)) != size - 1:
        raise ExportError(f"config.{blank} is {id}; the blank should be the last of {size} tokens (vocab_size)")
    config = ModelConfig(
        features=log_mel_of(Section("feature_extractor", extractor, FEATURE_KEYS), encoder.features, kind in STREAMING),
        encoder=encoder,
        labels=(),
        tokenizer=TOKENIZER,
        transducer=None if kind == "parakeet_ctc" else _transducer(whole, kind),
        ctc=kind == "parakeet_ctc",
        prompts=_prompts(whole, processor) if kind == PROMPTED else None,
    )
    return config, size - 1


def encoder_of(section: Section, processor: Mapping[str, Any], streaming: bool) -> EncoderConfig:
    """The encoder of its config; `streaming`: of one that was trained for streams."""
    for key, only in (("subsampling_conv_kernel_size", KERNEL), ("subsampling_conv_stride", STRIDE)):
        if (found := section.whole(key, only)) != only:
            raise ExportError(f"encoder_config.{key} is {found}; only {only} can be exported")
    section.choice("hidden_act", ("silu", "swish"), "silu")
    biases = section.flag("attention_bias", True)
    if section.flag("convolution_bias", True) != biases:
        raise ExportError("encoder_config: attention_bias and convolution_bias differ; only equal ones can be exported")
    kernel = section.whole("conv_kernel_size", 9, least=1)
    if kernel % 2 == 0:
        raise ExportError(f"encoder_config.conv_kernel_size is {kernel}; this network needs an odd one")
    return EncoderConfig(
        features=section.whole("num_mel_bins", 80, least=1),
        layers=section.whole("num_hidden_layers", 24, least=1, most=MAX_LAYERS),
        width=section.whole("hidden_size", 1024, least=2),
        heads=section.whole("num_attention_heads", 8, least=1),
        hidden=section.whole("intermediate_size", 4096, least=1),
        subsampling="dw_striding",
        factor=section.whole("subsampling_factor", 8),
        channels=section.whole("subsampling_conv_channels", 256, least=1),
        causal=streaming,
        kernel=kernel,
        padding=(kernel - 1, 0) if streaming else (kernel // 2, kernel // 2),
        norm="layer_norm" if streaming else "batch_norm",
        contexts=_contexts(section, Section("processor", processor)) if streaming else ((-1, -1),),
        style="chunked_limited" if streaming else "regular",
        xscale=section.flag("scale_input", True),
        biases=biases,
    )


def _contexts(section: Section, processor: Section) -> tuple[tuple[int, int], ...]:
    """The context that upstream computes whole utterances with, and the others that the model was trained for."""
    past, lookaheads = section.whole("sliding_window", 71, least=1) - 1, "supported_num_lookahead_tokens"
    given = processor.get(lookaheads, None)
    if given is not None and not (isinstance(given, list) and 0 < len(given) <= MAX_CONTEXTS):
        raise ExportError(f"processor.{lookaheads} is {shown(given)}, expected a list of 1 to {MAX_CONTEXTS} numbers")
    futures = [Section("processor", {lookaheads: each}).whole(lookaheads, least=0) for each in given or LOOKAHEADS]
    usual = section.whole("default_num_lookahead_tokens", LOOKAHEADS[0], least=0) if given is None else futures[0]
    first = processor.whole("default_num_lookahead_tokens", usual, least=0)
    return tuple((past, each) for each in dict.fromkeys((first, *futures)))


def log_mel_of(section: Section, bands: int, streaming: bool) -> LogMelConfig:
    """The features that a feature extractor's settings describe, for an encoder of so many bands."""
    section.choice("feature_extractor_type", (EXTRACTORS[streaming],), EXTRACTORS[streaming])
    if (found := section.whole("feature_size", 80)) != bands:
        raise ExportError(f"feature_extractor.feature_size is {found}, but encoder_config.num_mel_bins {bands}")
    section.choice("mel_filters_dtype", ("float32",), "float32")
    rate, length = section.whole("sampling_rate", 16000, least=1000), section.whole("win_length", 400, least=2)
    return LogMelConfig(
        sample_rate=rate,
        frame_length=length,
        frame_shift=section.whole("hop_length", 160, least=1),
        n_fft=section.whole("n_fft", 512, least=2),
        n_filt=bands,
        normalize="none" if streaming else "per-feature",
        preemphasis=section.number("preemphasis", 0.97, empty=0.0),
        high_freq=rate / 2,
        edges="zeros",
        log_guard=LOG_GUARD,
    )


def _transducer(whole: Section, kind: str) -> TransducerConfig:
    hidden = whole.whole("decoder_hidden_size", 640, least=1)
    return TransducerConfig(
        hidden=hidden,
        layers=whole.whole("num_decoder_layers", 2, least=1, most=MAX_LAYERS),
        joint=hidden,
        activation=whole.choice("hidden_act", get_args(Activation), "relu"),  # type: ignore[arg-type]
        durations=_durations(whole) if kind == "parakeet_tdt" else (),
        max_symbols=min(whole.whole("max_symbols_per_step", MAX_SYMBOLS, least=1), MAX_SYMBOLS),
    )


def _durations(whole: Section) -> tuple[int, ...]:
    found = durations_of(Section("config", {"durations": whole.get("durations", [0, 1, 2, 3, 4])}))
    if not found:
        raise ExportError("config.durations is empty; a TDT model has some")
    return found


def _prompts(whole: Section, processor: Mapping[str, Any]) -> PromptConfig:
    count = whole.whole("num_prompts", 128, least=1, most=MAX_PROMPTS)
    if "prompt_dictionary" not in processor:
        raise ExportError(
            f"{PROCESSOR} has no prompt_dictionary, which says the numbers of languages; save the model's processor "
            "into the folder, with its save_pretrained"
        )
    return PromptConfig(
        count=count,
        ids=numbered(processor["prompt_dictionary"], count, "processor.prompt_dictionary"),
        hidden=whole.whole("prompt_intermediate_size", 2048, least=1),
    )


def read_tokenizer(path: Path, count: int) -> list[str]:
    """The tokens in a tokenizer.json made of a sentencepiece model, for the ids below `count`, and the blank.

    Raises:
        ExportError: the file is missing or damaged, of another kind, or names no token, or two, for an id.
    """
    named = read_pieces_by_id(path)
    if nameless := [id for id in range(count) if id not in named]:
        raise ExportError(
            f"{path} has no token for {len(nameless)} of the model's {count} ids, {nameless[0]} among them; the "
            "tokenizer is of another model"
        )
    return tokens_of([named[id] for id in range(count)])
