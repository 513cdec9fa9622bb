"""Offline requests against toy models: "count" answers "<samples> <sum>" at 8 kHz."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tritone.client import Client, ModelInfo
from tritone.errors import AudioError, InputError, RetryError
from tritone.transcript import Span


def test_ready_models_are_listed_with_their_kind_and_rate(client: Client):
    assert client.models() == [
        ModelInfo(name="count", kind="offline", sample_rate=8000, batched=True, has_details=True),
        ModelInfo(name="lone", kind="embedding", has_lengths=False, dim=4),
        ModelInfo(name="other", kind="other", sample_rate=16000, batched=False, has_lengths=False),
        ModelInfo(name="running", kind="streaming", sample_rate=16000, batched=True, has_details=False),
        ModelInfo(name="scale", kind="other", has_lengths=False),
        ModelInfo(name="speaker", kind="embedding", has_windows=True, dim=4),
    ]


def test_the_only_offline_model_needs_no_name(client: Client):
    (result,) = client.transcribe([np.full(100, 0.5)])
    assert result.text == "100 50.0"
    assert result.audio_s == 100 / 8000
    assert result.latency_s > 0


def test_an_unknown_model_is_an_error_that_lists_what_there_is(client: Client):
    offered = re.escape("count (offline), lone (embedding), other (other), running (streaming)")
    with pytest.raises(InputError, match=f"no ready model 'nope'.*{offered}"):
        client.transcribe([np.zeros(1)], model="nope")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("running", "streaming"), ("other", "for other tensors: it takes WAV and returns SCORES, by Client.infer")],
)
def test_a_model_of_another_kind_is_an_error_that_says_so(client: Client, name: str, kind: str):
    with pytest.raises(InputError, match=f"model '{name}' is not offline but {kind}"):
        client.transcribe([np.zeros(1)], model=name)


def test_results_keep_the_order_of_the_inputs_whatever_the_concurrency(client: Client):
    waveforms = [np.ones(1 + (7 * number) % 50) for number in range(50)]
    for concurrency in (1, 3, 100):
        results = client.transcribe(waveforms, concurrency=concurrency)
        assert [result.text for result in results] == [f"{len(w)} {len(w):.1f}" for w in waveforms]
        assert [result.source for result in results] == [f"input {index}" for index in range(50)]


def test_one_bad_input_keeps_its_error_and_the_others_their_text(client: Client, tmp_path: Path):
    (tmp_path / "broken.wav").write_bytes(b"RIFF but no more")
    inputs = [
        np.ones(3),
        np.full(3, -1.0),
        tmp_path / "broken.wav",
        tmp_path / "absent.wav",
        np.ones(4, int),
        np.ones(2),
    ]
    results = client.transcribe(inputs)
    assert [result.ok for result in results] == [True, False, False, False, False, True]
    assert (results[0].text, results[5].text) == ("3 3.0", "2 2.0")
    assert isinstance(results[1].error, InputError)
    assert str(results[1].error) == "the first sample is too low"
    assert all(isinstance(result.error, AudioError) for result in results[2:5])
    assert results[3].source == str(tmp_path / "absent.wav")
    with pytest.raises(InputError, match="too low"):
        _ = results[1].text


def test_no_audio_at_all_is_sent_with_length_zero(client: Client):
    assert client.transcribe([np.zeros(0)])[0].text == "0 0.0"


def test_no_inputs_give_no_results(client: Client):
    assert client.transcribe([]) == []


def test_details_bring_words_and_times_only_when_asked_for(client: Client):
    plain, detailed = client.transcribe([np.ones(8)])[0], client.transcribe([np.ones(8)], details=True)[0]
    assert plain.transcript is not None
    assert plain.transcript.words == ()
    assert detailed.transcript is not None
    assert detailed.transcript.words == (Span("8", 0.25, 0.5, 0.75),)
    assert detailed.transcript.audio_s == 8 / 8000


def test_files_are_mixed_down_and_resampled_to_the_rate_of_the_model(client: Client, tmp_path: Path):
    path = tmp_path / "stereo.flac"
    soundfile.write(path, np.tile([0.5, -0.25], (44100, 1)), 44100)
    count, total = client.transcribe([path])[0].text.split()
    assert int(count) == 8000  # one second at the model's rate
    assert float(total) == pytest.approx(8000 * 0.125, rel=0.01)  # the mean of the channels


def test_arrays_of_another_rate_are_resampled(client: Client):
    count, total = client.transcribe([np.full(32000, 0.25)], sample_rate=16000)[0].text.split()
    assert int(count) == 16000
    assert float(total) == pytest.approx(16000 * 0.25, rel=0.01)


def test_inputs_are_taken_only_as_far_as_the_concurrency_allows(client: Client):
    taken = 0

    def waveforms() -> Iterator[np.ndarray]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield np.ones(5)

    results = client.transcribe_iter(waveforms(), concurrency=4)
    for _ in range(3):
        assert next(results).text == "5 5.0"
    assert taken <= 3 + 4
    results.close()  # type: ignore[attr-defined]


def test_a_single_path_or_array_has_its_result_or_raises(client: Client, tmp_path: Path):
    soundfile.write(tmp_path / "a.wav", np.full(5, 0.5), 8000)
    for single in (str(tmp_path / "a.wav"), tmp_path / "a.wav", np.full(5, 0.5)):
        assert client.transcribe(single).text == "5 2.5"
    with pytest.raises(AudioError, match=r"absent\.wav"):
        client.transcribe(tmp_path / "absent.wav")
    with pytest.raises(InputError, match="input 0: the first sample is too low"):
        client.transcribe(np.full(3, -1.0))


def test_an_array_of_two_axes_or_an_iterator_of_a_single_input_is_refused(client: Client):
    with pytest.raises(ValueError, match="put a single one into a list"):
        client.transcribe(np.zeros((5, 2)))
    with pytest.raises(ValueError, match="put a single one into a list"):
        client.transcribe_iter("a.wav")


def test_concurrency_below_one_is_refused(client: Client):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        client.transcribe([], concurrency=0)


def test_several_threads_may_share_a_client(client: Client):
    texts: dict[int, list[str]] = {}

    def work(number: int) -> None:
        texts[number] = [result.text for result in client.transcribe([np.ones(number)] * 20)]

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: [f"{number} {number:.1f}"] * 20 for number in (1, 2, 3, 4)}


def test_a_closed_client_says_so_and_leaves_no_thread_behind(wire_server):
    for url in (wire_server.grpc_address, f"http://{wire_server.http_address}"):
        before = set(threading.enumerate())
        with Client(url) as client:
            client.transcribe([np.ones(3)] * 20)
        client.close()  # a second time
        # gRPC's own thread ends a moment after the last answer
        for thread in set(threading.enumerate()) - before:
            thread.join(timeout=10)
            assert not thread.is_alive()
        with pytest.raises(RetryError, match="closed"):
            client.transcribe([np.ones(3)], model="count")


@pytest.mark.parametrize("name", ["text", "words", "confidence", "alternatives", "is_final"])
def test_a_failed_result_raises_its_error_for_whatever_is_read_of_it(client: Client, name: str):
    (result,) = client.transcribe(["absent.wav"], "count")
    with pytest.raises(AudioError, match=r"absent\.wav"):
        getattr(result, name)
