"""Embeddings over the wire, against toy models: (samples, their sum, window_s and shift_s as asked for, or -1)."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tritone.client import Client
from tritone.errors import AudioError, InputError, OperatorError, ServerUnreachableError
from tritone.server import free_ports


def test_embeddings_keep_the_order_of_the_inputs_whatever_the_concurrency(client: Client):
    waveforms = [np.full(1 + (7 * number) % 50, 0.5) for number in range(40)]
    for concurrency in (1, 100):
        results = client.embed(waveforms, "speaker", concurrency=concurrency)
        assert [result.index for result in results] == list(range(40))
        assert [result.vector.tolist() for result in results] == [[len(w), len(w) / 2, -1, -1] for w in waveforms]
        assert results[3].audio_s == len(waveforms[3]) / 16000
        assert results[3].latency_s > 0
        assert all(result.vector.flags.owndata for result in results)  # else each would hold its whole message


def test_windows_travel_as_parameters(client: Client):
    (result,) = client.embed([np.zeros(5)], "speaker", window_s=2.5, shift_s=1)
    assert result.vector.tolist() == [5, 0, 2.5, 1]
    (result,) = client.embed([np.zeros(5)], "speaker", window_s=0)
    assert result.vector.tolist() == [5, 0, 0, -1]


def test_a_model_that_takes_the_waveform_alone_is_sent_the_waveform_alone(client: Client):
    results = client.embed([np.ones(3), np.ones(5)], "lone")
    assert [result.vector.tolist() for result in results] == [[3, 3, -1, -1], [5, 5, -1, -1]]
    with pytest.raises(InputError, match="'lone' takes no window_s from requests"):
        client.embed([np.ones(3)], "lone", window_s=1)


def test_one_bad_input_keeps_its_error_and_the_others_their_vector(client: Client, tmp_path: Path):
    soundfile.write(tmp_path / "good.wav", np.full((16000, 2), 0.25), 8000)
    inputs = [np.ones(3), np.full(3, -1.0), tmp_path / "absent.wav", np.full(3, 2.0), np.full(3, 3.0)]
    good, refused, absent, empty, two, file = client.embed([*inputs, tmp_path / "good.wav"], "speaker")
    assert good.vector.tolist() == [3, 3, -1, -1]
    assert isinstance(refused.error, InputError)
    assert isinstance(absent.error, AudioError)
    assert isinstance(empty.error, OperatorError)
    assert "answered shape (1, 0) for output EMBEDDINGS, one vector of numbers is needed" in str(empty.error)
    assert "answered shape (2, 4)" in str(two.error)
    assert file.ok
    assert file.vector[0] == 32000  # two seconds, at the model's rate
    with pytest.raises(InputError, match="too low"):
        _ = refused.vector


def test_asking_what_transcribes_for_embeddings_says_what_there_is(client: Client):
    complaint = re.escape("model 'count' is not for embeddings but offline. Ready models for embeddings: lone, speaker")
    with pytest.raises(InputError, match=complaint):
        client.embed([np.zeros(5)], "count")
    with pytest.raises(InputError, match="model 'speaker' is not offline but for embeddings"):
        client.transcribe([np.zeros(5)], "speaker")
    with pytest.raises(InputError, match="2 models for embeddings are ready, name one of them: lone, speaker"):
        client.embed([np.zeros(5)])


def test_inputs_are_taken_only_as_far_as_the_concurrency_allows(client: Client):
    taken = 0

    def waveforms() -> Iterator[np.ndarray]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield np.ones(5)

    results = client.embed_iter(waveforms(), "speaker", concurrency=4)
    assert [next(results).vector[0] for _ in range(3)] == [5, 5, 5]
    assert taken <= 3 + 4
    results.close()  # type: ignore[attr-defined]


def test_a_single_input_has_its_result_and_no_concurrency_is_refused(client: Client):
    assert client.embed(np.ones(5), "speaker").vector.tolist() == [5, 5, -1, -1]
    with pytest.raises(AudioError, match=r"absent\.wav"):
        client.embed("absent.wav", "speaker")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        client.embed([], "speaker", concurrency=0)


def test_a_server_that_is_not_there_is_said_before_anything_is_read():
    (port,) = free_ports(1)
    with Client(f"localhost:{port}", timeout_s=5) as client, pytest.raises(ServerUnreachableError):
        client.embed(["never-read.wav"])
