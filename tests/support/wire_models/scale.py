"""Toy model of no kind of ours: PRODUCT is TABLE times TIMES, plus the parameter `offset`; LABEL says how large.

TIMES below 0 is refused.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        table = pb_utils.get_input_tensor_by_name(request, "TABLE").as_numpy()
        times = pb_utils.get_input_tensor_by_name(request, "TIMES").as_numpy()
        if times.min() < 0:
            error = pb_utils.TritonError("TIMES is below 0", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        product = table * times[:, :, None] + np.float32(json.loads(request.parameters()).get("offset", 0))
        label = np.array([["large" if product.max() > 100 else "small"]], dtype=object)
        outputs = [pb_utils.Tensor("PRODUCT", product.astype(np.float32)), pb_utils.Tensor("LABEL", label)]
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse([each for each in outputs if each.name() in wanted])
