"""Toy streaming model for load tests: answers how many samples it has heard, from the second chunk on.

The first two samples of a stream command how it is treated. First: how many seconds each chunk takes. Second: 0 is
good; 1 is an error from the third chunk on; 2 is another wrong text each time; 3 is no text at all; 4 is two texts for
a chunk.
"""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

GOOD, ERROR, LIE, SILENCE, TWICE = range(5)


class TritonPythonModel:
    def initialize(self, args):
        self.streams = {}
        self.lies = 0

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def value(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)

        stream, count = int(value("CORRID")[0]), int(value("WAV_LENS")[0])
        if value("START")[0]:
            delay_s, mood = (float(each) for each in value("WAV")[:2])
            self.streams[stream] = [delay_s, int(mood), 0, 0]
        elif stream not in self.streams:
            error = pb_utils.TritonError("this stream was never started", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        held = self.streams[stream]
        held[2] += 1
        held[3] += count
        delay_s, mood, chunks, samples = held
        time.sleep(delay_s)
        if value("END")[0]:
            del self.streams[stream]
        if mood == ERROR and chunks >= 3:
            error = pb_utils.TritonError(f"chunk {chunks} failed", pb_utils.TritonError.INTERNAL)
            return pb_utils.InferenceResponse(error=error)
        self.lies += mood == LIE
        text = f"lie {self.lies}" if mood == LIE else "" if mood == SILENCE or chunks == 1 else str(samples)
        texts = np.array([[text]] * (2 if mood == TWICE else 1), dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TRANSCRIPTS", texts)])
