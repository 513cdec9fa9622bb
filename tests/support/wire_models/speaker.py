"""Toy speaker model: the embedding is (samples, their sum, window_s, shift_s); the last two as asked for, or -1.

A first sample below -0.5 is refused, one above 1.5 is answered with nothing, and one above 2.5 with two rows.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        waveform = pb_utils.get_input_tensor_by_name(request, "WAV").as_numpy()[0]
        lengths = pb_utils.get_input_tensor_by_name(request, "WAV_LENS")
        count = len(waveform) if lengths is None else int(lengths.as_numpy()[0, 0])
        waveform = waveform[:count]
        if count and waveform[0] < -0.5:
            error = pb_utils.TritonError("the first sample is too low", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        asked = json.loads(request.parameters())
        row = [count, waveform.sum(), float(asked.get("window_s", -1)), float(asked.get("shift_s", -1))]
        rows = np.array([row], np.float32)
        if count and waveform[0] > 1.5:
            rows = np.concatenate([rows, rows]) if waveform[0] > 2.5 else rows[:, :0]
        return pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDINGS", rows)])
