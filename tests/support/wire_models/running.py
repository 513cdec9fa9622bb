"""Toy streaming model: answers "<chunks> <samples> of <open streams>"; a first sample below -0.5 is refused."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.streams = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def value(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)

        stream, count = int(value("CORRID")[0]), int(value("WAV_LENS")[0])
        waveform = value("WAV")[:count]
        chunks, samples = (0, 0) if value("START")[0] else self.streams[stream]
        self.streams[stream] = chunks + 1, samples + count
        text = f"{chunks + 1} {samples + count} of {len(self.streams)}"
        if value("END")[0]:
            del self.streams[stream]
        if count and waveform[0] < -0.5:
            error = pb_utils.TritonError("the first sample is too low", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TRANSCRIPTS", np.array([[text]], dtype=object))])
