"""The layout of a model for whole utterances: one model, or an ensemble of stages that fits the server found here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tritone.repository import EnsembleOptions, ModelOptions, parse_stages
from tritone.repository.ensemble import TensorNames, native_backends
from tritone.server.installation import has_backends

Layout = Literal["fused", "ensemble"]
Acoustic = Literal["native", "python"]


def ensemble_options(
    bundles: Sequence[str | Path],
    options: ModelOptions,
    layout: Layout,
    *,
    stages: Sequence[str] = (),
    acoustic: Acoustic | None = None,
    tensors: TensorNames = "triton",
    streaming: bool = False,
) -> EnsembleOptions | None:
    """Choose how an ensemble is made of its stages; None for one model.

    Args:
        bundles: what is served.
        options: how it is served.
        layout: "fused" or "ensemble".
        stages: STAGE=COUNT[@PLACE] each, see `parse_stages`.
        acoustic: who runs the network; None takes Triton's native backend if the server found here has it.
        tensors: names of tensors on the wire.
        streaming: whether only streams are served, which have no ensemble.

    Raises:
        BundleError: a bundle has no graphs for stages.
        ValueError: the arguments do not fit together.
    """
    if layout == "fused":
        if stages or acoustic or tensors != "triton":
            raise ValueError("--stage, --acoustic and --tensors are for --layout ensemble")
        return None
    if streaming:
        raise ValueError("--layout ensemble is for whole utterances; --mode streaming builds none of them")
    native = has_backends(native_backends(bundles, options)) if acoustic is None else acoustic == "native"
    return EnsembleOptions(stages=parse_stages(list(stages), options.usual_instances), native=native, tensors=tensors)
