"""Toy offline model for load tests: answers "<samples>" of each row, after what the row's first two samples command.

First sample: how many seconds the row takes. Second sample: 0 is good; 1 is an error; 2 is another wrong text each
time; 3 is one text too few. Rows of a batch follow one after the other. It counts audio and padding as Tritone's models
do, at 8000 samples per second.
"""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

GOOD, ERROR, LIE, SHORT = range(4)


class TritonPythonModel:
    def initialize(self, args):
        self.lies = 0
        self.seconds = {}
        for name in ("tritone_audio_seconds_total", "tritone_padding_seconds_total"):
            family = pb_utils.MetricFamily(name=name, description=name, kind=pb_utils.MetricFamily.COUNTER)
            self.seconds[name] = family, family.Metric(labels={"model": args["model_name"]})

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, "WAV").as_numpy()
        counts = pb_utils.get_input_tensor_by_name(request, "WAV_LENS").as_numpy()[:, 0]
        texts = []
        for row, count in zip(rows, counts, strict=True):
            time.sleep(float(row[0]))
            mood = int(row[1])
            if mood == ERROR:
                error = pb_utils.TritonError(f"row of {count} samples failed", pb_utils.TritonError.INTERNAL)
                return pb_utils.InferenceResponse(error=error)
            self.lies += mood == LIE
            texts += [f"lie {self.lies}" if mood == LIE else str(count)] if mood != SHORT else []
        self.seconds["tritone_audio_seconds_total"][1].increment(float(counts.sum()) / 8000)
        self.seconds["tritone_padding_seconds_total"][1].increment(float(rows.size - counts.sum()) / 8000)
        answer = np.array(texts, dtype=object).reshape(-1, 1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TRANSCRIPTS", answer)])
