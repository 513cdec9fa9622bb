"""What a request needs is imported when its model is loaded, so that no request waits for an import."""

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import Ask, RawClient, Refusal, quiet_options
from toy import toy_waveform
from toy_speaker import toy_voice
from toy_transducer import transducer_waveform
from tritone.audio import read_audio
from tritone.client import Client
from tritone.corpus.clips import read_clips
from tritone.pipelines.graphs.filling import SHARED_BYTES
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer
from watched_imports import watch_imports

IDS = count(90_000)
TIMEOUT_S = 120.0  # on a machine that is busy
BOTH = ("TRANSCRIPTS", "DETAILS")
GREEDY: list[dict[str, Any]] = [{}, {"blank_penalty": 1}]
NBEST = {"nbest": 3, "timestamps": True}
CTC: list[dict[str, Any]] = [
    *GREEDY[:1],
    {"search": "prefix-beam", **NBEST},
    {"search": "prefix-beam", "hotwords": '{"ab": 5}', "beam": 7},
]
TRANSDUCER = [*GREEDY, {"search": "modified-beam", **NBEST}, {"search": "fast-beam", "hotwords": '{"ab": 5}'}]
RESCORING = [*CTC, {"search": "rescoring", "ctc_weight": 0.5}]


@pytest.mark.slow  # a server with a process for each of seven models
def test_no_request_imports_a_module_of_ours(
    decoding_bundle: Path, transducer_bundle: Path, speaker_bundle: Path, searches_compiled: None, tmp_path: Path
) -> None:
    letters, clip = toy_waveform("abc"), read_audio(read_clips()[0].path, 16000)
    long = np.tile(clip, 1 + SHARED_BYTES // (4 * len(clip)))  # blocks of it are filled by compiled code
    cases: dict[str, tuple[Any, str, list[dict[str, Any]], Any]] = {
        "whole": (decoding_bundle, "offline", RESCORING, letters),
        "stream": (decoding_bundle, "streaming", RESCORING, letters),
        "transducer": (transducer_bundle, "offline", TRANSDUCER, transducer_waveform("abc")),
        "transducer-stream": (transducer_bundle, "streaming", TRANSDUCER, transducer_waveform("abc")),
        "demo": ("demo-asr", "offline", RESCORING, clip),
        "demo-transducer": ("demo-transducer", "offline", TRANSDUCER, clip),
        "speaker": (speaker_bundle, "offline", [], None),
    }
    models, written = tmp_path / "models", {name: tmp_path / f"{name}.txt" for name in cases}
    options = ModelOptions(queue_delay_ms=20, max_batch_size=4)
    for name, (bundle, mode, *_) in cases.items():
        modes: Any = "both" if name == "speaker" else mode
        (model,) = build_repository([bundle], models, names=[name], modes=modes, options=options)
        watch_imports(model, mode, written[name])
    with TritonServer(models, quiet_options()) as server:
        raw = RawClient(server.grpc_address)
        with Client(server.grpc_address, timeout_s=TIMEOUT_S) as client:
            voices = [toy_voice([0.3]), toy_voice([0.3], len(long))]
            assert [len(each.embedding) > 0 for each in client.embed(voices, model="speaker")] == [True, True]
        for name, (_, mode, asked, wav) in cases.items():
            if name == "speaker":
                continue
            asks = [
                Ask(model=name, wav=wav, parameters=each, outputs=BOTH, **_as_stream(mode))
                for each in asked
                for _ in range(2)
            ]
            unusable = [Ask(model=name, wav=wav, parameters={"beems": 3}, outputs=BOTH, **_as_stream(mode))]
            more = [Ask(model=name, wav=long)] if name == "demo" else []
            answers = raw.together([*more, *asks, *unusable], TIMEOUT_S)
            assert not [each for each in answers[:-1] if isinstance(each, Refusal)]
            assert isinstance(answers[-1], Refusal)
    found = {name: file.read_text(encoding="utf-8").splitlines() for name, file in written.items()}
    assert {name: lines[:-1] for name, lines in found.items()} == {name: [] for name in cases}
    assert all(int(lines[-1].removeprefix("requests ")) >= 3 for lines in found.values())


def _as_stream(mode: str) -> dict[str, Any]:
    return {"stream": next(IDS), "start": True, "end": True} if mode == "streaming" else {}
