"""Toy offline model: answers the request's parameters as JSON, in the text and as the only alternative."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = json.dumps(json.loads(request.parameters()), sort_keys=True, ensure_ascii=False)
        details = {"text": text, "alternatives": [{"text": text, "score": -1.5}]}
        outputs = {"TRANSCRIPTS": text, "DETAILS": json.dumps(details)}
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(name, np.array([value], dtype=object))
                for name, value in outputs.items()
                if name in wanted
            ]
        )
