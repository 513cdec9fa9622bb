"""Toy offline model for failures: sleeps as many seconds as its first sample says; fails if that is negative."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        seconds = float(pb_utils.get_input_tensor_by_name(request, "WAV").as_numpy().reshape(-1)[:1].sum())
        if seconds < 0:
            raise RuntimeError("a defect in the model")
        time.sleep(seconds)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TRANSCRIPTS", np.array([["done"]], dtype=object))])
