"""What config.yaml says of a model, as far as its results depend on it.

    config.yaml  ->  ModelConfig

Keys that matter in training alone are known and not looked at; any other unknown key is refused. Defaults are those of
upstream's classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritone.errors import ExportError
from tritone.families.export.settings import Section

SENSE_VOICE = "SenseVoiceSmall"
MODELS: Mapping[str, str] = {SENSE_VOICE: "SenseVoiceEncoderSmall"}  # classes of models, and of their encoders
SENSE_VOICE_TAGS = ("language", "emotion", "event", "itn")
"""What the first four frames of SenseVoice answer, in this order."""

MAX_LAYERS = 1000
WINDOWS = ("hamming", "hanning", "povey", "rectangular", "blackman")

TRAINING = (
    *("dataset", "dataset_conf", "train_conf", "optim", "optim_conf", "scheduler", "scheduler_conf", "normalize"),
    *("specaug", "specaug_conf", "init_param", "ignore_init_mismatch", "ctc_conf", "normalize_conf", "disable_update"),
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
OF_MODEL_CONF = ("length_normalized_loss", "lsm_weight", "ctc_weight", "sos", "eos", "ignore_id", "blank_id")
OF_ENCODER = (
    *("output_size", "attention_heads", "linear_units", "num_blocks", "tp_blocks", "kernel_size", "sanm_shfit"),
    *("dropout_rate", "positional_dropout_rate", "attention_dropout_rate", "stochastic_depth_rate", "input_layer"),
    *("pos_enc_class", "normalize_before", "concat_after", "positionwise_layer_type", "selfattention_layer_type"),
    *("positionwise_conv_kernel_size", "padding_idx"),
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
class ModelConfig:
    """A model: its class, features, encoder, and the blank of its CTC head."""

    model: str
    front_end: FrontEndConfig
    encoder: EncoderConfig
    blank_id: int = 0


def parse_config(content: Mapping[str, Any]) -> ModelConfig:
    """Read the content of config.yaml.

    Raises:
        ExportError: it is of another class of model, or something in it is missing, unknown or unsupported.
    """
    name = str(content.get("model"))
    if name not in MODELS:
        raise ExportError(f"config.model is {name[:80]!r}; models of FunASR that are exported are {', '.join(MODELS)}")
    root = Section("config", content, (*OF_MODEL, *TRAINING))
    if root.get("normalize", None) is not None:
        raise ExportError("config.normalize is set; models with statistics in am.mvn alone are supported")
    root.choice("encoder", [MODELS[name]])
    root.choice("frontend", ["WavFrontend", "wav_frontend"])
    front_end = _front_end(root.section("frontend_conf", OF_FRONT_END))
    return ModelConfig(
        model=name,
        front_end=front_end,
        encoder=_encoder(root.section("encoder_conf", OF_ENCODER), front_end),
        blank_id=root.part("model_conf", OF_MODEL_CONF).whole("blank_id", 0, least=0),
    )


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


def _encoder(part: Section, front_end: FrontEndConfig) -> EncoderConfig:
    if not part.flag("normalize_before", True) or part.flag("concat_after", False):
        raise ExportError("config.encoder_conf: supported are normalize_before: true and concat_after: false alone")
    part.choice("input_layer", ["pe"], "conv2d")
    part.choice("pos_enc_class", ["SinusoidalPositionEncoder"], "SinusoidalPositionEncoder")
    part.choice("selfattention_layer_type", ["sanm"], "sanm")
    part.choice("positionwise_layer_type", ["linear"], "linear")
    found = EncoderConfig(
        input_size=front_end.size,
        output_size=part.whole("output_size", 256, least=1),
        heads=part.whole("attention_heads", 4, least=1),
        hidden=part.whole("linear_units", 2048, least=1),
        blocks=part.whole("num_blocks", 6, least=1, most=MAX_LAYERS),
        after_blocks=part.whole("tp_blocks", 0, least=0, most=MAX_LAYERS),
        kernel=part.whole("kernel_size", 11, least=1, most=1024),
        shift=part.whole("sanm_shfit", 0, least=0, most=1024),
    )
    if found.output_size % found.heads:
        raise ExportError(
            f"config.encoder_conf: output_size {found.output_size} has no whole number of channels for each of "
            f"attention_heads {found.heads}"
        )
    if (found.kernel - 1) // 2 + found.shift >= found.kernel:
        raise ExportError(
            f"config.encoder_conf: sanm_shfit {found.shift} is beyond what kernel_size {found.kernel} sees"
        )
    if found.input_size < 4 or found.input_size % 2:
        raise ExportError(f"config.frontend_conf: rows of {found.input_size} numbers have no position vectors")
    return found
