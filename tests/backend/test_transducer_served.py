"""A transducer through a real server: batches, streams, ways to search, and what goes wrong."""

import json
import time
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import Ask, RawClient, Refusal, in_one_batch
from toy_transducer import SHIFT, transducer_waveform
from tritone import Client
from tritone.errors import BundleError, InputError
from tritone.repository import ModelOptions, build_repository, compiled_searches
from tritone.server import TritonServer

IDS = count(130_000)
BOTH = ("TRANSCRIPTS", "DETAILS")
NOTHING = np.zeros(0, np.float32)


def offline(text: str, **parameters: Any) -> Ask:
    return Ask(model="transducer", wav=transducer_waveform(text), parameters=parameters)


def chunk(stream: int, wav: np.ndarray, model: str = "transducer-live", **more: Any) -> Ask:
    return Ask(model=model, stream=stream, wav=wav, **more)


def refused(answer: Any, *words: str) -> bool:
    return (
        isinstance(answer, Refusal)
        and answer.status == "StatusCode.INVALID_ARGUMENT"
        and all(word in answer.message for word in words)
    )


def test_16_bit_audio_gives_every_answer_that_the_floats_give_that_it_stands_for(raw: RawClient) -> None:
    waves = [(transducer_waveform(text) * 32767).astype(np.int16) for text in ("ab", "the longest of them all", "k?")]
    asks = [Ask(model="transducer", wav=wave, called=("PCM",), outputs=BOTH) for wave in waves]
    as_floats = [Ask(model="transducer", wav=(wave / 32768).astype(np.float32), outputs=BOTH) for wave in waves]
    answers = raw.together(asks)
    assert [text for text, _ in answers[:2]] == ["ab", "the longest of them all"]
    assert answers == raw.together(as_floats)


def test_a_ragged_batch_keeps_every_hypothesis_and_searches_each_as_it_asks(raw: RawClient) -> None:
    """The long ones go on when the short ones have ended; bad requests fail alone."""
    beam, fast = {"search": "modified-beam"}, {"search": "fast-beam"}
    answers = in_one_batch(
        raw,
        [
            offline("a"),
            offline("the longest of them all", **beam),
            offline("k???"),
            offline("a~k", blank_penalty=2),
            offline("a~k", **beam, hotwords="aek:4"),
            offline("a~k", **fast, max_states="9", max_contexts=2),
            offline("?", **fast),
            offline("?", **beam),
            offline("ak", max_symbols=2),
            offline("", search="rescoring"),
            offline("ab", hotwords="aek:4"),
            offline("ab", **beam, max_states=4),
        ],
    )
    assert answers[:9] == ["a", "the longest of them all", "klmn", "aek", "aek", "ak", "a", "s", "aakk"]
    assert refused(answers[9], "kind transducer, which searches with greedy, modified-beam, fast-beam, not with resc")
    assert refused(answers[10], "hotwords has no effect with search greedy", "modified-beam")
    assert refused(answers[11], "max_states has no effect with search modified-beam", "search=fast-beam")
    assert refused(raw.ask(Ask(model="toy", wav=transducer_waveform("a"), parameters={"blank_penalty": 1})), "kind ctc")
    assert refused(raw.ask(Ask(model="toy", wav=transducer_waveform("a"), parameters=fast)), "kind ctc")


def test_details_tell_tokens_and_alternatives(raw: RawClient) -> None:
    asked = {"search": "modified-beam", "nbest": 2}
    text, details = raw.ask(Ask(model="transducer", wav=transducer_waveform("-a~"), outputs=BOTH, parameters=asked))
    told = json.loads(details)
    assert (text, [each["text"] for each in told["alternatives"]]) == ("a", ["a", "ae"])
    assert [(each["text"], each["start_s"]) for each in told["tokens"]] == [("a", 0.04)]


def test_streams_share_batches_and_say_all_when_they_end(raw: RawClient) -> None:
    texts = {"the end is told": {}, "k?": {"search": "modified-beam"}, "hello": {"search": "fast-beam"}, "a~k": {}}
    streams = {next(IDS): text for text in texts}
    audio = {stream: transducer_waveform(text) for stream, text in streams.items()}
    starts = [
        chunk(stream, audio[stream][: SHIFT // 2], start=True, parameters=texts[text])
        for stream, text in streams.items()
    ]
    assert in_one_batch(raw, starts) == [""] * 4
    before = raw.together([chunk(stream, audio[stream][SHIFT // 2 :]) for stream in streams])
    assert before[0] == "the end is tol"[: len(before[0])]
    after = raw.together([chunk(stream, NOTHING, end=True) for stream in streams])
    assert after == ["the end is told", "kl", "hello", "ak"]
    assert all(late != early for early, late in zip(before, after, strict=True))


def test_an_id_that_is_used_again_after_end_starts_anew(raw: RawClient) -> None:
    stream = next(IDS)
    for _ in range(2):
        assert raw.ask(chunk(stream, transducer_waveform("k?"), start=True, end=True)) == "kl"
    raw.ask(chunk(stream, transducer_waveform("quite another text"), start=True))
    raw.ask(chunk(stream, NOTHING, end=True))
    assert raw.ask(chunk(stream, transducer_waveform("?"), start=True, end=True)) == "s"
    assert refused(raw.ask(chunk(stream, NOTHING, end=True)), "START")


def test_streams_that_never_end_are_closed_and_their_slots_are_clean(raw: RawClient) -> None:
    idle = [next(IDS) for _ in range(2)]
    for stream in idle:
        assert isinstance(raw.ask(chunk(stream, transducer_waveform("abcdefgh"), "transducer-brief", start=True)), str)
    deadline = time.monotonic() + 60
    # A stream that came later keeps its slot until those before it are closed: both come in only after both idle ones.
    later = [chunk(next(IDS), transducer_waveform("abc"), "transducer-brief", start=True) for _ in idle]
    for ask in later:
        _when_free(raw, ask, deadline)
    for stream in idle:
        assert refused(raw.ask(chunk(stream, NOTHING, "transducer-brief", end=True)), "sent nothing for 0.3 s")
    for _ in later:
        whole = chunk(next(IDS), transducer_waveform("k?"), "transducer-brief", start=True, end=True)
        assert _when_free(raw, whole, deadline) == "kl"


def _when_free(raw: RawClient, ask: Ask, deadline: float) -> Any:
    while isinstance(answer := raw.ask(ask), Refusal):
        assert answer.status == "StatusCode.UNAVAILABLE"
        assert time.monotonic() < deadline, "the idle streams were never closed"
    return answer


def test_endpoints_make_segments_and_lose_nothing(raw: RawClient) -> None:
    wav = transducer_waveform("hi------------k??------------you")
    ask = chunk(next(IDS), wav, "transducer-brief", start=True, end=True, outputs=BOTH)
    text, details = raw.ask(ask)
    told = json.loads(details)
    assert text == "hi klm you"
    assert [each["text"] for each in told["ended"]] + [told["text"]] == ["hi", "klm", "you"]


def test_our_client_reads_it_offline_and_as_a_stream(server: TritonServer) -> None:
    with Client(server.grpc_address) as client:
        audio = [transducer_waveform("k?"), transducer_waveform("a~k")]
        asked = {"search": "fast-beam", "hotwords": {"aek": 4}, "max_contexts": 4}
        found = list(client.transcribe(audio, model="transducer", sample_rate=16000, search=asked))
        assert [each.text for each in found] == ["kl", "aek"]
        with client.stream(model="transducer-live", sample_rate=16000, search=asked) as stream:
            for first, last in pairwise([0, 500, 1900, len(audio[1])]):
                stream.accept(audio[1][first:last])
            assert stream.finish().text == "aek"


def test_a_repository_keeps_how_a_transducer_is_searched_and_says_what_is_compiled(
    transducer_bundle: Path, toy_bundle: Path, tmp_path: Path
) -> None:
    options = ModelOptions(search="fast-beam", max_states=7, blank_penalty=0.5, temperature=1.5)
    build_repository([transducer_bundle], tmp_path, modes="both", names=["fast"], options=options)
    config = (tmp_path / "fast" / "config.pbtxt").read_text(encoding="utf-8")
    assert 'key: "max_states"' in config
    assert compiled_searches(tmp_path) == {("transducer", "fast-beam")}
    build_repository([toy_bundle, transducer_bundle], tmp_path, names=["a", "b"])
    assert compiled_searches(tmp_path) == {("transducer", "fast-beam"), ("transducer", "greedy")}
    with pytest.raises(BundleError, match=r"--search rescoring: .* kind transducer"):
        build_repository([transducer_bundle], tmp_path, options=ModelOptions(search="rescoring"))
    with pytest.raises(BundleError, match=r"is of kind ctc, and --max-states is for models of kind transducer"):
        build_repository([toy_bundle], tmp_path, options=ModelOptions(max_states=7))
    with pytest.raises(BundleError, match="exported for chunk_size 4"):
        build_repository([transducer_bundle], tmp_path, options=ModelOptions(chunk_size=16))
    with pytest.raises(ValueError, match="max_symbols must be 1 to 10, got 0"):
        ModelOptions(max_symbols=0)


def test_wrong_options_are_refused_with_the_start_of_a_stream(server: TritonServer) -> None:
    with Client(server.grpc_address) as client, pytest.raises(InputError, match="kind transducer"):
        client.stream(model="transducer-live", sample_rate=16000, search={"search": "rescoring"}).finish()
