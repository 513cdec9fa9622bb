"""Toy Triton models that speak the wire contract and answer with arithmetic: every answer can be checked by hand.

They hold no code of Tritone: a client that is tested with them is tested against the contract alone.
"""

import shutil
from pathlib import Path

from serving import quiet_options
from tritone.server import TritonServer

MODELS = Path(__file__).parent / "wire_models"
# For servers of models whose configurations are complete, but not written by `tritone build`: Triton would start every
# Python model twice, the first time to ask it for what is missing.
COMPLETE = ("--disable-auto-complete-config",)

TENSORS = """
max_batch_size: 8
input [ { name: "WAV" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true },
        { name: "WAV_LENS" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TRANSCRIPTS" data_type: TYPE_STRING dims: [ 1 ] } %s ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
DETAILS = ', { name: "DETAILS" data_type: TYPE_STRING dims: [ 1 ] }'
CONTROL = """{ name: "%s" control [ { kind: CONTROL_SEQUENCE_%s %s } ] }"""
FLAG = "fp32_false_true: [ 0, 1 ]"

COUNT = TENSORS % DETAILS + 'parameters { key: "sample_rate" value: { string_value: "8000" } } dynamic_batching { }'
RUNNING = (
    TENSORS % ""
    + "sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 8 } "
    + "control_input ["
    + ", ".join(
        CONTROL % control
        for control in (("START", "START", FLAG), ("END", "END", FLAG), ("CORRID", "CORRID", "data_type: TYPE_UINT64"))
    )
    + "] }"
)
SPOKEN = RUNNING.replace("max_candidate_sequences: 8", "max_candidate_sequences: 64")
SLOW = TENSORS % "" + "dynamic_batching { }"
SEARCH = 'parameters { key: "search" value: { string_value: "greedy" } } '
ASKED = TENSORS % DETAILS + SEARCH + "dynamic_batching { }"
PARTS = TENSORS % DETAILS + SEARCH + "sequence_batching { oldest { max_candidate_sequences: 8 } }"
NARROW = TENSORS % "" + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
MOODS = TENSORS.replace("count: 1", "count: 2") % "" + "dynamic_batching { }"
VOICES = TENSORS.replace("TRANSCRIPTS", "EMBEDDINGS").replace("TYPE_STRING dims: [ 1 ]", "TYPE_FP32 dims: [ 3 ]") % ""
OTHER = """
max_batch_size: 0
input [ { name: "WAV" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
SPEAKER = (
    TENSORS.replace("TRANSCRIPTS", "EMBEDDINGS").replace("TYPE_STRING dims: [ 1 ]", "TYPE_FP32 dims: [ 4 ]") % ""
    + 'parameters { key: "sample_rate" value: { string_value: "16000" } } dynamic_batching { }'
)
# As WeSpeaker's own deployment has it: no lengths, no parameters.
LONE = """
max_batch_size: 8
input [ { name: "WAV" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "EMBEDDINGS" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
SCALE = """
max_batch_size: 4
input [ { name: "TABLE" data_type: TYPE_FP32 dims: [ -1, 2 ] }, { name: "TIMES" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "PRODUCT" data_type: TYPE_FP32 dims: [ -1, 2 ] },
         { name: "LABEL" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

ANSWERS = """
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
EITHER = TENSORS.replace(
    "allow_ragged_batch: true }",
    "allow_ragged_batch: true optional: true },\n"
    '{ name: "PCM" data_type: TYPE_INT16 dims: [ -1 ] allow_ragged_batch: true optional: true }',
)
MANY = ANSWERS + 'parameters { key: "answers" value: { string_value: "50" } }'
CONFIGS = {
    "either": EITHER % "" + "dynamic_batching { }",
    "either-chunks": EITHER % "" + RUNNING[RUNNING.index("sequence_batching") :],
    "count": COUNT,
    "running": RUNNING,
    "spoken": SPOKEN,
    "talk": SPOKEN.replace("TRANSCRIPTS", "SEGMENTS"),
    "arrivals": SPOKEN,
    "slow": SLOW,
    "narrow": NARROW,
    "moods": MOODS,
    "voices": VOICES + "dynamic_batching { }",
    "speaker": SPEAKER,
    "lone": LONE,
    "other": OTHER,
    "scale": SCALE,
    "answers": ANSWERS,
    "many": MANY,
    "asked": ASKED,
    "parts": PARTS,
}
CODE = {
    "either-chunks": "either",
    "narrow": "slow",
    "lone": "speaker",
    "other": "count",
    "answers": "mirror",
    "many": "mirror",
}  # of "other" only the tensors matter


def write_models(folder: Path, *names: str) -> Path:
    """Write a repository with these models."""
    for name in names:
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(
            f'name: "{name}" backend: "python" {CONFIGS[name]}', encoding="utf-8"
        )
        shutil.copy(MODELS / f"{CODE.get(name, name)}.py", folder / name / "1" / "model.py")
    return folder


def holding(repository: Path, name: str) -> Path:
    """A file that, while it is there, keeps a model of a repository from being loaded."""
    return _waiting(repository, name, "hold", "", "")


def busy(repository: Path, name: str) -> Path:
    """A file that, while it is there, keeps a model of a repository from answering."""
    return _waiting(repository, name, "busy", "    def execute(self, requests):\n", 8 * " ")


def _waiting(repository: Path, name: str, file: str, place: str, indent: str) -> Path:
    model = repository / name / "1" / "model.py"
    code = model.read_text(encoding="utf-8")
    assert place in code
    lines = (
        "import pathlib, time",
        f"while pathlib.Path(__file__).with_name('{file}').exists():",
        "    time.sleep(0.01)",
    )
    wait = place + "".join(f"{indent}{line}\n" for line in lines)
    model.write_text(code.replace(place, wait, 1) if place else wait + code, encoding="utf-8")
    return model.with_name(file)


def toy_server(folder: Path, *names: str, extra: tuple[str, ...] = ()) -> TritonServer:
    """A server of these models, to be used in a `with` statement."""
    return running_server(write_models(folder, *names), (*COMPLETE, *extra))


def running_server(repository: Path, extra: tuple[str, ...] = ()) -> TritonServer:
    """A server on free ports, with more arguments of tritonserver; to be used in a `with` statement."""
    return TritonServer(repository, quiet_options(extra=extra))
