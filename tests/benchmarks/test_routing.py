"""Live streams through real balancers with the configurations of deploy/routing, while servers come, end and die."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.routing.fleet import Balancer, Fleet, Kind, missing
from benchmarks.routing.trial import alone, errors, try_streams

from toy import SAMPLE_RATE, toy_waveform
from tritone.client import Client
from tritone.repository import ModelOptions, build_repository

WORDS = 2 * "the quick brown fox jumps over the lazy dog and runs away into the dark green woods "
# A stream that went elsewhere without a word ends so soon; a server that ends waits for it. Those that are silent while
# servers change must live, on slow machines, too.
OPTIONS = ModelOptions(queue_delay_ms=0, stream_idle_timeout_s=20)


@pytest.fixture(scope="module")
def fleet(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    build_repository([toy_bundle], folder / "repository", names=["live"], modes="streaming", options=OPTIONS)
    with Fleet(folder / "repository", folder) as fleet:
        fleet.add(5)
        yield fleet


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_live_streams_outlive_changes_of_the_servers(fleet: Fleet, tmp_path: Path, kind: Kind) -> None:
    if missing(kind):
        pytest.skip(f"there is no {kind} here: apt-get install {kind}")
    spoken = toy_waveform(WORDS)
    audio = [spoken[index * 800 :] for index in range(4)]  # 6 s and more
    living = [each for each in fleet.replicas if each.process.poll() is None]
    # The second balancer has what the first one left.
    serving, added = (living[:-2], living[-2]) if kind == "haproxy" else (living[:-1], living[-1])
    texts = alone(serving[0], audio, SAMPLE_RATE, chunk_ms=250)
    with Balancer(kind, serving, tmp_path) as balancer:
        with Client(balancer.url("http")) as client:
            assert [each.name for each in client.models()] == ["live"]
        trial = try_streams(
            balancer,
            serving,
            added,
            audio,
            texts,
            sample_rate=SAMPLE_RATE,
            streams=16,
            late=4,
            pause_s=1.0,
            chunk_ms=250,
            silent=kind == "nginx",
        )
    seen = [(each.event, each.stream.protocol, str(each.stream.error)) for each in trial.losses]
    assert not trial.wrong
    assert trial.drained
    assert not trial.taken  # new streams go to others while a server ends
    assert trial.count("drain") == 0, seen  # those that it has go on
    # nginx asks the next server for a stream by HTTP. HAProxy may move one until its new process has the table.
    if kind == "nginx":
        assert trial.count("add", protocol="http") == 0, seen
    assert set(errors(trial)) <= {"StreamLostError"}
    assert all(each.text is not None for each in trial.streams if each.resume)
    assert trial.count("kill") >= 1
