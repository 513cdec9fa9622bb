"""Input files for perf_analyzer and ApacheBench: their form, every sample, and what they cost to write."""

import base64
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fresh import in_fresh_process
from tritone.client.endpoint import Endpoint
from tritone.errors import InputError, OperatorError
from tritone.loadtest.plans.perf_input import PIECE, write_inputs
from tritone.loadtest.senders.wire import Target

RATE = 16000
HTTP = Target(endpoint=Endpoint.parse("http://localhost:8000"), model="demo", sample_rate=RATE)


def noise(num_samples: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-1, 1, num_samples).astype(np.float32)


def read(path: Path) -> Any:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found) == {"data"}
    return found["data"]


def test_the_offline_file_has_upstreams_form(tmp_path: Path) -> None:
    waveforms = [np.array([0.5, -0.25, 1.0], np.float32), np.array([0.0], np.float32)]
    (written,) = write_inputs(waveforms, tmp_path, sample_rate=2, streaming=False)
    assert read(tmp_path / "offline_input.json") == [
        {"WAV": {"content": [0.5, -0.25, 1.0], "shape": [3]}, "WAV_LENS": [3]},
        {"WAV": {"content": [0.0], "shape": [1]}, "WAV_LENS": [1]},
    ]
    # perf_analyzer takes a bare 0 for an integer and refuses it
    assert "0.0" in (tmp_path / "offline_input.json").read_text(encoding="utf-8")
    assert written.path == tmp_path / "offline_input.json"
    assert (written.utterances, written.requests, written.audio_s, written.uniform) == (2, 2, 2.0, False)


@pytest.mark.parametrize("as_base64", [False, True])
def test_samples_of_16_bits_take_the_place_of_floats(tmp_path: Path, as_base64: bool) -> None:
    waveform = np.array([0.5, -0.25, 1.0], np.float32)
    write_inputs([waveform], tmp_path, sample_rate=2, streaming=False, pcm=True, as_base64=as_base64)
    (step,) = read(tmp_path / "offline_input.json")
    assert (step["PCM"]["shape"], step["WAV_LENS"], "WAV" in step) == ([3], [3], False)
    content = step["PCM"]["content"]
    samples = np.frombuffer(base64.b64decode(content["b64"]), "<i2").tolist() if as_base64 else content
    assert samples == [16384, -8192, 32767]


def test_the_online_file_has_a_list_of_chunks_for_every_stream(tmp_path: Path) -> None:
    """Chunks of 0.69 s and 0.64 s: what WeNet's script writes with its defaults."""
    waveforms = [noise(11040 + 2 * 10240 + 100), noise(5)]
    (written,) = write_inputs(waveforms, tmp_path, sample_rate=RATE, offline=False, first_chunk_s=0.69)
    streams = read(tmp_path / "online_input.json")
    assert [[step["WAV_LENS"] for step in stream] for stream in streams] == [[[11040], [10240], [10240], [100]], [[5]]]
    assert [[step["WAV"]["shape"] for step in stream] for stream in streams] == [
        [[11040], [10240], [10240], [10240]],
        [[11040]],
    ]
    for waveform, stream in zip(waveforms, streams, strict=True):
        valid = [step["WAV"]["content"][: step["WAV_LENS"][0]] for step in stream]
        assert np.array_equal(np.concatenate(valid).astype(np.float32), waveform)
        assert all(value == 0 for step in stream for value in step["WAV"]["content"][step["WAV_LENS"][0] :])
        assert all(len(step["WAV"]["content"]) == step["WAV"]["shape"][0] for step in stream)
    assert (written.utterances, written.requests) == (2, 5)
    assert not (tmp_path / "offline_input.json").exists()


def test_equal_chunks_may_be_batched(tmp_path: Path) -> None:
    offline, online = write_inputs([noise(16000), noise(16000, 1)], tmp_path, sample_rate=RATE)
    assert (offline.uniform, online.uniform, online.streaming) == (True, True, True)


@given(
    waveform=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40),
    chunk=st.integers(1, 20),
    as_base64=st.booleans(),
)
def test_every_sample_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, waveform: list[float], chunk: int, as_base64: bool
) -> None:
    folder = tmp_path_factory.mktemp("inputs")
    samples = np.array(waveform, np.float32)
    write_inputs([samples], folder, sample_rate=1, chunk_s=chunk, as_base64=as_base64)
    (whole,) = read(folder / "offline_input.json")
    (stream,) = read(folder / "online_input.json")
    assert np.array_equal(content(whole), samples)
    assert np.array_equal(np.concatenate([content(step) for step in stream]), samples)


def content(step: Any) -> npt.NDArray[np.float32]:
    found = step["WAV"]["content"]
    values = np.frombuffer(base64.b64decode(found["b64"]), "<f4") if isinstance(found, dict) else np.array(found)
    return values.astype(np.float32)[: step["WAV_LENS"][0]]


@pytest.mark.parametrize("as_base64", [False, True])
def test_a_long_utterance_is_written_in_pieces(tmp_path: Path, as_base64: bool) -> None:
    samples = noise(2 * PIECE + 7)
    write_inputs([samples], tmp_path, sample_rate=RATE, streaming=False, as_base64=as_base64)
    (whole,) = read(tmp_path / "offline_input.json")
    assert np.array_equal(content(whole), samples)


def peaks_of_writing(folder: Path, *counts: int) -> list[int]:
    """The most bytes that writing so many utterances took."""
    peaks = []
    for count in (1, *counts):  # what is loaded once shall not count
        tracemalloc.start()
        write_inputs((noise(4000, seed) for seed in range(count)), folder, sample_rate=RATE)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return peaks[1:]


@pytest.mark.slow
def test_many_utterances_need_no_more_memory_than_few(tmp_path: Path) -> None:
    few, many = in_fresh_process(peaks_of_writing, tmp_path, 2, 12)
    assert many < 1.5 * few


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    def broken() -> Iterator[npt.NDArray[np.float32]]:
        yield noise(10)
        assert not list(tmp_path.glob("*_input.json"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_inputs(broken(), tmp_path, sample_rate=RATE)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no utterances"):
        write_inputs([], tmp_path, sample_rate=RATE)
    with pytest.raises(InputError, match="utterance 1 has no samples"):
        write_inputs([noise(3), noise(0)], tmp_path, sample_rate=RATE)
    with pytest.raises(ValueError, match="at least one sample"):
        write_inputs([noise(3)], tmp_path, sample_rate=RATE, chunk_s=1e-6)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OperatorError, match=r"cannot write .*Not a directory"):
        write_inputs([noise(3)], tmp_path / "file" / "folder", sample_rate=RATE)
