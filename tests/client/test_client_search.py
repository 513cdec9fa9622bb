"""What a client asks of the search, and what it makes of segments, against toy models.

"asked" answers the parameters that reached it. Of "parts" every chunk is a segment, and tells the chunk's parameters.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tritone.client import Client
from tritone.errors import InputError
from tritone.server import TritonServer
from wire_toys import toy_server


@pytest.fixture(scope="module")
def asked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with toy_server(tmp_path_factory.mktemp("repository"), "asked", "parts", "count") as server:
        yield server


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, asked_server: TritonServer) -> Iterator[Client]:
    url = asked_server.grpc_address if request.param == "grpc" else f"http://{asked_server.http_address}"
    with Client(url, timeout_s=30) as client:
        yield client


SEARCH: dict[str, Any] = {
    "search": "prefix-beam",
    "beam": 20,
    "lm_weight": np.float32(0.25),
    "nbest": np.int64(2),
    "hotwords": {"änne": 8},
    "timestamps": False,
    "ctc_weight": None,
}
TRAVELLED = {
    "search": "prefix-beam",
    "beam": 20,
    "lm_weight": 0.25,
    "nbest": 2,
    "hotwords": json.dumps({"änne": 8}, ensure_ascii=False),
    "timestamps": False,
}


def test_parameters_reach_the_model_in_their_types(client: Client):
    for result in client.transcribe([np.zeros(5)] * 3, "asked", search=SEARCH):
        assert json.loads(result.text) == TRAVELLED
    (plain,) = client.transcribe([np.zeros(5)], "asked")
    assert (plain.text, plain.alternatives) == ("{}", ())


def test_more_than_one_reading_brings_the_details_that_hold_them(client: Client):
    for count in (5, "5"):
        (result,) = client.transcribe([np.zeros(5)], "asked", search={"nbest": count})
        assert [(each.text, each.score) for each in result.alternatives] == [(result.text, -1.5)]
    (result,) = client.transcribe([np.zeros(5)], "asked", search={"nbest": 1})
    assert result.alternatives == ()


def test_a_model_that_would_not_look_at_the_parameters_is_an_error(client: Client):
    with pytest.raises(InputError, match=r"model 'count' takes no search parameters, such as beam\."):
        client.transcribe([np.zeros(5)], "count", search={"beam": 3})


@pytest.mark.parametrize(
    ("search", "told"),
    [
        ({"beam": [1, 2]}, "parameter beam must be text, a number, true or false, got list"),
        ("rescoring", r'search must be a mapping like \{"search"'),
        ({"priority": 1}, "priority is a parameter of Triton itself"),
        ({"triton_x": 1}, "triton_x is a parameter of Triton itself"),
    ],
)
def test_what_cannot_travel_is_refused_before_anything_is_sent(client: Client, search: Any, told: str):
    with pytest.raises(ValueError, match=told):
        client.transcribe([np.zeros(5)], "asked", search=search)
    with pytest.raises(ValueError, match=told):
        client.stream("parts", search=search)


def test_a_stream_says_how_to_search_with_its_first_chunk_alone(client: Client):
    with client.stream("parts", chunk_ms=100, details=True, search={"beam": 7}) as stream:
        assert stream.accept(np.ones(1600)).text == 'now {"beam":7}'
        assert stream.accept(np.ones(1600)).text == "now {}"
        assert stream.finish().text == "now {}"


def test_no_segment_is_lost_however_many_chunks_a_call_sends(client: Client):
    with client.stream("parts", chunk_ms=100, details=True) as stream:
        texts = []
        for count in (500, 1100, 4800, 0, 1600):
            answer = stream.accept(np.ones(count))
            texts.append([segment.text for segment in answer.ended])
        final = stream.finish()
    assert texts == [[], ["part0"], ["part1", "part2", "part3"], [], ["part4"]]
    assert [segment.text for segment in final.ended] == ["part5"]
    assert (final.text, final.segment, final.is_final) == ("now {}", 6, True)
    assert final.history == "part0 part1 part2 part3 part4 part5"
    assert final.whole_text == f"{final.history} now {{}}"


def test_without_details_the_text_is_that_of_the_whole_stream(client: Client):
    with client.stream("parts", chunk_ms=100) as stream:
        answer = stream.accept(np.ones(3200))
        assert answer.text == answer.whole_text == "part0 part1 now {}"
        stream.finish()


def test_a_model_of_another_kind_is_named_beside_those_that_would_do(client: Client):
    with pytest.raises(InputError, match=r"'parts' is not offline but streaming. Ready offline models: asked, count"):
        client.transcribe([np.zeros(5)], "parts")
