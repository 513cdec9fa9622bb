"""The second of the models that Triton runs for whole utterances in stages: features to outputs of the network.

    features (rows, frames, bins), num_samples (rows,)  ->  those of the graph's outputs that the model declares

It is what Triton's own backend would do with the graph, for where there is none.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tritone.backend.batch import BatchModel
from tritone.backend.metrics import Metrics
from tritone.backend.process import start_instance
from tritone.backend.replies import reply
from tritone.backend.requests import tensors_of
from tritone.errors import TritoneError
from tritone.pipelines.stages import AcousticPipeline, Tensors


class TritonPythonModel(BatchModel[Tensors, Tensors]):
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        instance = start_instance(args)
        outputs = [output["name"] for output in json.loads(args["model_config"])["output"]]
        self._pipeline = AcousticPipeline(instance.bundle, outputs, placement=instance.placement)
        self._pipeline.warm_up(instance.settings.max_audio_s)
        self._metrics = Metrics(args, warmups=instance.warmups)

    def parse(self, request: Any) -> Tensors:
        tensors = tensors_of(request)
        return tensors | {"num_samples": tensors["num_samples"].ravel()}

    def run(self, jobs: Sequence[Tensors]) -> list[Tensors | TritoneError]:
        return self._pipeline.run(jobs)

    def answer(self, request: Any, result: Tensors) -> Any:
        return reply(result)
