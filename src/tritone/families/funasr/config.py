"""What config.yaml says of a model, as far as its results depend on it.

    config.yaml  ->  ModelConfig

Keys that matter in training alone are known and not looked at; any other unknown key is refused. Defaults are those of
upstream's classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tritone.errors import ExportError
from tritone.families.export.settings import Section

SENSE_VOICE = "SenseVoiceSmall"
SEACO = "SeacoParaformer"
CONTEXTUAL = "ContextualParaformer"
STREAMS = "ParaformerStreaming"
PARAFORMERS: Mapping[str, tuple[str, ...]] = {
    "Paraformer": ("CifPredictorV2",),
    "BiCifParaformer": ("CifPredictorV3",),
    SEACO: ("CifPredictorV3", "CifPredictorV2"),
    CONTEXTUAL: ("CifPredictorV2",),
    STREAMS: ("CifPredictorV2",),
}
"""Classes of models with a decoder, and of the predictors that they may have."""

MODELS: Mapping[str, str] = {
    SENSE_VOICE: "SenseVoiceEncoderSmall",
    **dict.fromkeys(PARAFORMERS, "SANMEncoder"),
    STREAMS: "SANMEncoderChunkOpt",
}
"""Classes of models, and of their encoders."""

SENSE_VOICE_TAGS = ("language", "emotion", "event", "itn")
"""What the first four frames of SenseVoice answer, in this order."""

MAX_LAYERS = 1000
WINDOWS = ("hamming", "hanning", "povey", "rectangular", "blackman")

TRAINING = (
    *("dataset", "dataset_conf", "train_conf", "optim", "optim_conf", "scheduler", "scheduler_conf", "normalize"),
    *("specaug", "specaug_conf", "init_param", "ignore_init_mismatch", "ctc_conf", "normalize_conf", "disable_update"),
    # what training on one's own data writes beside these
    *("seed", "device", "output_dir", "log_level", "train_data_set_list", "valid_data_set_list", "model_path"),
    *("model_revision", "is_training", "hub", "trust_remote_code", "remote_code", "ncpu", "ngpu", "disable_pbar"),
)
OF_MODEL = (
    "model",
    "model_conf",
    "encoder",
    "encoder_conf",
    "frontend",
    "frontend_conf",
    "tokenizer",
    "tokenizer_conf",
)
OF_DECODER_MODEL = ("decoder", "decoder_conf", "predictor", "predictor_conf")
OF_MODEL_CONF = (
    *("length_normalized_loss", "lsm_weight", "ctc_weight", "sos", "eos", "ignore_id", "blank_id", "sampling_ratio"),
    *("predictor_weight", "predictor_bias", "share_embedding", "use_1st_decoder_loss"),
)
OF_DECODER = (
    *("attention_heads", "linear_units", "num_blocks", "att_layer_num", "kernel_size", "sanm_shfit", "dropout_rate"),
    *("positional_dropout_rate", "self_attention_dropout_rate", "src_attention_dropout_rate", "normalize_before"),
    *("concat_after", "input_layer", "wo_input_layer", "use_output_layer"),
)
OF_PREDICTOR = (
    *("idim", "l_order", "r_order", "threshold", "dropout", "smooth_factor", "noise_threshold", "tail_threshold"),
    "tail_mask",
)
OF_STREAMS_CONF = ("decoder_attention_chunk_type",)  # of training
OF_SEACO = ("seaco_decoder", "seaco_decoder_conf")
OF_PHRASES_CONF = ("inner_dim", "bias_encoder_type", "bias_encoder_dropout_rate")
OF_HOTWORDS_CONF = {
    SEACO: (
        *(*OF_PHRASES_CONF, "bias_encoder_bid", "seaco_lsm_weight", "seaco_length_normalized_loss"),
        *("seaco_length_normal", "train_decoder", "seaco_weight", "NO_BIAS"),
    ),
    CONTEXTUAL: (
        *(*OF_PHRASES_CONF, "use_decoder_embedding", "target_buffer_length", "crit_attn_weight", "crit_attn_smooth"),
    ),
}
OF_TIMES = ("upsample_times", "upsample_type", "use_cif1_cnn", "smooth_factor2", "noise_threshold2")  # of another head
OF_ENCODER = (
    *("output_size", "attention_heads", "linear_units", "num_blocks", "tp_blocks", "kernel_size", "sanm_shfit"),
    *("dropout_rate", "positional_dropout_rate", "attention_dropout_rate", "stochastic_depth_rate", "input_layer"),
    *("pos_enc_class", "normalize_before", "concat_after", "positionwise_layer_type", "selfattention_layer_type"),
    *("positionwise_conv_kernel_size", "padding_idx"),
)
OF_CHUNKS = (  # of training: what streams are cut into is chosen when they are decoded
    *("chunk_size", "stride", "pad_left", "encoder_att_look_back_factor", "decoder_att_look_back_factor"),
    *("interctc_layer_idx", "interctc_use_conditioning"),
)
OF_FRONT_END = (
    *("fs", "window", "n_mels", "frame_length", "frame_shift", "lfr_m", "lfr_n", "cmvn_file", "dither", "snip_edges"),
    *("upsacle_samples", "filter_length_min", "filter_length_max"),
)


@dataclass(frozen=True, kw_only=True)
class FrontEndConfig:
    """Kaldi's mel bands, some frames side by side, scaled by fixed statistics.

    `frame_length`, `frame_shift`: in samples. `width`: frames of 10 ms side by side; `step`: from one such row to the
    next (upstream's `lfr_m` and `lfr_n`).
    """

    sample_rate: int = 16000
    window: str = "hamming"
    num_mel_bins: int = 80
    frame_length: int = 400
    frame_shift: int = 160
    width: int = 7
    step: int = 6
    sample_scale: float = 32768.0

    @property
    def size(self) -> int:
        """Numbers of a row."""
        return self.num_mel_bins * self.width


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Layers of attention with a memory (SAN-M). `after_blocks`: those behind the first norm, which have their own.

    `kernel`, `shift`: of the memory, in frames. `norm_eps`: of all layer norms.
    """

    input_size: int
    output_size: int = 256
    heads: int = 4
    hidden: int = 2048
    blocks: int = 6
    after_blocks: int = 0
    kernel: int = 11
    shift: int = 0
    norm_eps: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder of tokens at once. `blocks`: layers that attend to the audio; `after_blocks`: those behind that do not.

    `kernel`, `shift`: of the memory, in tokens; the layers behind have no shift.
    """

    heads: int = 4
    hidden: int = 2048
    blocks: int = 6
    after_blocks: int = 0
    kernel: int = 21
    shift: int = 0


@dataclass(frozen=True, kw_only=True)
class PredictorConfig:
    """How much of a token each frame is (CIF): a convolution over `left`, one and `right` frames, and what follows it.

    `factor`, `floor`: what a weight is multiplied with, and what is then taken off. `tail`: the weight of the silence
    behind the last frame.
    """

    left: int = 1
    right: int = 1
    factor: float = 1.0
    floor: float = 0.0
    tail: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HotwordConfig:
    """The part for hotwords.

    `layers`: of the LSTM that reads phrases. `embedding`: the tensor of model.pt that has vectors of their tokens.
    `decoder`, `no_bias`: SeACo's, and the token that it writes where there is no phrase.
    """

    layers: int
    embedding: str
    decoder: DecoderConfig | None = None
    no_bias: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model: its class, features, encoder, the blank of its tokens, and the parts of a model with a decoder."""

    model: str
    front_end: FrontEndConfig
    encoder: EncoderConfig
    blank_id: int = 0
    sos_id: int = 1
    eos_id: int = 2
    decoder: DecoderConfig | None = None
    predictor: PredictorConfig | None = None
    hotwords: HotwordConfig | None = None


def parse_config(content: Mapping[str, Any]) -> ModelConfig:
    """Read the content of config.yaml.

    Raises:
        ExportError: it is of another class of model, or something in it is missing, unknown or unsupported.
    """
    name = str(content.get("model"))
    if name not in MODELS:
        raise ExportError(f"config.model is {name[:80]!r}; models of FunASR that are exported are {', '.join(MODELS)}")
    decodes, streams = name in PARAFORMERS, name == STREAMS
    parts = (*(OF_DECODER_MODEL if decodes else ()), *(OF_SEACO if name == SEACO else ()))
    root = Section("config", content, (*OF_MODEL, *TRAINING, *parts))
    if root.get("normalize", None) is not None:
        raise ExportError("config.normalize is set; models with statistics in am.mvn alone are supported")
    root.choice("encoder", [MODELS[name]])
    root.choice("frontend", ["WavFrontendOnline"] if streams else ["WavFrontend", "wav_frontend"])
    front_end = _front_end(root.section("frontend_conf", OF_FRONT_END))
    ids = root.part(
        "model_conf", (*OF_MODEL_CONF, *OF_HOTWORDS_CONF.get(name, ()), *(OF_STREAMS_CONF if streams else ()))
    )
    part = root.section("encoder_conf", (*OF_ENCODER, *(OF_CHUNKS if streams else ())))
    encoder = encoder_of(part, front_end.size, 1e-12 if decodes else 1e-5, "pe_online" if streams else "pe")
    if decodes and encoder.after_blocks:
        raise ExportError("config.encoder_conf: tp_blocks is of SenseVoice alone")
    if decodes:
        root.choice("decoder", ["ContextualParaformerDecoder" if name == CONTEXTUAL else "ParaformerSANMDecoder"])
        root.choice("predictor", PARAFORMERS[name])
    decoder = _decoder(root.section("decoder_conf", OF_DECODER), encoder) if decodes else None
    if streams:
        assert decoder is not None
        _check_streams(front_end, decoder)
    more = OF_TIMES if root.get("predictor", None) == "CifPredictorV3" else ()
    return ModelConfig(
        model=name,
        front_end=front_end,
        encoder=encoder,
        blank_id=ids.whole("blank_id", 0, least=0),
        sos_id=ids.whole("sos", 1, least=0),
        eos_id=ids.whole("eos", 2, least=0),
        decoder=decoder,
        predictor=_predictor(root.section("predictor_conf", (*OF_PREDICTOR, *more)), encoder) if decodes else None,
        hotwords=_hotwords(name, root, ids, encoder) if name in OF_HOTWORDS_CONF else None,
    )


def _hotwords(name: str, root: Section, part: Section, encoder: EncoderConfig) -> HotwordConfig:
    part.choice("bias_encoder_type", ["lstm"], "lstm")
    if part.whole("inner_dim", 256) != encoder.output_size:
        raise ExportError(f"config.model_conf.inner_dim should be the encoder's output_size, {encoder.output_size}")
    of_decoder = "decoder.embed.0.weight"
    if name == CONTEXTUAL:
        shares = part.flag("use_decoder_embedding", False)
        return HotwordConfig(layers=1, embedding=of_decoder if shares else "bias_embed.weight")
    root.choice("seaco_decoder", ["ParaformerSANMDecoder"])
    if part.flag("bias_encoder_bid", False):
        raise ExportError("config.model_conf.bias_encoder_bid is true; phrases are read in one direction alone")
    decoder = _decoder(root.section("seaco_decoder_conf", OF_DECODER), encoder, writes=False)
    no_bias = part.whole("NO_BIAS", 8377, least=0)
    return HotwordConfig(layers=2, embedding=of_decoder, decoder=decoder, no_bias=no_bias)


def _decoder(part: Section, encoder: EncoderConfig, *, writes: bool = True) -> DecoderConfig:
    where = part.path
    if not part.flag("normalize_before", True) or part.flag("concat_after", False):
        raise ExportError(f"{where}: supported are normalize_before: true and concat_after: false alone")
    if part.flag("use_output_layer", True) != writes:
        raise ExportError(f"{where}.use_output_layer should be {str(writes).lower()}: decoders of texts alone have it")
    kernel = part.whole("kernel_size", 21, least=1, most=1024)
    shift = (kernel - 1) // 2 if part.get("sanm_shfit", 0) is None else part.whole("sanm_shfit", 0, least=0)
    layers, attending = (part.whole(key, 6, least=1, most=MAX_LAYERS) for key in ("num_blocks", "att_layer_num"))
    found = DecoderConfig(
        heads=part.whole("attention_heads", 4, least=1),
        hidden=part.whole("linear_units", 2048, least=1),
        blocks=attending,
        after_blocks=max(0, layers - attending),
        kernel=kernel,
        shift=shift,
    )
    _check_memory(where.removeprefix("config."), encoder.output_size, found.heads, kernel, shift)
    return found


def _check_streams(front_end: FrontEndConfig, decoder: DecoderConfig) -> None:
    usual = FrontEndConfig()
    if replace(front_end, window=usual.window, num_mel_bins=usual.num_mel_bins) != usual:
        raise ExportError(
            "config.frontend_conf: of a model for streams, supported are frames of 25 ms each 10 ms at 16000 Hz, with "
            "lfr_m: 7 and lfr_n: 6, alone"
        )
    if decoder.after_blocks or decoder.shift != decoder.kernel - 1 - (decoder.kernel - 1) // 2:
        raise ExportError(
            "config.decoder_conf: a decoder of streams must not look at tokens to come, so att_layer_num should be "
            f"num_blocks, and sanm_shfit half of kernel_size, {decoder.kernel // 2}; got sanm_shfit {decoder.shift}"
        )


def _predictor(part: Section, encoder: EncoderConfig) -> PredictorConfig:
    if part.whole("idim", encoder.output_size) != encoder.output_size:
        raise ExportError(f"config.predictor_conf.idim should be the encoder's output_size, {encoder.output_size}")
    if part.number("threshold", 1.0) != 1.0 or not part.flag("tail_mask", True):
        raise ExportError("config.predictor_conf: supported are threshold: 1.0 and tail_mask: true alone")
    found = PredictorConfig(
        left=part.whole("l_order", 1, least=0, most=64),
        right=part.whole("r_order", 1, least=0, most=64),
        factor=part.number("smooth_factor", 1.0),
        floor=part.number("noise_threshold", 0.0),
        tail=part.number("tail_threshold", 0.0),
    )
    if not (0 < found.factor <= 1 and 0 <= found.floor <= 1 and 0 <= found.tail <= 1):
        raise ExportError("config.predictor_conf: smooth_factor, noise_threshold and tail_threshold should be 0 to 1")
    return found


def _check_memory(part: str, width: int, heads: int, kernel: int, shift: int) -> None:
    if width % heads:
        raise ExportError(
            f"config.{part}: output_size {width} has no whole number of channels for each of attention_heads {heads}"
        )
    if (kernel - 1) // 2 + shift >= kernel:
        raise ExportError(f"config.{part}: sanm_shfit {shift} is beyond what kernel_size {kernel} sees")


def _front_end(part: Section) -> FrontEndConfig:
    rate = part.whole("fs", 16000, least=1000, most=768_000)
    length, shift = (part.whole(f"frame_{name}", usual, least=1, most=1000) for name, usual in _FRAME_MS)
    part.choice("window", WINDOWS, "hamming")
    if not part.flag("snip_edges", True):
        raise ExportError("config.frontend_conf.snip_edges is false; only whole windows are supported")
    width, step = part.whole("lfr_m", 1, least=1, most=64), part.whole("lfr_n", 1, least=1, most=64)
    if step > width:
        raise ExportError(f"config.frontend_conf: lfr_n {step} is beyond lfr_m {width}, so that frames would be lost")
    return FrontEndConfig(
        sample_rate=rate,
        window=part.choice("window", WINDOWS, "hamming"),
        num_mel_bins=part.whole("n_mels", 80, least=1, most=1024),
        frame_length=rate * length // 1000,
        frame_shift=rate * shift // 1000,
        width=width,
        step=step,
        sample_scale=32768.0 if part.flag("upsacle_samples", True) else 1.0,
    )


_FRAME_MS = (("length", 25), ("shift", 10))


def encoder_of(part: Section, input_size: int, norm_eps: float, layer: str) -> EncoderConfig:
    """Read encoder_conf.

    Args:
        input_size: numbers of a row.
        norm_eps: of all layer norms.
        layer: the input layer that there must be.

    Raises:
        ExportError: a setting is missing, unknown or unsupported.
    """
    if not part.flag("normalize_before", True) or part.flag("concat_after", False):
        raise ExportError("config.encoder_conf: supported are normalize_before: true and concat_after: false alone")
    part.choice("input_layer", [layer], "conv2d")
    part.choice("pos_enc_class", ["SinusoidalPositionEncoder"], "SinusoidalPositionEncoder")
    part.choice("selfattention_layer_type", ["sanm"], "sanm")
    part.choice("positionwise_layer_type", ["linear"], "linear")
    found = EncoderConfig(
        input_size=input_size,
        output_size=part.whole("output_size", 256, least=1),
        heads=part.whole("attention_heads", 4, least=1),
        hidden=part.whole("linear_units", 2048, least=1),
        blocks=part.whole("num_blocks", 6, least=1, most=MAX_LAYERS),
        after_blocks=part.whole("tp_blocks", 0, least=0, most=MAX_LAYERS),
        kernel=part.whole("kernel_size", 11, least=1, most=1024),
        shift=part.whole("sanm_shfit", 0, least=0, most=1024),
        norm_eps=norm_eps,
    )
    _check_memory("encoder_conf", found.output_size, found.heads, found.kernel, found.shift)
    if found.input_size < 4 or found.input_size % 2:
        raise ExportError(f"config: rows of {found.input_size} numbers have no position vectors")
    return found
