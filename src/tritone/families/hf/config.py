"""What config.json says of a network, as far as its results depend on it.

    config.json  ->  ModelConfig

transformers leaves out what has its default value, so the defaults here are those of its configuration classes
(models/wav2vec2/configuration_wav2vec2.py and its relatives).
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tritone.errors import ExportError

PREFIXES: Mapping[str, str] = {
    "wav2vec2": "wav2vec2.",
    "hubert": "hubert.",
    "wavlm": "wavlm.",
    "data2vec-audio": "data2vec_audio.",
    "unispeech": "unispeech.",
    "unispeech-sat": "unispeech_sat.",
}
"""The supported values of `model_type`, and what the names of their tensors begin with."""

DATA2VEC_DEFAULTS = {"num_conv_pos_embeddings": 5}

# A config may come from a stranger, and modules are made by these numbers.
Size = Annotated[int, Field(gt=0, le=2**16)]
Layers = Annotated[int, Field(gt=0, le=1024)]
Sizes = Annotated[tuple[Size, ...], Field(min_length=1, max_length=32)]
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "selu", "silu", "swish"]


class ModelConfig(BaseModel):
    """The fields of config.json under upstream's names. Those that matter in training alone are not read.

    `conv_kernel`, `conv_stride`: of the convolutions over samples. `num_conv_pos_embeddings`: the width of the
    positional convolution in frames; of data2vec their number, where `conv_pos_kernel_size` is the width.
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
    pad_token_id: Annotated[int, Field(ge=0)] | None = 0

    @model_validator(mode="after")
    def _fits(self) -> "ModelConfig":
        if not len(self.conv_dim) == len(self.conv_kernel) == len(self.conv_stride):
            raise ValueError("conv_dim, conv_kernel and conv_stride must be equally long")
        if any(kernel < stride for kernel, stride in zip(self.conv_kernel, self.conv_stride, strict=True)):
            raise ValueError(f"conv_stride {self.conv_stride} goes beyond conv_kernel {self.conv_kernel}")
        for name in ("num_attention_heads", "num_conv_pos_embedding_groups"):
            if self.hidden_size % getattr(self, name):
                raise ValueError(f"hidden_size {self.hidden_size} is no multiple of {name} {getattr(self, name)}")
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
    def stable(self) -> bool:
        """Whether layer norms come before attention and feed-forward layers."""
        return self.do_stable_layer_norm and not self.is_data2vec

    @property
    def group_norm(self) -> bool:
        """Whether the first convolution is normalised over the utterance, and no other at all."""
        return self.feat_extract_norm == "group" and not self.is_data2vec

    @property
    def language_adapter(self) -> int | None:
        """The width inside of adapters of languages; upstream gives them to stable layers alone, and not to WavLM's."""
        return self.adapter_attn_dim if self.stable and not self.is_wavlm else None

    @property
    def stride(self) -> int:
        """Samples from one frame to the next."""
        return math.prod(self.conv_stride)

    @property
    def reach(self) -> int:
        """Samples that a frame is made of: 400 of usual models."""
        width = 1
        for kernel, stride in reversed(list(zip(self.conv_kernel, self.conv_stride, strict=True))):
            width = (width - 1) * stride + kernel
        return width


def parse_config(content: Mapping[str, Any], origin: str) -> ModelConfig:
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
    defaults = DATA2VEC_DEFAULTS if model_type == "data2vec-audio" else {}
    try:
        return ModelConfig.model_validate({**defaults, **content})
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, each['loc'])) or 'sizes'}: {each['msg']}" for each in error.errors()[:5]]
        raise ExportError(f"{origin} cannot be used: {'; '.join(faults)}") from error
