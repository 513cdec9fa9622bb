"""A Whisper model on a real server: texts and details as in process, options by parameters, errors of one request."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from families.whisper_models import random_model, speech, write_folder
from serving import metrics_of, quiet_options
from tritone.client import Client
from tritone.errors import InputError, ServerTimeoutError, TritoneError
from tritone.families.whisper.export import export_whisper
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.live import open_stream
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.pipeline import WhisperPipeline
from tritone.pipelines.whisper.streams import WhisperStreams
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer
from tritone.transcript import Transcript
from waiting import until

pytestmark = pytest.mark.slow  # a server, and a model that is exported first
ASKED = {"language": "de", "beam": 2, "temperature": "0", "no_speech_threshold": "none"}
USUAL = DecodingOptions(language="zh")  # what the model was built with
CHOSEN = DecodingOptions(language="de", beam=2, temperature=(0.0,), no_speech_threshold=None)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> WhisperPipeline:
    folder = tmp_path_factory.mktemp("whisper")
    report = export_whisper(checkpoint=write_folder(folder / "model", random_model()), output=folder / "small")
    return WhisperPipeline(report.bundle, placement=Placement(threads=1))


@pytest.fixture(scope="module")
def host_server(pipeline: WhisperPipeline, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server whose model guesses its own texts ahead, which changes none."""
    repository = tmp_path_factory.mktemp("served") / "repository"
    options = ModelOptions(
        max_batch_size=8,
        queue_delay_ms=50,
        max_audio_s=90,
        decoding='{"language": "zh"}',
        draft=str(pipeline.bundle.path),
    )
    build_repository([pipeline.bundle.path], repository, options=options)
    with TritonServer(repository, quiet_options()) as server:
        yield server


@pytest.fixture(scope="module")
def client(host_server: TritonServer) -> Iterator[Client]:
    with Client(host_server.grpc_address, timeout_s=120) as client:
        yield client


def test_a_server_answers_as_the_pipeline_in_process(client: Client, pipeline: WhisperPipeline) -> None:
    waveforms = [speech(seconds, seed) for seed, seconds in enumerate([2.3, 0.6, 1.0])]
    expected = pipeline.transcribe(waveforms, [replace(CHOSEN, word_times=True)] * 3)  # as details have
    found = client.transcribe(waveforms, details=True, search=ASKED)
    for result, transcript in zip(found, expected, strict=True):
        value = result.get()
        assert (value.text, value.language) == (transcript.text, "de")
        assert [each.tokens for each in value.segments] == [each.tokens for each in transcript.segments]
        np.testing.assert_allclose(
            [each.end_s for each in value.segments], [each.end_s for each in transcript.segments], atol=1e-3
        )
    plain = client.transcribe(waveforms[1], details=True)
    assert (plain.text, plain.get().language) == (pipeline.transcribe([waveforms[1]], [USUAL])[0].text, "zh")


def test_what_a_request_may_not_ask_for_is_its_own_error(client: Client) -> None:
    waveform = speech(0.5)
    for search, told in (
        ({"language": "xx"}, "language is 'xx'; this model knows en, zh, de"),
        ({"allowed_languages": "de,xx"}, "allowed_languages is 'xx'; this model knows en, zh, de"),
        ({"language": "de", "allowed_languages": "en"}, "language is 'de', and allowed_languages en"),
        ({"beem": 3}, "unknown request parameter 'beem'"),
        ({"beam": 99}, "beam must be 1 to 16"),
        ({"temperature": "0,nine"}, "request parameter temperature: expected a number"),
    ):
        [result] = client.transcribe([waveform], search=search)
        with pytest.raises(InputError, match=told):
            result.get()
    assert client.transcribe(waveform, search={"prompt": "the and", "max_tokens": 4}).error is None


def test_a_server_restricts_and_identifies_languages(client: Client, pipeline: WhisperPipeline) -> None:
    waveform = speech(1.3)
    [expected] = pipeline.transcribe([waveform], [DecodingOptions(task="identify")])
    found = client.transcribe(waveform, details=True, search={"task": "identify"}).get()
    assert (found.text, found.language) == ("", expected.language)
    assert dict(found.languages) == pytest.approx(dict(expected.languages), abs=1e-3)
    others = [code for code, _ in found.languages[1:]]
    allowed = client.transcribe(waveform, details=True, search={"allowed_languages": ",".join(others)}).get()
    assert (allowed.language, {each.language for each in allowed.segments}) == (others[0], {others[0]})
    with client.stream(chunk_ms=100, search={"task": "identify"}) as stream, pytest.raises(InputError, match="whole"):
        stream.accept(waveform)
    with client.stream(chunk_ms=400, details=True, search={"allowed_languages": others[1]}) as stream:
        stream.accept(waveform)
        assert stream.finish().language == others[1]


def test_details_are_json_that_other_clients_read(client: Client, pipeline: WhisperPipeline) -> None:
    [result] = client.infer([speech(1.5, 4)], "small", parameters=ASKED)
    [details] = result.get()["DETAILS"].tolist()
    told = json.loads(details)
    assert told["language"] == "de"
    assert {"text", "start_s", "end_s", "tokens", "avg_log_prob", "no_speech_prob"} <= set(told["segments"][0])
    assert Path(pipeline.bundle.path).name == "small"


def streamed(stream: Any, samples: np.ndarray) -> list[Transcript]:
    with stream:
        found = [stream.accept(samples[start : start + 4000]) for start in range(0, len(samples), 4000)]
        return [*found, stream.finish()]


def test_streams_are_answered_as_in_process_side_by_side(client: Client, pipeline: WhisperPipeline) -> None:
    recordings = [speech(seconds, seed) for seed, seconds in enumerate([3.25, 1.0, 5.0])]
    asked = {**ASKED, "partial_s": 0.5, "policy": "agreement"}
    streams = WhisperStreams(pipeline)
    options = replace(CHOSEN, partial_s=0.5, policy="agreement")
    expected = [streamed(open_stream(streams, deque(), options=options), each) for each in recordings]
    with ThreadPoolExecutor(3) as pool:
        opened = [client.stream(chunk_ms=250, details=True, search=asked) for _ in recordings]
        found = list(pool.map(streamed, opened, recordings))
    for ours, theirs in zip(found, expected, strict=True):
        assert [each.whole_text for each in ours] == [each.whole_text for each in theirs]
        assert [each.settled for each in ours] == [each.settled for each in theirs]
        assert (ours[-1].is_final, ours[-1].language) == (True, "de")
        assert ours[-1].whole_text
    assert streams.num_open == 0


def test_what_a_stream_may_not_ask_for_is_told_with_its_start(client: Client) -> None:
    for search, told in (({"policy": "guess"}, "policy"), ({"language": "xx"}, "language is 'xx'")):
        with client.stream(chunk_ms=100, search=search) as stream, pytest.raises(InputError, match=told):
            stream.accept(speech(0.5))
    with client.stream(chunk_ms=100) as stream:
        stream.accept(speech(0.5))
        with pytest.raises(TritoneError, match="is nan"):
            stream.accept(np.full(1600, np.nan, np.float32))


@pytest.fixture(scope="module")
def engine_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server whose model writes texts by the engine, which a CPU does where it is asked to."""
    folder = tmp_path_factory.mktemp("continuous")
    checkpoint = write_folder(folder / "model", random_model())
    report = export_whisper(checkpoint=checkpoint, output=folder / "small", runtimes=("torch",), check=False)
    options = ModelOptions(max_batch_size=8, max_audio_s=90, decoding='{"language": "zh"}')
    build_repository([report.bundle.path], folder / "repository", options=options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRITONE_WHISPER_ENGINE", "1")
        with TritonServer(folder / "repository", quiet_options()) as server:
            yield server


@pytest.fixture(scope="module", params=["host_server", "engine_server"])
def continuous_server(request: pytest.FixtureRequest) -> TritonServer:
    """Both, one after the other: each takes requests at any time."""
    found: TritonServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def continuous(continuous_server: TritonServer) -> Iterator[Client]:
    with Client(continuous_server.grpc_address, timeout_s=120) as client:
        yield client


def test_a_server_writes_what_is_written_in_process_and_errors_stay_with_their_requests(
    continuous: Client, pipeline: WhisperPipeline
) -> None:
    lengths = [2.3, 0.6, 1.0, 8.0, 0.4, 3.1]
    waveforms = [speech(seconds, seed) for seed, seconds in enumerate(lengths)]
    expected = pipeline.transcribe(waveforms, [CHOSEN] * len(waveforms))
    found = continuous.transcribe([*waveforms, np.full(16000, np.nan, np.float32)], details=True, search=ASKED)
    with pytest.raises(TritoneError, match="is nan"):
        found.pop().get()
    for result, transcript in zip(found, expected, strict=True):
        value = result.get()
        assert (value.text, value.language) == (transcript.text, "de")
        assert [each.tokens for each in value.segments] == [each.tokens for each in transcript.segments]
    [refused] = continuous.transcribe([waveforms[1]], search={"language": "xx"})
    with pytest.raises(InputError, match="this model knows en, zh, de"):
        refused.get()


def test_a_short_recording_does_not_wait_for_a_long_one(continuous: Client) -> None:
    """The long one is one of those whose features a thread makes."""
    ended: list[float] = []

    def ask(seconds: float) -> None:
        assert continuous.transcribe(speech(seconds), search=ASKED).error is None
        ended.append(seconds)

    threads = [
        threading.Thread(target=ask, args=(seconds,)) for seconds in (70.0, 0.5)
    ]  # the long one has its features made by a thread
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert ended == [0.5, 70.0]


def test_a_request_whose_client_gave_up_is_dropped_while_it_is_decoded(
    continuous: Client, continuous_server: TritonServer
) -> None:
    long, endless = speech(58.0), {**ASKED, "temperature": "0,0,0,0,0,0,0,0", "log_prob_threshold": 0}
    with Client(continuous_server.grpc_address, timeout_s=0.5, retries=0) as hasty:
        assert isinstance(hasty.transcribe([long], search=endless)[0].error, ServerTimeoutError)

    def refused() -> float:  # which is told with the next request
        assert continuous.transcribe(speech(0.3), search=ASKED).error is None
        return metrics_of(continuous_server, "small").get("refused", 0.0)

    assert until(refused) == 1
