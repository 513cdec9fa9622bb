"""The last of the models that Triton runs for whole utterances in stages: outputs of the network to transcripts.

    outputs of the network, WAV_LENS (rows, 1) int32  ->  TRANSCRIPTS, DETAILS, CLASS_IDS

Each output is computed for requests that want it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritone.backend.batch import BatchModel
from tritone.backend.metrics import Metrics
from tritone.backend.process import ready, start_instance
from tritone.backend.replies import reply
from tritone.backend.requests import parameters_of, tensors_of
from tritone.errors import TritoneError
from tritone.kinds.speech import options_of, speech_kind, transcript_tensors
from tritone.pipelines.stages import DecodingJob, DecodingPipeline
from tritone.pipelines.wire import CLASS_IDS, WAV_LENS
from tritone.transcript import Transcript


@dataclass(frozen=True)
class Job:
    """One good request. `wants_text`: whether it asks for more than class ids."""

    decoding: DecodingJob
    wants_text: bool


class TritonPythonModel(BatchModel[Job, tuple[Job, list[Transcript]]]):
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        instance = start_instance(args)
        self._kind = speech_kind(instance.bundle)
        names = [each["name"] for each in json.loads(args["model_config"])["input"]]
        self._taken = [name for name in names if name != WAV_LENS]
        self._pipeline = DecodingPipeline(
            instance.bundle, self._taken, placement=instance.placement, search=instance.search
        )
        self._ahead = ready(self._pipeline, instance)
        self._metrics = Metrics(args, warmups=instance.warmups)

    def parse(self, request: Any) -> Job:
        wanted = request.requested_output_names()
        options = options_of(self._pipeline, parameters_of(request, self._kind.parameters), wanted)
        tensors = tensors_of(request)
        outputs = {name: tensors[name] for name in self._taken}
        outputs["num_frames"] = outputs["num_frames"].ravel()
        return Job(DecodingJob(outputs, tensors[WAV_LENS].ravel().tolist(), options), set(wanted) != {CLASS_IDS})

    def run(self, jobs: Sequence[Job]) -> list[tuple[Job, list[Transcript]] | TritoneError]:
        found = iter(self._pipeline.run([job.decoding for job in jobs if job.wants_text]))
        texts = [next(found) if job.wants_text else [] for job in jobs]
        return [text if isinstance(text, TritoneError) else (job, text) for job, text in zip(jobs, texts, strict=True)]

    def answer(self, request: Any, result: tuple[Job, list[Transcript]]) -> Any:
        job, transcripts = result
        wanted = request.requested_output_names()
        tensors = transcript_tensors(transcripts, wanted, axes=self._kind.axes) if job.wants_text else {}
        if CLASS_IDS in wanted:
            tensors[CLASS_IDS] = self._pipeline.class_ids(job.decoding.results)
        return reply(tensors)
