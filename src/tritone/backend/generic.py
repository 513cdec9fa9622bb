"""The model that Triton runs for a generic bundle: arrays by name, in batches, or in sequences that keep states.

The tensors are those of the manifest, see `tritone.pipelines.generic`.
"""

from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.backend import offline
from tritone.backend.bfloat16 import bfloat16_tensor, read_bfloat16
from tritone.backend.calls import ServedModels
from tritone.backend.metrics import Metrics
from tritone.backend.offline import Job
from tritone.backend.process import start_instance
from tritone.backend.requests import parameters_of
from tritone.kinds import kind_of
from tritone.kinds.generic.part import GenericPart
from tritone.pipelines.generic.pipeline import Ask, GenericPipeline
from tritone.runtime.graph import Array


class TritonPythonModel(offline.TritonPythonModel):
    """Triton's interface; the names are its own."""

    _pipeline: GenericPipeline

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        instance = start_instance(args)
        self._kind = kind_of(instance.bundle)
        self._pipeline = GenericPipeline(
            instance.bundle,
            placement=instance.placement,
            max_batch_size=instance.max_batch if instance.bundle.manifest.part(GenericPart).max_batch_size else 0,
            max_sequences=instance.settings.max_streams,
            idle_s=instance.settings.idle_timeout_s,
            models=ServedModels(),
        )
        generic = self._pipeline.generic
        self._bfloat16 = {each.name for each in (*generic.inputs, *generic.outputs) if each.type == "BF16"}
        self._pipeline.warm_up()
        self._metrics = Metrics(args, warmups=instance.warmups)

    def parse(self, request: Any) -> Job:
        self._kind.read_options(self._pipeline, parameters_of(request, ()), ())
        tensors = {}
        for tensor in request.inputs():
            name = tensor.name()
            tensors[name] = read_bfloat16(tensor) if name in self._bfloat16 else tensor.as_numpy()
        wanted = self._pipeline.check_outputs(request.requested_output_names())
        if not self._pipeline.generic.is_sequence:
            return Job([tensors], Ask(wanted))
        flags = request.flags()
        start = bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
        end = bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        return Job([tensors], Ask(wanted, request.correlation_id(), start, end))

    def answer(self, request: Any, result: list[Any]) -> Any:
        (outputs,) = result
        return self._response(outputs)

    def _response(self, outputs: Mapping[str, Array]) -> Any:
        return pb_utils.InferenceResponse(
            output_tensors=[
                bfloat16_tensor(name, array) if name in self._bfloat16 else pb_utils.Tensor(name, array)
                for name, array in outputs.items()
            ]
        )
