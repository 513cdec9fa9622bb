"""Tensors to waveforms, and parameters to search options, without a server."""

import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tritone.backend.requests import parameters_of
from tritone.errors import AudioError, InputError
from tritone.kinds.speech import options_of
from tritone.pipelines.audio_tensors import cut_rows, read_chunk, read_waveforms
from tritone.pipelines.embed_options import EmbedOptions
from tritone.search.options import PARAMETERS, SearchOptions


def test_rows_are_cut_to_their_lengths_without_copying() -> None:
    block = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = cut_rows(block, np.array([[4], [0], [2]], np.int32))
    assert [row.tolist() for row in rows] == [[0, 1, 2, 3], [], [8, 9]]
    assert all(np.shares_memory(row, block) for row in rows if row.size)


def test_lengths_may_come_without_their_second_axis() -> None:
    (row,) = cut_rows(np.ones((1, 3), np.float32), np.array([2], np.int32))
    assert row.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("wav", "lens", "told"),
    [
        (np.zeros((1, 3), np.float64), [[3]], r"WAV must be float32 .* got float64"),
        (np.zeros(3, np.float32), [[3]], r"shape \(3,\)"),
        (np.zeros((2, 3), np.float32), [[3]], r"WAV_LENS must be int32 of shape \(2, 1\)"),
        (np.zeros((2, 3), np.float32), [[3], [4]], r"WAV_LENS is 4 in row 1, but WAV has 3 samples a row.*send 0 to 3"),
        (np.zeros((1, 3), np.float32), [[-5]], r"WAV_LENS is -5, but"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(wav: np.ndarray, lens: list[list[int]], told: str) -> None:
    with pytest.raises(AudioError, match=told):
        cut_rows(wav, np.array(lens, np.int32))


def test_lengths_without_samples_are_refused() -> None:
    with pytest.raises(AudioError, match="no input WAV"):
        read_waveforms({"WAV_LENS": np.ones((1, 1), np.int32)}, sample_rate=16000, max_audio_s=1)


def asking(text: str) -> Any:
    """A request with these parameters, as Triton gives them."""
    return SimpleNamespace(parameters=lambda: text)


def test_parameters_are_those_of_the_search_and_not_tritons_own_or_headers() -> None:
    found = {"beam": 5, "hotwords": "anna:8", "timestamps": False, "lm_weight": 0.25, "search": "prefix-beam"}
    foreign = {"sequence_id": 7, "priority": 1, "timeout": 5, "triton_enable_empty_final_response": True}
    headers = {"x-request-id": "7", "user-agent": "curl", "Content-Type": "text"}
    assert parameters_of(asking(json.dumps(found | foreign | headers)), PARAMETERS) == found
    assert parameters_of(asking("{}"), PARAMETERS) == parameters_of(asking(""), PARAMETERS) == {}


def test_a_slip_of_the_pen_is_no_header() -> None:
    assert parameters_of(asking('{"lm-weight": 1, "Beam-": 2}'), PARAMETERS) == {"lm-weight": 1}
    with pytest.raises(InputError, match="unknown request parameter 'lm-weight'; known are search, beam"):
        SearchOptions().changed(parameters_of(asking('{"lm-weight": 1}'), PARAMETERS))


def test_parameters_that_are_no_json_are_an_error_of_the_request() -> None:
    with pytest.raises(InputError, match=r"cannot be read .*send finite numbers"):
        parameters_of(asking('{"beam": '), PARAMETERS)


def test_no_parameter_looks_like_a_header() -> None:
    assert not [name for name in PARAMETERS if "-" in name]


@pytest.mark.parametrize("outputs", [{"TRANSCRIPTS"}, {"TRANSCRIPTS", "DETAILS"}])
def test_times_are_for_requests_that_take_the_details(outputs: set[str]) -> None:
    searching = SimpleNamespace(options=SearchOptions(mode="prefix-beam"), check=lambda options: options)
    options = options_of(searching, {"nbest": 2}, outputs)
    assert (options.nbest, options.timestamps) == (2, "DETAILS" in outputs)
    searching.options = SearchOptions(mode="prefix-beam", timestamps=False)
    assert not options_of(searching, {"nbest": 2}, outputs).timestamps


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a:1," * 5_000_000, "have 20,000,000 characters"),
        ("a:1," * 250_000, "at most 1000 hotwords are allowed, got 250000"),
        ('{"a": ' + "[" * 1_000_000, "not valid JSON"),
        ("a:" + "9" * 1_000_000 + "e", "expected a number, got '9999"),
    ],
)
def test_work_on_hotwords_ends_soon_however_many_there_are(text: str, told: str) -> None:
    start = time.process_time()
    with pytest.raises(InputError, match=told) as caught:
        SearchOptions().changed({"hotwords": text})
    assert time.process_time() - start < 20
    assert len(str(caught.value)) < 500


def test_a_window_longer_than_any_audio_is_all_of_the_audio() -> None:
    options = EmbedOptions().changed({"window_s": "1e308", "shift_s": 1e308})
    assert options.starts(1000, 16000) == [0]
    assert options.samples(1000, 16000) == 1000


@pytest.mark.parametrize("length", [None, -1, 0, 3, 8, 9])
@pytest.mark.parametrize("shape", [(1, 8), (1, 0), (2, 8), (8,), (0, 8)])
@pytest.mark.parametrize("name", ["PCM", "WAV"])
def test_a_chunk_is_read_as_any_other_audio_is(name: str, shape: tuple[int, ...], length: int | None) -> None:
    """Most chunks take a short cut."""
    samples = np.ones(shape, np.int16 if name == "PCM" else np.float32)
    tensors = {name: samples} | ({} if length is None else {"WAV_LENS": np.array([[length]], np.int32)})

    def outcome(read: Any) -> Any:
        try:
            return read(tensors).tolist()
        except (AudioError, ValueError) as error:
            return str(error)

    def usual(tensors: Any) -> Any:
        (row,) = read_waveforms(tensors, sample_rate=16000, max_audio_s=4 / 16000, allow_empty=True)
        return row

    assert outcome(lambda each: read_chunk(each, sample_rate=16000, max_audio_s=4 / 16000)) == outcome(usual)
