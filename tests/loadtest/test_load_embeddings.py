"""Embeddings as answers of a load test: read from bytes, compared with each other, and told of in a report."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from load_reports import measured, report
from tritone.client import Endpoint, ModelInfo
from tritone.client.models import Kind, choose
from tritone.errors import InputError
from tritone.loadtest.findings.result import Report
from tritone.loadtest.pages.page import cards_of, notices_of, tables_of, to_csv
from tritone.loadtest.plans.generator import find_target
from tritone.loadtest.requests.windows import Tick
from tritone.loadtest.senders.wire import Target, encode, read_reply, read_vectors
from tritone.loadtest.workload.answers import judge_embeddings
from tritone.loadtest.workload.embeddings import Embeddings

EMBEDDINGS = "EMBEDDINGS"


def target(protocol: str = "grpc") -> Target:
    return Target(endpoint=Endpoint.parse(f"{protocol}://localhost:1"), model="m", sample_rate=4, output=EMBEDDINGS)


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def seen(*pairs: tuple[int, np.ndarray]) -> Embeddings:
    found = Embeddings()
    for utterance, embedding in pairs:
        found.add(utterance, embedding)
    return found


def test_a_request_for_embeddings_names_their_tensor():
    waveforms = [vector(0.5, -0.5)]
    message = pb.ModelInferRequest.FromString(encode(target(), waveforms).content)
    assert [output.name for output in message.outputs] == [EMBEDDINGS]
    assert [output["name"] for output in json.loads(encode(target("http"), waveforms).json)["outputs"]] == [EMBEDDINGS]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_model_that_takes_no_lengths_gets_none_and_no_padding(protocol: str):
    deaf = replace(target(protocol), has_lengths=False)
    body = encode(deaf, [vector(0.5, -0.5), vector(1, 1)])
    if protocol == "grpc":
        tensors = [(each.name, list(each.shape)) for each in pb.ModelInferRequest.FromString(body.content).inputs]
    else:
        tensors = [(each["name"], each["shape"]) for each in json.loads(body.json)["inputs"]]
    assert tensors == [("WAV", [2, 2])]
    for unfit in ([vector(1), vector(1, 2)], [vector()]):
        with pytest.raises(ValueError, match="takes no lengths of audio"):
            encode(deaf, unfit)


@pytest.mark.parametrize(("shape", "rows"), [([2, 3], 2), ([6], 1), ([1, 6], 1)])
def test_the_rows_of_an_answer_are_those_of_its_shape(shape: list[int], rows: int):
    numbers = np.arange(6, dtype="<f4")
    reply = read_reply(encode(target(), [vector(1)]), numbers.tobytes(), shape, 1.5)
    assert (reply.rows, reply.error, reply.received) == (rows, None, 1.5)
    assert reply.embeddings is not None
    assert reply.embeddings.tolist() == numbers.reshape(rows, -1).tolist()


@pytest.mark.parametrize(
    ("content", "shape", "message"),
    [
        (b"", [1, 0], "0 bytes for float32 numbers"),
        (bytes(8), [1, 3], r"8 bytes for float32 numbers of shape \[1, 3\]"),
        (bytes(7), [1, 2], "7 bytes"),
        (vector(1, np.nan).tobytes(), [1, 2], "not finite"),
        (vector(np.inf, 1).tobytes(), [1, 2], "not finite"),
    ],
)
def test_an_answer_that_is_no_embedding_is_an_error(content: bytes, shape: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        read_vectors(content, shape)
    reply = read_reply(encode(target(), [vector(1)]), content, shape, 0.0)
    assert str(reply.error).startswith("not an embedding: ")
    assert reply.rows == 0


def test_the_least_cosine_is_that_of_the_pair_that_is_furthest_apart():
    found = seen((0, vector(1, 0)), (0, vector(2, 0)), (0, vector(3, 4)), (0, vector(1, 0)), (7, vector(0, 1)))
    assert found.least_cosine == pytest.approx(0.6)  # a triangle of 3, 4 and 5
    assert (found.different, found.all_equal) == (1, False)


def test_nothing_can_be_said_of_recordings_that_came_once():
    assert seen((0, vector(1, 0)), (1, vector(0, 1))).least_cosine is None
    assert judge_embeddings(Embeddings()).notes == ()


def test_zeros_are_like_zeros_and_unlike_all_else():
    assert seen((0, vector(0, 0)), (0, vector(0, 0))).least_cosine == 1.0
    assert seen((0, vector(0, 0)), (0, vector(1, 0))).least_cosine == 0.0


def test_embeddings_of_several_sizes_are_told():
    verdict = judge_embeddings(seen((0, vector(1, 2)), (0, vector(1, 2, 3))))
    assert verdict.least_cosine == -1.0
    assert "the embeddings have 2, 3 numbers" in verdict.notes


def test_a_model_that_says_the_same_of_everybody_is_told():
    pairs = [(index, vector(3, 4)) for index in range(4)]
    assert judge_embeddings(seen(*pairs)).notes == ("all 4 recordings got the same embedding",)
    assert judge_embeddings(seen(*pairs, (4, vector(3, 4.001)))).notes == ()
    assert judge_embeddings(seen(*pairs[:1])).notes == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), max_size=20), st.integers(0, 20))
def test_ticks_put_together_find_the_recordings_that_one_tick_finds(answers: list[tuple[int, int]], cut: int):
    # Directions are equal or far apart, so that it does not matter with which of its own a recording is compared.
    embeddings = [(utterance, vector(x, 1)) for utterance, x in answers]
    whole, parts = seen(*embeddings), [Tick(0.0, 0.0), Tick(0.0, 0.0)]
    for place, (utterance, embedding) in enumerate(embeddings):
        parts[place >= cut].embeddings.add(utterance, embedding)
    parts[0].absorb(parts[1])
    found = parts[0].embeddings
    assert {index: each.tolist() for index, each in found.first.items()} == {
        index: each.tolist() for index, each in whole.first.items()
    }
    assert found.least.keys() == whole.least.keys()
    assert found.different == whole.different


def test_a_report_of_embeddings_tells_their_cosine_and_asks_for_no_texts(tmp_path):
    speaker = {"output": EMBEDDINGS, "wer": None, "wer_words": 0, "seconds": "2.02"}
    held = report(measured(1, least_cosine=0.99995, **speaker), measured(2, least_cosine=0.5, **speaker))
    assert notices_of(held) == []
    ((_, cosine, _),) = [card for card in cards_of(held) if card[0] == "least cosine"]
    assert cosine == "0.5000"
    table, _sizing = tables_of(held)
    assert [row["least_cosine"] for row in table.rows] == [0.99995, 0.5]
    assert "least_cosine" in to_csv(held).splitlines()[0]
    held = report(measured(2, least_cosine=0.5, different_embeddings=3, **speaker))
    assert [text for text, _ in notices_of(held)] == ["3 recordings did not get the same embedding every time."]
    held.save(tmp_path / "report.json")
    assert Report.read(tmp_path / "report.json").measurements[0].least_cosine == 0.5


class Served:
    """A server's models, by name and kind, as a client tells of them."""

    endpoint = Endpoint.parse("grpc://localhost:1")
    shared_memory = None

    def pcm_of(self, model: ModelInfo) -> bool | None:
        return False

    def __init__(self, **kinds: Kind) -> None:
        self._models = [ModelInfo(name=name, kind=kind) for name, kind in kinds.items()]

    def models(self) -> list[ModelInfo]:
        return self._models

    def model(self, name: str | None = None, *, kind: Kind = "offline") -> ModelInfo:
        return choose(self._models, name, kind, self.endpoint)


def test_the_model_to_measure_is_one_of_whole_utterances_whatever_it_answers():
    served = Served(asr="offline", live="streaming", speaker="embedding")
    assert find_target(served, "speaker", streaming=False).output == EMBEDDINGS
    assert find_target(served, "asr", streaming=False).output == "TRANSCRIPTS"
    assert find_target(Served(live="streaming", speaker="embedding"), None, streaming=False).model == "speaker"
    with pytest.raises(InputError, match=r"2 models of whole utterances.*asr \(offline\), speaker \(embedding\)"):
        find_target(served, None, streaming=False)
    with pytest.raises(InputError, match="'speaker' is not streaming but"):
        find_target(served, "speaker", streaming=True)
