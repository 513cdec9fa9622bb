"""Streams through a real server: chunks in, texts out, and what happens when a client breaks the rules."""

import re
import time
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from serving import Ask, RawClient, Refusal, batches_of, in_one_batch
from toy import SHIFT, WINDOW, toy_waveform

IDS = count(1000)
LETTERS = "abcdefgh"  # two steps of four frames


def chunk(stream: int | str, wav: object, model: str = "toy-chunks", **more: object) -> Ask:
    return Ask(model=model, stream=stream, wav=wav, **more)  # type: ignore[arg-type]


def halves(text: str = LETTERS) -> tuple[np.ndarray, np.ndarray]:
    """Audio of `text`, cut where the first step is complete."""
    wav = toy_waveform(text)
    return wav[:WINDOW], wav[WINDOW:]


@pytest.fixture
def three(raw: RawClient) -> Iterator[list[int]]:
    """Three streams that have said "abcd", leaving one slot of four; they end with the test."""
    streams = [next(IDS) for _ in range(3)]
    first, _ = halves()
    assert raw.together([chunk(stream, first, start=True) for stream in streams]) == ["abcd"] * 3
    yield streams
    raw.together([chunk(stream, np.zeros(0, np.float32), end=True) for stream in streams])


def finish(raw: RawClient, streams: list[int]) -> None:
    _, second = halves()
    assert raw.together([chunk(stream, second) for stream in streams]) == [LETTERS] * 3


def test_every_response_carries_the_text_so_far_and_end_flushes(raw: RawClient) -> None:
    wav, stream = toy_waveform("hello world"), next(IDS)
    cuts = np.array_split(wav, 7)
    texts = [raw.ask(chunk(stream, cut, start=i == 0, end=i == 6)) for i, cut in enumerate(cuts)]
    assert texts[-1] == "hello world"
    assert all("hello world".startswith(text) for text in texts)
    assert texts == sorted(texts, key=len)
    assert texts[3] != ""


def test_chunks_of_many_streams_and_sizes_share_a_batch(raw: RawClient) -> None:
    words = ["one", "two", "three", "seven"]
    streams = dict(zip([next(IDS) for _ in words], map(toy_waveform, words), strict=True))
    starts = [chunk(stream, wav[: 100 * stream % 1500], start=True) for stream, wav in streams.items()]
    assert in_one_batch(raw, starts) == [""] * 4
    rests = [chunk(stream, wav[100 * stream % 1500 :]) for stream, wav in streams.items()]
    answers, batches = batches_of(raw, rests)
    assert batches.total() < 4
    assert all(word.startswith(answer) for word, answer in zip(words, answers, strict=True))
    assert raw.together([chunk(stream, np.zeros(0, np.float32), end=True) for stream in streams]) == words


def test_a_stream_id_may_be_text(raw: RawClient) -> None:
    assert raw.ask(chunk("caller-7", toy_waveform("hi"), start=True, end=True)) == "hi"


BAD = {
    "NaN": (np.full(SHIFT, np.nan, np.float32), None, "sample 0 .*is nan"),
    "a length beyond the tensor": (np.zeros(SHIFT, np.float32), 99999, "WAV_LENS is 99999"),
    "an absurd level": (np.full(SHIFT, 1e38, np.float32), None, "samples reach 1e"),
    "a chunk over the maximum duration": (np.zeros(20 * 16000 + 1, np.float32), None, "limit is 20 s"),
}


REJECTED = {
    "a wrong type": (np.zeros(SHIFT), "FP64.*FP32"),
    "a wrong rank": (np.zeros((1, 2, SHIFT), np.float32), "unexpected shape for input 'WAV'"),
    "two rows": (np.zeros((2, SHIFT), np.float32), "must specify batch-size 1"),
}


@pytest.mark.parametrize(("wav", "told"), REJECTED.values(), ids=REJECTED.keys())
def test_a_chunk_that_breaks_the_declaration_is_rejected_by_triton_and_its_stream_goes_on(
    raw: RawClient, three: list[int], wav: np.ndarray, told: str
) -> None:
    stream = next(IDS)
    first, second = halves()
    assert raw.ask(chunk(stream, first, start=True)) == "abcd"
    refusal, *answers = raw.together([chunk(stream, wav), *(chunk(each, np.zeros(0, np.float32)) for each in three)])
    assert isinstance(refusal, Refusal)
    assert re.search(told, refusal.message), refusal.message
    assert answers == ["abcd"] * 3
    finish(raw, three)
    assert raw.ask(chunk(stream, second, end=True)) == LETTERS


def test_a_chunk_to_an_unknown_model_is_refused(raw: RawClient) -> None:
    refusal = raw.ask(chunk(next(IDS), np.zeros(SHIFT, np.float32), model="nobody", start=True))
    assert re.search("unknown model: 'nobody'", refusal.message), refusal.message


def test_any_way_of_cutting_the_audio_gives_the_offline_text(raw: RawClient) -> None:
    rng = np.random.default_rng(3)
    for text, cuts in (("cut me", 0), ("cut me up", 3), ("into pieces", 20), ("many small 1s", 60)):
        wav = toy_waveform(text)
        assert raw.ask(Ask(model="toy", wav=wav)) == text
        # the middle gives a chunk without samples and one with a single sample
        middle = len(wav) // 2
        pieces = np.split(wav, sorted([*rng.integers(0, len(wav), cuts).tolist(), middle, middle, middle + 1]))
        stream, last = next(IDS), len(pieces) - 1
        # of the model that does not wait for a batch
        texts = [raw.ask(chunk(stream, piece, "pair", start=i == 0, end=i == last)) for i, piece in enumerate(pieces)]
        assert texts[-1] == text
        assert all(text.startswith(partial) for partial in texts)


@pytest.mark.parametrize(("wav", "lens", "told"), BAD.values(), ids=BAD.keys())
def test_a_bad_chunk_is_ignored_and_its_stream_and_neighbours_go_on(
    raw: RawClient, three: list[int], wav: np.ndarray, lens: int | None, told: str
) -> None:
    stream = next(IDS)
    first, second = halves()
    assert raw.ask(chunk(stream, first, start=True)) == "abcd"
    none = np.zeros(0, np.float32)
    *answers, refusal = in_one_batch(raw, [*(chunk(each, none) for each in three), chunk(stream, wav, lens=lens)])
    assert isinstance(refusal, Refusal)
    assert re.search(f"stream {stream}: .*{told}.*the stream goes on without it", refusal.message), refusal.message
    assert answers == ["abcd"] * 3
    finish(raw, three)
    assert raw.ask(chunk(stream, second, end=True)) == LETTERS


def test_end_on_a_bad_chunk_closes_the_stream(raw: RawClient, three: list[int]) -> None:
    stream = next(IDS)
    bad = np.full(SHIFT, np.nan, np.float32)
    assert "END closed the stream" in raw.ask(chunk(stream, bad, start=True, end=True)).message
    # its slot, the last of four, is free again
    assert raw.ask(chunk(next(IDS), toy_waveform("free"), start=True, end=True)) == "free"
    finish(raw, three)


def test_a_chunk_without_start_is_refused(raw: RawClient, three: list[int]) -> None:
    refusal = raw.ask(chunk(next(IDS), np.zeros(SHIFT, np.float32)))
    assert refusal.status == "StatusCode.INVALID_ARGUMENT"
    assert "must specify the START flag" in refusal.message
    finish(raw, three)


def test_stream_0_which_the_backend_takes_for_a_warm_up_never_comes_from_a_client(raw: RawClient) -> None:
    refusal = raw.ask(chunk(0, np.zeros(SHIFT, np.float32)))
    assert refusal.status == "StatusCode.INVALID_ARGUMENT"
    assert "must specify a non-zero or non-empty correlation ID" in refusal.message


def test_a_chunk_after_end_is_refused(raw: RawClient, three: list[int]) -> None:
    stream = next(IDS)
    assert raw.ask(chunk(stream, toy_waveform("done"), start=True, end=True)) == "done"
    refusal = raw.ask(chunk(stream, toy_waveform("more"), end=True))
    assert refusal.status == "StatusCode.INVALID_ARGUMENT"
    assert "must specify the START flag" in refusal.message
    finish(raw, three)


def test_start_on_an_open_stream_is_refused_and_the_stream_goes_on(raw: RawClient, three: list[int]) -> None:
    stream = next(IDS)
    first, second = halves()
    assert raw.ask(chunk(stream, first, start=True)) == "abcd"
    refusal = raw.ask(chunk(stream, toy_waveform("xyz"), start=True))
    assert refusal.status == "StatusCode.INVALID_ARGUMENT"
    assert f"stream {stream} is in use" in refusal.message
    assert raw.ask(chunk(stream, second, end=True)) == LETTERS
    finish(raw, three)


def test_a_second_client_whose_only_chunk_ends_the_stream_ends_it_for_the_first_one_too(
    raw: RawClient, three: list[int]
) -> None:
    """Triton forgets an id at END, whoever sends it: the first client has an error, and its id is free."""
    stream = next(IDS)
    first, second = halves()
    assert raw.ask(chunk(stream, first, start=True)) == "abcd"
    assert "is in use" in raw.ask(chunk(stream, toy_waveform("xyz"), start=True, end=True)).message
    assert "must specify the START flag" in raw.ask(chunk(stream, second, end=True)).message
    assert raw.ask(chunk(stream, toy_waveform("again"), start=True, end=True)) == "again"
    finish(raw, three)


def test_a_stream_beyond_the_slots_is_refused_with_the_limit_and_served_later(raw: RawClient, three: list[int]) -> None:
    fourth, fifth = next(IDS), next(IDS)
    first, second = halves()
    assert raw.ask(chunk(fourth, first, start=True)) == "abcd"
    refusal = raw.ask(chunk(fifth, first, start=True))
    assert refusal.status == "StatusCode.UNAVAILABLE"
    assert re.search("all 4 streams .* are taken", refusal.message)
    # it was refused, so it is not open
    assert "is not open" in raw.ask(chunk(fifth, second, end=True)).message
    assert raw.ask(chunk(fourth, second, end=True)) == LETTERS
    assert raw.ask(chunk(fifth, toy_waveform("now"), start=True, end=True)) == "now"
    finish(raw, three)


def test_two_instances_share_the_streams_and_refuse_only_when_both_are_full(raw: RawClient) -> None:
    first, second = halves()
    streams = [next(IDS) for _ in range(5)]
    answers = [raw.ask(chunk(stream, first, model="pair", start=True)) for stream in streams]
    assert answers[:4] == ["abcd"] * 4
    assert answers[4].status == "StatusCode.UNAVAILABLE"
    ends = [raw.ask(chunk(stream, second, model="pair", end=True)) for stream in streams[:4]]
    assert ends == [LETTERS] * 4


def test_idle_streams_are_closed_and_their_slots_given_to_others(raw: RawClient) -> None:
    first, second = halves()
    idle = [next(IDS), next(IDS)]
    assert raw.together([chunk(stream, first, model="brief", start=True) for stream in idle]) == ["abcd"] * 2
    deadline = time.monotonic() + 60
    for _ in idle:
        while (answer := raw.ask(chunk(next(IDS), first, model="brief", start=True))) != "abcd":
            assert answer.status == "StatusCode.UNAVAILABLE"
            assert time.monotonic() < deadline, "the idle streams were never closed"
    for stream in idle:
        refusal = raw.ask(chunk(stream, second, model="brief"))
        assert refusal.status == "StatusCode.INVALID_ARGUMENT"
        assert re.search(r"is not open: .* sent nothing for 0\.3 s", refusal.message), refusal.message


def test_the_slot_of_a_client_that_vanished_mid_stream_starts_clean(raw: RawClient, server: object) -> None:
    first, _ = halves()
    vanishing = RawClient(server.grpc_address)  # type: ignore[attr-defined]
    for _ in range(2):
        vanishing.ask(chunk(next(IDS), first, model="brief", start=True))
    vanishing.grpc.close()
    deadline = time.monotonic() + 60
    while True:
        wave = [chunk(next(IDS), toy_waveform("new"), model="brief", start=True, end=True) for _ in range(2)]
        answers = raw.together(wave)
        if answers == ["new", "new"]:
            break
        assert all(answer == "new" or answer.status == "StatusCode.UNAVAILABLE" for answer in answers)
        assert time.monotonic() < deadline, "the slots of the vanished client were never freed"
