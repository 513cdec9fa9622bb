"""An ensemble in this process: the same steps as in a server, run one after the other.

EnsembleSpec, bundle of each step  ->  Ensemble: arrays by name  ->  arrays by name
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.bundle.bundle import Bundle
from tritone.errors import InputError, OperatorError
from tritone.kinds.generic.part import GenericInput, GenericOutput, GenericPart
from tritone.pipelines.generic.model import ArrayModel, Asked, GenericModel
from tritone.pipelines.generic.pipeline import GenericPipeline
from tritone.pipelines.generic.tensors import checked
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.isolation import values
from tritone.pipelines.kind import kind_of
from tritone.pipelines.wiring.spec import EnsembleSpec, Part
from tritone.pipelines.wiring.wires import wire
from tritone.runtime.graph import Array

Arrays = dict[str, npt.NDArray[Any]]
MAX_BATCH_SIZE = 32  # rows of steps whose bundles have no number of their own
MAX_AUDIO_S = 300.0


class Ensemble(ArrayModel):
    """Bundles wired to each other. Their graphs are opened with the first request."""

    def __init__(
        self, spec: EnsembleSpec, bundles: Mapping[str, Bundle], *, device: str = "cpu", threads: int | None = None
    ) -> None:
        """Check the wires.

        Args:
            bundles: by the names of the steps, and of the models that functions call.
            device, threads: see `Placement`.

        Raises:
            InputError: something does not fit; says what.
            BundleError: a bundle is of an unknown kind.
        """
        self.spec = spec
        self.wiring = wire(spec, bundles, MAX_BATCH_SIZE)
        self.tensors = GenericPart(
            inputs=tuple(GenericInput(name=each.name, type=each.type, dims=each.dims) for each in self.wiring.inputs),
            outputs=tuple(
                GenericOutput(name=each.name, type=each.type, dims=each.dims) for each in self.wiring.outputs
            ),
            max_batch_size=self.wiring.max_batch_size,
        )
        self._bundles = bundles
        self._device, self._threads = device, threads

    def infer(self, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None) -> Arrays:
        if self.wiring.decoupled:
            raise InputError(f"ensemble {self.spec.name} answers many times; ask for its stream of answers")
        (found,) = self.infer_stream(inputs, outputs)
        return found

    def infer_stream(
        self, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None
    ) -> Iterator[Arrays]:
        asked = self.spec.outputs if outputs is None else dict.fromkeys(outputs)
        wanted = [name for name in self.spec.outputs if name in asked]
        if unknown := [name for name in asked if name not in self.spec.outputs]:
            raise InputError(f"there is no output {', '.join(unknown)}; it has {', '.join(self.spec.outputs)}")
        tensors: dict[str, Array] = checked(inputs, self.tensors)
        *before, last = self.wiring.order
        for name in before:
            (found,) = self._answers(name, tensors)
            tensors |= found
        for found in self._answers(last, tensors):
            whole = tensors | found
            yield {name: np.asarray(whole[self.spec.outputs[name]]) for name in wanted}

    def _answers(self, name: str, tensors: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """The outputs of a step as STEP.OUTPUT."""
        wires = self.spec.steps[name].inputs
        try:
            for found in self._steps[name].stream({key: tensors[reference] for key, reference in wires.items()}):
                yield {f"{name}.{key}": array for key, array in found.items()}
        except (InputError, OperatorError) as error:
            raise error.saying(f"step {name}: {error}") from error

    @cached_property
    def _steps(self) -> dict[str, "_Step"]:
        models = {
            name: GenericModel(self._bundles[name], placement=self._placement(part)) for name, part in self._called
        }
        for name, part in self._called:  # those that call each other
            models[name] = GenericModel(self._bundles[name], placement=self._placement(part), models=models)
        asked = Asked(models)
        return {
            name: _Step(self._bundles[name], self._placement(part), asked) for name, part in self.spec.steps.items()
        }

    @property
    def _called(self) -> Sequence[tuple[str, Part]]:
        return tuple(self.spec.models.items())

    def _placement(self, part: Part) -> Placement:
        runtime = "python" if part.python is not None else part.runtime
        return Placement(device=self._device, threads=self._threads, runtime=runtime, precision=part.precision)


class _Step:
    """A model of any kind that takes and returns the tensors of its served model."""

    def __init__(self, bundle: Bundle, placement: Placement, models: Asked) -> None:
        self._kind, self._rate = kind_of(bundle), bundle.manifest.audio_rate or 0
        if not bundle.manifest.is_of_audio:
            self._pipeline: Any = GenericPipeline(bundle, placement=placement, models=models)
        else:
            self._pipeline = self._kind.open(bundle, placement=placement, max_audio_s=MAX_AUDIO_S)
        self._outputs = [each.name for each in self._kind.outputs(bundle)]

    def stream(self, tensors: Mapping[str, Array]) -> Iterator[Mapping[str, Array]]:
        if isinstance(self._pipeline, GenericPipeline):
            yield from self._pipeline.stream(tensors)
            return
        rows = self._kind.read(tensors, sample_rate=self._rate, max_audio_s=MAX_AUDIO_S)
        options = self._kind.read_options(self._pipeline, {}, self._outputs)
        yield self._kind.answer(values(self._pipeline.run(rows, [options] * len(rows))), self._outputs)
