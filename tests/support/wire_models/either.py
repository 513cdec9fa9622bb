"""Toy model that takes WAV or PCM: answers "<tensor> <samples> <sum>", of a stream the tensors of all its chunks."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.streams = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in ("WAV", "PCM")}
        ((name, tensor),) = ((name, tensor) for name, tensor in found.items() if tensor is not None)
        count = int(pb_utils.get_input_tensor_by_name(request, "WAV_LENS").as_numpy().reshape(-1)[0])
        waveform = tensor.as_numpy().reshape(-1)[:count] / (1 if name == "WAV" else 32768)
        stream = pb_utils.get_input_tensor_by_name(request, "CORRID")
        if stream is not None:
            key = int(stream.as_numpy().reshape(-1)[0])
            if pb_utils.get_input_tensor_by_name(request, "START").as_numpy().reshape(-1)[0]:
                self.streams[key] = []
            self.streams[key].append((name, waveform))
            name = ",".join(each for each, _ in self.streams[key])
            waveform = np.concatenate([each for _, each in self.streams[key]])
        text = f"{name} {len(waveform)} {waveform.astype(np.float64).sum()!r}"
        return pb_utils.InferenceResponse([pb_utils.Tensor("TRANSCRIPTS", np.array([[text]], dtype=object))])
