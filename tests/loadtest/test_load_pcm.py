"""Loads of 16-bit audio and of audio in shared memory, against a toy model that says what it got."""

import errno
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb

from tritone.client import Client, Endpoint, regions
from tritone.client.transport import Placement
from tritone.errors import InputError, OperatorError
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.plans.generator import Audio, Generator, find_target
from tritone.loadtest.requests.offline import measure_closed
from tritone.loadtest.senders.shared_audio import open_shared_audio
from tritone.loadtest.senders.wire import Target, encode
from tritone.loadtest.streams.measure import measure_streams
from tritone.loadtest.workload.workload import Workload
from tritone.server import TritonServer

RATE = 16000
BRIEF = WindowPlan(warmup_s=0.1, window_s=0.2, max_window_s=3.0, min_requests=4, max_windows=2, tolerance=0.99)
OPTIONS = LoadOptions(windows=BRIEF, tick_s=0.1, timeout_s=30.0, drain_s=0.2, processes=2, chunk_ms=100)
WAYS = [
    pytest.param("grpc", False, None),
    pytest.param("grpc", True, None, marks=pytest.mark.slow),
    pytest.param("grpc", True, "system"),
    pytest.param("grpc", False, "system", marks=pytest.mark.slow),
    pytest.param("http", True, "system", marks=pytest.mark.slow),
    pytest.param("http", True, None, marks=pytest.mark.slow),
]


def workload(tensor: str, chunk: int | None = None) -> Workload:
    """Speech of 16 bits, with the text that the toy model makes of it."""
    waveforms = [
        (np.random.default_rng(seed).integers(-9999, 9999, 4000 + 700 * seed) / 32768).astype(np.float32)
        for seed in range(4)
    ]
    tensors = [",".join([tensor] * (1 if chunk is None else -(-len(each) // chunk))) for each in waveforms]
    return Workload(
        seconds="made",
        sample_rate=RATE,
        waveforms=waveforms,
        references=[
            f"{name} {len(each)} {each.astype(np.float64).sum()!r}"
            for name, each in zip(tensors, waveforms, strict=True)
        ],
    )


def target_of(server: TritonServer, protocol: str, model: str, *, pcm: bool, memory: str | None) -> Target:
    endpoint = Endpoint.parse(f"{protocol}://{server.options.address(protocol)}", key=server.options.key)
    return Target(endpoint=endpoint, model=model, sample_rate=RATE, pcm=pcm, shared_memory=memory)


def left_behind() -> list[str]:
    """Regions of processes that have ended, or of this one; tests in other processes have theirs."""
    names = [path.name for path in regions.FOLDER.glob(f"{regions.PREFIX}*")]
    owners = {name: int(name.removeprefix(regions.PREFIX).partition("-")[0]) for name in names}
    return [name for name, pid in owners.items() if pid == os.getpid() or not psutil.pid_exists(pid)]


@pytest.mark.parametrize(("protocol", "pcm", "memory"), WAYS)
def test_requests_carry_the_same_audio_whichever_way(
    either_server: TritonServer, protocol: str, pcm: bool, memory: str | None
) -> None:
    target = target_of(either_server, protocol, "either", pcm=pcm, memory=memory)
    found = measure_closed(target, workload("PCM" if pcm else "WAV"), 4, OPTIONS)
    assert found.errors == {}
    assert (found.wer, found.different_texts) == (0, 0)
    assert found.samples == ("int16" if pcm else "float32") + (" in system memory" if memory else "")
    assert left_behind() == []


@pytest.mark.parametrize("memory", [None, "system"])
def test_streams_carry_the_same_audio_whichever_way(either_server: TritonServer, memory: str | None) -> None:
    target = replace(target_of(either_server, "grpc", "either-chunks", pcm=True, memory=memory), streaming=True)
    found = measure_streams(target, workload("PCM", chunk=RATE // 10), 4, OPTIONS)
    assert found.errors == {}
    assert (found.wer, found.different_texts) == (0, 0)
    assert found.samples == ("int16 in system memory" if memory else "int16")


def test_a_model_that_takes_16_bits_gets_them_and_what_is_rounded_is_told(either_server: TritonServer) -> None:
    with Client(either_server.grpc_address) as client:
        assert find_target(client, "either", streaming=False).samples == "int16"
        assert find_target(client, "count", streaming=False).samples == "float32"
        target = find_target(client, "either", streaming=False)
    with Client(either_server.grpc_address, pcm=False) as client:
        assert find_target(client, "either", streaming=False).samples == "float32"
    with (
        Client(either_server.grpc_address, pcm=True) as client,
        pytest.raises(InputError, match="takes no 16-bit audio"),
    ):
        find_target(client, "count", streaming=False)
    assert list(Generator(target, Audio(lengths=["0.2"]), OPTIONS)._workload("0.2").notes) == []
    resampled = Generator(replace(target, sample_rate=8000), Audio(lengths=["0.2"]), OPTIONS)._workload("0.2")
    assert list(resampled.notes) == ["samples were rounded to 16 bits in 64 of 64 utterances"]


def test_a_load_through_memory_that_the_server_may_not_open_fails_with_the_reason(either_server: TritonServer) -> None:
    target = target_of(either_server, "grpc", "either", pcm=True, memory="system")
    locked = replace(target, endpoint=replace(target.endpoint, key=None))
    with pytest.raises(OperatorError, match="the server's key in triton-grpc-protocol-tritone-key is needed"):
        measure_closed(locked, workload("PCM"), 1, replace(OPTIONS, processes=1))


def test_a_load_that_the_machine_has_no_memory_for_fails_with_the_reason(
    either_server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shared = open_shared_audio(target_of(either_server, "grpc", "either", pcm=True, memory="system"), 1 << 20, 1)
    assert shared is not None
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OperatorError, match=r"no shared memory for the 1 MB .*No space left on device.*--shm-size"):
        shared.place(np.zeros((1, 9999), np.int16))
    shared.close()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_request_names_the_place_of_its_audio_and_carries_the_rest(protocol: str) -> None:
    endpoint = Endpoint.parse(f"{protocol}://localhost:1")
    target = Target(endpoint=endpoint, model="m", sample_rate=RATE, pcm=True, shared_memory="system")
    blocks: list[Sequence[int]] = []

    def place(block: np.ndarray) -> Placement:
        blocks.append(block.tolist())
        return Placement("region", 512, block.nbytes)

    body = encode(target, [np.array([0.5, -0.25], np.float32), np.array([1.0], np.float32)], place=place)
    assert blocks == [[[16384, -8192], [32767, 0]]]
    assert body.num_bytes < 400
    if protocol == "http":
        assert b'"shared_memory_region": "region"' in body.json
        assert body.content == np.array([2, 1], "<i4").tobytes()
        return
    message = pb.ModelInferRequest.FromString(body.content)
    audio, lengths = message.inputs
    assert (audio.name, audio.datatype, list(audio.shape)) == ("PCM", "INT16", [2, 2])
    assert audio.parameters["shared_memory_region"].string_param == "region"
    assert audio.parameters["shared_memory_offset"].int64_param == 512
    assert audio.parameters["shared_memory_byte_size"].int64_param == 8
    assert (lengths.name, list(message.raw_input_contents)) == ("WAV_LENS", [np.array([2, 1], "<i4").tobytes()])
