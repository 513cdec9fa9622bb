"""WeSpeaker's `config.yaml` as typed settings.

    dict of config.yaml  ->  ModelConfig

`model` names a class or a function of upstream's, `model_args` are its arguments: an unknown or missing one is an
error, as it is upstream. `dataset_args` says how features are made. What matters in training alone is skipped.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from tritone.errors import ExportError
from tritone.yaml_text import read_yaml

Pooling: TypeAlias = Literal["TSTP", "TAP", "TSDP", "ASTP", "MHASTP", "MQMHASTP"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
MAX_CONFIG_BYTES = 2**20
MAX_SIZE = 2**16  # of anything: channels, bins, embeddings
MIN_RATE, MAX_RATE = 1000, 768_000  # Hz
MAX_FRAME_MS = 1000.0
FREQUENCY_STRIDE = 8  # of ResNets and CAM++: upstream's pooling fits only bins that are a multiple of it
CAMPPLUS_LAYERS = (12, 24, 16)  # of its three blocks
RES2_SCALE = 8  # slices of ECAPA's Res2 convolutions
POOLING_HEADS: Mapping[Pooling, int] = {"MHASTP": 2, "MQMHASTP": 8}

RESNETS: Mapping[str, tuple[bool, tuple[int, int, int, int]]] = {
    "ResNet18": (False, (2, 2, 2, 2)),
    "ResNet34": (False, (3, 4, 6, 3)),
    "ResNet50": (True, (3, 4, 6, 3)),
    "ResNet101": (True, (3, 4, 23, 3)),
    "ResNet152": (True, (3, 8, 36, 3)),
    "ResNet221": (True, (6, 16, 48, 3)),
    "ResNet293": (True, (10, 20, 64, 3)),
}
ECAPAS: Mapping[str, tuple[int, bool]] = {  # channels, global context
    "ECAPA_TDNN_c512": (512, False),
    "ECAPA_TDNN_c1024": (1024, False),
    "ECAPA_TDNN_GLOB_c512": (512, True),
    "ECAPA_TDNN_GLOB_c1024": (1024, True),
}
ECAPA_CLASS, CAMPPLUS = "ECAPA_TDNN", "CAMPPlus"
MODELS = (*RESNETS, ECAPA_CLASS, *ECAPAS, CAMPPLUS)
NONLINEARITIES = ("batchnorm", "batchnorm_", "relu", "prelu")

REQUIRED: Final = object()


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """`blocks`: of each of the four stages. `width`: channels of the first stage."""

    bottleneck: bool
    blocks: tuple[int, int, int, int]
    feat_dim: int
    embed_dim: int
    pooling: Pooling = "TSTP"
    two_emb_layer: bool = False
    width: int = 32

    def __post_init__(self) -> None:
        _check_bins(self.feat_dim)  # what is pooled has a multiple of 8 channels then, as many heads as any pooling has


@dataclass(frozen=True, kw_only=True)
class EcapaConfig:
    """`global_context`: attention of the pooling sees the utterance's mean and deviation too (the GLOB models)."""

    channels: int = 512
    feat_dim: int = 80
    embed_dim: int = 192
    pooling: Pooling = "ASTP"
    global_context: bool = False
    emb_bn: bool = False

    def __post_init__(self) -> None:
        if self.channels % RES2_SCALE:
            raise ExportError(f"config: model_args.channels is {self.channels}, not a multiple of {RES2_SCALE}")


@dataclass(frozen=True, kw_only=True)
class CamPPlusConfig:
    """`nonlinearities`: what comes after (or before) each convolution, of `config_str`."""

    feat_dim: int = 80
    embed_dim: int = 512
    pooling: Pooling = "TSTP"
    growth_rate: int = 32
    bn_size: int = 4
    init_channels: int = 128
    nonlinearities: tuple[str, ...] = ("batchnorm", "relu")

    def __post_init__(self) -> None:
        _check_bins(self.feat_dim)
        if self.bn_size * self.growth_rate < 2:
            raise ExportError("config: model_args.bn_size times growth_rate has to be 2 or more")
        channels, heads = self.init_channels, POOLING_HEADS.get(self.pooling, 1)
        for layers in CAMPPLUS_LAYERS:
            channels = (channels + layers * self.growth_rate) // 2
        if channels % heads:
            raise ExportError(
                f"config: {self.pooling} has {heads} heads, which do not divide the {channels} channels that this "
                "network pools"
            )


NetworkConfig: TypeAlias = ResNetConfig | EcapaConfig | CamPPlusConfig


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """Kaldi filterbanks with a Hamming window, and what is done to each utterance's."""

    sample_rate: int = 16000
    num_mel_bins: int = 80
    frame_length_ms: float = 25.0
    frame_shift_ms: float = 10.0
    subtract_mean: bool = True
    divide_by_deviation: bool = False

    @property
    def frame_length(self) -> int:
        """In samples, cut off as upstream cuts it off."""
        return int(self.sample_rate * self.frame_length_ms * 0.001)

    @property
    def frame_shift(self) -> int:
        """In samples."""
        return int(self.sample_rate * self.frame_shift_ms * 0.001)

    def __post_init__(self) -> None:
        if not MIN_RATE <= self.sample_rate <= MAX_RATE:
            raise ExportError(
                f"config: resample_rate is {self.sample_rate} Hz, expected a number from {MIN_RATE} to {MAX_RATE}"
            )
        for name, value in (("frame_length", self.frame_length_ms), ("frame_shift", self.frame_shift_ms)):
            if not 0 < value <= MAX_FRAME_MS:
                raise ExportError(
                    f"config: fbank_args.{name} is {value:g} ms, expected more than 0 and at most {MAX_FRAME_MS:g}"
                )
        if self.frame_length < 2 or self.frame_shift < 1:
            raise ExportError(
                f"config: fbank_args asks for windows of {self.frame_length} samples every {self.frame_shift}; "
                "expected 2 or more, every 1 or more"
            )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """`name`: of upstream's model. `num_frames`: of crops in training, and of the dummy that upstream exports with."""

    name: str
    network: NetworkConfig
    features: FeatureConfig
    num_frames: int = 200

    def __post_init__(self) -> None:
        if self.network.feat_dim != self.features.num_mel_bins:
            raise ExportError(
                f"config: model_args.feat_dim is {self.network.feat_dim}, but fbank_args.num_mel_bins is "
                f"{self.features.num_mel_bins}; the network reads the filterbanks, so both have to be one number"
            )


def parse_config(content: Any) -> ModelConfig:
    """Typed settings of upstream's config.

    Raises:
        ExportError: something is missing, unknown, of a wrong type, or not supported; the message names it.
    """
    if not isinstance(content, Mapping):
        raise ExportError(f"config should hold settings (key: value), it holds one {type(content).__name__}")
    name = content.get("model")
    if name not in MODELS:
        raise ExportError(f"config: model is {reprlib.repr(name)}; this version reads {', '.join(MODELS)}")
    network = _network(name, _Section(content, "model_args"))
    features, num_frames = _features(content, network.feat_dim)
    return ModelConfig(name=name, network=network, features=features, num_frames=num_frames)


def read_config_file(path: Path) -> Any:
    """What a config.yaml holds, whatever that is.

    Raises:
        ExportError: it is missing, too large, or no YAML.
    """
    if not path.is_file():
        raise ExportError(f"config not found: {path}")
    if (size := path.stat().st_size) > MAX_CONFIG_BYTES:
        raise ExportError(f"config {path} has {size} bytes; more than {MAX_CONFIG_BYTES} cannot be right")
    return read_yaml(path.read_bytes(), f"config {path}", ExportError)


class _Section:
    """Settings of which each is asked for once; `close` refuses those that nobody asked for."""

    def __init__(self, parent: Mapping[str, Any], name: str, path: str | None = None) -> None:
        values = parent.get(name)
        self.path = path or name
        if values is not None and not isinstance(values, Mapping):
            raise ExportError(f"config: {self.path} should hold settings, found {reprlib.repr(values)}")
        self.values = dict(values or {})
        self.asked: list[str] = []

    def _take(self, key: str, default: Any) -> Any:
        self.asked.append(key)
        value = self.values.get(key, default)
        if value is REQUIRED:
            raise ExportError(f"config: {self.path}.{key} is missing")
        return value

    def size(self, key: str, default: Any = REQUIRED, most: int = MAX_SIZE) -> int:
        value = self._take(key, default)
        if type(value) is not int or not 1 <= value <= most:
            raise ExportError(f"config: {self.path}.{key} is {reprlib.repr(value)}, expected a number from 1 to {most}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ExportError(f"config: {self.path}.{key} is {reprlib.repr(value)}, expected a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise ExportError(f"config: {self.path}.{key} is {reprlib.repr(value)}, expected true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise ExportError(f"config: {self.path}.{key} is {reprlib.repr(value)}, expected a word")
        return value

    def pooling(self, default: Pooling) -> Pooling:
        value = self.text("pooling_func", default)
        if value not in POOLINGS:
            raise ExportError(
                f"config: {self.path}.pooling_func is {value!r}; this version reads {', '.join(POOLINGS)}"
            )
        return value

    def close(self, owner: str) -> None:
        if unknown := [str(key) for key in self.values if key not in self.asked]:
            raise ExportError(
                f"config: {self.path} holds {', '.join(unknown[:10])}, which {owner} does not know; "
                f"it knows {', '.join(self.asked)}"
            )


def _network(name: str, args: _Section) -> NetworkConfig:
    network: NetworkConfig
    if name in RESNETS:
        bottleneck, blocks = RESNETS[name]
        sizes = {"feat_dim": args.size("feat_dim"), "embed_dim": args.size("embed_dim")}
        two_emb_layer, pooling = args.flag("two_emb_layer", False), args.pooling("TSTP")
        width = args.size("m_channels", 32)  # upstream's class has it, its functions do not pass it on
        args.close(name)
        return ResNetConfig(
            bottleneck=bottleneck, blocks=blocks, two_emb_layer=two_emb_layer, pooling=pooling, width=width, **sizes
        )
    if name == CAMPPLUS:
        network = CamPPlusConfig(
            feat_dim=args.size("feat_dim", 80),
            embed_dim=args.size("embed_dim", 512),
            pooling=args.pooling("TSTP"),
            growth_rate=args.size("growth_rate", 32),
            bn_size=args.size("bn_size", 4),
            init_channels=args.size("init_channels", 128),
            nonlinearities=_nonlinearities(args.text("config_str", "batchnorm-relu")),
        )
        args.close(name)
        return network
    if name == ECAPA_CLASS:
        channels, global_context = args.size("channels", 512), args.flag("global_context_att", False)
        defaults: tuple[Any, Any] = (80, 192)
    else:
        (channels, global_context), defaults = ECAPAS[name], (REQUIRED, REQUIRED)
    network = EcapaConfig(
        channels=channels,
        feat_dim=args.size("feat_dim", defaults[0]),
        embed_dim=args.size("embed_dim", defaults[1]),
        pooling=args.pooling("ASTP"),
        global_context=global_context,
        emb_bn=args.flag("emb_bn", False),
    )
    args.close(name)
    return network


def _features(content: Mapping[str, Any], feat_dim: int) -> tuple[FeatureConfig, int]:
    """What `dataset_args` says, and in configs of 2022 `feature_args` and what is beside it."""
    data, old = _Section(content, "dataset_args"), _Section(content, "feature_args")
    frontend = data.text("frontend", "fbank")
    if frontend != "fbank":
        raise ExportError(
            f"config: dataset_args.frontend is {frontend!r}: that network hears what another one says of the waveform. "
            "Models on filterbanks (fbank) can be exported, and no others"
        )
    beside = "fbank_args" not in data.values
    fbank = (
        _Section(content, "fbank_args") if beside else _Section(data.values, "fbank_args", "dataset_args.fbank_args")
    )
    features_without_sizes = "feature_args" in content and not fbank.values
    bins = fbank.size("num_mel_bins", old.size("feat_dim", feat_dim) if features_without_sizes else 80)
    frame_length, frame_shift = fbank.number("frame_length", 25), fbank.number("frame_shift", 10)
    fbank.number("dither", 1.0)  # noise in training; extraction has none
    fbank.close("compute_fbank")
    statistics = _Section(data.values, "cmvn_args", "dataset_args.cmvn_args")
    mean, deviation = statistics.flag("norm_mean", True), statistics.flag("norm_var", False)
    statistics.close("apply_cmvn")
    cmvn = data.flag("cmvn", True)
    features = FeatureConfig(
        sample_rate=data.size("resample_rate", 16000, MAX_RATE),
        num_mel_bins=bins,
        frame_length_ms=frame_length,
        frame_shift_ms=frame_shift,
        subtract_mean=cmvn and mean,
        divide_by_deviation=cmvn and deviation,
    )
    # The old section wins, as in upstream's exporter.
    return features, (old if "feature_args" in content else data).size("num_frms", 200)


def _nonlinearities(text: str) -> tuple[str, ...]:
    names = tuple(text.split("-"))
    if unknown := [name for name in names if name not in NONLINEARITIES]:
        raise ExportError(
            f"config: model_args.config_str is {reprlib.repr(text)}; {reprlib.repr(unknown[0])} is none of "
            f"{', '.join(NONLINEARITIES)}"
        )
    if len({name.rstrip("_") for name in names}) < len(names):
        raise ExportError(f"config: model_args.config_str is {reprlib.repr(text)}; it says one thing twice")
    return names


def _check_bins(feat_dim: int) -> None:
    if feat_dim % FREQUENCY_STRIDE:
        raise ExportError(
            f"config: model_args.feat_dim is {feat_dim}; ResNets and CAM++ need a multiple of {FREQUENCY_STRIDE}, as "
            "upstream does"
        )
