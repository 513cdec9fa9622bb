"""Toy voice activity for streams: 10 ms louder than 0.001 are speech; 0.2 s of silence end a segment."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

FRAME, SILENCE, RATE = 160, 20, 16000


class TritonPythonModel:
    def initialize(self, args):
        self.streams = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def value(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)

        stream, count, final = int(value("CORRID")[0]), int(value("WAV_LENS")[0]), bool(value("END")[0])
        if value("START")[0]:
            self.streams[stream] = {"rest": np.zeros(0, np.float32), "frames": 0, "since": None, "last": 0, "total": 0}
        state = self.streams[stream]
        audio = np.concatenate((state["rest"], value("WAV")[:count]))
        state["total"] += count
        segments = []
        while len(audio) >= FRAME:
            frame, audio = audio[:FRAME], audio[FRAME:]
            state["frames"] += 1
            if np.abs(frame).mean() > 0.001:
                state["last"] = state["frames"]
                state["since"] = state["frames"] - 1 if state["since"] is None else state["since"]
            elif state["since"] is not None and state["frames"] - state["last"] >= SILENCE:
                segments.append((state["since"], state["last"]))
                state["since"] = None
        state["rest"] = audio
        if final:
            del self.streams[stream]
            if state["since"] is not None:
                segments.append((state["since"], state["last"]))
                state["since"] = None
        second = FRAME / RATE
        text = json.dumps(
            {
                "segments": [{"start_s": begin * second, "end_s": end * second} for begin, end in segments],
                "audio_s": state["total"] / RATE,
                "frame_s": second,
                "speaking_since_s": None if state["since"] is None else state["since"] * second,
                "is_final": final,
            }
        )
        return pb_utils.InferenceResponse([pb_utils.Tensor("SEGMENTS", np.array([[text]], dtype=object))])
