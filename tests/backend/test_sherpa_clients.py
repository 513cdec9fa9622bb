"""What the clients of sherpa's Triton deployment do, in our words: same tensors, types, ids, pieces, ways to read.

Its offline and its streaming models are both called `transducer`. Its first client joins the elements of the first row
of an offline answer, and all elements of a streaming one: the former must have two axes, the latter one. Later clients
look at what they got.
"""

import queue
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from serving import RawClient
from toy_transducer import transducer_waveform
from tritone.server import TritonServer

SAMPLE_RATE, FRAME_SHIFT = 16000, 160  # Hz, samples
STREAMING = "transducer-live"
ID = 10086  # plus the number of the worker; offline only a label
STEP_S = 10  # to whose multiples the benchmark client pads

# Feature frames of the first piece: a window of (chunk 16 + 2 + right context) * 4 + 3, and two more; the tool that
# writes input for perf_analyzer counts as WeNet's does. Others are of 16 * 4.
FIRST = {"right context 2": 85, "right context 4": 93, "perf_analyzer": 96}
OTHERS = 64

TEXTS = ["a", "hello there", "this sentence is long enough for more than two pieces of sound"]


def tensors(samples: np.ndarray, num_samples: int) -> list[Any]:
    inputs = [triton.InferInput("WAV", samples.shape, "FP32"), triton.InferInput("WAV_LENS", (1, 1), "INT32")]
    inputs[0].set_data_from_numpy(samples)
    inputs[1].set_data_from_numpy(np.array([[num_samples]], np.int32))
    return inputs


def ask(client: Any, model: str, inputs: list[Any], **more: Any) -> np.ndarray:
    outputs = [triton.InferRequestedOutput("TRANSCRIPTS")]
    return client.infer(model, inputs, outputs=outputs, **more).as_numpy("TRANSCRIPTS")


def joined(answer: np.ndarray) -> str:
    return b" ".join(answer).decode()


# How offline clients read an answer.
READERS: dict[str, Callable[[np.ndarray], str]] = {
    "first": lambda answer: joined(answer[0]),
    "unified": lambda answer: joined(answer[0]) if isinstance(answer[0], np.ndarray) else answer[0].decode(),
}


def pieces(waveform: np.ndarray, first_frames: int) -> list[tuple[np.ndarray, int]]:
    """The first piece and the others, each padded with zeros to its full length, with its number of true samples."""
    first, others = first_frames * FRAME_SHIFT, OTHERS * FRAME_SHIFT
    cuts = [0, *range(first, len(waveform), others)]
    found = []
    for start, end in zip(cuts, [*cuts[1:], len(waveform)], strict=True):
        padded = np.zeros((1, others if start else first), np.float32)
        padded[0, : end - start] = waveform[start:end]
        found.append((padded, end - start))
    return found


def play(client: Any, waveform: np.ndarray, stream: int, first_frames: int) -> list[str]:
    cut = pieces(waveform, first_frames)
    return [
        joined(
            ask(
                client,
                STREAMING,
                tensors(padded, true),
                sequence_id=stream,
                sequence_start=index == 0,
                sequence_end=index == len(cut) - 1,
            )
        )
        for index, (padded, true) in enumerate(cut)
    ]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("padded", [False, True])
def test_offline_clients_get_the_text_of_audio_as_it_is_or_padded(raw: RawClient, text: str, padded: bool) -> None:
    waveform = transducer_waveform(text)
    width = STEP_S * SAMPLE_RATE * (len(waveform) // SAMPLE_RATE // STEP_S + 1) if padded else len(waveform)
    samples = np.zeros((1, width), np.float32)
    samples[0, : len(waveform)] = waveform
    answer = ask(raw.grpc, "transducer", tensors(samples, len(waveform)), request_id=str(ID))
    assert answer.shape == (1, 1)
    assert {name: read(answer) for name, read in READERS.items()} == dict.fromkeys(READERS, text)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_streaming_clients_get_the_text_so_far_with_every_piece_and_the_end_of_it(
    raw: RawClient, text: str, first: int
) -> None:
    waveform = transducer_waveform(text)
    said = play(raw.grpc, waveform, ID, first)
    assert len(said) == 1 + max(0, -(-(len(waveform) - first * FRAME_SHIFT) // (OTHERS * FRAME_SHIFT)))
    assert said[-1] == text
    assert all(text.startswith(partial) for partial in said)


def test_where_nothing_is_said_there_is_one_empty_text(raw: RawClient) -> None:
    silence = np.zeros((1, SAMPLE_RATE), np.float32)
    answer = ask(raw.grpc, "transducer", tensors(silence, SAMPLE_RATE))
    assert answer.tolist() == [[b""]]
    assert play(raw.grpc, silence[0], ID, 85) == ["", ""]


def test_the_padding_of_a_piece_is_not_heard(raw: RawClient) -> None:
    """Zeros after a level would be a token of their own."""
    waveform = transducer_waveform("seven")
    for missing in (0, 1, 479, 481, 3 * 640):
        audio = waveform[: len(waveform) - missing]
        (offline,) = ask(raw.grpc, "transducer", tensors(audio[None], len(audio)))
        assert play(raw.grpc, audio, ID, 85)[-1] == joined(offline) == "seven"[: 5 - (missing + 159) // 640]


def test_an_id_is_used_again_for_one_file_after_the_other_and_refused_while_its_stream_is_open(raw: RawClient) -> None:
    assert [play(raw.grpc, transducer_waveform(text), ID, 85)[-1] for text in TEXTS] == TEXTS
    (piece, true), *others = pieces(transducer_waveform(TEXTS[2]), 85)
    ask(raw.grpc, STREAMING, tensors(piece, true), sequence_id=ID, sequence_start=True)
    with pytest.raises(triton.InferenceServerException, match=f"stream {ID} is in use"):
        play(raw.grpc, transducer_waveform(TEXTS[2]), ID, 85)
    for index, each in enumerate(others, start=1):
        said = ask(raw.grpc, STREAMING, tensors(*each), sequence_id=ID, sequence_end=index == len(others))
    assert joined(said) == TEXTS[2]


def test_a_stream_of_requests_on_one_connection_as_perf_analyzer_sends_it(server: TritonServer) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client = triton.InferenceServerClient(server.grpc_address)
    client.start_stream(lambda result, error: answers.put(error or result))
    cut = pieces(transducer_waveform(TEXTS[2]), FIRST["perf_analyzer"])
    for index, (padded, true) in enumerate(cut):
        client.async_stream_infer(
            STREAMING,
            tensors(padded, true),
            sequence_id=ID + 1,
            sequence_start=index == 0,
            sequence_end=index == len(cut) - 1,
        )
    found = [answers.get(timeout=30).as_numpy("TRANSCRIPTS") for _ in cut]
    client.stop_stream()
    client.close()
    assert joined(found[-1]) == TEXTS[2]
