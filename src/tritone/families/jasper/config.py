"""Upstream's yaml config as typed settings.

    dict of jasper10x5dr_….yaml or of a QuartzNet's  ->  ModelConfig

Unknown keys and missing ones are errors, as they are upstream, where each section holds the arguments of a class.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from tritone.errors import ExportError
from tritone.families.export.settings import Section, shown
from tritone.families.layers.log_mel import LogMelConfig

Activation: TypeAlias = Literal["relu", "hardtanh", "selu"]
Normalization: TypeAlias = Literal["batch", "group", "instance", "layer"]
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
class FeatureConfig(LogMelConfig):
    """The preprocessor. `pad_align`: upstream pads the frames of an utterance to a multiple of it, 0 for none.

    `max_frames`: what it pads to at least.
    """

    section: ClassVar[str] = "filterbank_features"
    pad_align: int = 16
    max_frames: int = 0


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


def parse_config(config: Any) -> ModelConfig:
    """Read the content of a config.

    Raises:
        ExportError: a key is missing, unknown or of the wrong type, or names something that this version cannot read.
    """
    whole = Section("config", config)
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
        _block(Section(f"{encoder.path}.blocks[{index}]", block, keys), kind == "quartznet")
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


def _features(section: Section) -> FeatureConfig:
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


def _block(values: Section, odd_kernels: bool) -> BlockConfig:
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
