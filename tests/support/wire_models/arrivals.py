"""Toy streaming model for load tests: the final text lists when each chunk arrived, in seconds of the machine's clock.

The first sample of a stream says how many seconds its eleventh chunk takes.
"""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.streams = {}

    def execute(self, requests):
        return [self.answer(request, time.monotonic()) for request in requests]

    def answer(self, request, now):
        def value(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)

        stream = int(value("CORRID")[0])
        if value("START")[0]:
            self.streams[stream] = float(value("WAV")[0]), []
        nap_s, arrivals = self.streams.get(stream, (0.0, []))
        arrivals.append(f"{now:.6f}")
        if len(arrivals) == 11:
            time.sleep(nap_s)
        text = ""
        if value("END")[0]:
            text = " ".join(arrivals)
            self.streams.pop(stream, None)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TRANSCRIPTS", np.array([[text]], dtype=object))])
