"""Any model by its own inputs and outputs: "scale" multiplies a table, "count" answers "<samples> <sum>"."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tritone.client import Client
from tritone.errors import AudioError, InputError

TABLE = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


def test_named_arrays_go_in_and_come_out_without_the_axis_of_rows(client: Client):
    inputs = [{"TABLE": TABLE, "TIMES": [times]} for times in (1, 100, 3)]
    results = client.infer(inputs, "scale")
    assert [result.index for result in results] == [0, 1, 2]
    for result, times in zip(results, (1, 100, 3), strict=True):
        outputs = result.get()
        np.testing.assert_array_equal(outputs["PRODUCT"], times * TABLE)
        assert outputs["LABEL"].tolist() == [b"large" if times == 100 else b"small"]
    assert results[0].latency_s > 0


def test_outputs_are_chosen_by_name_and_parameters_travel(client: Client):
    (result,) = client.infer(
        [{"TABLE": TABLE.tolist(), "TIMES": np.array([2], np.int32)}],
        "scale",
        parameters={"offset": 0.5},
        outputs=["PRODUCT"],
    )
    assert list(result.get()) == ["PRODUCT"]
    np.testing.assert_array_equal(result.get()["PRODUCT"], 2 * TABLE + 0.5)


def test_an_input_that_fails_keeps_its_error_and_the_others_their_outputs(client: Client):
    good = {"TABLE": TABLE, "TIMES": [1]}
    bad = [
        {"TABLE": TABLE, "TIMES": [-1]},
        {"TABLE": TABLE, "TIME": [1]},
        {"TABLE": TABLE[0], "TIMES": [1]},
        {"TABLE": TABLE, "TIMES": [0.5]},
        np.zeros(5),
    ]
    results = client.infer([good, *bad, good], "scale", concurrency=2)
    assert [result.ok for result in results] == [True, *[False] * 5, True]
    for result, complaint in zip(
        results[1:6],
        (
            "input 1: TIMES is below 0",
            "model 'scale' has no input TIME; it takes TABLE, TIMES",
            r"TABLE has shape \(2,\), \[-1, 2\] is needed",
            "TIMES is of type float64, INT64 is needed",
            "model 'scale' takes no audio; give its inputs by name: TABLE, TIMES",
        ),
        strict=True,
    ):
        with pytest.raises(InputError, match=complaint):
            result.get()


def test_audio_goes_to_models_that_take_it(client: Client):
    good, absent = client.infer([np.full(100, 0.5), Path("absent.wav")], "count", outputs=["TRANSCRIPTS"])
    assert good.get()["TRANSCRIPTS"].ravel().tolist() == [b"100 50.0"]
    assert good.audio_s == 100 / 8000
    assert isinstance(absent.error, AudioError)
    (vector,) = client.infer([np.ones(3)], "speaker", parameters={"window_s": 2.5})
    np.testing.assert_array_equal(vector.get()["EMBEDDINGS"], [3, 3, 2.5, -1])


def test_what_cannot_be_asked_is_refused_before_anything_is_sent(client: Client):
    with pytest.raises(InputError, match="no output SUM; it has PRODUCT, LABEL"):
        client.infer([], "scale", outputs=["SUM"])
    with pytest.raises(InputError, match=r"model 'running' is for streams; use Client\.stream"):
        client.infer([], "running")
    with pytest.raises(InputError, match="6 models are ready, name one of them: count, lone"):
        client.infer([])
    with pytest.raises(ValueError, match="concurrency must be at least 1, got 0"):
        client.infer([], "scale", concurrency=0)


def test_an_iterator_takes_inputs_as_they_are_needed(client: Client):
    def endless() -> Iterator[dict[str, object]]:
        while True:
            yield {"TABLE": TABLE, "TIMES": [2]}

    results = client.infer_iter(endless(), "scale", concurrency=3)
    for _ in range(5):
        np.testing.assert_array_equal(next(results).get()["PRODUCT"], 2 * TABLE)
    results.close()  # type: ignore[attr-defined]
