"""The second of three models that Triton runs for whole utterances: features to what the network says of them.

    features (rows, frames, bins), num_samples (rows,)  ->  those of the graph's outputs that the model declares

It is what Triton's own backend would do with the graph, for where there is none.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tritone.backend.batch import BatchModel
from tritone.backend.instance import read_instance
from tritone.backend.metrics import Metrics
from tritone.errors import AudioError
from tritone.pipelines.embedding import EMBEDDINGS, NOT_FINITE
from tritone.pipelines.stages import AcousticPipeline
from tritone.runtime.graph import Array

Tensors = dict[str, Array]


class TritonPythonModel(BatchModel[Tensors, Tensors | AudioError]):
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        instance = read_instance(args)
        self._outputs = [output["name"] for output in json.loads(args["model_config"])["output"]]
        self._pipeline = AcousticPipeline(instance.bundle, placement=instance.placement)
        self._pipeline.warm_up(self._outputs, instance.settings.max_audio_s)
        self._metrics = Metrics(args, streaming=False, warmups=instance.warmups)

    def parse(self, request: Any) -> Tensors:
        """See `BatchModel`."""
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        return tensors | {"num_samples": tensors["num_samples"].ravel()}

    def run(self, jobs: Sequence[Tensors]) -> list[Tensors | AudioError]:
        """See `BatchModel`. An embedding is an answer, so it is checked as one."""
        found = self._pipeline.compute(jobs, self._outputs)
        if self._outputs != [*EMBEDDINGS]:
            return [*found]
        return [each if np.isfinite(each["embeddings"]).all() else AudioError(NOT_FINITE) for each in found]

    def answer(self, request: Any, result: Tensors | AudioError) -> Any:
        """See `BatchModel`."""
        assert not isinstance(result, AudioError)
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, array) for name, array in result.items()]
        )
