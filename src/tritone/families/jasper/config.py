"""Upstream's yaml config as typed settings.

    dict of jasper10x5dr_….yaml or of a QuartzNet's  ->  ModelConfig

Unknown keys and missing ones are errors, as they are upstream, where each section holds the arguments of a class.
"""

import math
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tritone.errors import ExportError

Activation: TypeAlias = Literal["relu", "hardtanh", "selu"]
Normalization: TypeAlias = Literal["batch", "group", "instance", "layer"]
Normalize: TypeAlias = Literal["per-feature", "all-features", "none"]
WINDOWS = ("hann", "hamming", "blackman", "bartlett")
MAX_SIZE = 2**20  # of anything: channels, kernels, samples of a window
MAX_TABLE = 2**26  # numbers in the DFT's matrix or the filters'
MAX_BLOCKS = 1000
MAX_REPEAT = 100

DATASET_KEYS = (
    *("data_dir", "manifest_fpaths", "labels", "sample_rate", "min_duration", "max_duration", "pad_to_max_duration"),
    *("max_utts", "normalize_transcripts", "sort_by_duration", "trim_silence", "speed_perturbation"),
    *("gain_perturbation", "shift_perturbation", "ignore_offline_speed_perturbation"),
)
FEATURE_KEYS = (
    *("spec_augment", "cutout_augment", "sample_rate", "window_size", "window_stride", "window", "normalize", "n_fft"),
    *("preemph", "n_filt", "lowfreq", "highfreq", "log", "dither", "pad_align", "pad_to_max_duration"),
    *("max_duration", "frame_splicing"),
)
ENCODER_KEYS = ("in_feats", "activation", "frame_splicing", "init", "use_conv_masks", "blocks")
DECODER_KEYS = ("in_feats", "n_classes", "init")
BLOCK_KEYS = (
    *("filters", "repeat", "kernel_size", "stride", "dilation", "padding", "dropout", "residual", "residual_dense"),
)
SEPARABLE_KEYS = ("kernel_size_factor", "groups", "separable", "heads", "normalization", "norm_groups")


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """The preprocessor. `frame_length`, `frame_shift`, `n_fft` in samples; `low_freq`, `high_freq` in Hz.

    `pad_align`: upstream pads the frames of an utterance to a multiple of it, 0 for none. `preemphasis`: 0 for none.
    `max_frames`: what it pads to at least.
    """

    sample_rate: int = 16000
    frame_length: int = 320
    frame_shift: int = 160
    n_fft: int = 512
    n_filt: int = 64
    window: str = "hann"
    normalize: Normalize = "per-feature"
    preemphasis: float = 0.97
    low_freq: float = 0.0
    high_freq: float = 8000.0
    log: bool = True
    pad_align: int = 16
    max_frames: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.frame_length <= self.n_fft <= MAX_SIZE or not 0 < self.frame_shift <= MAX_SIZE:
            raise ExportError(
                f"filterbank_features: windows of {self.frame_length} samples every {self.frame_shift} do not fit into "
                f"n_fft {self.n_fft}; a window has 2 samples or more, and n_fft as many or more"
            )
        if self.n_fft * max(self.frame_length, self.n_filt) > MAX_TABLE:
            raise ExportError(
                f"filterbank_features: n_fft {self.n_fft} with {self.n_filt} filters of windows of {self.frame_length} "
                "samples cannot be right: the tables of such features would not fit into memory"
            )
        if not 0 <= self.low_freq < self.high_freq <= self.sample_rate / 2:
            raise ExportError(
                f"filterbank_features: lowfreq {self.low_freq:g} and highfreq {self.high_freq:g} should lie between 0 "
                f"and half the sample rate ({self.sample_rate / 2:g} Hz), the lower one first"
            )
        if self.window not in WINDOWS:
            raise ExportError(
                f"filterbank_features.window is {self.window!r}; upstream computes with {', '.join(WINDOWS)} alone"
            )


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One block: `repeat` times convolution and norm, with `activation` between them and after the sum.

    `kernel_size`, `stride`, `dilation` are of each convolution over frames. `residual`: the input of the block is added
    through a convolution of one frame; with `dense`, that of every block of the run. `groups`: of convolutions, and the
    channels are shuffled over them afterwards. `norm_groups`: of normalization "group", -1 for as many as filters.
    """

    filters: int
    repeat: int = 3
    kernel_size: int = 11
    stride: int = 1
    dilation: int = 1
    residual: bool = True
    dense: bool = False
    separable: bool = False
    groups: int = 1
    normalization: Normalization = "batch"
    norm_groups: int = 1

    @property
    def padding(self) -> int:
        """Frames of zeros at either end."""
        return self.kernel_size // 2 * self.dilation

    @property
    def branches(self) -> bool:
        """Whether its inputs stay in the list that the next dense block adds up."""
        return self.residual and self.dense


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything export needs. `labels` are without the blank, which upstream appends as the last class.

    `masked`: whether frames behind an utterance's end are zeroed before each convolution.
    `quartznet_names`: tensors are named as in QuartzNet's code, not in Jasper's.
    """

    labels: tuple[str, ...]
    features: FeatureConfig
    blocks: tuple[BlockConfig, ...]
    activation: Activation = "relu"
    masked: bool = True
    quartznet_names: bool = False

    def __post_init__(self) -> None:
        if not self.labels or not 0 < len(self.blocks) <= MAX_BLOCKS:
            raise ExportError(f"config: {len(self.labels)} labels and {len(self.blocks)} blocks make no model")
        _ = self.panes

    @property
    def num_classes(self) -> int:
        """Labels and the blank."""
        return len(self.labels) + 1

    @property
    def blank_id(self) -> int:
        """The last class."""
        return len(self.labels)

    @property
    def subsampling_rate(self) -> int:
        """Frames of features for one of the encoder's."""
        return math.prod(block.stride**block.repeat for block in self.blocks)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Channels that each block reads."""
        return (self.features.n_filt, *(block.filters for block in self.blocks[:-1]))

    @property
    def panes(self) -> tuple[tuple[int, ...], ...]:
        """Channels of each input that a block adds to its result, in order.

        Raises:
            ExportError: upstream cannot run such a net.
        """
        listed: list[int] = [self.features.n_filt]
        counted: list[int] = []
        result = []
        for index, (block, channels) in enumerate(zip(self.blocks, self.inputs, strict=True)):
            _check_block(f"blocks[{index}]", block, channels)
            if block.dense:
                counted.append(channels)
            if block.branches and counted != listed:
                raise ExportError(
                    f"blocks[{index}] is dense, and an earlier run of dense blocks was ended by a block that is not: "
                    "upstream still wants the inputs of that run here, which it no longer has, so such a net never "
                    "ran. Blocks with residual and residual_dense have to follow each other."
                )
            if block.residual and not block.dense and listed[0] != channels:
                raise ExportError(
                    f"blocks[{index}] adds its input, which upstream looks for where the run of dense blocks before it "
                    f"began. There are {listed[0]} channels and this block reads {channels}, so such a net never ran."
                )
            result.append(tuple(listed) if block.branches else (listed[0],) if block.residual else ())
            listed = [*listed, block.filters] if block.branches else [block.filters]
        return tuple(result)


def _check_block(where: str, block: BlockConfig, channels: int) -> None:
    if block.stride > 1 and block.dilation > 1:
        raise ExportError(f"{where}: stride ({block.stride}) and dilation ({block.dilation}) cannot both exceed 1")
    if block.residual and (block.stride > 1 or block.kernel_size % 2 == 0):
        raise ExportError(
            f"{where}: with residual, a block must give as many frames as it gets, so stride ({block.stride}) should "
            f"be 1 and kernel_size ({block.kernel_size}) odd; upstream cannot add the two either"
        )
    for name, size in (("filters", block.filters), ("the channels of its input", channels)):
        if size % block.groups:
            raise ExportError(f"{where}: {name} ({size}) are not a multiple of groups ({block.groups})")
    if block.normalization == "group" and block.norm_groups != -1 and block.filters % block.norm_groups:
        raise ExportError(f"{where}: filters ({block.filters}) are not a multiple of norm_groups ({block.norm_groups})")


def shown(value: Any) -> str:
    """A value of a file as it appears in an error: short, whatever its author made of it."""
    short = reprlib.Repr()
    short.maxlevel = 2  # lists of lists may repeat each other without bounds
    return short.repr(value)


def parse_config(config: Any) -> ModelConfig:
    """Read the content of a config.

    Raises:
        ExportError: a key is missing, unknown or of the wrong type, or names something that this version cannot read.
    """
    whole = _Section("config", config)
    kinds = [kind for kind in ("jasper", "quartznet") if kind in whole]
    if len(kinds) != 1:
        raise ExportError(
            f"config: expected a section `jasper` or one `quartznet`, found {' and '.join(kinds) or 'neither'}"
        )
    [kind] = kinds
    labels = whole.get("labels")
    if not isinstance(labels, Sequence) or not all(isinstance(label, str) and label for label in labels):
        raise ExportError(f"labels should be a list of characters, got {shown(labels)}; quote what means more to YAML")
    network = whole.section(kind)
    encoder = network.section("encoder", ENCODER_KEYS)
    features = _features(whole.section("input_val", ("audio_dataset", "filterbank_features")))
    keys = BLOCK_KEYS if kind == "jasper" else (*BLOCK_KEYS, *SEPARABLE_KEYS)
    given = encoder.get("blocks", [])
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ExportError(f"{encoder.path}.blocks should be a list of blocks, got {shown(given)}")
    blocks = [
        _block(_Section(f"{encoder.path}.blocks[{index}]", block, keys), kind == "quartznet")
        for index, block in enumerate(given)
    ]
    if (splicing := encoder.whole("frame_splicing", 1)) != 1:
        raise ExportError(f"{encoder.path}.frame_splicing is {splicing}; upstream's features know 1 alone")
    result = ModelConfig(
        labels=tuple(labels),
        features=features,
        blocks=tuple(blocks),
        activation=encoder.choice("activation", get_args(Activation)),  # type: ignore[arg-type]
        masked=encoder.flag("use_conv_masks", False),
        quartznet_names=kind == "quartznet",
    )
    decoder = network.section("decoder", DECODER_KEYS)
    for section, key, wanted, origin in (
        (encoder, "in_feats", features.n_filt, "input_val.filterbank_features.n_filt"),
        (decoder, "in_feats", blocks[-1].filters, "the filters of the last block"),
    ):
        if (found := section.whole(key)) != wanted:
            raise ExportError(f"{section.path}.{key} is {found}, but {origin} are {wanted}")
    if "n_classes" in decoder and decoder.whole("n_classes") != result.num_classes:
        raise ExportError(f"{decoder.path}.n_classes should be {result.num_classes}: the labels and the blank")
    return result


def _features(section: "_Section") -> FeatureConfig:
    dataset = section.section("audio_dataset", DATASET_KEYS)
    values = section.section("filterbank_features", FEATURE_KEYS)
    for key, default in (("sample_rate", (16000, 8000)), ("max_duration", (math.inf,) * 2)):
        both = dataset.number(key, default[0]), values.number(key, default[1])
        if both[0] != both[1]:
            raise ExportError(
                f"{key} should match in audio_dataset and filterbank_features, got {both[0]:g} and {both[1]:g}"
            )
    to_longest = values.flag("pad_to_max_duration", False)
    if dataset.flag("pad_to_max_duration", False) != to_longest:
        raise ExportError(f"pad_to_max_duration should match in {dataset.path} and {values.path}")
    if (splicing := values.whole("frame_splicing", 1)) != 1:
        raise ExportError(f"{values.path}.frame_splicing is {splicing}; upstream knows 1 alone")
    rate = values.whole("sample_rate", 8000)
    # Upstream cuts off, too.
    length = int(rate * values.number("window_size", 0.02))
    shift = int(rate * values.number("window_stride", 0.01))
    if length < 2 or shift < 1:
        raise ExportError(f"{values.path}: windows of {length} samples every {shift} cannot be right")
    longest = 0
    if to_longest:
        seconds = values.number("max_duration", math.inf)
        if not math.isfinite(seconds):
            raise ExportError(f"{values.path}.pad_to_max_duration needs a max_duration in seconds")
        longest = 1 + math.ceil((seconds * rate - length) / shift)
    names = {"per_feature": "per-feature", "all_features": "all-features"}
    return FeatureConfig(
        sample_rate=rate,
        frame_length=length,
        frame_shift=shift,
        n_fft=values.whole("n_fft", 0) or 1 << (length - 1).bit_length(),
        n_filt=values.whole("n_filt", 64, least=1),
        window=str(values.get("window", "hamming")),
        normalize=names.get(str(values.get("normalize", "per_feature")), "none"),  # type: ignore[arg-type]
        preemphasis=values.number("preemph", 0.97, empty=0.0),
        low_freq=values.number("lowfreq", 0.0),
        high_freq=values.number("highfreq", 0.0) or rate / 2,
        log=values.flag("log", True),
        pad_align=max(0, values.whole("pad_align", 8)),
        max_frames=longest,
    )


def _block(values: "_Section", odd_kernels: bool) -> BlockConfig:
    if (padding := values.get("padding", "same")) != "same":
        raise ExportError(f"{values.path}.padding is {shown(padding)}; upstream knows 'same' alone")
    if (heads := values.whole("heads", -1)) != -1:
        raise ExportError(f"{values.path}.heads is {heads}; upstream knows -1 alone")
    kernel = values.whole("kernel_size", 11, least=1)
    if odd_kernels:
        kernel = max(int(kernel * values.number("kernel_size_factor", 1.0)), 1)
        kernel += kernel % 2 == 0
    norm_groups = values.whole("norm_groups", 1)
    if norm_groups != -1 and norm_groups < 1:
        raise ExportError(f"{values.path}.norm_groups is {norm_groups}; expected 1 or more, or -1 for all")
    return BlockConfig(
        filters=values.whole("filters", least=1),
        repeat=values.whole("repeat", 3, least=1, most=MAX_REPEAT),
        kernel_size=kernel,
        stride=values.whole("stride", 1, least=1),
        dilation=values.whole("dilation", 1, least=1),
        residual=values.flag("residual", True),
        dense=values.flag("residual_dense", False),
        separable=values.flag("separable", False),
        groups=values.whole("groups", 1, least=1),
        normalization=values.choice("normalization", get_args(Normalization), "batch"),  # type: ignore[arg-type]
        norm_groups=norm_groups,
    )


_NEEDED: Any = object()


class _Section:
    """Settings with known keys; every error names the key."""

    def __init__(self, path: str, values: Any, keys: Collection[str] | None = None) -> None:
        if not isinstance(values, Mapping):
            raise ExportError(f"{path} should hold settings (key: value), found {type(values).__name__}")
        self.path, self._values = path, values
        unknown = [str(key) for key in values if keys is not None and key not in keys]
        if keys is not None and unknown:
            raise ExportError(f"{path}: unknown {', '.join(unknown[:10])}; upstream knows {', '.join(keys)}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str, default: Any = _NEEDED) -> Any:
        """A value as it is."""
        value = self._values.get(key, default)
        if value is _NEEDED:
            raise ExportError(f"{self.path}.{key} is missing")
        return value

    def section(self, key: str, keys: Collection[str] | None = None) -> "_Section":
        path = key if self.path == "config" else f"{self.path}.{key}"
        return _Section(path, self.get(key), keys)

    def number(self, key: str, default: float = _NEEDED, *, empty: float | None = None) -> float:
        """A number; `empty` is what an empty value stands for, by default the default."""
        value = self.get(key, default)
        if value is None and default is not _NEEDED:
            return default if empty is None else empty
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise ExportError(f"{self.path}.{key} is {shown(value)}, expected a number")
        return float(value)

    def whole(self, key: str, default: int = _NEEDED, *, least: int | None = None, most: int = MAX_SIZE) -> int:
        """A whole number, which may be alone in a list."""
        value = self.get(key, default)
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:
            [value] = value
        if value is None and default is not _NEEDED:
            value = default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ExportError(f"{self.path}.{key} is {shown(value)}, expected a whole number")
        if not (value if least is None else least) <= value <= most:
            raise ExportError(f"{self.path}.{key} is {value}, expected {least} to {most}")
        return value

    def flag(self, key: str, default: bool = _NEEDED) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ExportError(f"{self.path}.{key} is {shown(value)}, expected true or false")
        return value

    def choice(self, key: str, known: Sequence[str], default: str = _NEEDED) -> str:
        value = self.get(key, default)
        if value not in known:
            raise ExportError(f"{self.path}.{key} is {shown(value)}; upstream knows {', '.join(known)}")
        return str(value)
