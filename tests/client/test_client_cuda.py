"""CUDA shared memory: the client's side against a stand-in for the driver, and all of it where there is a GPU."""

# ruff: noqa: N802, N815  the names are those of CUDA's runtime

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tritone.client import Client, regions
from tritone.client.device_array import DeviceArray, is_on_gpu
from tritone.client.models import ModelInfo, Tensor
from tritone.errors import AudioError, InputError, MissingDependencyError, OperatorError
from tritone.server import TritonServer

RAMP = np.arange(4000, dtype=np.int16)
AUDIO = {"WAV": Tensor("FP32", (-1,)), "PCM": Tensor("INT16", (-1,)), "WAV_LENS": Tensor("INT32", (1,))}


class OnGpu:
    """An array that says it is on a GPU."""

    def __init__(self, array: np.ndarray, **more: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = dict(array.__array_interface__) | {"version": 3} | more


class Driver:
    """What is used of cuda-python's runtime, with memory of the host. `newer`: as version 13 has it."""

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyDefault=4)

    def __init__(self, *, newer: bool = True, failing: str = "") -> None:
        self.newer, self.failing = newer, failing
        self.device, self.waited = 3, []
        self.memory: dict[int, Any] = {}

    def __getattribute__(self, name: str) -> Any:
        failing = object.__getattribute__(self, "failing")
        return (lambda *_: (2,)) if name == failing else object.__getattribute__(self, name)

    def cudaGetDevice(self) -> tuple[int, int]:
        return 0, self.device

    def cudaSetDevice(self, device: int) -> tuple[int]:
        self.device = device
        return (0,)

    def cudaMalloc(self, size: int) -> tuple[int, int]:
        assert self.device == 1
        buffer = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(buffer)] = buffer
        return 0, ctypes.addressof(buffer)

    def cudaIpcGetMemHandle(self, pointer: int) -> tuple[int, Any]:
        handle = ctypes.create_string_buffer(b"handle", 64)
        self.memory["handle"] = handle  # type: ignore[index]
        newer = SimpleNamespace(getPtr=lambda: ctypes.addressof(handle))
        return 0, newer if self.newer else SimpleNamespace(reserved=bytes(handle))

    def cudaMemcpy(self, target: int, source: int, size: int, kind: int) -> tuple[int]:
        assert (self.device, kind) == (1, 4)
        ctypes.memmove(target, source, size)
        return (0,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:
        self.waited.append(stream)
        return (0,)

    def cudaFree(self, pointer: int) -> tuple[int]:
        del self.memory[pointer]
        return (0,)


def driven(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Driver:
    bindings = ModuleType("cuda.bindings")
    bindings.runtime = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    return driver


@pytest.mark.parametrize("newer", [True, False])
def test_a_region_on_a_gpu_is_written_and_freed_and_leaves_the_thread_s_device_alone(
    monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    driver = driven(monkeypatch, Driver(newer=newer))
    region = regions.open_region("cuda:1", 1 << 16)
    assert region.registration == {"raw_handle": b"handle".ljust(64, b"\0"), "device_id": 1, "byte_size": 1 << 16}
    region.write(256, RAMP[None])
    region.write(10000, DeviceArray(OnGpu(RAMP[::-1].copy(), stream=7)))
    (held,) = [each for key, each in driver.memory.items() if key != "handle"]
    assert bytes(held)[256 : 256 + RAMP.nbytes] == RAMP.tobytes()
    assert bytes(held)[10000 : 10000 + RAMP.nbytes] == RAMP[::-1].tobytes()
    assert driver.waited == [0, 7, 0]
    assert driver.device == 3
    assert (regions.FOLDER / region.name).exists()  # tells others that this process lives
    region.close()
    region.close()
    assert list(driver.memory) == ["handle"]
    assert not (regions.FOLDER / region.name).exists()


def test_without_a_gpu_or_its_package_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "cuda.bindings"):  # a CUDA build of torch brings it, and a test before may have imported it
        monkeypatch.setitem(sys.modules, name, None)  # which makes the import fail
    with pytest.raises(MissingDependencyError, match="pip install cuda-python"):
        regions.open_region("cuda", 1)
    driven(monkeypatch, Driver(failing="cudaGetDevice"))
    with pytest.raises(OperatorError, match=r"on GPU 0: cudaGetDevice failed \(2\)"):
        regions.open_region("cuda", 1)


def test_arrays_on_a_gpu_go_as_they_are_or_not_at_all() -> None:
    model = ModelInfo(name="m", kind="offline", has_pcm=True, inputs=AUDIO)
    array = DeviceArray(OnGpu(RAMP)).check_waveform()
    tensors = model.audio_tensors(array)
    assert tensors["PCM"].shape == (1, 4000)
    assert tensors["PCM"].pointer == RAMP.ctypes.data
    assert tensors["WAV_LENS"].tolist() == [[4000]]
    floats = DeviceArray(OnGpu(RAMP.astype(np.float32))).check_waveform()
    assert list(model.audio_tensors(floats)) == ["WAV", "WAV_LENS"]
    with pytest.raises(InputError, match="takes no 16-bit audio: give float32"):
        ModelInfo(name="old", kind="offline", inputs=AUDIO).audio_tensors(array)
    for wrong in (RAMP.astype(np.float64), RAMP.reshape(2, -1), RAMP[:0]):
        with pytest.raises(AudioError, match="an array on a GPU must be"):
            DeviceArray(OnGpu(wrong)).check_waveform()
    with pytest.raises(AudioError, match="without gaps"):
        DeviceArray(OnGpu(RAMP[::2], strides=(4,))).check_waveform()
    assert not is_on_gpu(RAMP)


def test_a_client_without_cuda_memory_says_what_to_do(either_server: TritonServer) -> None:
    with Client(either_server.grpc_address) as client:
        (result,) = client.transcribe([OnGpu(RAMP)], "either")  # type: ignore[list-item]
        assert "Client(shared_memory='cuda')" in str(result.error)
        with client.stream("either-chunks") as stream, pytest.raises(AudioError, match="copy it to the host"):
            stream.accept(OnGpu(RAMP))  # type: ignore[arg-type]


@pytest.fixture
def torch() -> Any:
    torch = pytest.importorskip("torch")
    pytest.importorskip("cuda.bindings.runtime")
    return torch


@pytest.mark.gpu
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_server_reads_arrays_on_a_gpu(torch: Any, either_server: TritonServer, protocol: str) -> None:
    url = f"{protocol}://{either_server.options.address(protocol)}"
    said = f"4000 {(RAMP / 32768).sum()!r}"
    with Client(url, key=either_server.options.key, shared_memory="cuda") as client:
        array = torch.from_numpy(RAMP).cuda()
        assert [each.text for each in client.transcribe([array] * 20, "either")] == [f"PCM {said}"] * 20
        assert client.transcribe(array.float() / 32768, "either").text == f"WAV {said}"
        assert client.transcribe(RAMP, "either").text == f"PCM {said}"
