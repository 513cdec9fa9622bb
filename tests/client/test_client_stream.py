"""Streams against a toy model: "running" answers "<chunks> <samples> of <open streams>" for each stream on its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.client import Client
from tritone.errors import AudioError, InputError, ServerUnreachableError, StreamError
from tritone.server import TritonServer
from tritone.transcript import Transcript


def test_audio_goes_up_in_chunks_and_every_answer_is_the_text_so_far(client: Client):
    with client.stream(chunk_ms=100) as stream:  # 1600 samples
        assert stream.accept(np.ones(1599)).text == ""
        assert stream.accept(np.ones(1)).text == "1 1600 of 1"
        assert stream.accept(np.ones(5000)).text == "4 6400 of 1"
        assert stream.finish() == Transcript("5 6600 of 1", is_final=True)


def test_a_stream_without_audio_ends_well(client: Client):
    with client.stream() as stream:
        assert stream.finish().text == "1 0 of 1"


def test_audio_that_fits_the_chunks_exactly_ends_with_an_empty_one(client: Client):
    with client.stream(chunk_ms=100) as stream:
        assert stream.accept(np.ones(3200)).text == "2 3200 of 1"
        assert stream.finish().text == "3 3200 of 1"


@settings(max_examples=examples(20), deadline=None)
@given(pieces=st.lists(st.integers(0, 4000), max_size=12))
def test_any_way_of_cutting_the_audio_sends_the_same_chunks(wire_server: TritonServer, pieces: list[int]):
    with Client(wire_server.grpc_address) as client, client.stream(chunk_ms=62.5) as stream:  # 1000 samples
        for piece in pieces:
            stream.accept(np.ones(piece))
        heard = sum(pieces)
        assert stream.finish().text == f"{heard // 1000 + 1} {heard} of 1"


def test_a_stream_of_another_rate_is_resampled_without_seams(client: Client):
    with client.stream(sample_rate=8000, chunk_ms=1000) as stream:
        for _ in range(37):
            stream.accept(np.full(1000, 0.5))
        assert stream.finish().text.split()[1] == str(2 * 37 * 1000)


def test_streams_of_one_client_and_of_others_do_not_mix(client: Client, wire_server: TritonServer):
    with Client(wire_server.grpc_address) as other:
        streams = [one.stream(chunk_ms=100) for one in (client, other, client)]
        assert len({stream.id for stream in streams}) == 3
        assert all(0 < stream.id < 2**63 for stream in streams)
        for turn in (1, 2):
            for number, stream in enumerate(streams, start=1):
                opened = number if turn == 1 else 3
                assert stream.accept(np.ones(1600)).text == f"{turn} {turn * 1600} of {opened}"
        assert [stream.finish().text for stream in streams] == ["3 3200 of 3", "3 3200 of 2", "3 3200 of 1"]


def test_leaving_a_stream_by_an_exception_frees_its_slot(client: Client):
    def be_interrupted() -> None:
        with client.stream(chunk_ms=100) as stream:
            stream.accept(np.ones(1600))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    with client.stream(chunk_ms=100) as stream:
        assert stream.accept(np.ones(1600)) == Transcript("1 1600 of 1", is_final=False)
        stream.finish()


def test_a_refused_chunk_is_reported_and_frees_the_slot(client: Client):
    with client.stream(chunk_ms=100) as stream:
        with pytest.raises(InputError, match="too low"):
            stream.accept(np.full(1600, -1.0))
        with pytest.raises(StreamError, match="is over"):
            stream.accept(np.ones(1600))
    with client.stream(chunk_ms=100) as stream:
        assert stream.accept(np.ones(1600)).text == "1 1600 of 1"
        stream.finish()


def test_a_finished_stream_takes_no_more_audio(client: Client):
    with client.stream() as stream:
        stream.finish()
        for again in (stream.finish, lambda: stream.accept(np.ones(5))):
            with pytest.raises(StreamError, match="is over; open a new one"):
                again()


def test_samples_that_cannot_be_used_are_refused_and_the_stream_goes_on(client: Client):
    with client.stream() as stream:
        for unfit, complaint in ((np.ones(5, np.int32), "int32"), (np.array([0.0, np.nan]), "sample 1")):
            with pytest.raises(AudioError, match=complaint):
                stream.accept(unfit)
        stream.accept(np.ones(7))
        assert stream.finish().text == "1 7 of 1"


def test_an_offline_model_cannot_stream(client: Client):
    with pytest.raises(InputError, match="'count' is not streaming but offline"):
        client.stream(model="count")


def test_a_chunk_shorter_than_a_sample_is_refused(client: Client):
    with pytest.raises(ValueError, match="at least one sample"):
        client.stream(chunk_ms=0.01)


@pytest.mark.parametrize("url", ["localhost:1", "http://localhost:1"])
def test_nobody_at_the_address_is_an_error_that_names_it(url: str):
    with Client(url, timeout_s=20) as client, pytest.raises(ServerUnreachableError, match="localhost:1"):
        client.stream()


def test_a_senseless_sample_rate_is_refused(client: Client):
    with pytest.raises(ValueError, match="1000-768000 Hz, got 10"):
        client.stream(sample_rate=10)
