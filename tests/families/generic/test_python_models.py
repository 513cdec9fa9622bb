"""Python functions on a real Triton: batches, generators, functions that call other models, and ensembles of them."""

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

import tritone
from ensemble_models import write_parts
from serving import TIMEOUT_S, quiet_options
from tritone.families.generic.python import export_python
from tritone.pipelines.wiring.spec import read_spec
from tritone.prepare.steps import bundles_of
from tritone.repository.build import build_repository
from tritone.repository.config import ModelOptions
from tritone.repository.wired import build_ensemble
from tritone.server import TritonServer

pytestmark = pytest.mark.slow  # seven models are loaded
STEPS = """
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritone import Models
from tritone.errors import InputError


class Counted(NamedTuple):
    lengths: Annotated[NDArray[np.float32], ("words",)]
    total: Annotated[NDArray[np.int64], ()]


def count(text: list[str], bonus: list[int] | None = None) -> Counted:
    if "" in text:
        raise InputError("a text is empty")
    rows = [[len(word) for word in each.split()] for each in text]
    width = max(map(len, rows))
    lengths = np.array([row + [0] * (width - len(row)) for row in rows], np.float32).reshape(len(rows), width)
    total = np.array([sum(row) for row in rows], np.int64)
    return Counted(lengths, total if bonus is None else total + np.array(bonus))


def repeat(times: Annotated[NDArray[np.int32], (1,)], names: list[str]) -> Iterator[Annotated[NDArray[np.int32], (1,)]]:
    if names == ["nobody"]:
        raise InputError("nobody has no numbers")
    for step in range(int(times[0, 0])):
        yield times + step


def judge(text: list[str], models: Models) -> list[str]:
    asked = [each for each in text if "?" not in each]
    totals = iter(models["count"](text=np.array(asked)[:, None])["total"][:, 0]) if asked else iter(())
    return ["unknown" if "?" in each else f"{next(totals)} letters" for each in text]
"""
JUDGED = """
name: judged
models: {count: {bundle: count, runtime: python}}
steps:
  judge: {python: judging:judge, inputs: {text: TEXT}}
outputs: {VERDICT: judge.output}
"""
LETTERS = """
name: letters
steps:
  up: {python: steps:upper, inputs: {text: text}}
  spell: {python: steps:spell, inputs: {text: up.output}}
outputs: {output: spell.output}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of ensembles: of three steps, one that answers many times, one that asks another model."""
    folder = write_parts(tmp_path_factory.mktemp("ensembles"))
    (folder / "judging.py").write_text(STEPS, encoding="utf-8")
    (folder / "letters.yaml").write_text(LETTERS, encoding="utf-8")
    (folder / "judged.yaml").write_text(JUDGED, encoding="utf-8")
    export_python(target="judging:count", folder=folder, output=folder / "count", max_batch_size=4)
    export_python(target="judging:repeat", folder=folder, output=folder / "repeat", max_batch_size=0)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("served") / "repository"
    for name in ("spec", "letters", "judged"):
        spec = read_spec(folder / f"{name}.yaml")
        build_ensemble(spec, bundles_of(spec, folder, folder / "made"), repository)
    build_repository([folder / "repeat"], repository, options=ModelOptions(runtime="python"))
    with TritonServer(repository, quiet_options()) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc_address) as found:
        yield found


def texts(*rows: str, name: str = "text") -> triton.InferInput:
    found = triton.InferInput(name, (len(rows), 1), "BYTES")
    return found.set_data_from_numpy(np.array([[row.encode()] for row in rows], object))


def ask(client: triton.InferenceServerClient, model: str, *inputs: triton.InferInput, **options: Any) -> Any:
    return client.infer(model, list(inputs), client_timeout=TIMEOUT_S, **options)


def answers(client: triton.InferenceServerClient, model: str, *rows: str) -> list[Any]:
    """All answers of a decoupled model to a request of texts, or what ended them."""
    return streamed(client, model, texts(*rows))


def streamed(client: triton.InferenceServerClient, model: str, *inputs: triton.InferInput) -> list[Any]:
    """All answers of a decoupled model to one request, or what ended them."""
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: found.put(error or result))
    client.async_stream_infer(model, list(inputs), enable_empty_final_response=True)
    results = []
    while not results or not is_final(results[-1]):
        results.append(found.get(timeout=TIMEOUT_S))
    client.stop_stream()
    return [each if isinstance(each, Exception) else each.as_numpy("output").tolist() for each in results[:-1]]


def is_final(result: Any) -> bool:
    if isinstance(result, Exception):
        return False
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def test_a_function_answers_in_a_server_as_in_process(client: triton.InferenceServerClient, folder: Path) -> None:
    model = tritone.load(folder / "count", runtime="python")
    found = ask(client, "count", texts("one three", "größe"))
    expected = model.infer({"text": [["one three"], ["größe"]]})
    assert expected["lengths"].tolist() == [[3, 5], [5, 0]]
    for name, array in expected.items():
        assert found.as_numpy(name).tolist() == array.tolist()
        assert found.as_numpy(name).dtype == array.dtype
    bonus = triton.InferInput("bonus", (1, 1), "INT64").set_data_from_numpy(np.array([[100]]))
    assert ask(client, "count", texts("one"), bonus).as_numpy("total").tolist() == [[103]]


def test_what_a_function_refuses_is_told_to_the_client(client: triton.InferenceServerClient) -> None:
    with pytest.raises(triton.InferenceServerException, match="a text is empty"):
        ask(client, "count", texts(""))
    wrong = triton.InferInput("text", (1, 1), "BYTES").set_data_from_numpy(np.array([[b"\xff"]], object))
    with pytest.raises(triton.InferenceServerException, match="not UTF-8: byte 0xff"):
        ask(client, "count", wrong)


def test_a_generator_answers_many_times(client: triton.InferenceServerClient) -> None:
    expected = [[[b"a"], [b"x"]], [[b"b"], [b"y"]], [[b"c"], [b"z"]]]
    assert answers(client, "letters-spell", "abc", "xyz") == expected
    first, error = answers(client, "letters-spell", "a!c")
    assert first == [[b"a"]]
    assert "no shouting" in str(error)
    assert answers(client, "letters-spell", "q") == [[[b"q"]]]  # the model goes on
    assert answers(client, "letters", "ab") == [[[b"A"]], [[b"B"]]]  # an ensemble whose last step it is


def test_a_generator_answers_requests_without_rows(client: triton.InferenceServerClient, folder: Path) -> None:
    def asked(times: int, name: str) -> list[triton.InferInput]:
        number = triton.InferInput("times", (1,), "INT32").set_data_from_numpy(np.array([times], np.int32))
        return [
            number,
            triton.InferInput("names", (1,), "BYTES").set_data_from_numpy(np.array([name.encode()], object)),
        ]

    assert client.get_model_config("repeat").config.max_batch_size == 0
    assert streamed(client, "repeat", *asked(3, "any")) == [[3], [4], [5]]
    assert streamed(client, "repeat", *asked(0, "any")) == []
    (error,) = streamed(client, "repeat", *asked(2, "nobody"))
    assert "nobody has no numbers" in str(error)
    model = tritone.load(folder / "repeat", runtime="python")
    assert [each["output"].tolist() for each in model.stream({"times": [2], "names": ["any"]})] == [[2], [3]]


def test_a_function_that_decides_asks_other_models_of_the_server(
    client: triton.InferenceServerClient, folder: Path
) -> None:
    rows = ("four five", "why?", "two")
    found = ask(client, "judged", texts(*rows, name="TEXT")).as_numpy("VERDICT").tolist()
    assert found == [[b"8 letters"], [b"unknown"], [b"3 letters"]]
    ensemble = tritone.load(folder / "judged.yaml", trust=True)
    assert ensemble.infer({"TEXT": [[row] for row in rows]})["VERDICT"].tolist() == found
    with pytest.raises(triton.InferenceServerException, match=r"INVALID_ARGUMENT.*the model count: a text is empty"):
        ask(client, "judged-judge", texts(""))


def test_an_ensemble_answers_in_a_server_as_in_process(
    server: TritonServer, client: triton.InferenceServerClient, folder: Path
) -> None:
    rows = ("one two three", "twelve letters inside")
    expected = tritone.load(folder / "spec.yaml", trust=True).infer({"TEXT": [[row] for row in rows]})
    found = ask(client, "mean-length", texts(*rows, name="TEXT"))
    for output, array in expected.items():
        assert found.as_numpy(output).tolist() == array.tolist()
    with tritone.Client(server.grpc_address) as ours:
        (result,) = ours.infer([{"TEXT": [rows[0]]}], "mean-length")
        assert result.get()["MEAN"].tolist() == expected["MEAN"][0].tolist()
    with pytest.raises(triton.InferenceServerException, match="in ensemble 'mean-length'"):
        ask(client, "mean-length", texts("two words", name="TEXT"))
