"""The pipeline of a generic model: requests of arrays by name, computed together where their shapes allow it.

    Mapping[str, array] of each request  ->  Mapping[str, array] of each, or its error

A model with states keeps them for each open sequence; all other requests are independent of each other.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.bundle.bundle import Bundle
from tritone.errors import InputError, ServerBusyError, StreamError, TritoneError
from tritone.kinds.generic.part import GenericPart, SequenceControl
from tritone.pipelines.generic.tensors import DTYPES, as_declared, as_shape, checked, initial_state, sample
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.work_log import CallWork, WorkLog
from tritone.pipelines.isolation import isolated, prepared, with_options
from tritone.runtime.graph import Array, FunctionGraph, Models

Arrays = Mapping[str, npt.ArrayLike]


@dataclass(frozen=True)
class Ask:
    """What a request wants beside its inputs.

    `outputs`: names; None are all. `sequence`: id of the sequence that it belongs to, of a model with states.
    `start`, `end`: whether it is the first or the last of it.
    """

    outputs: tuple[str, ...] | None = None
    sequence: int | str = 0
    start: bool = False
    end: bool = False


class Job(NamedTuple):
    """A checked request. `inputs`: as the graph takes them, states and controls included."""

    inputs: Mapping[str, Array]
    ask: Ask
    rows: int


class Sequences:
    """The states of open sequences."""

    def __init__(self, generic: GenericPart, most: int, idle_s: float) -> None:
        """Args:
        most: how many may be open at once.
        idle_s: one without a request for so long is closed, in seconds.
        """
        self._generic, self._most, self._idle_s = generic, most, idle_s
        self._states: dict[int | str, dict[str, Array]] = {}
        self._used: dict[int | str, float] = {}

    def inputs(self, ask: Ask) -> dict[str, Array]:
        """What the graph gets for a request beside the client's inputs.

        Raises:
            StreamError: the request has no sequence id, or its sequence did not start or was closed.
            ServerBusyError: no further sequence can be opened now.
        """
        if ask.sequence in (0, ""):
            raise StreamError("this model keeps states for each sequence: send a sequence id, and START with the first")
        now = time.monotonic()
        for key in [key for key, used in self._used.items() if now - used > self._idle_s]:
            self.close(key)
        if not ask.start and ask.sequence not in self._used:
            raise StreamError(
                f"sequence {ask.sequence} is not open: it was never started, has ended, or had no request for "
                f"{self._idle_s:g} s. Start it again."
            )
        if ask.start and ask.sequence not in self._used and len(self._used) >= self._most:
            raise ServerBusyError(f"{self._most} sequences are open, which is the limit of this model; try again later")
        self._used[ask.sequence] = now
        states = {} if ask.start else self._states.get(ask.sequence, {})
        found = {
            each.input: states.get(each.output, initial_state(each, self._generic)) for each in self._generic.states
        }
        return found | {each.input: self._control(each, ask) for each in self._generic.controls}

    def keep(self, ask: Ask, outputs: Mapping[str, Array]) -> None:
        """Keep what the graph returned for the next request of a sequence; the last one closes it."""
        if ask.end:
            self.close(ask.sequence)
        else:
            self._states[ask.sequence] = {each.output: outputs[each.output] for each in self._generic.states}

    def close(self, sequence: int | str) -> None:
        """Forget a sequence."""
        self._states.pop(sequence, None)
        self._used.pop(sequence, None)

    def _control(self, control: SequenceControl, ask: Ask) -> Array:
        control_values: dict[str, Any] = {"start": ask.start, "end": ask.end, "ready": True, "corrid": ask.sequence}
        if isinstance(value := control_values[control.kind], str):
            raise StreamError(f"the model takes the sequence's id as a number, got {value!r}")
        rows = (1,) if self._generic.max_batch_size else ()
        return np.full((*rows, 1), value, DTYPES[control.type])


class GenericPipeline:
    """A generic model in this process. One call at a time; the graph itself uses all threads that it has."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_batch_size: int | None = None,
        max_sequences: int = 1024,
        idle_s: float = float("inf"),
        models: Models | None = None,
    ) -> None:
        """Open the model's graph.

        Args:
            placement: which of the bundle's graphs runs, and where.
            max_batch_size: rows of a call; None takes the manifest's.
            max_sequences, idle_s: of a model with states, see `Sequences`.
            models: those that a Python function may call.

        Raises:
            BundleError: there is no such graph, or it does not fit its manifest.
            OperatorError: no runtime that the bundle has graphs for can run there.
        """
        self.bundle = bundle
        self.generic = bundle.manifest.part(GenericPart)
        if max_batch_size is not None:
            self.generic = self.generic.model_copy(update={"max_batch_size": max_batch_size})
        self.work = WorkLog(1)  # no audio is in it
        _, self._graph = open_chosen(bundle, "model", placement)
        if isinstance(self._graph, FunctionGraph):
            self._graph.models = models
        self._outputs = {each.name: each for each in self.generic.outputs}
        self._sequences = Sequences(self.generic, max_sequences, idle_s) if self.generic.is_sequence else None

    def run(self, items: Sequence[Arrays], options: Sequence[Ask | None] | None = None) -> list[Any]:
        """Compute requests: for each its outputs by name, or the `TritoneError` that it caused."""
        return prepared(self._checked, self._compute, with_options(items, options))

    def stream(self, inputs: Arrays, ask: Ask | None = None) -> Iterator[dict[str, Array]]:
        """The answers to one request: many from a Python generator, one from any other model.

        Raises:
            TritoneError: as far as the request or its next answer is at fault.
        """
        python = self.generic.python
        if python is None or not python.decoupled or not isinstance(self._graph, FunctionGraph):
            (result,) = self.run([inputs], [ask])
            if isinstance(result, TritoneError):
                raise result
            yield result
            return
        job = self._checked((inputs, ask))
        wanted = job.ask.outputs or ()
        for arrays in self._graph.stream(job.inputs, wanted):
            yield {
                name: as_declared(name, array, self._outputs[name], job.rows, self.generic)
                for name, array in zip(wanted, arrays, strict=True)
            }

    def warm_up(self) -> None:
        """Compute a row of zeros. A graph that takes no such input starts without."""
        inputs = {each.name: sample(each, 1, self.generic) for each in self.generic.inputs if not each.optional}
        ask = Ask(sequence=1, start=True, end=True) if self._sequences is not None else None
        self.run([inputs], [ask])
        self.work.take()

    def check_outputs(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names in the order of the model's outputs, whatever order they come in; Triton gives those that a request
        wants in the order of a hash table, and clients take outputs by their place.

        Raises:
            InputError: one is no output of the model.
        """
        asked = dict.fromkeys(names)
        if unknown := [name for name in asked if name not in self._outputs]:
            raise InputError(f"there is no output {', '.join(unknown)}; the model has {', '.join(self._outputs)}")
        return tuple(name for name in self._outputs if name in asked)

    def _checked(self, item: tuple[Arrays, Ask | None]) -> Job:
        tensors, ask = item[0], item[1] or Ask()
        ask = Ask(self.check_outputs(ask.outputs or self._outputs), ask.sequence, ask.start, ask.end)
        inputs = checked(tensors, self.generic)
        rows = len(next(iter(inputs.values()))) if inputs and self.generic.max_batch_size else 1
        if self._sequences is not None:
            if rows != 1:
                raise InputError(f"a request of a sequence has one row, got {rows}; every row is a sequence of its own")
            inputs |= self._sequences.inputs(ask)
        return Job(inputs, ask, rows)

    def _compute(self, jobs: Sequence[Job]) -> list[dict[str, Array] | TritoneError]:
        results: list[dict[str, Array] | TritoneError] = [{} for _ in jobs]
        for indices in self._batches(jobs):
            # A batch that fails is computed request by request here, since others may have moved states on already.
            found = isolated(self._call, [jobs[index] for index in indices])
            for index, result in zip(indices, found, strict=True):
                results[index] = result
                if self._sequences is not None and isinstance(result, TritoneError) and jobs[index].ask.start:
                    self._sequences.close(jobs[index].ask.sequence)  # what follows would begin without its start
        return results

    def _batches(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Indices of requests that share a call: those with the same inputs in the same shapes but for their rows."""
        if not self.generic.max_batch_size:
            return [[index] for index in range(len(jobs))]
        open_batches: dict[Any, tuple[list[int], int]] = {}
        batches = []
        for index, job in enumerate(jobs):
            key = tuple((name, array.shape[1:]) for name, array in sorted(job.inputs.items()))
            batch, rows = open_batches.get(key, ([], self.generic.max_batch_size))
            if rows + job.rows > self.generic.max_batch_size:
                batch, rows = [], 0
                batches.append(batch)
            batch.append(index)
            open_batches[key] = batch, rows + job.rows
        return batches

    def _check_shapes(self, inputs: Mapping[str, Array], error: Exception) -> None:
        """Find out whether it was the shapes of a request that the graph failed with, by zeros in those and in others.

        Raises:
            InputError: it fails with zeros in these shapes, and takes those that it was exported with.
        """
        tried = {each.name: each.sample for each in self.generic.inputs if each.name in inputs}
        if isinstance(self._graph, FunctionGraph) or self._sequences is not None or None in tried.values():
            return
        usual = {
            each.name: as_shape(sample(each, 1, self.generic), each.dims, each.reshape)
            for each in self.generic.inputs
            if each.name in inputs
        }
        same = {
            name: np.full(array.shape, b"" if array.dtype == object else 0, array.dtype)
            for name, array in inputs.items()
        }
        if not self._runs(same) and self._runs(usual):
            sizes = [f"{name} {list(array.shape)}" for name, array in inputs.items()]
            taken = [f"{name} {list(array.shape)}" for name, array in usual.items()]
            reason = str(error).strip().rpartition("Status Message: ")[2].splitlines()[:1]
            raise InputError(
                f"the graph does not take these shapes: {', '.join(sizes)}; it takes {', '.join(taken)}, for example. "
                f"The runtime says: {''.join(reason)[:200]}"
            ) from error

    def _runs(self, inputs: Mapping[str, Array]) -> bool:
        try:
            self._graph(inputs, list(self._outputs))
        except Exception:  # runtimes raise what they like
            return False
        return True

    def _call(self, jobs: Sequence[Job]) -> list[dict[str, Array] | TritoneError]:
        start = time.perf_counter()
        states = [each.output for each in self.generic.states]
        wanted = list(dict.fromkeys([*states, *(name for job in jobs for name in job.ask.outputs or ())]))
        inputs = jobs[0].inputs
        if len(jobs) > 1:
            inputs = {name: np.concatenate([job.inputs[name] for job in jobs]) for name in inputs}
        try:
            arrays = dict(zip(wanted, self._graph(inputs, wanted), strict=True))
        except Exception as error:  # runtimes raise what they like
            if len(jobs) == 1 and not isinstance(error, TritoneError):
                self._check_shapes(inputs, error)
            raise
        seconds = time.perf_counter() - start
        self.work.add([CallWork(audio=0, padding=0, network_s=seconds, search_s=0.0, total_s=seconds)], seconds)
        rows = sum(job.rows for job in jobs)
        whole = {
            name: as_declared(name, array, self._outputs[name], rows, self.generic)
            for name, array in arrays.items()
            if name in self._outputs
        }
        results: list[dict[str, Array] | TritoneError] = []
        position = 0
        for job in jobs:
            part = slice(position, position + job.rows) if self.generic.max_batch_size else slice(None)
            position += job.rows
            if self._sequences is not None:
                # A copy, which does not keep the whole batch alive.
                self._sequences.keep(job.ask, {name: np.array(arrays[name][part]) for name in states})
            results.append({name: whole[name][part] for name in job.ask.outputs or ()})
        return results
