"""Models of NeMo, from their files to texts of a real server: whole utterances of TDT, streams of a cache-aware one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tritone
from families.conftest import babble
from families.nemo_models import Exported, export_tdt
from families.parakeet_models import LANGUAGES, export_streams
from serving import quiet_options
from shared import Shared
from tritone import Client
from tritone.bundle import Bundle
from tritone.errors import InputError
from tritone.pipelines.ahead import compile_all
from tritone.pipelines.streaming import StreamingPipeline
from tritone.pipelines.streams import Step
from tritone.repository import ModelOptions, build_repository
from tritone.search.options import SearchOptions
from tritone.server import TritonServer

CHUNKS = {"live": None, "brief": 1}  # chunk sizes by the name of the model that is served with them


@pytest.fixture(scope="module")
def exported(shared: Shared) -> Exported:
    return shared("nemo-tdt", export_tdt)


@pytest.fixture(scope="module")
def streams(shared: Shared) -> Path:
    return shared("nemotron-streams", export_streams)


@pytest.fixture(scope="module")
def client(exported: Exported, streams: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    repository = tmp_path_factory.mktemp("served") / "repository"
    options = ModelOptions(threads=1, queue_delay_ms=100, max_audio_s=10)
    build_repository([exported.bundle], repository, names=["tdt"], options=options)
    for name, chunk in CHUNKS.items():
        own = replace(options, queue_delay_ms=20, max_streams=8, chunk_size=chunk)
        build_repository([streams], repository, names=[name], modes="streaming", options=own)
    with TritonServer(repository, quiet_options()) as running, Client(running.grpc_address) as client:
        yield client


@pytest.mark.slow
def test_streams_side_by_side_are_answered_as_in_process_with_the_chunk_of_their_deployment(
    client: Client, streams: Path
) -> None:
    jobs = [(name, language, seed) for name in CHUNKS for seed, language in enumerate([*LANGUAGES, ""])]

    def transcribed(job: tuple[str, str, int]) -> list[tuple[str, float]]:
        name, language, seed = job
        search = {"language": language} if language else {}
        with client.stream(name, details=True, chunk_ms=70 + 50 * seed, search=search) as stream:
            stream.accept(babble(9000 + 7001 * seed, seed=seed))
            return [(each.text, round(each.start_s, 3)) for each in stream.finish().tokens]

    with ThreadPoolExecutor(len(jobs)) as pool:
        found = list(pool.map(transcribed, jobs))
    for name, chunk in CHUNKS.items():
        pipeline = StreamingPipeline(Bundle.open(streams), chunk_size=chunk, capacity=1)
        for tokens, (_, language, seed) in (
            (tokens, job) for tokens, job in zip(found, jobs, strict=True) if job[0] == name
        ):
            slot = pipeline.open(SearchOptions(language=language))
            (final,) = pipeline.advance([Step(slot, babble(9000 + 7001 * seed, seed=seed), final=True)])
            assert tokens == [(each.text, round(each.start_s, 3)) for each in final.tokens] != []
    assert found[: len(found) // 2] != found[len(found) // 2 :]  # chunks of other sizes hear other things
    with (
        client.stream("live", search={"language": "xx"}) as stream,
        pytest.raises(InputError, match="language is 'xx'"),
    ):
        stream.accept(np.zeros(16000, np.float32))


@pytest.mark.slow
def test_requests_of_different_lengths_get_the_references_tokens(client: Client, exported: Exported) -> None:
    compile_all("transducer")  # else the first request with a beam is told to come back
    pieces = Bundle.open(exported.bundle).vocabulary.tokens
    waveforms = [babble(length, seed=length) for length in (9000, 16000, 300, 12345)]
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
