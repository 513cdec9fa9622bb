"""A TDT model of NeMo, from its archive to texts of a real server."""

from pathlib import Path

import pytest
import torch

import tritone
from families.conftest import babble
from families.nemo_models import export_tdt
from serving import quiet_options
from shared import Shared
from tritone import Client
from tritone.bundle import Bundle
from tritone.pipelines.ahead import compile_all
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer


@pytest.mark.slow
def test_requests_of_different_lengths_get_the_references_tokens(shared: Shared, tmp_path: Path) -> None:
    compile_all("transducer")  # else the first request with a beam is told to come back
    exported = shared("nemo-tdt", export_tdt)
    pieces = Bundle.open(exported.bundle).vocabulary.tokens
    options = ModelOptions(threads=1, queue_delay_ms=100, max_audio_s=10)
    build_repository([exported.bundle], tmp_path / "repository", names=["tdt"], options=options)
    waveforms = [babble(length, seed=length) for length in (9000, 16000, 300, 12345)]
    with (
        TritonServer(tmp_path / "repository", quiet_options()) as running,
        Client(running.grpc_address) as client,
    ):
        found = client.transcribe(waveforms, model="tdt", details=True)
        beam = {"search": "modified-beam", "beam": 4}
        searched = client.transcribe(waveforms, model="tdt", search=beam)
        hot = client.transcribe(waveforms, model="tdt", search={**beam, "hotwords": "hello:20"})
        refused = client.transcribe(waveforms[:1], model="tdt", search={"search": "fast-beam"})
    for waveform, result in zip(waveforms, found, strict=True):
        expected = exported.model.greedy(torch.from_numpy(waveform)) if len(waveform) >= 320 else []
        assert [(each.text, round(each.start_s / 0.08, 3)) for each in result.tokens] == [
            (pieces[token], frame) for token, frame in expected
        ]
    local = tritone.load(exported.bundle).transcribe(waveforms, search=beam)
    assert [each.text for each in searched] == [each.text for each in local]
    assert "hello" in hot[1].text
    assert "whose predictor has a state" in str(refused[0].error)
