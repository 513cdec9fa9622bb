"""What the clients of WeNet's GPU runtime do, in our words: same tensors, types, ids, pieces, and ways to read answers.

Those clients take the first element of `TRANSCRIPTS` for the text, or join its elements, so it must have one axis.
"""

import pickle
import queue
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from serving import RawClient
from toy import SAMPLE_RATE, toy_waveform
from tritone.server import TritonServer

# The streaming clients cut audio so that the encoder's first window is just full: (15 * 4 + 7 + 2) frames of 10 ms, and
# then 16 * 4 frames.
FIRST, OTHERS = 11040, 10240
ID = 10086  # plus the number of the worker; offline only a label
STEP_S = 10  # to whose multiples the benchmark client pads


def tensors(samples: np.ndarray, num_samples: int) -> list[Any]:
    inputs = [
        triton.InferInput("WAV", samples.shape, "FP32"),
        triton.InferInput("WAV_LENS", (1, 1), "INT32"),
    ]
    inputs[0].set_data_from_numpy(samples)
    inputs[1].set_data_from_numpy(np.array([[num_samples]], np.int32))
    return inputs


def ask(client: Any, model: str, inputs: list[Any], **more: Any) -> np.ndarray:
    return client.infer(model, inputs, outputs=[triton.InferRequestedOutput("TRANSCRIPTS")], **more).as_numpy(
        "TRANSCRIPTS"
    )


def first_element(answer: np.ndarray) -> str:
    """How the offline clients read an answer."""
    element = answer[0]
    return (b" ".join(element) if isinstance(element, np.ndarray) else element).decode()


# How the streaming clients do.
READERS: list[Callable[[np.ndarray], str]] = [
    lambda answer: answer[0].decode(),
    lambda answer: b" ".join(answer).decode(),
]


def pieces(waveform: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """The first piece and the others, the last one padded with zeros, each with its number of true samples."""
    cuts = [0, *range(FIRST, len(waveform), OTHERS)]
    found = []
    for start, end in zip(cuts, [*cuts[1:], len(waveform)], strict=True):
        padded = np.zeros((1, OTHERS if start else FIRST), np.float32)
        padded[0, : end - start] = waveform[start:end]
        found.append((padded, end - start))
    return found


def play(client: Any, waveform: np.ndarray, stream: int) -> list[np.ndarray]:
    cut = pieces(waveform)
    return [
        ask(
            client,
            "streaming_wenet",
            tensors(padded, true),
            sequence_id=stream,
            sequence_start=index == 0,
            sequence_end=index == len(cut) - 1,
        )
        for index, (padded, true) in enumerate(cut)
    ]


TEXTS = ["e", "seven six", "this sentence is long enough for more than two pieces"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("padded", [False, True])
def test_the_offline_clients_get_their_text_of_audio_as_it_is_or_padded(
    raw: RawClient, text: str, padded: bool
) -> None:
    waveform = toy_waveform(text)
    width = STEP_S * SAMPLE_RATE * (len(waveform) // SAMPLE_RATE // STEP_S + 1) if padded else len(waveform)
    samples = np.zeros((1, width), np.float32)
    samples[0, : len(waveform)] = waveform
    answer = ask(raw.grpc, "attention_rescoring", tensors(samples, len(waveform)), request_id=str(ID))
    assert answer.shape == (1,)
    assert first_element(answer) == text


@pytest.mark.parametrize("text", TEXTS)
def test_the_streaming_clients_get_the_text_so_far_with_every_piece(raw: RawClient, text: str) -> None:
    waveform = toy_waveform(text)
    answers = play(raw.grpc, waveform, ID)
    assert len(answers) == 1 + max(0, -(-(len(waveform) - FIRST) // OTHERS))
    for read in READERS:
        said = [read(answer) for answer in answers]
        assert said[-1] == text
        assert all(text.startswith(partial) for partial in said)


def test_the_padding_of_the_last_piece_is_not_heard(raw: RawClient) -> None:
    # zeros after a level would be a letter of their own to the toy model
    waveform = toy_waveform("seven")[:-160]
    for length in (len(waveform) - 1, len(waveform)):
        offline = ask(raw.grpc, "attention_rescoring", tensors(waveform[None, :length], length))
        assert play(raw.grpc, waveform[:length], ID)[-1].tolist() == offline.tolist()


def test_an_id_is_used_again_for_one_file_after_the_other(raw: RawClient) -> None:
    assert [play(raw.grpc, toy_waveform(text), ID)[-1].tolist() for text in TEXTS] == [[t.encode()] for t in TEXTS]


def test_a_second_client_with_the_same_id_is_refused_and_the_first_goes_on(raw: RawClient) -> None:
    """Upstream's numbering makes two clients collide; neither gets the other's words."""
    (piece, true), *others = pieces(toy_waveform(TEXTS[2]))
    ask(raw.grpc, "streaming_wenet", tensors(piece, true), sequence_id=ID, sequence_start=True)
    with pytest.raises(triton.InferenceServerException, match=f"stream {ID} is in use"):
        play(raw.grpc, toy_waveform("this is not theirs at all"), ID)
    for index, each in enumerate(others, start=1):
        said = ask(raw.grpc, "streaming_wenet", tensors(*each), sequence_id=ID, sequence_end=index == len(others))
    assert said.tolist() == [TEXTS[2].encode()]


def test_an_error_cannot_leave_a_process_of_upstreams_pool_which_then_waits_for_ever() -> None:
    """docs/serving/serving.md says it of `client.py`: its workers' errors are pickled, and this one cannot be read."""
    with pytest.raises(TypeError, match="msg"):
        pickle.loads(pickle.dumps(triton.InferenceServerException(msg="refused")))


def test_what_makes_an_offline_client_of_upstream_meet_an_error(raw: RawClient) -> None:
    """Stereo becomes a tensor of three axes, and what is longer than --max-audio-s is refused with the numbers."""
    stereo = np.zeros((1, 16000, 2), np.float32)
    with pytest.raises(triton.InferenceServerException, match="unexpected shape for input 'WAV'"):
        ask(raw.grpc, "attention_rescoring", tensors(stereo, 16000))
    long = np.zeros((1, 121 * SAMPLE_RATE), np.float32)
    with pytest.raises(triton.InferenceServerException, match="120"):
        ask(raw.grpc, "attention_rescoring", tensors(long, long.size))


def test_more_streams_than_slots_are_refused_at_their_first_piece(raw: RawClient) -> None:
    """As `--num-tasks 300` is by a model with the 256 slots of a default build; this one has 4."""
    (piece, true), *_ = pieces(toy_waveform(TEXTS[2]))
    for number in range(4):
        ask(raw.grpc, "streaming_wenet", tensors(piece, true), sequence_id=ID + number, sequence_start=True)
    with pytest.raises(triton.InferenceServerException, match=r"all 4 streams .* are taken"):
        ask(raw.grpc, "streaming_wenet", tensors(piece, true), sequence_id=ID + 4, sequence_start=True)
    for number in range(4):
        ask(raw.grpc, "streaming_wenet", tensors(piece, true), sequence_id=ID + number, sequence_end=True)


def test_a_stream_of_requests_on_one_connection_as_perf_analyzer_sends_it(server: TritonServer) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client = triton.InferenceServerClient(server.grpc_address)
    client.start_stream(lambda result, error: answers.put(error or result))
    cut: Sequence[tuple[np.ndarray, int]] = pieces(toy_waveform(TEXTS[2]))
    for index, (padded, true) in enumerate(cut):
        client.async_stream_infer(
            "streaming_wenet",
            tensors(padded, true),
            sequence_id=ID + 1,
            sequence_start=index == 0,
            sequence_end=index == len(cut) - 1,
        )
    found = [answers.get(timeout=30).as_numpy("TRANSCRIPTS") for _ in cut]
    client.stop_stream()
    client.close()
    assert READERS[0](found[-1]) == TEXTS[2]
