"""16-bit audio and shared memory, against a toy model that says which tensor it got, and what it held."""

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tritonclient.grpc as triton

from tritone.client import Client, regions
from tritone.client.shared_memory import SharedMemoryTransport
from tritone.errors import AudioError, InputError, OperatorError
from tritone.keys import GRPC_HEADER, HTTP_HEADER
from tritone.server import TritonServer

RATE = 16000
TONE = (8000 * np.sin(np.arange(RATE) / 9)).astype(np.int16)


def total(samples: np.ndarray) -> str:
    """What the toy model says of samples after the name of the tensor."""
    waveform = samples / 32768 if samples.dtype == np.int16 else samples
    return f"{len(waveform)} {waveform.astype(np.float64).sum()!r}"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {
        name: tmp_path / f"{name}.{suffix}"
        for name, suffix in (("sixteen", "wav"), ("flac", "flac"), ("wide", "wav"), ("slow", "wav"), ("stereo", "wav"))
    }
    soundfile.write(paths["sixteen"], TONE, RATE)
    soundfile.write(paths["flac"], TONE, RATE)
    soundfile.write(paths["wide"], TONE.astype(np.int32) << 10, RATE, subtype="PCM_24")
    soundfile.write(paths["slow"], TONE, RATE // 2)
    soundfile.write(paths["stereo"], np.stack([TONE, TONE[::-1]], axis=1), RATE)
    return paths


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, either_server: TritonServer) -> str:
    return either_server.grpc_address if request.param == "grpc" else f"http://{either_server.http_address}"


@pytest.fixture
def shared(url: str, either_server: TritonServer) -> Iterator[Client]:
    with Client(url, key=either_server.options.key, shared_memory="system", timeout_s=30) as client:
        yield client


def test_what_has_16_bits_at_the_model_s_rate_is_sent_as_pcm(url: str, files: dict[str, Path]) -> None:
    with Client(url) as client:
        texts = {name: client.transcribe(path, "either").text for name, path in files.items()}
        stereo = (TONE / 32768 + TONE[::-1] / 32768).astype(np.float32) / 2
        assert texts["sixteen"] == texts["flac"] == f"PCM {total(TONE)}"
        assert texts["wide"] == f"WAV {total(TONE / 32768 / 64)}"
        assert texts["slow"].startswith("WAV 32000 ")
        assert texts["stereo"] == f"WAV {total(stereo)}"
        assert client.transcribe(TONE, "either").text == f"PCM {total(TONE)}"
        assert client.transcribe([TONE[:, None]], "either")[0].text == f"PCM {total(TONE)}"
        assert client.transcribe((TONE / 32768).astype(np.float32), "either").text == f"WAV {total(TONE)}"


def test_the_caller_may_have_it_otherwise(url: str, files: dict[str, Path]) -> None:
    loud = np.array([0.5, 1.5, -1.5, 0.25 / 32768], np.float32)
    with Client(url, pcm=False) as client:
        assert client.transcribe(files["flac"], "either").text == f"WAV {total(TONE)}"
        assert client.transcribe(TONE, "either").text == f"WAV {total(TONE)}"
    with Client(url, pcm=True) as client:
        assert client.transcribe(loud, "either").text == f"PCM {total(np.array([16384, 32767, -32768, 0], np.int16))}"
        assert client.transcribe(files["slow"], "either").text.startswith("PCM 32000 ")
        with pytest.raises(AudioError, match="finite"):
            client.transcribe(np.array([0, np.nan], np.float32), "either")
        with pytest.raises(InputError, match="'count' takes no 16-bit audio"):
            client.transcribe(TONE, "count")


def test_a_model_without_it_gets_the_same_audio_as_float32(url: str) -> None:
    with Client(url) as client:
        assert client.transcribe(TONE[:4], "count").text == f"4 {(TONE[:4] / 32768).sum():.1f}"


@pytest.mark.parametrize("memory", [None, "system"])
def test_streams_send_16_bits_as_they_come(url: str, either_server: TritonServer, memory: str | None) -> None:
    with Client(url, key=either_server.options.key, shared_memory=memory) as client:
        with client.stream("either-chunks", chunk_ms=200) as stream:
            stream.accept(TONE[:8000])
            assert stream.finish().text == f"PCM,PCM,PCM {total(TONE[:8000])}"
        with client.stream("either-chunks", chunk_ms=200) as stream:
            stream.accept(TONE[:4800])
            stream.accept((TONE[4800:8000] / 32768).astype(np.float32))
            assert stream.finish().text == f"PCM,WAV,WAV {total(TONE[:8000])}"


def test_audio_in_shared_memory_is_the_same(shared: Client, files: dict[str, Path]) -> None:
    cuts = [TONE[: 2000 + 37 * index] for index in range(100)]
    results = shared.transcribe(cuts, "either", concurrency=16)
    assert [result.text for result in results] == [f"PCM {total(cut)}" for cut in cuts]
    assert shared.transcribe(files["wide"], "either").text == f"WAV {total(TONE / 32768 / 64)}"
    assert shared.transcribe(TONE[:1], "either").text == f"PCM {total(TONE[:1])}"  # too short to be worth it
    table = np.ones((600, 2), np.float32)
    (scaled,) = shared.infer([{"TABLE": table, "TIMES": np.array([3])}], "scale", outputs=["PRODUCT"])
    assert np.array_equal(scaled.get()["PRODUCT"], 3 * table)


def test_shared_memory_is_this_user_s_alone_and_goes_with_the_client(url: str, either_server: TritonServer) -> None:
    asked = triton.InferenceServerClient(either_server.grpc_address)
    headers = {GRPC_HEADER: either_server.options.key}
    with Client(url, key=either_server.options.key, shared_memory="system") as client:
        client.transcribe(TONE, "either")
        (region,) = asked.get_system_shared_memory_status(headers=headers).regions
        assert region.startswith(f"{regions.PREFIX}{os.getpid()}-")
        path = regions.FOLDER / region
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.stat().st_blocks * 512 < 64 << 20  # its memory is reserved as it is needed
    assert not path.exists()
    assert not asked.get_system_shared_memory_status(headers=headers).regions
    asked.close()


def test_what_a_killed_process_left_is_removed(either_server: TritonServer) -> None:
    code = (
        "import os, sys, numpy as np; from tritone.client import Client; "
        "c = Client(sys.argv[1], key=sys.argv[2], shared_memory='system'); "
        "c.transcribe(np.zeros(9999, np.int16), 'either'); print(os.getpid(), flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, either_server.grpc_address, either_server.options.key],
        check=False,
        capture_output=True,
        encoding="utf-8",
    )
    name = f"{regions.PREFIX}{done.stdout.strip()}-"
    assert list(regions.FOLDER.glob(f"{name}*")), done.stderr
    with Client(either_server.grpc_address, key=either_server.options.key, shared_memory="system") as client:
        client.transcribe(TONE, "either")
        left = client._transport.regions("system", 10)  # type: ignore[attr-defined]
    assert not list(regions.FOLDER.glob(f"{name}*"))
    assert not [each for each in left if each.startswith(name)]


def test_the_key_of_a_server_of_this_user_is_found(
    either_server: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritone.keys import publish

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TRITONE_KEY", raising=False)
    with (
        Client(either_server.grpc_address, shared_memory="system") as client,
        pytest.raises(InputError, match=r"shared memory: the server's key in .*TRITONE_KEY"),
    ):
        client.transcribe(TONE, "either")
    publish(either_server.options.key, [either_server.options.grpc_port])
    with Client(either_server.grpc_address, shared_memory="system") as client:
        assert client.transcribe(TONE, "either").text == f"PCM {total(TONE)}"


def test_what_does_not_fit_travels_in_the_message(
    url: str, either_server: TritonServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(url, key=either_server.options.key, shared_memory="system") as client:
        transport = client._shared
        assert transport is not None
        transport._size, transport._room = 30_000, regions.Room(30_000)
        cuts = [TONE, TONE[:4000]] * 4  # 32,000 and 8,000 bytes
        with caplog.at_level(logging.WARNING):
            results = client.transcribe(cuts, "either", concurrency=8)
        assert [result.text for result in results] == [f"PCM {total(cut)}" for cut in cuts]
        assert len([each for each in caplog.messages if "shared memory has no room" in each]) == 1
        assert transport._room._free == [(0, 30_000)]


def test_a_machine_without_room_is_no_reason_to_fail(
    shared: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with caplog.at_level(logging.WARNING):
        assert shared.transcribe(TONE, "either").text == f"PCM {total(TONE)}"
    assert "no room (No space left on device): what does not fit is sent in messages" in caplog.text


def forget(transport: SharedMemoryTransport) -> None:
    """Have the server forget the region, which it may hold for a moment after an answer."""
    assert transport._region is not None
    deadline = time.monotonic() + 60
    while True:
        try:
            transport.unregister(transport._region.name, "system", 10)
            return
        except OperatorError as error:
            if "in use" not in str(error) or time.monotonic() > deadline:
                raise


def test_a_server_that_was_started_again_is_told_of_the_region_again(
    shared: Client, either_server: TritonServer
) -> None:
    assert shared.transcribe(TONE, "either").text
    transport = shared._shared
    assert isinstance(transport, SharedMemoryTransport)
    assert transport._region is not None
    forget(transport)
    (result,) = shared.transcribe([TONE], "either")
    assert "does not know this client's shared memory any more" in str(result.error)
    assert shared.transcribe(TONE, "either").text == f"PCM {total(TONE)}"
    header = GRPC_HEADER if shared.endpoint.protocol == "grpc" else HTTP_HEADER
    with Client(str(shared.endpoint), key=shared.endpoint.headers[header], shared_memory="system", retries=2) as again:
        assert again.transcribe(TONE, "either").text
        assert again._shared is not None
        assert again._shared._region is not None
        forget(again._shared)
        assert again.transcribe(TONE, "either").text == f"PCM {total(TONE)}"


def test_a_server_that_cannot_open_the_memory_is_told_apart(
    url: str, either_server: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "FOLDER", tmp_path)  # as in a container of its own
    with (
        Client(url, key=either_server.options.key, shared_memory="system") as client,
        pytest.raises(OperatorError, match=r"cannot open the shared memory of this process.*--ipc=host"),
    ):
        client.transcribe(TONE, "either")
    assert not list(tmp_path.iterdir())


def test_kinds_of_memory_that_there_are_not_are_refused() -> None:
    for wrong in ("gpu", "cuda:", "cuda:x", "system:0"):
        with pytest.raises(ValueError, match="'system', 'cuda' or 'cuda:N'"):
            Client("localhost:8001", shared_memory=wrong)


def test_room_is_given_back_and_joined() -> None:
    room = regions.Room(1024)
    places = [room.take(200), room.take(256), room.take(257)]
    assert places == [0, 256, 512]
    assert room.take(1) is None
    room.give(0, 200)
    room.give(512, 257)
    assert room.take(300) == 512
    room.give(256, 256)
    assert room.take(512) == 0
