"""A model that costs next to nothing, served by Triton's Python backend: every chunk of a stream has a text of its own.

It takes what ours take and returns text and details ("chunk 7", two words with times), so that a client gets an event
for each chunk, and reads as much as of a real one.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tritone.server import ServerOptions, TritonServer

STREAMING, OFFLINE = "counting", "counting-files"
CODE = '''\
"""Counts the chunks of each stream."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

DETAILS = json.dumps({
    "text": "chunk %d", "tokens": [], "confidence": 1.0, "audio_s": 1.0, "is_final": False, "segment": 0,
    "words": [{"text": each, "start_s": 0.0, "end_s": 0.1, "confidence": 1.0} for each in ("chunk", "%d")],
})


class TritonPythonModel:
    def initialize(self, args):
        self.counts = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def value(name):
            return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0])

        count = 1
        if pb_utils.get_input_tensor_by_name(request, "CORRID") is not None:
            stream = value("CORRID")
            count = self.counts[stream] = 1 + (0 if value("START") else self.counts[stream])
            if value("END"):
                del self.counts[stream]
        texts = (f"chunk {count}", DETAILS % (count, count))
        tensors = [
            pb_utils.Tensor(name, np.array([[text.encode()]], dtype=object))
            for name, text in zip(("TRANSCRIPTS", "DETAILS"), texts)
        ]
        return pb_utils.InferenceResponse(tensors)
'''
TENSORS = """
backend: "python" max_batch_size: 64
input [ { name: "WAV" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true optional: true },
        { name: "PCM" data_type: TYPE_INT16 dims: [ -1 ] allow_ragged_batch: true optional: true },
        { name: "WAV_LENS" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TRANSCRIPTS" data_type: TYPE_STRING dims: [ 1 ] },
         { name: "DETAILS" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
FLAG = "int32_false_true: [ 0, 1 ]"
CONTROLS = ", ".join(
    f'{{ name: "{name}" control [ {{ kind: CONTROL_SEQUENCE_{name} {values} }} ] }}'
    for name, values in (("START", FLAG), ("END", FLAG), ("CORRID", "data_type: TYPE_UINT64"))
)
BATCHING = {
    STREAMING: f"sequence_batching {{ max_sequence_idle_microseconds: 600000000 control_input [ {CONTROLS} ] "
    "oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 2000 } }",
    OFFLINE: "dynamic_batching { }",
}


@contextmanager
def counting() -> Iterator[TritonServer]:
    """Serve both models on free ports of loopback."""
    with tempfile.TemporaryDirectory(prefix="tritone-counting-") as folder:
        for name, batching in BATCHING.items():
            model = Path(folder, name)
            (model / "1").mkdir(parents=True)
            (model / "config.pbtxt").write_text(f'name: "{name}" {TENSORS} {batching}', encoding="utf-8")
            (model / "1" / "model.py").write_text(CODE, encoding="utf-8")
        with TritonServer(Path(folder), ServerOptions.on_free_ports(drain_s=0)) as server:
            yield server
