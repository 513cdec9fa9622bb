"""Toy model of any types: its outputs are its inputs, in order; a decoupled one gives them twice, or as configured."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.names = [
            (put["name"], given["name"]) for given, put in zip(config["input"], config["output"], strict=True)
        ]
        self.answers = int(config["parameters"].get("answers", {"string_value": "2"})["string_value"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)

    def execute(self, requests):
        answers = [self.answer(request) for request in requests]
        if not self.decoupled:
            return answers
        for request, answer in zip(requests, answers, strict=True):
            sender = request.get_response_sender()
            for _ in range(self.answers):
                sender.send(answer)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answer(self, request):
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(put, pb_utils.get_input_tensor_by_name(request, given).as_numpy())
                for put, given in self.names
            ]
        )
