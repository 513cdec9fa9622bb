"""From a segmentation model of pyannote.audio to a bundle.

pytorch_model.bin: state_dict, hyper_parameters, pyannote.audio  ->  manifest.json, and the graph of a window
"""

from collections.abc import Mapping
from math import comb
from pathlib import Path
from typing import Any

from torch import Tensor

from tritone.bundle.manifest import Encoder, Features, Precision
from tritone.errors import ExportError
from tritone.families.export.checkpoint import Kept, load_checkpoint, require_fit, state_of
from tritone.families.export.exportable import Graphs
from tritone.families.export.frame import ExportedModel, write_bundle
from tritone.families.export.precision import in_precision
from tritone.families.export.report import ExportReport
from tritone.families.export.settings import Section
from tritone.families.pyannote.model import (
    SAMPLE_RATE,
    PyanNet,
    SegmentationConfig,
    SegmentationGraph,
    filters_of,
)
from tritone.families.pyannote.onnx_model import import_pyannote
from tritone.families.pyannote.options import (
    AT_ONCE,
    MAX_SPEAKERS,
    MAX_WINDOW_S,
    SPEAKERS,
    WINDOW_S,
    PyannoteOptions,
)
from tritone.kinds.segmentation.part import SegmentationPart

UNREAD = ("torch", "pyannote", "lightning", "pytorch_lightning")  # packages whose objects are not loaded
SPECIFICATIONS = "pyannote.audio.core.task.Specifications"  # of which the plain values are kept
FILTERBANK = "sincnet.conv1d.0.filterbank."
MAX_LAYERS, MAX_SIZE = 16, 2**14


def export_pyannote(**choices: Any) -> ExportReport:
    """Export a segmentation network of pyannote.audio with sets of speakers (powerset), such as segmentation-3.0.

    Args:
        choices: the fields of `PyannoteOptions`. An ONNX file in place of a checkpoint is taken as it is.

    Raises:
        ExportError: the file is missing, damaged or none of such a network; or as of `write_bundle`, with its other
            errors.
        ValueError: see `PyannoteOptions`.
    """
    options = PyannoteOptions(**choices)
    if options.checkpoint.suffix.lower() == ".onnx":
        return import_pyannote(options)
    return write_bundle(PyannoteModel(options), options)


def load_segmentation(path: Path) -> tuple[PyanNet, SegmentationPart]:
    """The network of a checkpoint, in float32 and eval mode, and what it says of windows and speakers.

    Raises:
        ExportError: the file is missing, damaged or none of such a network.
    """
    content = load_checkpoint(
        path,
        plain="Save it with the version of pyannote.audio that wrote it, without optimizers.",
        usual="pytorch_model.bin",
        unread=UNREAD,
        kept=(SPECIFICATIONS,),
    )
    state = state_of(content, path).tensors
    if f"{FILTERBANK}low_hz_" not in state or "lstm.weight_hh_l0" not in (state := _as_one_lstm(state)):
        raise ExportError(
            f"{path} is no segmentation network of pyannote.audio (PyanNet): it has no tensors {FILTERBANK}low_hz_ and "
            "lstm.weight_hh_l0"
        )
    low, band = (state.pop(f"{FILTERBANK}{name}") for name in ("low_hz_", "band_hz_"))
    for name in ("window_", "n_"):  # follow from the sizes
        state.pop(f"{FILTERBANK}{name}", None)
    if low.shape != band.shape or low.dim() != 2 or low.shape[1] != 1:
        raise ExportError(
            f"{path}: {FILTERBANK}low_hz_ and band_hz_ should be (bands, 1), got {tuple(low.shape)} and "
            f"{tuple(band.shape)}"
        )
    state["sincnet.conv1d.0.weight"] = filters_of(low, band)
    parameters = content.get("hyper_parameters", {}) if isinstance(content, Mapping) else {}
    config = _config(state, parameters, path)
    network = PyanNet(config)
    require_fit({name: tuple(each.shape) for name, each in network.state_dict().items()}, state, str(path), "a PyanNet")
    network.load_state_dict(state)
    return network.float().eval(), _segmentation(content, config, path)


def _as_one_lstm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Layers that were kept apart (`lstm.2.weight_hh_l0`) under the names of one LSTM (`lstm.weight_hh_l2`)."""
    found = {}
    for name, value in state.items():
        parts = name.split(".")
        if parts[0] == "lstm" and len(parts) == 3 and parts[1].isdecimal():
            name = f"lstm.{parts[2].replace('_l0', f'_l{parts[1]}')}"
        found[name] = value
    return found


def _config(state: Mapping[str, Tensor], parameters: Any, path: Path) -> SegmentationConfig:
    """Sizes by the tensors, the stride by the hyper-parameters; whether all fit is for `require_fit` to say."""

    def count(name: str) -> int:
        return next(index for index in range(MAX_LAYERS + 1) if name.format(index) not in state or index == MAX_LAYERS)

    def size(name: str) -> int:
        found = state[name].shape[0] if name in state and state[name].dim() else 0
        if not 0 < found <= MAX_SIZE:
            raise ExportError(f"{path}: {name} should have 1 to {MAX_SIZE} rows, it has {found}")
        return found

    sincnet = parameters.get("sincnet") if isinstance(parameters, Mapping) else None
    section = Section(f"{path.name}: hyper_parameters.sincnet", sincnet or {}, ("stride", "sample_rate"))
    if (rate := section.whole("sample_rate", SAMPLE_RATE, least=1)) != SAMPLE_RATE:
        raise ExportError(f"{section.path}.sample_rate is {rate}; its filters are for {SAMPLE_RATE} Hz")
    return SegmentationConfig(
        hidden=size("lstm.weight_hh_l0") // 4,
        layers=count("lstm.weight_hh_l{}"),
        bidirectional="lstm.weight_hh_l0_reverse" in state,
        linear=tuple(size(f"linear.{index}.weight") for index in range(count("linear.{}.weight"))),
        sets=size("classifier.weight"),
        stride=section.whole("stride", 10, least=1, most=1000),
    )


def _segmentation(content: Any, config: SegmentationConfig, path: Path) -> SegmentationPart:
    """Windows and speakers, by the checkpoint's specifications; those of segmentation-3.0 where it has none."""
    own = content.get("pyannote.audio") if isinstance(content, Mapping) else None
    specifications = own.get("specifications") if isinstance(own, Mapping) else None
    named = specifications.values if isinstance(specifications, Kept) else {}
    window_s, names, at_once = (named.get(each) for each in ("duration", "classes", "powerset_max_classes"))
    window_s = WINDOW_S if window_s is None else window_s
    speakers = SPEAKERS if names is None else len(names) if isinstance(names, list | tuple) else 0
    if named and at_once is None:
        raise ExportError(
            f"{path} judges each of {speakers} classes alone; exported are networks with sets of speakers (powerset), "
            "such as pyannote/segmentation-3.0"
        )
    at_once = AT_ONCE if at_once is None else at_once
    if (
        not isinstance(window_s, int | float)
        or not isinstance(at_once, int)
        or not 1 <= at_once <= speakers <= MAX_SPEAKERS
        or not config.field_samples / SAMPLE_RATE <= window_s <= MAX_WINDOW_S
    ):
        raise ExportError(
            f"{path}: expected windows of up to {MAX_WINDOW_S:g} s and up to {MAX_SPEAKERS} speakers, got duration "
            f"{window_s!r}, {speakers} classes, powerset_max_classes {at_once!r}"
        )
    if (sets := sum(comb(speakers, size) for size in range(at_once + 1))) != config.sets:
        raise ExportError(
            f"{path} has {config.sets} classes; {speakers} speakers of whom {at_once} talk at once have {sets} sets"
        )
    return SegmentationPart(
        window_samples=round(window_s * SAMPLE_RATE),
        field_samples=config.field_samples,
        speakers=speakers,
        at_once=at_once,
    )


class PyannoteModel(ExportedModel):
    """A trained segmentation network."""

    family = "pyannote"
    sample_rate = SAMPLE_RATE

    def __init__(self, options: PyannoteOptions) -> None:
        """Read the file that the options name."""
        options.progress("reading the checkpoint")
        self.network, self.segmentation = load_segmentation(options.checkpoint)
        self.sources, self.choices = {"checkpoint": options.checkpoint}, {}

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        return {"encoder": SegmentationGraph(in_precision(self.network, precision)).eval()}

    def manifest(self) -> dict[str, Any]:
        config = self.network.config
        return {
            "kind": "segmentation",
            "features": Features.of_samples(),
            "encoder": Encoder(
                subsampling_rate=config.frame_samples, output_dim=config.sets, min_samples=config.field_samples
            ),
            "segmentation": self.segmentation,
        }
