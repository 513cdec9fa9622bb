"""A generic model in this process, as `tritone.load` opens it: arrays by name in, arrays by name out."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, InputError, OperatorError, TritoneError
from tritone.kinds.generic.part import GenericPart
from tritone.pipelines.generic.pipeline import Ask, GenericPipeline
from tritone.pipelines.generic.tensors import DTYPES
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.model import Model

Arrays = dict[str, npt.NDArray[Any]]


class ArrayModel(Model):
    """A model that takes and returns arrays by the names of its `tensors`."""

    tensors: GenericPart

    @abstractmethod
    def infer(self, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None) -> Arrays:
        """Compute one request.

        Args:
            inputs: arrays by the names of the model's inputs, with the batch axis where `tensors.max_batch_size` is not
                0. Text is str or bytes.
            outputs: names of those to return; None returns all.

        Returns:
            The outputs by name, with the same number of rows. Text comes as bytes, BF16 as float32.

        Raises:
            InputError: an input or output is unknown or missing, or of another type or shape. Of an ensemble: or a step
                refuses what it gets; the message names the step.
            BundleError, OperatorError: a graph cannot be opened or run here.
        """

    @abstractmethod
    def infer_stream(
        self, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None
    ) -> Iterator[Arrays]:
        """The answers to one request, each as soon as it is there: many of a Python generator, one of other models.

        Arguments and errors as of `infer`.
        """

    def infer_iter(self, requests: Iterable[Mapping[str, npt.ArrayLike]]) -> Iterator[Arrays]:
        """The outputs of one request after the other, as of `infer`; each is read when the one before was answered."""
        return map(self.infer, requests)

    def run(self, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None) -> Arrays:
        """See `infer`."""
        return self.infer(inputs, outputs)

    def stream(self, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None) -> Iterator[Arrays]:
        """See `infer_stream`."""
        return self.infer_stream(inputs, outputs)

    run_iter = infer_iter


class GenericModel(ArrayModel):
    """A bundle of kind generic, opened. Its graph is opened with the first call."""

    settings = ("models",)
    lacks = "takes no arrays by name"
    instead = "a bundle of a generic model"

    def __init__(
        self, bundle: Bundle, *, placement: Placement = ON_CPU, models: "Mapping[str, ArrayModel] | None" = None
    ) -> None:
        """Args:
            models: those that a Python function may call, by the names that it has for them.

        Raises:
            BundleError: the bundle is of another kind, or a function calls a model that is not among them.
        """
        self._take(bundle)
        self.tensors = bundle.manifest.part(GenericPart)
        self._placement = placement
        self._models = Asked({} if models is None else models)
        calls = self.tensors.python.calls if self.tensors.python else ()
        if missing := [name for name in calls if models is not None and name not in models]:
            raise BundleError(f"{bundle.path} calls the models {', '.join(missing)}, which it was not given")

    @cached_property
    def _pipeline(self) -> GenericPipeline:
        return GenericPipeline(self.bundle, placement=self._placement, models=self._models)

    def infer(self, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None) -> Arrays:
        return self._one(inputs, Ask(None if outputs is None else tuple(outputs)))

    def infer_stream(
        self, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None
    ) -> Iterator[Arrays]:
        return self._pipeline.stream(inputs, Ask(None if outputs is None else tuple(outputs)))

    def infer_sequence(self, requests: Iterable[Mapping[str, npt.ArrayLike]]) -> list[Arrays]:
        """Compute the requests of one sequence of a model with states, from its start to its end, in order."""
        found, asked = [], list(requests)
        for index, inputs in enumerate(asked):
            found.append(self._one(inputs, Ask(None, "one", index == 0, index == len(asked) - 1)))
        return found

    sequence = infer_sequence

    def _one(self, inputs: Mapping[str, npt.ArrayLike], ask: Ask) -> Arrays:
        (result,) = self._pipeline.run([inputs], [ask])
        if isinstance(result, TritoneError):
            raise result
        return {name: np.asarray(array) for name, array in result.items()}


class Asked:
    """Models as a Python function calls them, see `tritone.Models`."""

    def __init__(self, models: Mapping[str, ArrayModel]) -> None:
        self._models = models

    def __getitem__(self, name: str) -> Callable[..., Arrays]:
        if name not in self._models:
            raise OperatorError(
                f"a function called the model {name!r}; it was given {', '.join(self._models) or 'none'}. Open it with "
                f"models={{{name!r}: ...}}"
            )
        model = self._models[name]
        types = {each.name: each.type for each in model.tensors.inputs}

        def call(**inputs: npt.ArrayLike) -> Arrays:
            arrays = {key: np.asarray(value) for key, value in inputs.items()}
            for key, array in arrays.items():
                # A server converts nothing, and what runs here must run there.
                if key in types and types[key] != "STRING" and array.dtype != DTYPES[types[key]]:
                    raise InputError(f"the model {name}: {key} is {array.dtype}, {types[key]} is needed")
            try:
                return model.infer(arrays)
            except (InputError, OperatorError) as error:
                raise error.saying(f"the model {name}: {error}") from error

        return call
