"""Toy speaker model for load tests: the embedding of a row is (samples, 1, 0), unless the row commands a defect.

Second sample of a row: 0 is good; 1 is a number that is not finite; 2 is another direction each time.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

GOOD, ENDLESS, MOODY = range(3)


class TritonPythonModel:
    def initialize(self, args):
        self.turn = 1.0

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, "WAV").as_numpy()
        counts = pb_utils.get_input_tensor_by_name(request, "WAV_LENS").as_numpy()[:, 0]
        answer = np.zeros((len(rows), 3), np.float32)
        answer[:, :2] = [(count, 1.0) for count in counts]
        moods = rows[:, 1].astype(int)
        answer[moods == ENDLESS, 2] = np.inf
        self.turn = -self.turn if MOODY in moods else self.turn
        answer[moods == MOODY] *= self.turn
        return pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDINGS", answer)])
