"""Reading what icefall's training wrote: `pretrained.pt`, `epoch-N.pt`, `checkpoint-ITER.pt`.

    files  ->  one state dict by upstream's names, scales folded  ->  IcefallModel

Nothing but tensors shows what the network is, so its sizes are read off them. The files are untrusted: no code of
theirs runs. An epoch's file holds more than tensors (paths, the sampler's state); such objects become empty stand-ins.
"""

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.checkpoint import require_fit, state_of, without
from tritone.families.icefall.conformer import ConformerConfig
from tritone.families.icefall.model import CTC_WEIGHT, IcefallConfig, IcefallModel
from tritone.families.icefall.options import Average
from tritone.families.icefall.stateless import PredictorConfig

TRAINING = ("simple_am_proj*", "simple_lm_proj*", "decoder_giga.*", "joiner_giga.*", "attention_decoder.*")
"""What may be left out, for training alone: the simple joiner, the GigaSpeech twins, the attention decoder."""

# A sign of each encoder that cannot be read, and what it is.
UNSUPPORTED = {
    ".emformer_layers.": "an emformer",
    ".lstm.weight_ih_l0": "an LSTM encoder",
    ".norm_ff.weight": "a conformer of before pruned_transducer_stateless2",
}

MAKE_PRETRAINED = (
    'where you trust the file, write a plain one: python -c "import torch; '
    "c = torch.load('{name}', weights_only=False); torch.save({{'model': c['model']}}, 'pretrained.pt')\""
)


@dataclass(frozen=True)
class Checkpoint:
    """What is of use in one file: `model`, and of an epoch's file the running mean of the weights so far.

    `batches`: training steps done; `period`: steps from one update of the mean to the next.
    """

    path: Path
    model: Mapping[str, Tensor]
    running_mean: Mapping[str, Tensor] | None = None
    batches: int | None = None
    period: int | None = None


class _StandIn:
    """Takes the place of any object in a checkpoint that is not a tensor, a number, a text or a container."""

    def __new__(cls, *_: Any, **__: Any) -> "_StandIn":
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one file of icefall's training.

    Raises:
        ExportError: no such file, not a checkpoint, or made of objects that cannot be read without running code.
    """
    content = _load(path)
    if not isinstance(content, Mapping):
        raise ExportError(f"checkpoint {path} holds a {type(content).__name__}, expected icefall's dict with `model`")
    model = content.get("model", content)
    mean, batches, period = (content.get(name) for name in ("model_avg", "batch_idx_train", "average_period"))
    return Checkpoint(
        path,
        _tensors(path, model),
        None if mean is None else _tensors(path, mean),
        batches if isinstance(batches, int) else None,
        period if isinstance(period, int) else None,
    )


def _load(path: Path) -> Any:
    if not path.is_file():
        raise ExportError(f"checkpoint not found: {path}")
    try:
        # Training saves paths and the state of its sampler too. The reader refuses all classes that it does not
        # know; known to it by these names is one that does nothing.
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path) if zipfile.is_zipfile(path) else []
        with torch.serialization.safe_globals([(_StandIn, name) for name in names]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ExportError(
            f"checkpoint {path} cannot be read safely: it is damaged, or holds Python objects that need code to be "
            f"read. It should be a pretrained.pt; {MAKE_PRETRAINED.format(name=path.name)}"
        ) from error
    except Exception as error:  # torch reads any file as a pickle, which fails in as many ways as there are files
        hint = " A cpu_jit.pt is a program, not a checkpoint." if "TorchScript" in str(error) else ""
        raise ExportError(
            f"checkpoint {path} is not a readable torch file ({type(error).__name__}: {str(error)[:200]}).{hint} "
            "Give the pretrained.pt, epoch-N.pt or checkpoint-N.pt that training wrote."
        ) from error


def _tensors(path: Path, state: Any) -> dict[str, Tensor]:
    if not isinstance(state, Mapping) or not state:
        raise ExportError(f"checkpoint {path} should hold a dict of tensors as `model`, found {type(state).__name__}")
    return state_of(state, path).tensors


def mean_of(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The plain mean of the weights of several files; numbers that count are divided as whole ones.

    Raises:
        ExportError: the files do not hold the same tensors.
    """
    first = checkpoints[0].model
    for other in checkpoints[1:]:
        _check_alike(checkpoints[0].path, first, other.path, other.model)
    averaged = {}
    for name, value in first.items():
        if value.is_floating_point():
            total = torch.stack([each.model[name].double() for each in checkpoints]).sum(dim=0)
            averaged[name] = (total / len(checkpoints)).to(value.dtype)
        else:
            total = torch.stack([each.model[name] for each in checkpoints]).sum(dim=0)
            averaged[name] = torch.div(total, len(checkpoints), rounding_mode="floor").to(value.dtype)
    return averaged


def running_mean_between(one: Checkpoint, other: Checkpoint) -> dict[str, Tensor]:
    """The mean of all weights between two files of one training, from the running means in both.

    With b training steps at each end, the mean is (b_end · mean_end - b_start · mean_start) / (b_end - b_start).

    Raises:
        ExportError: a file has no running mean, or both are of the same step.
    """
    for each in (one, other):
        if each.running_mean is None or each.batches is None or not each.period:
            raise ExportError(
                f"checkpoint {each.path} has no running mean (model_avg, batch_idx_train, average_period); "
                "average such files plainly instead"
            )
    start, end = sorted((one, other), key=lambda each: each.batches or 0)
    assert start.running_mean is not None
    assert end.running_mean is not None
    assert end.period is not None
    # The means were last updated at a multiple of the period.
    before, after = ((each.batches or 0) // end.period * end.period for each in (start, end))
    if not 0 <= before < after:
        raise ExportError(
            f"checkpoints {start.path} and {end.path} end at batches {start.batches} and {end.batches}, between which "
            f"there is no whole averaging period of {end.period}; give files that are further apart"
        )
    _check_alike(start.path, start.running_mean, end.path, end.running_mean)
    weight = after / (after - before)
    return {
        name: value.double() * weight + start.running_mean[name].double() * (1 - weight)
        if value.is_floating_point()
        else value
        for name, value in end.running_mean.items()
    }


def _check_alike(path: Path, state: Mapping[str, Tensor], other_path: Path, other: Mapping[str, Tensor]) -> None:
    shapes, other_shapes = ({name: tuple(value.shape) for name, value in each.items()} for each in (state, other))
    different = [name for name in {**shapes, **other_shapes} if shapes.get(name) != other_shapes.get(name)]
    if different:
        raise ExportError(
            f"checkpoints {path} and {other_path} are of different models: {', '.join(different[:5])} "
            "is not in both of them, or not of one shape"
        )


def average_of(checkpoints: Sequence[Checkpoint], average: Average | None) -> Mapping[str, Tensor]:
    """The weights that several files stand for.

    Args:
        average: "mean" of the files' weights, upstream's `--avg` over files, which is also what None does;
            "running", upstream's `--use-averaged-model`, the mean of all weights from the older file to the newer one.

    Raises:
        ExportError: the files cannot be averaged like that.
    """
    if not checkpoints:
        raise ExportError("no checkpoint was given")
    if average == "running":
        if len(checkpoints) != 2:
            raise ExportError(
                f"the running average is taken between two files, {len(checkpoints)} were given: for upstream's "
                "--epoch E --avg N give epoch-(E-N).pt and epoch-E.pt"
            )
        return running_mean_between(*checkpoints)
    return checkpoints[0].model if len(checkpoints) == 1 else mean_of(checkpoints)


def folded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights times the exponential of their learned scales, which are gone then; float32.

    Scales are `NAME_scale` beside a tensor NAME, and `scale` beside the `weight` of an embedding.
    """
    scales: dict[str, str] = {}
    for name in state:
        base = name.removesuffix("_scale")
        if base != name and base in state:
            scales[base] = name
        if name.endswith("embedding.scale"):
            scales[name.removesuffix("scale") + "weight"] = name
    return {
        name: value.float() * state[scales[name]].float().exp() if name in scales else value.float()
        for name, value in state.items()
        if name not in scales.values()
    }


def load_model(
    paths: Sequence[Path],
    *,
    average: Average | None = None,
    causal: bool | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> IcefallModel:
    """Build the network that checkpoints hold and fill it with their weights, in eval mode.

    Args:
        paths: one file, or several to be averaged.
        average: see `average_of`.
        causal: whether the convolutions of a conformer are causal, which its tensors do not show; zipformer's do.
        overrides: sizes of a zipformer that its tensors do not show, for `ZipformerConfig.from_state`.

    Raises:
        ExportError: a file cannot be read or averaged, the architecture is not one of those supported, or a tensor is
            missing, misshapen or unknown; the message names it.
    """
    whole = average_of([read_checkpoint(path) for path in paths], average)
    where = ", ".join(str(path) for path in paths)
    state = folded(without(whole, TRAINING))
    config = infer_config(state, where, causal, overrides or {})
    model = IcefallModel.from_config(config)
    _fill(model, state, where)
    return model.eval()


def infer_config(
    state: Mapping[str, Tensor], where: str, causal: bool | None, overrides: Mapping[str, Any]
) -> IcefallConfig:
    """The network that a folded state dict is of; arguments and errors as of `load_model`."""
    conformer = _is_conformer(state, where)
    if conformer and overrides:
        raise ExportError(f"{where}: a conformer's tensors show all its sizes; {', '.join(overrides)} cannot be given")
    head = state.get(CTC_WEIGHT)
    predictor = None
    if head is None or "decoder.embedding.weight" in state:
        predictor = PredictorConfig.from_state(state, bare_relu=conformer)
    return IcefallConfig(
        encoder=ConformerConfig.from_state(state, causal=causal)
        if conformer
        else _zipformer_config(state, where, causal, overrides),
        predictor=predictor,
        ctc_vocab_size=None if head is None else head.shape[0],
    )


def _zipformer_config(
    state: Mapping[str, Tensor], where: str, causal: bool | None, overrides: Mapping[str, Any]
) -> Any:
    from tritone.families.icefall.zipformer import ZipformerConfig

    config = ZipformerConfig.from_state(state, **overrides)
    if causal is not None and causal != config.causal:
        given, seen = ("causal", "not causal") if causal else ("not causal", "causal")
        raise ExportError(f"{where}: the model was given as {given}, but its tensors are those of one that is {seen}")
    return config


def _is_conformer(state: Mapping[str, Tensor], where: str) -> bool:
    """True for a conformer, False for zipformer2; raises ExportError for all else."""
    kind = next((kind for sign, kind in UNSUPPORTED.items() if any(sign in name for name in state)), None)
    stacked = any(name.startswith("encoder.encoders.") for name in state)
    if kind is None and "encoder.encoder_embed.conv.0.weight" in state:
        if any(name.startswith("encoder.encoder.layers.0.self_attn.pos_bias_u") for name in state):
            return True
        kind = "a zipformer of the first generation (pruned_transducer_stateless7 or 8)" if stacked else None
    elif kind is None and "encoder_embed.conv.0.weight" in state and stacked:
        return False
    seen = f"This is {kind}" if kind else f"Its first tensors are {', '.join(list(state)[:3]) or 'none'}"
    raise ExportError(
        f"{where}: the architecture is not supported. {seen}; supported are the conformers of "
        "pruned_transducer_stateless 2 to 5 and the zipformer of egs/*/ASR/zipformer"
    )


def _fill(model: IcefallModel, state: Mapping[str, Tensor], where: str) -> None:
    wanted = model.upstream_state()
    shapes = {name: tuple(value.shape) for name, value in wanted.items()}
    require_fit(shapes, state, where, "the network it seems to hold")
    for prefix, part in model.upstream_parts().items():
        part.load_state_dict({name: state[prefix + name] for name in part.state_dict()})
