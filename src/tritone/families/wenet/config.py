"""WeNet's `train.yaml`, both generations, as typed settings.

    dict of train.yaml  ->  ModelConfig

The old generation keeps `cmvn_file` and `is_json_cmvn` at the top; the new one has `cmvn_conf`, `tokenizer_conf` and
`ctc_conf`. Upstream switched in December 2023 (PR 2205).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritone.errors import ExportError
from tritone.families.export.settings import Section

SUBSAMPLINGS = ("conv2d", "conv2d6", "conv2d8")
POSITIONS = ("rel_pos", "abs_pos")
ATTENTIONS = ("rel_selfattn", "selfattn")
ACTIVATIONS = ("swish", "relu", "gelu", "hardtanh", "tanh", "selu")


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


def _pick(cls: type, values: Section, **given: Any) -> Any:
    """Build dataclass `cls` from the keys it knows; a wrong type is an error that names the key."""
    picked: dict[str, Any] = {}
    for name, field in cls.__dataclass_fields__.items():  # type: ignore[attr-defined]
        if name in given or name not in values:
            continue
        kind = type(field.default)
        value = values.get(name)
        try:
            if isinstance(value, bool) and kind is not bool:
                raise ValueError(value)
            picked[name] = kind(value)
        except (TypeError, ValueError) as error:
            raise ExportError(f"train.yaml: {values.path}.{name} is {value!r}, expected {kind.__name__}") from error
    return cls(**picked, **given)


def _parse_encoder(config: Section) -> EncoderConfig:
    kind = config.choice("encoder", ("conformer", "transformer"), "conformer")
    values = config.part("encoder_conf")
    conformer = kind == "conformer"
    if values.get("concat_after", False):
        raise ExportError(
            "train.yaml: encoder_conf.concat_after is true; upstream dropped it in 2023 and so does this reader"
        )
    values.choice("layer_norm_type", ("layer_norm",), "layer_norm")
    if float(values.get("conv_norm_eps", 1e-5)) != float(values.get("norm_eps", 1e-5)):
        raise ExportError(
            "train.yaml: encoder_conf.conv_norm_eps differs from norm_eps; this reader has one epsilon for both"
        )
    usual = ("rel_pos", "rel_selfattn", "swish") if conformer else ("abs_pos", "selfattn", "relu")
    return _pick(
        EncoderConfig,
        values,
        kind=kind,
        input_dim=config.whole("input_dim", 80),
        input_layer=values.choice("input_layer", SUBSAMPLINGS, "conv2d"),
        pos_enc_layer_type=values.choice("pos_enc_layer_type", POSITIONS, usual[0]),
        selfattention_layer_type=values.choice("selfattention_layer_type", ATTENTIONS, usual[1]),
        activation_type=values.choice("activation_type", ACTIVATIONS, usual[2]),
        cnn_module_norm=values.choice("cnn_module_norm", ("batch_norm", "layer_norm"), "batch_norm"),
        use_cnn_module=conformer and bool(values.get("use_cnn_module", True)),
        macaron_style=conformer and bool(values.get("macaron_style", True)),
    )


def _parse_decoder(config: Section) -> DecoderConfig | None:
    if not config.get("decoder", None):
        return None
    kind = config.choice("decoder", ("transformer", "bitransformer"))
    return _pick(DecoderConfig, config.part("decoder_conf"), kind=kind)


def parse_config(content: Mapping[str, Any]) -> ModelConfig:
    """Read the content of a `train.yaml`.

    Raises:
        ExportError: a setting is missing, of the wrong type, or names a variant that this version cannot read.
    """
    config = Section("config", content)
    if "output_dim" not in config:
        raise ExportError(
            "train.yaml: output_dim is missing; use the train.yaml beside final.pt, which the trainer completes"
        )
    tokenizer, model, dataset = (config.part(each) for each in ("tokenizer_conf", "model_conf", "dataset_conf"))
    special, fbank, new_cmvn = tokenizer.part("special_tokens"), dataset.part("fbank_conf"), config.part("cmvn_conf")
    if "mfcc_conf" in dataset or dataset.get("feats_type", "fbank") != "fbank":
        raise ExportError(
            "train.yaml: dataset_conf asks for features other than fbank; only fbank models can be exported"
        )
    cmvn_file = config.get("cmvn_file", None) or (new_cmvn.get("cmvn_file", None) if config.get("cmvn", None) else None)
    has_bpe = bool(tokenizer.get("bpe_path", None) or config.get("bpe_model", None))
    return ModelConfig(
        encoder=_parse_encoder(config),
        decoder=_parse_decoder(config),
        vocab_size=config.whole("output_dim"),
        blank_id=config.part("ctc_conf").whole("ctc_blank_id", special.whole("<blank>", 0)),
        sos_id=special.get("<sos>", None),
        eos_id=special.get("<eos>", None),
        ctc_weight=model.number("ctc_weight", 0.5),
        reverse_weight=model.number("reverse_weight", 0.0),
        uses_cmvn=bool(cmvn_file),
        cmvn_file=cmvn_file,
        cmvn_is_json=bool(config.get("is_json_cmvn", new_cmvn.get("is_json_cmvn", True))),
        units=config.choice("tokenizer", ("char", "bpe"), "bpe" if has_bpe else "char"),
        connect_symbol=str(tokenizer.get("connect_symbol", None) or ""),
        sample_rate=dataset.part("resample_conf").whole("resample_rate", 16000),
        num_mel_bins=fbank.whole("num_mel_bins", 80),
        frame_length_ms=fbank.number("frame_length", 25),
        frame_shift_ms=fbank.number("frame_shift", 10),
        window=fbank.choice("window_type", ("povey", "hamming", "hanning", "rectangular", "blackman"), "povey"),
    )
