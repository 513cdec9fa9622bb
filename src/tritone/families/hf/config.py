"""What config.json says of a network, as far as its results depend on it.

    config.json  ->  ModelConfig

transformers leaves out what has its default value, so the defaults here are those of its configuration classes
(models/wav2vec2/configuration_wav2vec2.py and its relatives).
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tritone.errors import ExportError
from tritone.families.export.hf_folder import GENERAL

PREFIXES: Mapping[str, str] = {
    "wav2vec2": "wav2vec2.",
    "hubert": "hubert.",
    "wavlm": "wavlm.",
    "data2vec-audio": "data2vec_audio.",
    "unispeech": "unispeech.",
    "unispeech-sat": "unispeech_sat.",
    "wav2vec2-conformer": "wav2vec2_conformer.",
    "wav2vec2-bert": "wav2vec2_bert.",
    "omniasr_ctc": "model.audio_tower.",
    "lasr_ctc": "encoder.",
    "granite_speech5_ctc": "encoder.",
}
"""The supported values of `model_type`, and what the names of their tensors begin with."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "data2vec-audio": {"num_conv_pos_embeddings": 5},
    "wav2vec2-conformer": {"position_embeddings_type": "relative"},
    "wav2vec2-bert": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "hidden_act": "swish",
        "position_embeddings_type": "relative_key",
    },
    "omniasr_ctc": {
        "vocab_size": 10288,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "conv_bias": True,
        "pad_token_id": 1,
    },
}
"""What a type has by default where it is not what wav2vec 2.0 has."""

CONFORMERS = ("wav2vec2-conformer", "wav2vec2-bert")
LASR, GRANITE = "lasr_ctc", "granite_speech5_ctc"
# Of configs with parts, the one that has the sizes of the network.
PARTS = {"omniasr_ctc": "audio_config", LASR: "encoder_config", GRANITE: "encoder_config"}
# What no result depends on, of types whose configs are read whole: what is neither known nor here is refused.
UNUSED = (
    *("attention_dropout", "activation_dropout", "hidden_dropout", "feat_proj_dropout", "final_dropout", "dropout"),
    *("conformer_conv_dropout", "dropout_positions", "layerdrop", "apply_spec_augment", "mask_time_prob"),
    *("mask_time_length", "mask_time_min_masks", "mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"),
    *("ctc_loss_reduction", "ctc_zero_infinity", "feat_quantizer_dropout", "num_negatives", "codevector_dim"),
    *("num_codevectors_per_group", "num_codevector_groups", "contrastive_logits_temperature", "proj_codevector_dim"),
    *("diversity_loss_weight", "use_weighted_layer_sum", "classifier_proj_size", "tdnn_dim", "tdnn_kernel"),
    *("tdnn_dilation", "xvector_output_dim", "batch_norm_momentum", "gradient_checkpointing", "feat_extract_dropout"),
    *("hidden_dropout_prob", "mask_channel_prob", "mask_channel_length", "mask_channel_selection"),
    *("mask_channel_other", "mask_channel_min_space", "mask_time_selection", "mask_time_other", "mask_time_min_space"),
    # Of what is not exported, or of tables that are as long as they need to be.
    *("add_adapter", "adapter_kernel_size", "adapter_stride", "num_adapter_layers", "adapter_act"),
    *("use_intermediate_ffn_before_adapter", "output_hidden_size", "max_source_positions", "max_position_embeddings"),
    "num_feat_extract_layers",
)

# A config may come from a stranger, and modules are made by these numbers.
Size = Annotated[int, Field(gt=0, le=2**16)]
Layers = Annotated[int, Field(gt=0, le=1024)]
Id = Annotated[int, Field(ge=0)]
Distance = Annotated[int, Field(ge=0, le=2**16)]
Sizes = Annotated[tuple[Size, ...], Field(min_length=1, max_length=32)]
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "selu", "silu", "swish"]


class ModelConfig(BaseModel):
    """The fields of config.json under upstream's names. Those that matter in training alone are not read.

    `conv_kernel`, `conv_stride`: of the convolutions over samples. `num_conv_pos_embeddings`: the width of the
    positional convolution in frames; of data2vec their number, where `conv_pos_kernel_size` is the width.
    `position_embeddings_type` and what follows are of conformers, `blank_token_id` of types that have a tokenizer.json.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    model_type: str
    vocab_size: Size = 32
    hidden_size: Size = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    hidden_act: Activation = "gelu"
    layer_norm_eps: Annotated[float, Field(gt=0, le=1)] = 1e-5
    feat_extract_norm: Literal["group", "layer"] = "group"
    feat_extract_activation: Activation = "gelu"
    conv_dim: Sizes = (512, 512, 512, 512, 512, 512, 512)
    conv_kernel: Sizes = (10, 3, 3, 3, 3, 2, 2)
    conv_stride: Sizes = (5, 2, 2, 2, 2, 2, 2)
    conv_bias: bool = False
    feat_proj_layer_norm: bool = True
    num_conv_pos_embeddings: Size = 128
    num_conv_pos_embedding_groups: Size = 16
    conv_pos_kernel_size: Size = 19
    conv_pos_batch_norm: bool = False
    do_stable_layer_norm: bool = False
    num_buckets: Annotated[int, Field(ge=4, le=2**16)] = 320
    max_bucket_distance: Size = 800
    adapter_attn_dim: Size | None = None
    position_embeddings_type: Literal["relative", "relative_key", "rotary"] | None = None
    rotary_embedding_base: Annotated[float, Field(gt=1, le=1e9)] = 10000
    left_max_position_embeddings: Distance = 64
    right_max_position_embeddings: Distance = 8
    conv_depthwise_kernel_size: Size = 31
    feature_projection_input_dim: Size = 160
    pad_token_id: Id | None = 0
    blank_token_id: Id = 0

    @model_validator(mode="after")
    def _fits(self) -> "ModelConfig":
        if not len(self.conv_dim) == len(self.conv_kernel) == len(self.conv_stride):
            raise ValueError("conv_dim, conv_kernel and conv_stride must be equally long")
        if any(kernel < stride for kernel, stride in zip(self.conv_kernel, self.conv_stride, strict=True)):
            raise ValueError(f"conv_stride {self.conv_stride} goes beyond conv_kernel {self.conv_kernel}")
        for name in ("num_attention_heads", "num_conv_pos_embedding_groups"):
            if self.hidden_size % getattr(self, name):
                raise ValueError(f"hidden_size {self.hidden_size} is no multiple of {name} {getattr(self, name)}")
        if self.is_omniasr and self.num_conv_pos_embeddings % 2:
            raise ValueError(
                f"num_conv_pos_embeddings {self.num_conv_pos_embeddings} is odd, upstream's needs two halves"
            )
        if self.model_type == "wav2vec2-conformer" and self.position_embeddings_type == "relative_key":
            raise ValueError("position_embeddings_type relative_key is of wav2vec2-bert alone")
        if self.is_conformer and not self.has_causal_convolutions and self.conv_depthwise_kernel_size % 2 == 0:
            raise ValueError(f"conv_depthwise_kernel_size {self.conv_depthwise_kernel_size} must be odd")
        if self.position_embeddings_type == "rotary" and self.hidden_size // self.num_attention_heads % 2:
            raise ValueError("rotary positions need an even number of channels in each of num_attention_heads")
        if self.is_wavlm and self.max_bucket_distance <= self.num_buckets // 4:
            raise ValueError(
                f"max_bucket_distance {self.max_bucket_distance} must be above a quarter of num_buckets "
                f"{self.num_buckets}"
            )
        return self

    @property
    def is_wavlm(self) -> bool:
        """Whether attention has relative positions."""
        return self.model_type == "wavlm"

    @property
    def is_data2vec(self) -> bool:
        """Whether there are several positional convolutions."""
        return self.model_type == "data2vec-audio"

    @property
    def is_omniasr(self) -> bool:
        """Whether it is wav2vec 2.0 with layer norms throughout, under other names."""
        return self.model_type == "omniasr_ctc"

    @property
    def blank_piece(self) -> int | None:
        """The blank, of types that have a tokenizer.json; the tokenizer of others says it."""
        return self.blank_token_id if self.is_omniasr else None

    @property
    def is_conformer(self) -> bool:
        """Whether layers have convolutions."""
        return self.model_type in CONFORMERS

    @property
    def takes_fbank(self) -> bool:
        """Whether mel bands go in, and no samples."""
        return self.model_type == "wav2vec2-bert"

    @property
    def has_causal_convolutions(self) -> bool:
        """Whether a conformer's convolutions see no later frame, and have a layer norm behind them."""
        return self.model_type == "wav2vec2-bert"

    @property
    def stable(self) -> bool:
        """Whether layer norms come before attention and feed-forward layers."""
        return (self.do_stable_layer_norm or self.is_omniasr) and not self.is_data2vec

    @property
    def group_norm(self) -> bool:
        """Whether the first convolution is normalised over the utterance, and no other at all."""
        return self.feat_extract_norm == "group" and not self.is_data2vec and not self.is_omniasr

    @property
    def language_adapter(self) -> int | None:
        """The width inside of adapters of languages; upstream gives them to stable layers alone, and not to WavLM's."""
        return self.adapter_attn_dim if self.do_stable_layer_norm and self.stable and not self.is_wavlm else None

    @property
    def stride(self) -> int:
        """Frames of features, or samples, from one encoder frame to the next."""
        return 1 if self.takes_fbank else math.prod(self.conv_stride)

    @property
    def reach(self) -> int:
        """Frames of features, or samples, that an encoder frame is made of: 400 samples of usual models."""
        width = 1
        if self.takes_fbank:
            return width
        for kernel, stride in reversed(list(zip(self.conv_kernel, self.conv_stride, strict=True))):
            width = (width - 1) * stride + kernel
        return width


Weights = Annotated[tuple[Annotated[float, Field(ge=-1e3, le=1e3)], ...], Field(min_length=2, max_length=2)]


class Rotary(BaseModel):
    """`rope_parameters`; nothing but what changes no result may stand beside them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rope_type: Literal["default"] = "default"
    rope_theta: Annotated[float, Field(gt=1, le=1e9)] = 10000.0


class LasrConfig(BaseModel):
    """The fields of LASR's config.json, as `ModelConfig` has them; those of the encoder stand in a part of their own.

    `feed_forward_residual_weights`, `conv_residual_weights`: what the input of such a layer and its result are
    multiplied with before they are added. `head_dim`: of models that have the usual one alone.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    model_type: str
    vocab_size: Size = 512
    pad_token_id: Id = 0
    hidden_size: Size = 512
    num_hidden_layers: Layers = 17
    num_attention_heads: Size = 8
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    intermediate_size: Size = 2048
    hidden_act: Activation = "silu"
    attention_bias: bool = False
    convolution_bias: bool = False
    conv_kernel_size: Size = 32
    subsampling_conv_channels: Size = 256
    subsampling_conv_kernel_size: Size = 5
    subsampling_conv_stride: Size = 2
    num_mel_bins: Size = 128
    layer_norm_eps: Annotated[float, Field(gt=0, le=1)] = 1e-6
    feed_forward_residual_weights: Weights = (1.5, 0.5)
    conv_residual_weights: Weights = (2.0, 1.0)
    rope_parameters: Rotary | None = None

    @model_validator(mode="after")
    def _fits(self) -> "LasrConfig":
        size, rest = divmod(self.hidden_size, self.num_attention_heads)
        if rest or size % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} must have an even number of channels for each of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.head_dim not in (None, size):
            raise ValueError(f"head_dim {self.head_dim} is not hidden_size by num_attention_heads, {size}")
        _check_key_heads(self)
        if self.subsampling_conv_kernel_size < self.subsampling_conv_stride:
            raise ValueError("subsampling_conv_stride goes beyond subsampling_conv_kernel_size")
        return self

    @property
    def rotary(self) -> Rotary:
        """The positions of attention."""
        return self.rope_parameters or Rotary()

    @property
    def blank_piece(self) -> int | None:
        """The blank."""
        return self.pad_token_id

    @property
    def language_adapter(self) -> int | None:
        """There is none."""
        return None

    @property
    def stride(self) -> int:
        """Frames of features from one encoder frame to the next."""
        return self.subsampling_conv_stride**2

    @property
    def reach(self) -> int:
        """Frames of features that an encoder frame is made of."""
        return (self.subsampling_conv_kernel_size - 1) * (self.subsampling_conv_stride + 1) + 1


class GraniteConfig(BaseModel):
    """The fields of Granite Speech 5's config.json, as `ModelConfig` has them; those of the encoder stand in a part.

    `context_size`: frames of a block of attention. `subsample_layers`: places of those that halve the frames.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    model_type: str
    vocab_size: Size = 16384
    pad_token_id: Id = 0
    hidden_size: Size = 1024
    num_hidden_layers: Layers = 16
    num_attention_heads: Size = 8
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    intermediate_size: Size = 4096
    hidden_act: Activation = "silu"
    attention_bias: bool = True
    num_mel_bins: Size = 80
    max_position_embeddings: Size = 512
    context_size: Size = 128
    conv_kernel_size: Size = 7
    conv_expansion_factor: Annotated[int, Field(gt=0, le=16)] = 2
    subsample_layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=8)] = (0, 1)

    @field_validator("subsample_layers", mode="before")
    @classmethod
    def _usual(cls, places: Any) -> Any:
        return (0, 1) if places is None else places

    @model_validator(mode="after")
    def _fits(self) -> "GraniteConfig":
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is no multiple of num_attention_heads {self.num_attention_heads}"
            )
        _check_key_heads(self)
        if self.conv_kernel_size % 2 == 0:
            raise ValueError(f"conv_kernel_size {self.conv_kernel_size} must be odd")
        if self.context_size > self.max_position_embeddings:
            raise ValueError(
                f"context_size {self.context_size} goes beyond max_position_embeddings {self.max_position_embeddings}"
            )
        places = self.subsample_layers
        if len(set(places)) < len(places) or any(each >= self.num_hidden_layers for each in places):
            raise ValueError(
                f"subsample_layers {places} should be places of {self.num_hidden_layers} layers, each once"
            )
        return self

    @property
    def size(self) -> int:
        """Channels of a head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def blank_piece(self) -> int | None:
        """The blank."""
        return self.pad_token_id

    @property
    def language_adapter(self) -> int | None:
        """There is none."""
        return None

    @property
    def stride(self) -> int:
        """Frames of features from one encoder frame to the next."""
        return 2 ** len(self.subsample_layers)

    @property
    def reach(self) -> int:
        """Frames of features that there must be for an encoder frame."""
        return self.stride


def _check_key_heads(config: "LasrConfig | GraniteConfig") -> None:
    if config.num_key_value_heads not in (None, config.num_attention_heads):
        raise ValueError(
            f"num_key_value_heads {config.num_key_value_heads} is not num_attention_heads {config.num_attention_heads}"
        )


AnyConfig = ModelConfig | LasrConfig | GraniteConfig
KINDS: Mapping[str, type[AnyConfig]] = {LASR: LasrConfig, GRANITE: GraniteConfig}
WHOLE = (*CONFORMERS, *PARTS)  # types of which no unknown setting is passed over


def parse_config(content: Mapping[str, Any], origin: str) -> AnyConfig:
    """Read the content of config.json.

    Raises:
        ExportError: it is of another kind of model, or something in it is missing, misshapen or unsupported.
    """
    model_type = str(content.get("model_type"))
    if model_type not in PREFIXES:
        raise ExportError(
            f"{origin} has model_type {model_type[:80]!r}; this command exports CTC models of type "
            f"{', '.join(PREFIXES)}. `tritone inspect FOLDER` says which command exports a folder"
        )
    if content.get("add_adapter"):
        raise ExportError(
            f"{origin} has add_adapter: true, convolutions after the encoder, which are not supported. Adapters of "
            "MMS (adapter_attn_dim) are."
        )
    if content.get("use_intermediate_ffn_before_adapter"):
        raise ExportError(f"{origin} has use_intermediate_ffn_before_adapter: true, which is not supported")
    part = content.get(PARTS.get(model_type, ""), {})
    if not isinstance(part, dict):
        raise ExportError(f"{origin}: {PARTS[model_type]} should hold settings by name")
    if model_type == "omniasr_ctc" and "hidden_act" in part:
        part = {**part, "feat_extract_activation": part["hidden_act"]}
    kind = KINDS.get(model_type, ModelConfig)
    if model_type in WHOLE:
        known = {*kind.model_fields, *GENERAL, *UNUSED, *PARTS.values()}
        if unknown := [str(key) for key in (*content, *part) if key not in known]:
            raise ExportError(
                f"{origin} has {', '.join(unknown[:10])}, which models of type {model_type} do not have in "
                "transformers 5.24, and which may change results"
            )
    if content.get("vocab_size", size := part.get("vocab_size")) != size is not None:
        raise ExportError(f"{origin} has vocab_size {content['vocab_size']}, but {size} in {PARTS[model_type]}")
    try:
        return kind.model_validate({**DEFAULTS.get(model_type, {}), **part, **content})
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, each['loc'])) or 'sizes'}: {each['msg']}" for each in error.errors()[:5]]
        raise ExportError(f"{origin} cannot be used: {'; '.join(faults)}") from error
