"""WeSpeaker's `config.yaml` as typed settings.

    dict of config.yaml  ->  ModelConfig

`model` names a class or a function of upstream's, `model_args` are its arguments: an unknown or missing one is an
error, as it is upstream. `dataset_args` says how features are made. What matters in training alone is skipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tritone.audio.fbank import SAMPLE_SCALE
from tritone.errors import ExportError
from tritone.families.export.settings import Section, shown

Pooling: TypeAlias = Literal["TSTP", "TAP", "TSDP", "ASTP", "MHASTP", "MQMHASTP"]
Window: TypeAlias = Literal["hamming", "povey"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
VARIANCE_GUARD = 1e-7  # under the root of a pooling's variance
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
RESNET_KEYS = ("feat_dim", "embed_dim", "two_emb_layer", "pooling_func", "m_channels")
CAMPPLUS_KEYS = (*("feat_dim", "embed_dim", "pooling_func", "growth_rate", "bn_size", "init_channels", "config_str"),)
ECAPA_KEYS = ("feat_dim", "embed_dim", "pooling_func", "emb_bn")
ECAPA_CLASS_KEYS = ("channels", "global_context_att")
FBANK_KEYS = ("num_mel_bins", "frame_length", "frame_shift", "dither")  # noise is of training alone


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """`blocks`: of each of the four stages. `width`: channels of the first stage. `variance_guard`: of the pooling."""

    bottleneck: bool
    blocks: tuple[int, int, int, int]
    feat_dim: int
    embed_dim: int
    pooling: Pooling = "TSTP"
    two_emb_layer: bool = False
    width: int = 32
    variance_guard: float = VARIANCE_GUARD

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
    variance_guard: float = VARIANCE_GUARD

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
    """Kaldi filterbanks, and what is done to each utterance's. No config tells `window` and `sample_scale`."""

    sample_rate: int = 16000
    num_mel_bins: int = 80
    frame_length_ms: float = 25.0
    frame_shift_ms: float = 10.0
    subtract_mean: bool = True
    divide_by_deviation: bool = False
    window: Window = "hamming"
    sample_scale: float = SAMPLE_SCALE

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
    whole = Section("config", content)
    name = whole.get("model", None)
    if name not in MODELS:
        raise ExportError(f"config: model is {shown(name)}; this version reads {', '.join(MODELS)}")
    network = _network(name, whole)
    features, num_frames = _features(whole, network.feat_dim)
    return ModelConfig(name=name, network=network, features=features, num_frames=num_frames)


def _network(name: str, whole: Section) -> NetworkConfig:
    keys = RESNET_KEYS if name in RESNETS else CAMPPLUS_KEYS if name == CAMPPLUS else ECAPA_KEYS
    args = whole.part("model_args", (*keys, *ECAPA_CLASS_KEYS) if name == ECAPA_CLASS else keys)

    def size(key: str, *default: int) -> int:
        return args.whole(key, *default, least=1, most=MAX_SIZE)

    def pooling(usual: Pooling) -> Pooling:
        return args.choice("pooling_func", POOLINGS, usual)  # type: ignore[return-value]  # one of them

    if name in RESNETS:
        bottleneck, blocks = RESNETS[name]
        return ResNetConfig(
            bottleneck=bottleneck,
            blocks=blocks,
            feat_dim=size("feat_dim"),
            embed_dim=size("embed_dim"),
            two_emb_layer=args.flag("two_emb_layer", False),
            pooling=pooling("TSTP"),
            width=size("m_channels", 32),  # upstream's class has it, its functions do not pass it on
        )
    if name == CAMPPLUS:
        return CamPPlusConfig(
            feat_dim=size("feat_dim", 80),
            embed_dim=size("embed_dim", 512),
            pooling=pooling("TSTP"),
            growth_rate=size("growth_rate", 32),
            bn_size=size("bn_size", 4),
            init_channels=size("init_channels", 128),
            nonlinearities=_nonlinearities(str(args.get("config_str", "batchnorm-relu"))),
        )
    channels, global_context = ECAPAS.get(name) or (size("channels", 512), args.flag("global_context_att", False))
    return EcapaConfig(
        channels=channels,
        feat_dim=size("feat_dim", *([80] if name == ECAPA_CLASS else [])),
        embed_dim=size("embed_dim", *([192] if name == ECAPA_CLASS else [])),
        pooling=pooling("ASTP"),
        global_context=global_context,
        emb_bn=args.flag("emb_bn", False),
    )


def _features(whole: Section, feat_dim: int) -> tuple[FeatureConfig, int]:
    """What `dataset_args` says, and in configs of 2022 `feature_args` and what is beside it."""
    data, old = whole.part("dataset_args"), whole.part("feature_args")
    if (frontend := data.get("frontend", "fbank")) != "fbank":
        raise ExportError(
            f"dataset_args.frontend is {shown(frontend)}: that network takes another one's outputs. "
            "Models on filterbanks (fbank) can be exported, and no others"
        )
    fbank = (data if "fbank_args" in data else whole).part("fbank_args", FBANK_KEYS)
    bins = 80
    if "feature_args" in whole and not any(key in fbank for key in FBANK_KEYS):
        bins = old.whole("feat_dim", feat_dim, least=1, most=MAX_SIZE)
    statistics = data.part("cmvn_args", ("norm_mean", "norm_var"))
    mean, deviation = statistics.flag("norm_mean", True), statistics.flag("norm_var", False)
    cmvn = data.flag("cmvn", True)
    features = FeatureConfig(
        sample_rate=data.whole("resample_rate", 16000, least=1),
        num_mel_bins=fbank.whole("num_mel_bins", bins, least=1, most=MAX_SIZE),
        frame_length_ms=fbank.number("frame_length", 25),
        frame_shift_ms=fbank.number("frame_shift", 10),
        subtract_mean=cmvn and mean,
        divide_by_deviation=cmvn and deviation,
    )
    # The old section wins, as in upstream's exporter.
    return features, (old if "feature_args" in whole else data).whole("num_frms", 200, least=1, most=MAX_SIZE)


def _nonlinearities(text: str) -> tuple[str, ...]:
    names = tuple(text.split("-"))
    if unknown := [name for name in names if name not in NONLINEARITIES]:
        raise ExportError(
            f"config: model_args.config_str is {shown(text)}; {shown(unknown[0])} is none of "
            f"{', '.join(NONLINEARITIES)}"
        )
    if len({name.rstrip("_") for name in names}) < len(names):
        raise ExportError(f"config: model_args.config_str is {shown(text)}; it says one thing twice")
    return names


def _check_bins(feat_dim: int) -> None:
    if feat_dim % FREQUENCY_STRIDE:
        raise ExportError(
            f"config: model_args.feat_dim is {feat_dim}; ResNets and CAM++ need a multiple of {FREQUENCY_STRIDE}, as "
            "upstream does"
        )
