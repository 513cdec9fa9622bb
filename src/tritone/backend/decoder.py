"""The last of three models that Triton runs for whole utterances: what the network said to transcripts.

    outputs of the network, WAV_LENS (rows, 1) int32  ->  TRANSCRIPTS, DETAILS, CLASS_IDS

Each output is computed for requests that want it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.backend.batch import BatchModel
from tritone.backend.instance import read_instance
from tritone.backend.metrics import Metrics
from tritone.backend.replies import reply
from tritone.backend.requests import options_of
from tritone.backend.wire import CLASS_IDS, OFFLINE_AXES, WAV_LENS
from tritone.pipelines.stages import DecodingJob, DecodingPipeline
from tritone.transcript import Transcript


@dataclass(frozen=True)
class Job:
    """One good request. `wants_text`: whether it asks for more than class ids."""

    said: DecodingJob
    wants_text: bool


class TritonPythonModel(BatchModel[Job, tuple[Job, list[Transcript]]]):
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        instance = read_instance(args)
        self._axes = OFFLINE_AXES[instance.bundle.manifest.kind]
        names = [each["name"] for each in json.loads(args["model_config"])["input"]]
        self._handed = [name for name in names if name != WAV_LENS]
        self._pipeline = DecodingPipeline(
            instance.bundle, self._handed, placement=instance.placement, search=instance.search
        )
        self._pipeline.warm_up()
        self._metrics = Metrics(args, streaming=False, warmups=instance.warmups)

    def parse(self, request: Any) -> Job:
        """See `BatchModel`."""
        options = options_of(request, self._pipeline)
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        results = {name: tensors[name] for name in self._handed}
        results["num_frames"] = results["num_frames"].ravel()
        wants_text = set(request.requested_output_names()) != {CLASS_IDS}
        return Job(DecodingJob(results, tensors[WAV_LENS].ravel().tolist(), options), wants_text)

    def run(self, jobs: Sequence[Job]) -> list[tuple[Job, list[Transcript]]]:
        """See `BatchModel`."""
        found = iter(self._pipeline.decode([job.said for job in jobs if job.wants_text]))
        return [(job, next(found) if job.wants_text else []) for job in jobs]

    def answer(self, request: Any, result: tuple[Job, list[Transcript]]) -> Any:
        """See `BatchModel`."""
        job, transcripts = result
        more = []
        if CLASS_IDS in request.requested_output_names():
            more.append(pb_utils.Tensor(CLASS_IDS, self._pipeline.class_ids(job.said.results)))
        if not job.wants_text:
            return pb_utils.InferenceResponse(output_tensors=more)
        return reply(request, transcripts, axes=self._axes, more=more)
