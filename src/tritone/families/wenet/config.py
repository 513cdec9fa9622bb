"""WeNet's `train.yaml`, both generations, as typed settings.

    dict of train.yaml  ->  ModelConfig

The old generation keeps `cmvn_file` and `is_json_cmvn` at the top; the new one has `cmvn_conf`, `tokenizer_conf` and
`ctc_conf`. Upstream switched in December 2023 (PR 2205).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritone.errors import ExportError

SUBSAMPLINGS = ("conv2d", "conv2d6", "conv2d8")
POSITIONS = ("rel_pos", "abs_pos")
ATTENTIONS = ("rel_selfattn", "selfattn")
ACTIVATIONS = ("swish", "relu", "gelu", "hardtanh", "tanh", "selu")


def _choice(where: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ExportError(f"train.yaml: {where} is {value!r}; this version reads {', '.join(known)}")
    return str(value)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Encoder sizes and variants, with upstream's defaults. `static_chunk_size` is in encoder frames, 0 for none."""

    kind: str = "conformer"
    input_dim: int = 80
    output_size: int = 256
    attention_heads: int = 4
    linear_units: int = 2048
    num_blocks: int = 6
    input_layer: str = "conv2d"
    pos_enc_layer_type: str = "rel_pos"
    selfattention_layer_type: str = "rel_selfattn"
    activation_type: str = "swish"
    normalize_before: bool = True
    macaron_style: bool = True
    use_cnn_module: bool = True
    cnn_module_kernel: int = 15
    cnn_module_norm: str = "batch_norm"
    causal: bool = False
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    norm_eps: float = 1e-5
    use_dynamic_chunk: bool = False
    static_chunk_size: int = 0
    dropout_rate: float = 0.1
    positional_dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.output_size % self.attention_heads:
            raise ExportError(
                f"train.yaml: output_size ({self.output_size}) is not a multiple of "
                f"attention_heads ({self.attention_heads})"
            )
        if self.use_cnn_module and not self.causal and self.cnn_module_kernel % 2 == 0:
            raise ExportError(
                f"train.yaml: cnn_module_kernel is {self.cnn_module_kernel}; "
                "a non-causal convolution needs an odd kernel"
            )

    @property
    def streamable(self) -> bool:
        """True when no block looks at future frames by itself, so that chunks can be computed one after another."""
        return self.causal or not self.use_cnn_module


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Attention decoder; `r_num_blocks` layers read right to left in a bitransformer."""

    kind: str = "transformer"
    attention_heads: int = 4
    linear_units: int = 2048
    num_blocks: int = 6
    r_num_blocks: int = 0
    normalize_before: bool = True
    dropout_rate: float = 0.1
    positional_dropout_rate: float = 0.1
    self_attention_dropout_rate: float = 0.0
    src_attention_dropout_rate: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything export and training need from `train.yaml`.

    `sos_id`, `eos_id` are None when the file does not say: upstream then takes the last id. `cmvn_file` is the training
    machine's path; only its name is of use here.
    """

    encoder: EncoderConfig
    decoder: DecoderConfig | None
    vocab_size: int
    blank_id: int = 0
    sos_id: int | None = None
    eos_id: int | None = None
    ctc_weight: float = 0.5
    reverse_weight: float = 0.0
    uses_cmvn: bool = False
    cmvn_file: str | None = None
    cmvn_is_json: bool = True
    units: str = "char"
    connect_symbol: str = ""
    sample_rate: int = 16000
    num_mel_bins: int = 80
    frame_length_ms: float = 25.0
    frame_shift_ms: float = 10.0
    window: str = "povey"


def _number(where: str, value: Any, kind: type[int] | type[float]) -> Any:
    try:
        if isinstance(value, bool):
            raise TypeError("a bool is no number")
        return kind(value)
    except (TypeError, ValueError) as error:
        raise ExportError(f"train.yaml: {where} is {value!r}, expected a number") from error


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise ExportError(f"train.yaml: {name} should hold settings, found {type(value).__name__}")
    return value


def _pick(cls: type, values: Mapping[str, Any], where: str, **given: Any) -> Any:
    """Build dataclass `cls` from the keys it knows; a wrong type is an error that names the key."""
    picked: dict[str, Any] = {}
    for name, field in cls.__dataclass_fields__.items():  # type: ignore[attr-defined]
        if name in given or name not in values:
            continue
        kind = type(field.default)
        value = values[name]
        try:
            picked[name] = kind(value) if not isinstance(value, bool) or kind is bool else _refuse(value)
        except (TypeError, ValueError) as error:
            raise ExportError(f"train.yaml: {where}.{name} is {value!r}, expected {kind.__name__}") from error
    return cls(**picked, **given)


def _refuse(value: Any) -> Any:
    raise ValueError(value)


def _parse_encoder(config: Mapping[str, Any]) -> EncoderConfig:
    kind = _choice("encoder", config.get("encoder", "conformer"), ("conformer", "transformer"))
    values = _section(config, "encoder_conf")
    conformer = kind == "conformer"
    if values.get("concat_after"):
        raise ExportError(
            "train.yaml: encoder_conf.concat_after is true; upstream dropped it in 2023 and so does this reader"
        )
    if values.get("layer_norm_type", "layer_norm") != "layer_norm":
        raise ExportError(f"train.yaml: encoder_conf.layer_norm_type {values['layer_norm_type']!r} is not supported")
    for key in ("conv_norm_eps",):
        if float(values.get(key, 1e-5)) != float(values.get("norm_eps", 1e-5)):
            raise ExportError(
                f"train.yaml: encoder_conf.{key} differs from norm_eps; this reader has one epsilon for both"
            )
    return _pick(
        EncoderConfig,
        values,
        "encoder_conf",
        kind=kind,
        input_dim=_number("input_dim", config.get("input_dim", 80), int),
        input_layer=_choice("encoder_conf.input_layer", values.get("input_layer", "conv2d"), SUBSAMPLINGS),
        pos_enc_layer_type=_choice(
            "encoder_conf.pos_enc_layer_type",
            values.get("pos_enc_layer_type", "rel_pos" if conformer else "abs_pos"),
            POSITIONS,
        ),
        selfattention_layer_type=_choice(
            "encoder_conf.selfattention_layer_type",
            values.get("selfattention_layer_type", "rel_selfattn" if conformer else "selfattn"),
            ATTENTIONS,
        ),
        activation_type=_choice(
            "encoder_conf.activation_type", values.get("activation_type", "swish" if conformer else "relu"), ACTIVATIONS
        ),
        cnn_module_norm=_choice(
            "encoder_conf.cnn_module_norm", values.get("cnn_module_norm", "batch_norm"), ("batch_norm", "layer_norm")
        ),
        use_cnn_module=conformer and bool(values.get("use_cnn_module", True)),
        macaron_style=conformer and bool(values.get("macaron_style", True)),
    )


def _parse_decoder(config: Mapping[str, Any]) -> DecoderConfig | None:
    if not config.get("decoder"):
        return None
    kind = _choice("decoder", config["decoder"], ("transformer", "bitransformer"))
    return _pick(DecoderConfig, _section(config, "decoder_conf"), "decoder_conf", kind=kind)


def parse_config(config: Mapping[str, Any]) -> ModelConfig:
    """Read the content of a `train.yaml`.

    Raises:
        ExportError: a setting is missing, of the wrong type, or names a variant that this version cannot read.
    """
    if not isinstance(config, Mapping):
        raise ExportError(f"train.yaml should hold settings, found {type(config).__name__}")
    if "output_dim" not in config:
        raise ExportError(
            "train.yaml: output_dim is missing; use the train.yaml beside final.pt, which the trainer completes"
        )
    tokenizer = _section(config, "tokenizer_conf")
    special = tokenizer.get("special_tokens") or {}
    model = _section(config, "model_conf")
    dataset = _section(config, "dataset_conf")
    fbank = _section(dataset, "fbank_conf")
    if "mfcc_conf" in dataset or dataset.get("feats_type", "fbank") != "fbank":
        raise ExportError(
            "train.yaml: dataset_conf asks for features other than fbank; only fbank models can be exported"
        )
    new_cmvn = _section(config, "cmvn_conf")
    cmvn_file = config.get("cmvn_file") or (new_cmvn.get("cmvn_file") if config.get("cmvn") else None)
    has_bpe = bool(tokenizer.get("bpe_path") or config.get("bpe_model"))
    units = config.get("tokenizer") or ("bpe" if has_bpe else "char")
    return ModelConfig(
        encoder=_parse_encoder(config),
        decoder=_parse_decoder(config),
        vocab_size=_number("output_dim", config["output_dim"], int),
        blank_id=_number(
            "ctc_blank_id", _section(config, "ctc_conf").get("ctc_blank_id", special.get("<blank>", 0)), int
        ),
        sos_id=special.get("<sos>"),
        eos_id=special.get("<eos>"),
        ctc_weight=_number("ctc_weight", model.get("ctc_weight", 0.5), float),
        reverse_weight=_number("reverse_weight", model.get("reverse_weight", 0.0), float),
        uses_cmvn=bool(cmvn_file),
        cmvn_file=cmvn_file,
        cmvn_is_json=bool(config.get("is_json_cmvn", new_cmvn.get("is_json_cmvn", True))),
        units=_choice("tokenizer", units, ("char", "bpe")),
        connect_symbol=str(tokenizer.get("connect_symbol") or ""),
        sample_rate=_number("resample_rate", _section(dataset, "resample_conf").get("resample_rate", 16000), int),
        num_mel_bins=_number("num_mel_bins", fbank.get("num_mel_bins", 80), int),
        frame_length_ms=_number("frame_length", fbank.get("frame_length", 25), float),
        frame_shift_ms=_number("frame_shift", fbank.get("frame_shift", 10), float),
        window=_choice(
            "dataset_conf.fbank_conf.window_type",
            fbank.get("window_type", "povey"),
            ("povey", "hamming", "hanning", "rectangular", "blackman"),
        ),
    )
