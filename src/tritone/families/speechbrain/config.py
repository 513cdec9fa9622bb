"""SpeechBrain's `hyperparams.yaml` as typed settings.

    hyperparams.yaml  ->  ModelConfig

The file is a program for HyperPyYAML: `!new:CLASS` makes an object, `!ref <NAME>` repeats another value. Nothing of it
runs here: a tag is kept as a word beside what it is on, classes are compared with those that are known, and a reference
is followed where it names another value and nothing more. All other settings are left alone.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tritone.errors import ExportError
from tritone.families.export.settings import Section, read_bytes, shown
from tritone.yaml_text import read_yaml

NETWORK = "speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN"
FBANK = "speechbrain.lobes.features.Fbank"
NORMALISATION = "speechbrain.processing.features.InputNormalization"
MAX_SIZE = 2**16
MAX_BLOCKS = 64
MAX_REFERENCES = 16  # one that leads to the next
FBANK_FIXED = {"deltas": False, "context": False, "requires_grad": False, "filter_shape": "triangular"}
FBANK_UNUSED = ("param_change_factor", "param_rand_factor", "left_frames", "right_frames")  # with these values of those
FBANK_KEYS = ("sample_rate", "f_min", "f_max", "n_fft", "n_mels", "win_length", "hop_length")
NORMALISATION_UNUSED = ("avoid_padding_norm", "epsilon", "device", "length_dim", "update_until_epoch")
NETWORK_KEYS = (
    *("input_size", "lin_neurons", "activation", "channels", "kernel_sizes", "dilations", "attention_channels"),
    *("res2net_scale", "se_channels", "global_context", "groups"),
)
NETWORK_UNUSED = ("device", "dropout")  # of training


@dataclass(frozen=True)
class Tagged:
    """A value with a tag of HyperPyYAML's, such as `new:speechbrain.lobes.features.Fbank`, of which nothing is made."""

    tag: str
    value: Any


class _Loader(yaml.SafeLoader):
    """Plain YAML, in which tags are words."""


def _tagged(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> Tagged:
    if isinstance(node, yaml.MappingNode):
        return Tagged(tag, loader.construct_mapping(node, deep=True))
    if isinstance(node, yaml.SequenceNode):
        return Tagged(tag, loader.construct_sequence(node, deep=True))
    return Tagged(tag, node.value)


_Loader.add_multi_constructor("!", _tagged)


@dataclass(frozen=True, kw_only=True)
class FbankConfig:
    """Mel bands in decibels; `frame_length`, `frame_shift`, `n_fft` in samples, `low_freq`, `high_freq` in Hz."""

    sample_rate: int = 16000
    frame_length: int = 400
    frame_shift: int = 160
    n_fft: int = 400
    num_mel_bins: int = 80
    low_freq: float = 0.0
    high_freq: float = 8000.0

    def __post_init__(self) -> None:
        if not 2 <= self.frame_length <= self.n_fft or self.n_fft % 2 or not 0 < self.frame_shift <= self.frame_length:
            raise ExportError(
                f"compute_features: windows of {self.frame_length} samples every {self.frame_shift} with n_fft "
                f"{self.n_fft}; a window has 2 samples or more, n_fft is even and as long or longer, and steps are no "
                "longer than the window"
            )
        if not 0 <= self.low_freq < self.high_freq <= self.sample_rate / 2:
            raise ExportError(
                f"compute_features: f_min {self.low_freq:g} and f_max {self.high_freq:g} should lie between 0 and half "
                f"the sample rate ({self.sample_rate / 2:g} Hz), the lower one first"
            )


@dataclass(frozen=True, kw_only=True)
class EcapaConfig:
    """`channels`, `kernel_sizes`, `dilations`: of the first layer, of each block, and of the layer that joins them."""

    input_size: int = 80
    embed_dim: int = 192
    channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    attention_channels: int = 128
    res2net_scale: int = 8
    se_channels: int = 128
    global_context: bool = True

    def __post_init__(self) -> None:
        if not len(self.channels) == len(self.kernel_sizes) == len(self.dilations) >= 3:
            raise ExportError(
                f"embedding_model: channels, kernel_sizes and dilations have {len(self.channels)}, "
                f"{len(self.kernel_sizes)} and {len(self.dilations)} numbers; expected as many of each, at least 3"
            )
        if even := [each for each in self.kernel_sizes if each % 2 == 0]:
            raise ExportError(f"embedding_model: kernel_sizes has {even[0]}; only odd ones keep the number of frames")
        if any(each % self.res2net_scale for each in self.channels[1:-1]):
            raise ExportError(
                f"embedding_model: channels of blocks ({', '.join(map(str, self.channels[1:-1]))}) must be multiples "
                f"of res2net_scale, {self.res2net_scale}"
            )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What a model is made of."""

    network: EcapaConfig
    features: FbankConfig

    def __post_init__(self) -> None:
        if self.network.input_size != self.features.num_mel_bins:
            raise ExportError(
                f"embedding_model: input_size is {self.network.input_size}, but compute_features has "
                f"{self.features.num_mel_bins} bands (n_mels); both have to be one number"
            )


def read_config(path: Path) -> ModelConfig:
    """Read a `hyperparams.yaml`.

    Raises:
        ExportError: it is unreadable, or something in it is missing, unknown or not supported; the message names it.
    """
    content = read_yaml(read_bytes(path, "config"), f"config {path}", ExportError, _Loader)
    if not isinstance(content, Mapping):
        raise ExportError(f"config {path} should hold settings (key: value), it holds one {type(content).__name__}")
    parts = _Parts(content)
    normalisation = parts.object(
        "mean_var_norm", NORMALISATION, ("mean_norm", "std_norm", "norm_type"), NORMALISATION_UNUSED
    )
    wanted = {"norm_type": "sentence", "std_norm": False, "mean_norm": True}
    found = {key: normalisation.get(key, {"norm_type": "global"}.get(key, True)) for key in wanted}
    if found != wanted:
        raise ExportError(f"mean_var_norm has {shown(found)}; this version reads {wanted}, as published models have")
    return ModelConfig(network=_network(parts), features=_features(parts))


class _Parts:
    """The objects of a config, with references followed."""

    def __init__(self, content: Mapping[Any, Any]) -> None:
        self.content = content
        modules = content.get("modules")
        self.modules = modules if isinstance(modules, Mapping) else {}

    def object(self, name: str, of: str, keys: Collection[str], unused: Collection[str]) -> Section:
        """The arguments of an object, which is to be of a class: of the module of this name, or the setting."""
        value = self.followed(self.modules.get(name, Tagged("ref", f"<{name}>")), name)
        tag = value.tag if isinstance(value, Tagged) else ""
        if tag.partition(":")[2] != of or not tag.startswith("new:"):
            raise ExportError(f"config: {name} is {tag or shown(value)}; expected !new:{of}, which alone can be read")
        assert isinstance(value, Tagged)
        arguments = value.value if isinstance(value.value, Mapping) else {}
        known = {key: self.followed(each, f"{name}.{key}") for key, each in arguments.items() if key not in unused}
        return Section(name, known, keys)

    def followed(self, value: Any, name: str) -> Any:
        """What a value is, wherever it stands; `name` is for errors."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(value, Tagged) or value.tag != "ref":
                return value
            text = str(value.value).strip()
            key = text[1:-1]
            if text != f"<{key}>" or key not in self.content:
                raise ExportError(f"config: {name} is !ref {shown(text)}; only the name of another setting is followed")
            value = self.content[key]
        raise ExportError(f"config: {name} is a reference that leads nowhere")


def _features(parts: _Parts) -> FbankConfig:
    fbank = parts.object("compute_features", FBANK, (*FBANK_KEYS, *FBANK_FIXED), FBANK_UNUSED)
    for key, usual in FBANK_FIXED.items():
        if (value := fbank.get(key, usual)) != usual:
            raise ExportError(f"compute_features.{key} is {shown(value)}; this version reads {usual} alone")
    rate = fbank.whole("sample_rate", 16000, least=1000, most=768_000)
    return FbankConfig(
        sample_rate=rate,
        frame_length=round(rate / 1000 * fbank.number("win_length", 25)),
        frame_shift=round(rate / 1000 * fbank.number("hop_length", 10)),
        n_fft=fbank.whole("n_fft", 400, least=2, most=2**13),
        num_mel_bins=fbank.whole("n_mels", 40, least=1, most=2**10),
        low_freq=fbank.number("f_min", 0),
        high_freq=fbank.number("f_max", rate // 2),
    )


def _network(parts: _Parts) -> EcapaConfig:
    args = parts.object("embedding_model", NETWORK, NETWORK_KEYS, NETWORK_UNUSED)
    activation = args.get("activation", None)
    if activation is not None and not (isinstance(activation, Tagged) and activation.tag.endswith(".ReLU")):
        raise ExportError(f"embedding_model.activation is {shown(activation)}; this version reads ReLU alone")

    def size(key: str, *default: int) -> int:
        return args.whole(key, *default, least=1, most=MAX_SIZE)

    def sizes(key: str, usual: tuple[int, ...]) -> tuple[int, ...]:
        values = args.get(key, usual)
        whole = isinstance(values, list | tuple) and all(type(each) is int and 0 < each <= MAX_SIZE for each in values)
        if not whole or len(values) > MAX_BLOCKS:
            raise ExportError(f"embedding_model.{key} is {shown(values)}, expected whole numbers from 1 to {MAX_SIZE}")
        return tuple(values)

    usual = EcapaConfig()
    if any(each != 1 for each in sizes("groups", (1,))):
        raise ExportError(f"embedding_model.groups is {shown(args.get('groups'))}; this version reads 1 alone")
    return EcapaConfig(
        input_size=size("input_size"),
        embed_dim=size("lin_neurons", usual.embed_dim),
        channels=sizes("channels", usual.channels),
        kernel_sizes=sizes("kernel_sizes", usual.kernel_sizes),
        dilations=sizes("dilations", usual.dilations),
        attention_channels=size("attention_channels", usual.attention_channels),
        res2net_scale=size("res2net_scale", usual.res2net_scale),
        se_channels=size("se_channels", usual.se_channels),
        global_context=args.flag("global_context", usual.global_context),
    )
