"""Whole utterances through a real server: right answers, and errors that stay with the request that caused them."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from serving import Ask, RawClient, Refusal, batches_of, in_one_batch
from toy import CONTEXT, FRAME, MIN_SAMPLES, toy_waveform
from tritone.server import TritonServer

WORDS = ["one", "two two", "three", "a", "zero 0", "nine nine nine", "x"]
LONG_S = 20  # the model's limit


def toy(wav: object, **more: object) -> Ask:
    return Ask(model="toy", wav=wav, **more)  # type: ignore[arg-type]


def poisoned() -> np.ndarray:
    wav = toy_waveform("poison")
    wav[7] = np.nan
    return wav


BAD = {
    "empty audio": (toy(np.zeros((1, 1), np.float32), lens=0), "empty audio"),
    "no samples in the tensor": (toy(np.zeros((1, 0), np.float32)), "empty audio"),
    "NaN": (toy(poisoned()), r"sample 7 .*is nan"),
    "infinity": (toy(np.full(FRAME, np.inf, np.float32)), r"sample 0 .*is inf"),
    "an absurd level": (toy(np.full(FRAME, -1e38, np.float32)), r"samples reach 1e\+38.*divide by 32768"),
    "length beyond the tensor": (toy(toy_waveform("abc"), lens=99999), r"WAV_LENS is 99999.*WAV has \d+ samples"),
    "negative length": (toy(toy_waveform("abc"), lens=-1), r"WAV_LENS is -1"),
    "over the maximum duration": (
        toy(np.zeros(LONG_S * 16000 + 1, np.float32)),
        r"20\.000 s long \(320001 samples.*limit is 20 s",
    ),
}


@pytest.mark.parametrize(("ask", "told"), BAD.values(), ids=BAD.keys())
def test_a_bad_request_gets_its_own_error_and_its_batch_gets_right_texts(raw: RawClient, ask: Ask, told: str) -> None:
    asks = [toy(toy_waveform(word)) for word in WORDS]
    answers = in_one_batch(raw, [*asks[:3], ask, *asks[3:]])
    refusal = answers.pop(3)
    assert isinstance(refusal, Refusal)
    assert refusal.status == "StatusCode.INVALID_ARGUMENT"
    assert re.search(told, refusal.message), refusal.message
    assert answers == WORDS


REJECTED = {
    "a wrong type": (toy(np.zeros(FRAME)), "FP64.*FP32"),
    "integer samples": (toy(np.zeros(FRAME, np.int16)), "INT16.*FP32"),
    "a wrong rank": (toy(np.zeros((1, 2, FRAME), np.float32)), r"unexpected shape for input 'WAV'"),
    "more rows than a batch may have": (toy(np.zeros((9, FRAME), np.float32)), "batch-size must be <= 8"),
    "an unknown model": (Ask(model="nobody", wav=np.zeros(FRAME, np.float32)), "unknown model: 'nobody'"),
}


@pytest.mark.parametrize(("ask", "told"), REJECTED.values(), ids=REJECTED.keys())
def test_triton_rejects_what_breaks_the_declaration_and_serves_the_others(raw: RawClient, ask: Ask, told: str) -> None:
    refusal, *answers = raw.together([ask, *(toy(toy_waveform(word)) for word in WORDS)])
    assert isinstance(refusal, Refusal)
    assert re.search(told, refusal.message), refusal.message
    assert answers == WORDS


def test_requests_of_different_lengths_share_batches_without_padding(raw: RawClient) -> None:
    texts = [word * times for times in (1, 2, 3) for word in "abcdefgh"]
    answers, batches = batches_of(raw, [toy(toy_waveform(text)) for text in texts])
    assert answers == texts
    assert batches.total() <= len(texts) // 2


def test_200_utterances_say_the_same_alone_together_and_in_any_order(raw: RawClient) -> None:
    rng = np.random.default_rng(7)
    texts = ["".join(rng.choice(list("abcdefgh0123"), rng.integers(1, 50))) for _ in range(200)]
    asks = [toy(toy_waveform(text)) for text in texts]
    assert [raw.ask(ask) for ask in asks[:20]] == texts[:20]
    answers, batches = batches_of(raw, asks)
    assert answers == texts
    assert max(batches) > 1, "they did share batches"
    order = rng.permutation(200).tolist()
    assert raw.together([asks[index] for index in order]) == [texts[index] for index in order]


def pcm(text: str, **more: object) -> Ask:
    """The same audio in 16 bits."""
    return toy((toy_waveform(text) * 32767).astype(np.int16), called=("PCM",), **more)


def test_16_bit_audio_gives_every_answer_that_the_floats_give_that_it_stands_for(raw: RawClient) -> None:
    asks = [pcm(word, outputs=("TRANSCRIPTS", "DETAILS")) for word in WORDS]
    as_floats = [replace(ask, wav=(ask.wav / 32768).astype(np.float32), called=("WAV",)) for ask in asks]
    answers, batches = batches_of(raw, asks)
    assert [text for text, _ in answers] == WORDS
    assert answers == raw.together(as_floats)
    assert max(batches) > 1, "requests of different lengths do share batches"
    # both kinds at once, rows of a client that batches by itself, and padding
    mixed = raw.together([ask for pair in zip(asks, as_floats, strict=True) for ask in pair])
    assert mixed == [answer for answer in answers for _ in range(2)]
    rows = np.zeros((2, 20_000), np.int16)
    lens = []
    for row, word in zip(rows, ("one", "three"), strict=True):
        lens.append(len(pcm(word).wav))
        row[: lens[-1]] = pcm(word).wav
        row[lens[-1] :] = 9999
    assert raw.ask(toy(rows, lens=lens, called=("PCM",))) == ["one", "three"]


NOT_ONE_AUDIO = {
    "neither": (
        toy(toy_waveform("abc"), called=()),
        r"no input WAV; send .* float32 in \[-1, 1\] as WAV, or int16 as PCM",
    ),
    "both": (toy(toy_waveform("abc"), called=("WAV", "PCM")), r"both inputs WAV and PCM.*send one"),
    "no samples": (toy(np.zeros((1, 0), np.int16), called=("PCM",)), "empty audio"),
    "a length beyond the tensor": (pcm("abc", lens=99999), r"WAV_LENS is 99999, but PCM has \d+ samples"),
    "too long": (toy(np.zeros(LONG_S * 16000 + 1, np.int16), called=("PCM",)), "limit is 20 s"),
}


@pytest.mark.parametrize(("ask", "told"), NOT_ONE_AUDIO.values(), ids=NOT_ONE_AUDIO.keys())
def test_a_request_has_exactly_one_audio(raw: RawClient, ask: Ask, told: str) -> None:
    answers = raw.together([pcm("one"), ask, pcm("three"), toy(toy_waveform("a"))])
    refusal = answers.pop(1)
    assert isinstance(refusal, Refusal)
    assert refusal.status == "StatusCode.INVALID_ARGUMENT"
    assert re.search(told, refusal.message), refusal.message
    assert answers == ["one", "three", "a"]


def test_audio_shorter_than_a_frame_gives_empty_text(raw: RawClient) -> None:
    shortest = [toy(np.full(count, 0.5, np.float32)) for count in (1, MIN_SAMPLES - 1)]
    assert in_one_batch(raw, [*shortest, toy(toy_waveform("hello"))]) == ["", "", "hello"]


def test_wav_lens_cuts_the_padding_off(raw: RawClient) -> None:
    wav = toy_waveform("keep drop")
    padded = np.concatenate((wav, np.full(5000, np.nan, np.float32)))
    assert raw.ask(toy(padded, lens=len(wav))) == "keep drop"


def test_a_client_that_batches_by_itself_gets_a_text_for_each_row(raw: RawClient) -> None:
    waves = [toy_waveform(word) for word in ("one", "three", "go")]
    block = np.zeros((3, max(map(len, waves))), np.float32)
    for row, wav in zip(block, waves, strict=True):
        row[: len(wav)] = wav
    lens = [len(wav) for wav in waves]
    answers = in_one_batch(raw, [toy(block, lens=lens), toy(toy_waveform("alone"))])
    assert answers == [["one", "three", "go"], "alone"]


def test_a_bad_row_is_named(raw: RawClient) -> None:
    block = np.zeros((2, FRAME), np.float32)
    block[1, 3] = np.nan
    assert "row 1: sample 3" in raw.ask(toy(block)).message


def test_details_come_when_they_are_asked_for(raw: RawClient) -> None:
    text, details = raw.ask(toy(toy_waveform("ab"), outputs=("TRANSCRIPTS", "DETAILS")))
    told = json.loads(details)
    assert text == told["text"] == "ab"
    assert told["is_final"] is True
    assert [(span["text"], span["start_s"]) for span in told["tokens"]] == [("a", 0.0), ("b", 0.04)]


def test_the_longest_audio_is_taken(raw: RawClient) -> None:
    start = toy_waveform("late")[:-CONTEXT]
    # the toy hears changes, so the last level lasts to the end
    wav = np.full(LONG_S * 16000, start[-1], np.float32)
    wav[: len(start)] = start
    assert raw.ask(toy(wav)) == "late"


def test_a_full_queue_refuses_and_says_so(raw: RawClient) -> None:
    # Two may wait for company; Triton starts no batch before 500 ms have passed.
    answers = raw.together([Ask(model="narrow", wav=toy_waveform("wait")) for _ in range(6)])
    refused = [answer for answer in answers if isinstance(answer, Refusal)]
    assert len(refused) >= 1
    assert {refusal.status for refusal in refused} == {"StatusCode.UNAVAILABLE"}
    assert all("maximum queue size" in refusal.message for refusal in refused)
    assert [answer for answer in answers if answer not in refused] == ["wait"] * (6 - len(refused))


def test_every_model_is_listed_ready(server: TritonServer) -> None:
    assert {model["name"]: model["state"] for model in server.models()} == dict.fromkeys(
        (
            "toy",
            "narrow",
            "toy-chunks",
            "brief",
            "pair",
            "attention_rescoring",
            "streaming_wenet",
            "segments",
            "transducer",
            "transducer-live",
            "transducer-brief",
            "helped",
            "speaker",
            "speaker-staged",
            "speaker-staged-features",
            "speaker-staged-acoustic",
        ),
        "READY",
    )
