"""Toy offline model: answers "<samples> <sum of the samples>"; a first sample below -0.5 is refused."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        waveform = pb_utils.get_input_tensor_by_name(request, "WAV").as_numpy()[0]
        count = int(pb_utils.get_input_tensor_by_name(request, "WAV_LENS").as_numpy()[0, 0])
        waveform = waveform[:count]
        if count and waveform[0] < -0.5:
            error = pb_utils.TritonError("the first sample is too low", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        text = f"{count} {waveform.sum():.1f}"
        details = {
            "text": text,
            "tokens": [],
            "words": [{"text": str(count), "start_s": 0.25, "end_s": 0.5, "confidence": 0.75}],
            "confidence": 0.75,
            "audio_s": count / 8000,
            "is_final": True,
        }
        outputs = {"TRANSCRIPTS": text, "DETAILS": json.dumps(details)}
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(name, np.array([[value]], dtype=object))
                for name, value in outputs.items()
                if name in wanted
            ]
        )
