"""Generic models: whatever its graph is, its tensors are those that the manifest declares."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.errors import InputError
from tritone.kinds.generic.part import PARTS, GenericPart
from tritone.pipelines.generic.pipeline import Ask, GenericPipeline
from tritone.pipelines.generic.tensors import DTYPES
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.kind import Kind, Mode, Specs
from tritone.pipelines.wire import Tensor
from tritone.runtime.graph import Array, TensorSpec


class GenericKind(Kind):
    """A request is one item, whatever its number of rows; nothing is known of what its tensors mean."""

    name = "generic"
    noun = "a generic model"
    does = "it takes and returns the tensors of its graph"
    usage = "Use it with tritone.load"
    in_process = "tritone.pipelines.generic.model:GenericModel"
    parts = PARTS
    later = ()
    encoders: ClassVar[Mapping[Mode, Role]] = {"generic": "model"}

    def fault(self, manifest: Manifest) -> str | None:
        python = any(artifact.runtime == "python" for artifact in manifest.artifacts)
        if python != (manifest.part(GenericPart).python is not None):
            return "an artifact of runtime python and the part `generic.python` belong together"
        return None

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        generic = manifest.part(GenericPart)
        inputs = {each.name: _spec(each.type, each.shape, generic) for each in generic.inputs}
        inputs |= {each.input: _spec(each.type, each.dims, generic) for each in generic.states}
        inputs |= {each.input: _spec(each.type, (1,), generic) for each in generic.controls}
        outputs = {each.output: _spec(each.type, each.dims, generic) for each in generic.states}
        return inputs, outputs | {each.name: _spec(each.type, each.shape, generic) for each in generic.outputs}

    def open(
        self, bundle: Bundle, *, placement: Placement, max_audio_s: float = 0.0, defaults: Any = None, **options: Any
    ) -> GenericPipeline:
        return GenericPipeline(bundle, placement=placement, **options)

    def inputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(name=each.name, type=each.type, dims=each.dims, optional=each.optional)
            for each in bundle.manifest.part(GenericPart).inputs
        )

    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        tensors = bundle.manifest.part(GenericPart).outputs
        return tuple(Tensor(name=each.name, type=each.type, dims=each.dims) for each in tensors)

    def read(self, tensors: Mapping[str, Array], *, sample_rate: int, max_audio_s: float) -> Sequence[Any]:
        return [tensors]

    def read_options(self, pipeline: GenericPipeline, parameters: Mapping[str, Any], wanted: Collection[str]) -> Ask:
        if parameters:
            raise InputError(f"this model takes no request parameters, got {', '.join(parameters)}; leave them out")
        return Ask(pipeline.check_outputs(wanted))

    def answer(self, results: Sequence[Mapping[str, Array]], wanted: Collection[str]) -> Mapping[str, Array]:
        return results[0]


def _spec(kind: Any, dims: Sequence[int], generic: GenericPart) -> TensorSpec:
    rows = (None,) if generic.max_batch_size else ()
    return TensorSpec(np.dtype(DTYPES[kind]), (*rows, *(None if size < 0 else size for size in dims)))


KIND = GenericKind()
