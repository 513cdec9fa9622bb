"""Toy streaming model with segments: every chunk is one, and says which parameters came with it."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.streams = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        stream, flags = request.correlation_id(), request.flags()
        past = [] if flags & 1 else self.streams[stream]
        self.streams[stream] = [*past, f"part{len(past)}"]
        text = f"now {request.parameters()}"
        details = {
            "text": text,
            "is_final": bool(flags & 2),
            "segment": len(past) + 1,
            "ended": [{"text": f"part{len(past)}", "segment": len(past), "is_final": True}],
        }
        whole = " ".join([*self.streams[stream], text])
        if flags & 2:
            del self.streams[stream]
        outputs = {"TRANSCRIPTS": whole, "DETAILS": json.dumps(details)}
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(name, np.array([value], dtype=object))
                for name, value in outputs.items()
                if name in wanted
            ]
        )
