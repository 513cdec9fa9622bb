"""Requests that say how to search, through a real server: alone, in batches, as streams, and when they say nonsense."""

import json
import time
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http

from serving import Ask, RawClient, Refusal, in_one_batch
from toy import CONFIDENCE, FRAME, SAMPLE_RATE, SHIFT, TOKENS, WINDOW, frames_waveform, toy_waveform
from tritone.server import TritonServer

IDS = count(70_000)
BOTH = ("TRANSCRIPTS", "DETAILS")
HIT, MISS = np.log(CONFIDENCE), np.log((1 - CONFIDENCE) / (len(TOKENS) - 1))


def toy(text: str, **parameters: Any) -> Ask:
    return Ask(model="toy", wav=toy_waveform(text), parameters=parameters)


def told(answer: tuple[str, str]) -> dict[str, Any]:
    return json.loads(answer[1])


def refused(answer: Any, *words: str) -> bool:
    return (
        isinstance(answer, Refusal)
        and answer.status == "StatusCode.INVALID_ARGUMENT"
        and all(word in answer.message for word in words)
    )


def test_requests_that_search_in_different_ways_share_a_batch_and_bad_ones_fail_alone(raw: RawClient) -> None:
    greedy, few, unknown, many, text, absurd = in_one_batch(
        raw,
        [
            Ask(model="toy", wav=toy_waveform("ab"), outputs=BOTH),
            Ask(model="toy", wav=toy_waveform("cd"), outputs=BOTH, parameters={"search": "prefix-beam", "nbest": 2}),
            toy("ef", beems=3),
            Ask(model="toy", wav=toy_waveform("gh"), outputs=BOTH, parameters={"search": "prefix-beam", "nbest": "3"}),
            toy("ij", search="prefix-beam", beam="7"),
            toy("kl", search="prefix-beam", beam=0.5),
        ],
    )
    assert (greedy[0], few[0], many[0], text) == ("ab", "cd", "gh", "ij")
    assert [len(told(answer).get("alternatives", [])) for answer in (greedy, few, many)] == [0, 2, 3]
    assert refused(unknown, "unknown request parameter 'beems'", "known are search, beam")
    assert refused(absurd, "request parameter beam: expected a whole number, got 0.5")


def test_alternatives_come_best_first_with_the_scores_of_the_beam(raw: RawClient) -> None:
    ask = Ask(model="toy", wav=toy_waveform("ab"), outputs=BOTH, parameters={"search": "prefix-beam", "nbest": 4})
    first, *others = told(raw.ask(ask))["alternatives"]
    # Of two frames, each alignment of another text has at least one miss in it.
    assert (first["text"], first["score"]) == ("ab", pytest.approx(2 * HIT, abs=2e-4))
    assert all(other["score"] < HIT + MISS + np.log(4) for other in others)
    assert [span["text"] for span in first["tokens"]] == ["a", "b"]


def test_timestamps_can_be_left_out(raw: RawClient) -> None:
    ask = Ask(model="toy", wav=toy_waveform("ab"), outputs=BOTH, parameters={"timestamps": False})
    details = told(raw.ask(ask))
    assert (details["text"], details["tokens"], details["words"]) == ("ab", [], [])


# What the toy decoder likes more than the audio, an "a", if it is let: see `LEFT_POINTS` and `RIGHT_POINTS` there. The
# model's own weight of CTC does not let it.
RESCORED = {
    "the model's own weights": ({}, "a"),
    "little weight of what was heard": ({"ctc_weight": 0.5}, "b"),
    "the same as text": ({"ctc_weight": "0.5"}, "b"),
    "the right decoder alone": ({"ctc_weight": 0.5, "reverse_weight": 1}, "d"),
    "another search": ({"search": "prefix-beam"}, "a"),
    "no beam at all": ({"search": "greedy"}, "a"),
}


@pytest.mark.parametrize(("parameters", "text"), RESCORED.values(), ids=RESCORED.keys())
def test_a_model_that_rescores_takes_the_weights_of_a_request(
    raw: RawClient, parameters: dict[str, Any], text: str
) -> None:
    assert raw.ask(Ask(model="attention_rescoring", wav=toy_waveform("a"), parameters=parameters)) == text


# A "b", one frame of it: another letter costs 6.6, no letter at all the word bonus of 7 too. The model "helped" has a
# language model that likes c by 11.3 more than other letters, and makes d 20 better.
HELPED = {
    "the model's own": ({}, "d"),
    "the language model alone": ({"hotwords": ""}, "c"),
    "neither": ({"hotwords": "{}", "lm_weight": 0}, "b"),
    "hotwords of the request": ({"hotwords": "x:9", "lm_weight": 0}, "x"),
    "a hotword to avoid": ({"hotwords": '{"b": -50}', "lm_weight": "0.01"}, "c"),
    "a greedy search": ({"search": "greedy"}, "b"),
}


@pytest.mark.parametrize(("parameters", "text"), HELPED.values(), ids=HELPED.keys())
def test_a_language_model_and_hotwords_help_as_a_request_says(
    raw: RawClient, parameters: dict[str, Any], text: str
) -> None:
    assert raw.ask(Ask(model="helped", wav=toy_waveform("b"), parameters=parameters)) == text


def test_what_a_model_does_not_have_is_refused(raw: RawClient) -> None:
    assert refused(raw.ask(toy("ab", search="rescoring")), "no attention decoder")
    assert refused(raw.ask(toy("ab", search="prefix-beam", lm_weight=0.5)), "no language model")


@pytest.mark.parametrize("search", ["greedy", "prefix-beam"])
def test_every_type_arrives_over_http_too_and_tritons_own_parameters_are_none_of_ours(
    server: TritonServer, search: str
) -> None:
    wav = toy_waveform("ab")[None]
    inputs = [http.InferInput("WAV", wav.shape, "FP32"), http.InferInput("WAV_LENS", [1, 1], "INT32")]
    inputs[0].set_data_from_numpy(wav)
    inputs[1].set_data_from_numpy(np.array([[wav.size]], np.int32))
    outputs = [http.InferRequestedOutput(name) for name in BOTH]
    more = {"beam": 5, "nbest": 2, "hotwords": "{}", "word_bonus": 0.0} if search != "greedy" else {}
    parameters = {"search": search, "timestamps": False} | more
    client = http.InferenceServerClient(server.http_address)
    for extra in ({}, {"priority": 0, "timeout": 10_000_000, "request_id": "7", "headers": {"x-trace": "1"}}):
        reply = client.infer("toy", inputs, outputs=outputs, parameters=parameters, **extra)
        assert reply.as_numpy("TRANSCRIPTS").tolist() == [b"ab"]
        details = json.loads(reply.as_numpy("DETAILS")[0])
        assert (len(details.get("alternatives", ())), details["words"]) == (2 if more else 0, [])
    client.close()


def step(stream: int, wav: Any, model: str = "toy-chunks", **more: Any) -> Ask:
    return Ask(model=model, stream=stream, wav=wav, **more)


BEAM = {"search": "prefix-beam", "beam": 6, "nbest": 3}
NONE = np.zeros(0, np.float32)


@pytest.fixture
def stream(raw: RawClient) -> Iterator[int]:
    """A stream with a beam that has said "abcd"."""
    stream = next(IDS)
    start = step(stream, toy_waveform("abcdefgh")[:WINDOW], start=True, parameters=BEAM)
    assert raw.ask(start) == "abcd"
    yield stream
    raw.ask(step(stream, NONE, end=True))


def rest(stream: int, **more: Any) -> Ask:
    return step(stream, toy_waveform("abcdefgh")[WINDOW:], end=True, outputs=BOTH, **more)


def test_a_stream_is_searched_as_its_first_chunk_says(raw: RawClient, stream: int) -> None:
    text, details = raw.ask(rest(stream))
    assert text == "abcdefgh"
    found = json.loads(details)
    assert found["alternatives"][0]["text"] == "abcdefgh"
    assert (len(found["alternatives"]), found["is_final"]) == (3, True)


@pytest.mark.parametrize("again", [BEAM, {"beam": "6"}, {"nbest": 3.0}], ids=["all", "a part", "in another type"])
def test_the_same_options_may_come_again_on_later_chunks(raw: RawClient, stream: int, again: dict[str, Any]) -> None:
    assert raw.ask(step(stream, NONE, parameters=again)) == "abcd"
    assert raw.ask(rest(stream, parameters=again))[0] == "abcdefgh"


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ({"beam": 7}, "given with START and cannot change later, but this chunk asks for beam=7"),
        ({"search": "greedy"}, "asks for search=greedy"),
        ({"colour": "red"}, "unknown request parameter 'colour'"),
    ],
)
def test_other_options_on_a_later_chunk_are_refused_and_the_stream_goes_on(
    raw: RawClient, stream: int, later: dict[str, Any], words: str
) -> None:
    audio = np.ones(SHIFT, np.float32)
    answer = raw.ask(step(stream, audio, parameters=later))
    assert refused(answer, f"stream {stream}: ", words, "The chunk was ignored; the stream goes on without it.")
    assert raw.ask(rest(stream))[0] == "abcdefgh"


def test_a_stream_whose_first_chunk_says_nonsense_is_not_opened(raw: RawClient) -> None:
    stream = next(IDS)
    wav = toy_waveform("abcdefgh")
    answer = raw.ask(step(stream, wav[:WINDOW], start=True, parameters={"search": "best"}))
    assert refused(answer, f"stream {stream}: request parameter search: expected one of greedy", "was not opened")
    assert refused(raw.ask(step(stream, wav[WINDOW:], end=True)), "is not open")
    assert raw.ask(step(stream, toy_waveform("hi"), start=True, end=True)) == "hi"


def test_streams_that_search_in_different_ways_share_a_batch(raw: RawClient) -> None:
    ways = [{}, BEAM, {"search": "prefix-beam", "beam": 20}, {"timestamps": "false"}]
    streams = [next(IDS) for _ in ways]
    wav = toy_waveform("abcdefgh")
    starts = [
        step(stream, wav[:WINDOW], start=True, outputs=BOTH, parameters=way)
        for stream, way in zip(streams, ways, strict=True)
    ]
    answers = in_one_batch(raw, starts)
    assert [text for text, _ in answers] == ["abcd"] * 4
    assert [bool(told(answer)["words"]) for answer in answers] == [True, True, True, False]
    answers = raw.together([rest(stream) for stream in streams])
    assert [text for text, _ in answers] == ["abcdefgh"] * 4
    assert [len(told(answer).get("alternatives", ())) for answer in answers] == [0, 3, 0, 0]
    assert [bool(told(answer)["words"]) for answer in answers] == [True, True, True, False]


def test_streams_with_a_beam_whose_end_never_comes_do_not_keep_their_slots(raw: RawClient) -> None:
    first = toy_waveform("abcdefgh")[:WINDOW]
    starts = [step(next(IDS), first, "brief", start=True, parameters=BEAM) for _ in range(2)]
    assert raw.together(starts) == ["abcd"] * 2
    deadline = time.monotonic() + 60
    while (answer := raw.ask(step(next(IDS), first, "brief", start=True, end=True))) != "abcd":
        assert answer.status == "StatusCode.UNAVAILABLE"
        assert time.monotonic() < deadline, "the idle streams were never closed"


def test_a_stream_with_endpoints_tells_its_segments_and_loses_no_text(raw: RawClient) -> None:
    stream, pause = next(IDS), [0] * (int(0.8 * SAMPLE_RATE) // FRAME)
    frames = [TOKENS.index("a"), TOKENS.index("b"), *pause, TOKENS.index("c"), *pause, TOKENS.index("d")]
    pieces = np.array_split(frames_waveform(frames), 9)
    answers = [
        raw.ask(step(stream, piece, "segments", start=i == 0, end=i == 8, outputs=BOTH))
        for i, piece in enumerate(pieces)
    ]
    texts = [text for text, _ in answers]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    details = [json.loads(each) for _, each in answers]
    ended = [segment for each in details for segment in each.get("ended", ())]
    last = details[-1]
    assert [(each["segment"], each["text"], each["is_final"]) for each in [*ended, last]] == [
        (0, "ab", True),
        (1, "c", True),
        (2, "d", True),
    ]
    assert texts[-1] == "ab c d"
    (word,) = ended[1]["words"]
    assert word["start_s"] == pytest.approx((2 + len(pause)) * FRAME / SAMPLE_RATE, abs=1e-3)
