"""Models that are served well and behave badly: Tritone's own model of the toy bundle, with one vice each.

    serve_liars(bundle, folder, "wrong", "failing")  ->  a server of models of these names

Every third request of a liar meets its vice; the others are answered as they should be. `crawling` and `stalling` do so
with all of them, the latter from the fourth on; `honest` has no vice.
"""

from pathlib import Path

from serving import quiet_options
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer

NAP_S = 0.1
CODE = '''\
"""A liar: see tests/support/liars.py."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

from tritone.backend.{mode} import TritonPythonModel as HonestModel


class TritonPythonModel(HonestModel):
    def initialize(self, args):
        super().initialize(args)
        self.vice = getattr(self, args["model_name"].split("-")[0])
        self.asked = -1  # Triton's own warm-up is the first
        self.held = []

    def execute(self, requests):
        answers = super().execute(requests)
        for place, request in enumerate(requests):
            self.asked += 1
            if self.asked > 0:
                answers[place] = self.vice(request, answers[place])
        return answers

    def say(self, text):
        return pb_utils.InferenceResponse([pb_utils.Tensor("TRANSCRIPTS", np.array([[text.encode()]], dtype=object))])

    def honest(self, request, answer):
        return answer

    def wrong(self, request, answer):
        return self.say("something else") if self.asked % 3 == 0 else answer

    def mute(self, request, answer):
        return self.say("") if self.asked % 3 == 0 else answer

    def failing(self, request, answer):
        error = pb_utils.TritonError(f"request {{self.asked}} was one too many")
        return pb_utils.InferenceResponse(error=error) if self.asked % 3 == 0 else answer

    def dropping(self, request, answer):
        if self.asked % 3:
            return answer
        self.held.append(request.get_response_sender())  # who keeps it and never sends leaves the client without a word
        return None

    def stalling(self, request, answer):
        if self.asked > 3:
            time.sleep(3600)
        return answer

    def crawling(self, request, answer):
        time.sleep({nap})
        return answer
'''


def liar_server(bundle: Path, folder: Path, *vices: str, mode: str = "offline") -> TritonServer:
    """A server with a model for each vice, to be used in a `with` statement."""
    options = ModelOptions(queue_delay_ms=0, max_batch_size=1 if mode == "offline" else 32)
    for vice in vices:
        (model,) = build_repository([bundle], folder, names=[vice], modes=mode, options=options)  # type: ignore[arg-type]
        (model.path / "1" / "model.py").write_text(CODE.format(mode=mode, nap=NAP_S), encoding="utf-8")
    return TritonServer(folder, quiet_options())
