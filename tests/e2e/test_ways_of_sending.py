"""The shipped models hear the same whichever way audio is sent: float32 or int16, in messages or in shared memory."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import soundfile

from serving import quiet_options
from tritone.client import Client
from tritone.corpus.clips import read_clips
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer

pytestmark = pytest.mark.slow

CLIPS = [str(clip.path) for clip in read_clips()][:6]
WAYS = [
    (protocol, pcm, memory)
    for protocol, pcm, memory in itertools.product(("grpc", "http"), (False, None), (None, "system"))
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("demo") / "repository"
    build_repository(["demo-asr"], repository, options=ModelOptions(max_streams=16, queue_delay_ms=0))
    build_repository(["demo-speaker"], repository, options=ModelOptions(queue_delay_ms=0))
    with TritonServer(repository, quiet_options()) as server:
        yield server


@pytest.fixture(params=WAYS, ids=lambda way: "-".join(map(str, way)))
def client(request: pytest.FixtureRequest, running: TritonServer) -> Iterator[Client]:
    protocol, pcm, memory = request.param
    url = f"{protocol}://{running.options.address(protocol)}"
    with Client(url, key=running.options.key, pcm=pcm, shared_memory=memory) as client:
        yield client


def heard(client: Client) -> tuple[object, ...]:
    """Everything that is answered: with one request at a time nothing depends on the batch."""
    samples, rate = soundfile.read(CLIPS[0], dtype="int16")
    with client.stream("demo-asr-streaming", sample_rate=rate, details=True) as stream:
        pieces: list[np.ndarray] = [*np.array_split(samples, 7)]
        pieces[2] = (pieces[2] / 32768).astype(np.float32)  # a stream may change its mind
        partials = [stream.accept(piece).text for piece in pieces]
        final = stream.finish()
    whole = client.transcribe(CLIPS, "demo-asr", details=True, concurrency=1)
    voices = client.embed(CLIPS, concurrency=1)
    return (
        [result.get().to_dict() for result in whole],
        partials,
        final.to_dict(),
        [result.embedding.tobytes() for result in voices],
    )


@pytest.fixture(scope="module")
def expected(running: TritonServer) -> tuple[object, ...]:
    with Client(running.grpc_address, pcm=False) as client:
        return heard(client)


def test_whichever_way_audio_is_sent_the_answers_are_the_same_to_the_last_bit(
    client: Client, expected: tuple[object, ...]
) -> None:
    assert all(client.model(name, kind=None).has_pcm for name in ("demo-asr", "demo-asr-streaming", "demo-speaker"))
    assert heard(client) == expected
