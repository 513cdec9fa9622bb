"""The config of a .nemo archive as typed settings.

    content of model_config.yaml  ->  ModelConfig

What would change a result and is not computed here is refused by its name, and so is a key that NeMo's classes did not
have when this was written. Facts: NeMo, nemo/collections/asr/{modules,models,parts/submodules}, commit 8cfedd7.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tritone.errors import ExportError
from tritone.families.export.settings import MAX_SIZE, Section, shown
from tritone.families.layers.log_mel import LogMelConfig, Normalize

Subsampling: TypeAlias = Literal["striding", "dw_striding"]
ConvNorm: TypeAlias = Literal["batch_norm", "layer_norm"]
ContextStyle: TypeAlias = Literal["regular", "chunked_limited"]
Activation: TypeAlias = Literal["relu", "tanh", "sigmoid"]

LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3}")
MAX_LAYERS = 1000
MAX_DURATION = 1024  # frames that one token may take
MAX_DURATIONS = 256  # different ones
MAX_SYMBOLS = 10  # of a frame; NeMo's configs have no more, and requests may not ask for more
LOG_GUARD = 2.0**-24
NAMED_GUARDS = {"tiny": 1.1754943508222875e-38, "eps": 1.1920928955078125e-07}  # torch.finfo(torch.float32)

# In training alone, or for memory and speed alone.
ENCODER_IDLE = (
    *("_target_", "dropout", "dropout_pre_encoder", "dropout_emb", "dropout_att", "stochastic_depth_drop_prob"),
    *("stochastic_depth_mode", "stochastic_depth_start_layer", "pos_emb_max_len", "att_context_probs"),
    *("subsampling_conv_chunking_factor", "use_pytorch_sdpa", "use_pytorch_sdpa_backends", "sync_max_audio_length"),
    *("untie_biases", "global_tokens", "global_tokens_spacing", "global_attn_separate", "conv_dual_mode"),
    *("use_triton", "rope_base", "rotary_fraction"),  # the latter two of an attention that is refused
)
ENCODER_KEYS = (
    *("feat_in", "n_layers", "d_model", "feat_out", "causal_downsampling", "subsampling", "subsampling_factor"),
    *("subsampling_conv_channels", "reduction", "reduction_position", "reduction_factor", "ff_expansion_factor"),
    *("self_attention_model", "n_heads", "att_context_size", "att_context_style", "xscaling", "conv_kernel_size"),
    *("conv_norm_type", "conv_context_size", "use_bias", *ENCODER_IDLE),
    *("att_chunk_context_size", "conv_context_style"),
)
FEATURE_IDLE = (
    *("_target_", "dither", "pad_to", "pad_value", "rng", "nb_augmentation_prob", "nb_max_freq", "use_grads"),
    *("stft_exact_pad", "stft_conv", "max_duration"),
)
FEATURE_KEYS = (
    *("sample_rate", "window_size", "window_stride", "n_window_size", "n_window_stride", "window", "normalize"),
    *("n_fft", "preemph", "features", "lowfreq", "highfreq", "log", "log_zero_guard_type", "log_zero_guard_value"),
    *("frame_splicing", "exact_pad", "mag_power", "use_torchaudio", "mel_norm", *FEATURE_IDLE),
)
FEATURES_AS_HERE = {  # other values make other features
    "frame_splicing": (1, None),
    "exact_pad": (False, None),
    "mag_power": (2.0, 2),
    "use_torchaudio": (False, None),
    "mel_norm": ("slaney",),
}


# What the class of a whole model is, by the end of its name.
READ = (
    *("EncDecCTCModel", "EncDecCTCModelBPE", "EncDecRNNTModel", "EncDecRNNTBPEModel", "EncDecHybridRNNTCTCModel"),
    *("EncDecHybridRNNTCTCBPEModel", "EncDecRNNTBPEModelWithPrompt", "EncDecHybridRNNTCTCBPEModelWithPrompt"),
)
OTHER_MODELS = {
    "SortformerEncLabelModel": "Sortformer, which says who speaks when; its transformer and labels of speakers would "
    "be needed here",
    "EncDecSpeakerLabelModel": "a speaker model such as TitaNet; its network would be needed here (speaker models of "
    "WeSpeaker can be exported: tritone export wespeaker)",
    "EncDecClassificationModel": "a classifier such as MarbleNet; its network would be needed here",
    "EncDecFrameClassificationModel": "a classifier of frames, for voice activity; its network would be needed here",
    "SALM": "a language model that hears; its language model would be needed here",
}
DEFAULTS_KEYS = (
    *("enc_hidden", "pred_hidden", "joint_hidden", "tdt_durations", "num_tdt_durations"),
    *("initialize_prompt_feature", "num_prompts", "prompt_dictionary"),
)
MAX_PROMPTS = 4096
MAX_CONTEXTS = 64
UNIFIED = "chunked_limited_with_rc"  # style of models that are trained for whole utterances and buffered streams alike
AUTO = "auto"  # the prompt of a model that shall find the language itself


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """A language as a part of what the encoder gives.

    `count`: of prompts; `ids`: their numbers by language; `hidden`: width inside of the layers that mix them in.
    """

    count: int
    ids: Mapping[str, int]
    hidden: int

    @property
    def default(self) -> str:
        """The language where nobody names one."""
        return AUTO if AUTO in self.ids else next(iter(self.ids))


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """A Conformer or FastConformer. Sizes over time are in frames of the layers.

    `factor`: frames of features for one of the encoder's, a power of two. `channels`: of the subsampling. `causal`:
    whether the subsampling sees no future. `contexts`: past and future frames that attention sees, -1 for all of them,
    in each of the ways that the model was trained for, that of whole utterances first; with style "chunked_limited"
    the future ones are those of a frame's own chunk. `padding`: frames of zeros before and
    after an utterance for the layers' convolution. `xscale`: whether what goes into the layers is multiplied by
    √width. `output_dim`: of a projection after the layers; 0 for none.
    """

    features: int
    layers: int
    width: int
    heads: int
    hidden: int
    subsampling: Subsampling = "striding"
    factor: int = 4
    channels: int
    causal: bool = False
    kernel: int = 31
    padding: tuple[int, int]
    norm: ConvNorm = "batch_norm"
    contexts: tuple[tuple[int, int], ...] = ((-1, -1),)
    style: ContextStyle = "regular"
    xscale: bool = True
    biases: bool = True
    output_dim: int = 0

    def __post_init__(self) -> None:
        if self.width % self.heads or self.width % 2:
            raise ExportError(f"encoder.d_model ({self.width}) must be even and a multiple of n_heads ({self.heads})")
        if self.factor < 2 or self.factor & (self.factor - 1):
            raise ExportError(f"encoder.subsampling_factor is {self.factor}; expected a power of two, 2 or more")
        if min(self.padding) < 0 or sum(self.padding) + 1 != self.kernel:
            raise ExportError(
                f"encoder.conv_context_size: {list(self.padding)} frames around one do not make conv_kernel_size "
                f"{self.kernel}"
            )

    @property
    def context(self) -> tuple[int, int]:
        """The context of whole utterances."""
        return self.contexts[0]

    @property
    def halvings(self) -> int:
        """Convolutions with stride 2 before the layers."""
        return self.factor.bit_length() - 1


@dataclass(frozen=True, kw_only=True)
class TransducerConfig:
    """Prediction network and joint network.

    `durations`: frames that a token of a TDT model may take, in the order of the joint's outputs; none of an RNNT.
    `dropout_layer`: whether the joint has one, which moves the name of the layer after it. `blank_as_pad`: the blank
    has a row in the embedding, of zeros. `max_symbols`: the most tokens of one frame.
    """

    hidden: int
    layers: int
    joint: int
    activation: Activation
    durations: tuple[int, ...] = ()
    dropout_layer: bool = False
    blank_as_pad: bool = True
    max_symbols: int = MAX_SYMBOLS


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything export needs of a config.

    `labels`: characters, or pieces as the config lists them; `tokenizer`: the archive's file of sentencepiece's model,
    None of a model of characters. `transducer`, `ctc`: which heads there are.
    """

    features: LogMelConfig
    encoder: EncoderConfig
    labels: tuple[str, ...]
    tokenizer: str | None
    transducer: TransducerConfig | None
    ctc: bool
    prompts: PromptConfig | None = None

    @property
    def hybrid(self) -> bool:
        """Whether there are both heads."""
        return self.ctc and self.transducer is not None


def parse_config(content: Mapping[str, Any]) -> ModelConfig:
    """Read the content of a config.

    Raises:
        ExportError: a key is missing, unknown or of the wrong type, or names something that this version cannot read.
    """
    whole = Section("config", content)
    _check_target(whole)
    target = str(whole.section("encoder").get("_target_", ""))
    if "jasper" in whole.section("encoder"):
        raise ExportError("this is a Jasper or a QuartzNet: export it with `tritone export jasper --checkpoint FILE`")
    if target.rpartition(".")[2] != "ConformerEncoder":
        raise ExportError(
            f"encoder._target_ is {shown(target)}; only ConformerEncoder (Conformer and FastConformer) can be read"
        )
    decoder = whole.section("decoder")
    has_joint = "joint" in whole
    if not has_joint and "vocabulary" not in decoder:
        raise ExportError(
            "config: no settings `joint`, and no decoder.vocabulary; only models with a CTC or an RNNT decoder can be "
            "read"
        )
    features = feature_config(whole.section("preprocessor", FEATURE_KEYS))
    encoder = encoder_config(whole.section("encoder", ENCODER_KEYS), features)
    found = ModelConfig(
        features=features,
        encoder=encoder,
        labels=_labels(whole, decoder, has_joint),
        tokenizer=_tokenizer(whole),
        transducer=_transducer(whole, decoder) if has_joint else None,
        ctc=not has_joint or whole.get("aux_ctc", None) is not None,
        prompts=_prompts(whole, encoder),
    )
    _check_defaults(whole, found)
    return found


def _check_target(whole: Section) -> None:
    """Refuse models of other classes; archives of old releases of NeMo do not name theirs."""
    target = whole.get("target", None)
    name = str(target).rpartition(".")[2]
    if target is None or name in READ:
        return
    if name in OTHER_MODELS:
        raise ExportError(f"target is {shown(target)}: this is {OTHER_MODELS[name]}")
    raise ExportError(
        f"target is {shown(target)}, a class of models that is not known here; its network and its search would be "
        f"needed. Known are {', '.join(READ)}"
    )


def _prompts(whole: Section, encoder: EncoderConfig) -> PromptConfig | None:
    """The languages of a model whose class takes one with each utterance."""
    if not str(whole.get("target", None)).endswith("WithPrompt"):
        return None
    defaults = whole.section("model_defaults", DEFAULTS_KEYS)
    if not defaults.flag("initialize_prompt_feature", False):
        return None
    count = defaults.whole("num_prompts", 128, least=1, most=MAX_PROMPTS)
    given, where = defaults.get("prompt_dictionary"), "model_defaults.prompt_dictionary"
    return PromptConfig(
        count=count, ids=numbered(given, count, where), hidden=2 * (encoder.output_dim or encoder.width)
    )


def numbered(given: Any, count: int, where: str) -> dict[str, int]:
    """The numbers of prompts by language, of a file's setting `where`.

    Raises:
        ExportError: it holds something else, or numbers beyond `count` prompts.
    """
    if not isinstance(given, Mapping) or not 0 < len(given) <= MAX_PROMPTS:
        raise ExportError(f"{where} should hold languages and their numbers")
    for name, id in given.items():
        if not isinstance(name, str) or not LANGUAGE.fullmatch(name):
            raise ExportError(f"{where}: {shown(name)} is no language; quote what YAML reads so")
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < count:
            raise ExportError(f"{where}.{name} is {shown(id)}, expected 0 to {count - 1}")
    return dict(given)


def _check_defaults(whole: Section, found: ModelConfig) -> None:
    """Hold `model_defaults`, which other settings are made of, against those; an unknown one may change the network."""
    if whole.get("model_defaults", None) is None:
        return
    defaults = whole.section("model_defaults", DEFAULTS_KEYS)
    if not found.prompts and (prompts := [key for key in ("num_prompts", "prompt_dictionary") if key in defaults]):
        raise ExportError(
            f"model_defaults has {' and '.join(prompts)}, but target {shown(whole.get('target', None))} takes no "
            "prompts; give the archive's own config"
        )
    transducer = found.transducer
    made = {"enc_hidden": found.encoder.output_dim or found.encoder.width}
    if transducer is not None:
        made |= {"pred_hidden": transducer.hidden, "joint_hidden": transducer.joint}
        made["num_tdt_durations"] = len(transducer.durations)
    for key, value in made.items():
        if key in defaults and defaults.whole(key) != value:
            raise ExportError(f"model_defaults.{key} is {defaults.whole(key)}, but the settings made of it say {value}")
    durations = defaults.get("tdt_durations", None)
    if transducer is not None and durations is not None and tuple(durations) != transducer.durations:
        raise ExportError(
            f"model_defaults.tdt_durations is {shown(durations)}, but decoding.durations {list(transducer.durations)}"
        )


def feature_config(section: Section) -> LogMelConfig:
    for key, usual in FEATURES_AS_HERE.items():
        if (value := section.get(key, usual[0])) not in usual:
            raise ExportError(f"{section.path}.{key} is {shown(value)}; features are computed with {usual[0]} alone")
    rate = section.whole("sample_rate", 16000, least=1000)
    sizes = []
    for name, default in (("window_size", 0.02), ("window_stride", 0.01)):
        seconds, samples = section.get(name, default), section.get(f"n_{name}", None)
        if seconds and samples:
            raise ExportError(f"{section.path}: {name} and n_{name} are both given; NeMo takes one of them")
        # Upstream cuts off, too.
        sizes.append(section.whole(f"n_{name}") if samples else int(section.number(name, default) * rate))
    length, shift = sizes
    normalize: dict[Any, Normalize] = {"per_feature": "per-feature", "all_features": "all-features"}
    wanted = section.get("normalize", "per_feature")
    if isinstance(wanted, Mapping):
        raise ExportError(f"{section.path}.normalize has fixed means; only per_feature, all_features or none are read")
    guard = section.get("log_zero_guard_value", LOG_GUARD)
    if isinstance(guard, str) and guard in NAMED_GUARDS:
        guard = NAMED_GUARDS[guard]
    elif (guard := section.number("log_zero_guard_value", LOG_GUARD)) <= 0:
        raise ExportError(f"{section.path}.log_zero_guard_value is {guard:g}; the logarithm needs more than 0")
    return LogMelConfig(
        sample_rate=rate,
        frame_length=length,
        frame_shift=shift,
        n_fft=section.whole("n_fft", 0) or 1 << max(0, length - 1).bit_length(),
        n_filt=section.whole("features", 64, least=1),
        window=str(section.get("window", "hann")),
        normalize=normalize.get(wanted, "none"),
        preemphasis=section.number("preemph", 0.97, empty=0.0),
        low_freq=section.number("lowfreq", 0.0),
        high_freq=section.number("highfreq", 0.0) or rate / 2,
        log=section.flag("log", True),
        edges="zeros",
        log_guard=guard,
        clamped=section.choice("log_zero_guard_type", ("add", "clamp"), "add") == "clamp",
    )


def encoder_config(section: Section, features: LogMelConfig) -> EncoderConfig:
    if (found := section.whole("feat_in")) != features.n_filt:
        raise ExportError(f"encoder.feat_in is {found}, but preprocessor.features are {features.n_filt}")
    attention = section.get("self_attention_model", "rel_pos")
    if attention != "rel_pos":
        raise ExportError(
            f"encoder.self_attention_model is {shown(attention)}; only rel_pos can be exported. A model with local "
            "attention (rel_pos_local_attn) has the same weights: in NeMo, call "
            "model.change_attention_model('rel_pos', [-1, -1]), or with the context in place of -1, and save it again."
        )
    if section.get("reduction", None) and section.whole("reduction_factor", 1) > 1:
        raise ExportError("encoder.reduction: a second subsampling among the layers cannot be exported")
    width = section.whole("d_model", least=2)
    channels = section.whole("subsampling_conv_channels", -1)
    kernel = section.whole("conv_kernel_size", 31, least=1)
    if kernel % 2 == 0:
        raise ExportError(f"encoder.conv_kernel_size is {kernel}; this network needs an odd one")
    output = section.whole("feat_out", -1)
    contexts, style = _contexts(section)
    # Chunked in training alone ("dcc"): the layers do not even get the style.
    section.choice("conv_context_style", ("regular", "dcc"), "regular")
    return EncoderConfig(
        features=features.n_filt,
        layers=section.whole("n_layers", least=1, most=MAX_LAYERS),
        width=width,
        heads=section.whole("n_heads", 4, least=1),
        hidden=width * section.whole("ff_expansion_factor", 4, least=1),
        subsampling=section.choice("subsampling", get_args(Subsampling), "striding"),  # type: ignore[arg-type]
        factor=section.whole("subsampling_factor", 4),
        channels=width if channels == -1 else channels,
        causal=section.flag("causal_downsampling", False),
        kernel=kernel,
        padding=_padding(section, kernel),
        norm=section.choice("conv_norm_type", get_args(ConvNorm), "batch_norm"),  # type: ignore[arg-type]
        contexts=contexts,
        style=style,
        xscale=section.flag("xscaling", True),
        biases=section.flag("use_bias", True),
        output_dim=output if output > 0 and output != width else 0,
    )


def _padding(section: Section, kernel: int) -> tuple[int, int]:
    given = section.get("conv_context_size", None)
    if given is None:
        return kernel // 2, kernel // 2
    if given == "causal":
        return kernel - 1, 0
    return _pair(given, "encoder.conv_context_size", least=0)


def _contexts(section: Section) -> tuple[tuple[tuple[int, int], ...], ContextStyle]:
    """The contexts that a model was trained for, and their style; NeMo computes with the first one."""
    style = section.choice("att_context_style", (*get_args(ContextStyle), UNIFIED), "regular")
    if section.get("att_chunk_context_size", None) is not None and style != UNIFIED:
        raise ExportError(
            f"encoder.att_chunk_context_size is of models with att_context_style {UNIFIED}, and this one has {style}"
        )
    if style == UNIFIED:  # whatever att_context_size says; the chunks' are drawn in training, or set for buffers
        return ((-1, -1),), "regular"
    given = section.get("att_context_size", None)
    if not given:
        return ((-1, -1),), style  # type: ignore[return-value]
    listed = given if isinstance(given, list) and isinstance(given[0], list) else [given]
    if len(listed) > MAX_CONTEXTS:
        raise ExportError(f"encoder.att_context_size has {len(listed)} contexts, at most {MAX_CONTEXTS} are read")
    contexts = tuple(_pair(each, "encoder.att_context_size", least=-1) for each in listed)
    for past, future in contexts if style == "chunked_limited" else ():
        if future >= 0 and past % (future + 1) and past > 0:
            raise ExportError(
                f"encoder.att_context_size [{past}, {future}]: the past of chunked_limited should be a multiple of the "
                "chunk, which is one frame longer than the future"
            )
    return contexts, style  # type: ignore[return-value]


def _pair(given: Any, where: str, *, least: int) -> tuple[int, int]:
    if (
        not isinstance(given, Sequence)
        or len(given) != 2
        or any(isinstance(each, bool) or not isinstance(each, int) or not least <= each <= MAX_SIZE for each in given)
    ):
        raise ExportError(f"{where} is {shown(given)}, expected two whole numbers, {least} or more")
    left, right = given
    return left, right


def _transducer(whole: Section, decoder: Section) -> TransducerConfig:
    joint = whole.section("joint")
    for section, known in ((decoder, ("RNNTDecoder",)), (joint, ("RNNTJoint", "SampledRNNTJoint"))):
        if (target := str(section.get("_target_", known[0])).rpartition(".")[2]) not in known:
            raise ExportError(f"{section.path}._target_ is {shown(target)}; only {known[0]} can be read")
    prednet, jointnet = decoder.section("prednet"), joint.section("jointnet")
    if (norm := decoder.get("normalization_mode", None)) is not None:
        raise ExportError(f"decoder.normalization_mode is {shown(norm)}; only a plain LSTM (null) can be read")
    hidden = prednet.whole("pred_hidden", least=1)
    if prednet.whole("rnn_hidden_size", -1) not in (-1, 0, hidden):
        raise ExportError("decoder.prednet.rnn_hidden_size: an LSTM with a projection cannot be read")
    decoding = whole.part("decoding")
    durations = durations_of(decoding)
    if (extra := joint.whole("num_extra_outputs", 0)) != len(durations):
        raise ExportError(
            f"joint.num_extra_outputs is {extra}, but decoding.durations has {len(durations)}: only RNNT models (none) "
            "and TDT models (one output for each duration) can be read"
        )
    greedy = decoding.part("greedy")
    symbols = greedy.get("max_symbols", None)  # upstream's name of today; of old greedy.max_symbols_per_step
    symbols = greedy.get("max_symbols_per_step", None) if symbols is None else symbols
    if symbols is not None and (isinstance(symbols, bool) or not isinstance(symbols, int) or symbols < 1):
        raise ExportError(f"decoding.greedy.max_symbols is {shown(symbols)}, expected a whole number or null")
    return TransducerConfig(
        hidden=hidden,
        layers=prednet.whole("pred_rnn_layers", least=1, most=MAX_LAYERS),
        joint=jointnet.whole("joint_hidden", least=1),
        activation=jointnet.choice("activation", get_args(Activation)),  # type: ignore[arg-type]
        durations=durations,
        dropout_layer=bool(jointnet.number("dropout", 0.0)),
        blank_as_pad=decoder.flag("blank_as_pad", True),
        max_symbols=min(symbols or MAX_SYMBOLS, MAX_SYMBOLS),
    )


def durations_of(section: Section) -> tuple[int, ...]:
    """The durations that settings list, in their order; none of an RNNT."""
    given = section.get("durations", None)
    if not given:
        return ()
    if (
        not isinstance(given, Sequence)
        or len(given) > MAX_DURATIONS
        or any(isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= MAX_DURATION for each in given)
        or not any(given)
    ):
        raise ExportError(
            f"{section.path}.durations is {shown(given)}; expected up to {MAX_DURATIONS} counts of frames, 0 to "
            f"{MAX_DURATION}, not all of them 0"
        )
    return tuple(given)


def _labels(whole: Section, decoder: Section, has_joint: bool) -> tuple[str, ...]:
    places = [(whole.section("joint"), "vocabulary")] if has_joint else [(decoder, "vocabulary")]
    for section, key in (*places, (whole, "labels")):
        found = section.get(key, None)
        if not found:
            continue
        if isinstance(found, str) or not isinstance(found, Sequence):
            raise ExportError(f"{section.path}.{key} should be a list of tokens, got {shown(found)}")
        # YAML reads some of them as numbers and truths where nobody quoted them.
        if wrong := [each for each in found if not isinstance(each, str) or not each]:
            raise ExportError(f"{section.path}.{key}: {shown(wrong[0])} is no text; quote what means more to YAML")
        return tuple(found)
    return ()


def _tokenizer(whole: Section) -> str | None:
    if whole.get("tokenizer", None) is None:
        return None
    section = whole.section("tokenizer")
    if (kind := section.get("type", None)) != "bpe":
        raise ExportError(
            f"tokenizer.type is {shown(kind)}; only bpe (sentencepiece) can be read, and models of characters"
        )
    path = section.get("model_path", None)
    if not isinstance(path, str) or not path:
        raise ExportError("tokenizer.model_path is missing: it should name sentencepiece's model in the archive")
    return path.removeprefix("nemo:")


def count_halved(frames: Any, times: int, *, causal: bool) -> Any:
    """What `times` convolutions of kernel 3 and stride 2 make of a number of frames or bands; at least 1 of 1."""
    for _ in range(times):
        frames = frames // 2 + 1 if causal else (frames + 1) // 2
    return frames
