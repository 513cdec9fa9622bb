"""A smaller Whisper that guesses the greedy texts of another ahead: which may be one, and how it is opened.

Texts, times and confidences stay those of the model alone, see `search/whisper/guessing.py`.
"""

from dataclasses import dataclass, replace

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError
from tritone.kinds.whisper.part import WhisperPart
from tritone.pipelines.graphs.choice import choose
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.whisper.network import Network

EXACT = "fp32"  # in others a call of several tokens rounds otherwise than calls of one
# What prompts and rules of one model are made of, and what both hear. Sizes may differ.
SAME = (
    "eot",
    "sot",
    "sot_prev",
    "no_timestamps",
    "timestamp_begin",
    "time_precision",
    "languages",
    "tasks",
    "window_frames",
)


@dataclass(frozen=True)
class DraftModel:
    """The bundle of a draft, and in which precision it runs; None is its first."""

    bundle: Bundle
    precision: str | None = None


def check_pair(bundle: Bundle, draft: Bundle) -> None:
    """Make sure that a model can guess the texts of another.

    Raises:
        BundleError: one of them is no Whisper model, or they differ in tokens or features; says where.
    """
    own, other = bundle.manifest.find(WhisperPart), draft.manifest.find(WhisperPart)
    for each, found in ((bundle, own), (draft, other)):
        if found is None:
            raise BundleError(f"{each.path} is no Whisper model, and only those can have or be a draft.")
    assert isinstance(own, WhisperPart)
    assert isinstance(other, WhisperPart)
    ours, theirs = bundle.vocabulary.tokens, draft.vocabulary.tokens
    advice = "A draft must have been trained with the same tokens, as base and small, which have all languages, have."
    if len(ours) != len(theirs):
        raise BundleError(
            f"{draft.path} cannot be the draft of {bundle.path}: it has {len(theirs)} tokens, not {len(ours)}. {advice}"
        )
    if ours != theirs:
        first = next(id for id, (one, two) in enumerate(zip(ours, theirs, strict=True)) if one != two)
        raise BundleError(
            f"{draft.path} cannot be the draft of {bundle.path}: its token {first} is {theirs[first]!r}, not "
            f"{ours[first]!r}. {advice}"
        )
    unlike = [name for name in SAME if getattr(own, name) != getattr(other, name)]
    unlike += [
        name for name in ("features", "sample_rate") if getattr(bundle.manifest, name) != getattr(draft.manifest, name)
    ]
    if other.text_context < own.text_context:
        unlike.append("text_context")
    if unlike:
        raise BundleError(
            f"{draft.path} cannot be the draft of {bundle.path}: they differ in {', '.join(unlike)}. {advice}"
        )


def check_exact(bundle: Bundle, placement: Placement) -> None:
    """Make sure that guesses leave the texts of a model as they are; raises `BundleError` if it rounds too coarsely."""
    precisions = {choose(bundle, role, placement).precision for role in ("encoder", "decoder")}
    if precisions != {EXACT}:
        raise BundleError(
            f"{bundle.path} would run in {', '.join(sorted(precisions))}, where a draft may change a text. Take "
            f"precision {EXACT} for the model, whose draft may have any, or leave the draft out."
        )


def open_draft(draft: DraftModel, bundle: Bundle, placement: Placement) -> Network:
    """The graphs of a model's draft; errors as of `check_pair`, `check_exact` and `open_chosen`."""
    check_pair(bundle, draft.bundle)
    check_exact(bundle, placement)
    own = replace(placement, precision=draft.precision, runtime=None)
    return Network(draft.bundle, own, draft.bundle.manifest.part(WhisperPart))
