"""Python functions on a real Triton: batches, generators, functions that call other models, and ensembles of them."""

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

import tritone
from ensemble_models import SPEC, write_parts
from serving import TIMEOUT_S, quiet_options
from tritone.families.generic.python import export_python
from tritone.families.generic.steps import bundles_of
from tritone.pipelines.wiring.spec import read_spec
from tritone.repository import ModelOptions, build_repository
from tritone.repository.wired import build_ensemble
from tritone.server import TritonServer

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


def spell(text: list[str]) -> Iterator[list[str]]:
    for letters in zip(*text):
        if "!" in letters:
            raise InputError("no shouting")
        yield list(letters)


def judge(text: list[str], models: Models) -> list[str]:
    asked = [each for each in text if "?" not in each]
    totals = iter(models["count"](text=np.array(asked)[:, None])["total"][:, 0]) if asked else iter(())
    return ["unknown" if "?" in each else f"{next(totals)} letters" for each in text]
"""

LETTERS = """
name: letters
steps:
  up: {python: steps:upper, inputs: {text: text}}
  spell: {python: steps:spell, inputs: {text: up.output}}
outputs: {output: spell.output}
"""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "steps.py").write_text(STEPS)
    return {
        name: export_python(target=f"steps:{name}", folder=folder, output=folder / name, max_batch_size=4).path
        for name in ("count", "spell", "judge")
    }


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of ensembles: of three steps, one whose last step decides, and one that answers many times."""
    folder = write_parts(tmp_path_factory.mktemp("ensembles"))
    deciding = SPEC.replace("mean-length", "deciding").replace("steps:pool", "steps:deciding")
    (folder / "deciding.yaml").write_text(deciding + "models: {scaled: {bundle: scaled}}\n")
    (folder / "letters.yaml").write_text(LETTERS)
    return [folder / name for name in ("spec.yaml", "deciding.yaml", "letters.yaml")]


@pytest.fixture(scope="module")
def server(
    bundles: dict[str, Path], specs: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("served") / "repository"
    build_repository(list(bundles.values()), repository, options=ModelOptions(runtime="python"))
    for path in specs:
        spec = read_spec(path)
        build_ensemble(spec, bundles_of(spec, path.parent, path.parent / "made"), repository)
    with TritonServer(repository, quiet_options(drain_s=0)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc_address) as found:
        yield found


def texts(*rows: str) -> triton.InferInput:
    found = triton.InferInput("text", (len(rows), 1), "BYTES")
    return found.set_data_from_numpy(np.array([[row.encode()] for row in rows], object))


def ask(client: triton.InferenceServerClient, model: str, *inputs: triton.InferInput, **options: Any) -> Any:
    return client.infer(model, list(inputs), client_timeout=TIMEOUT_S, **options)


def answers(client: triton.InferenceServerClient, model: str, *rows: str) -> list[Any]:
    """All answers of a decoupled model to one request, or what ended them."""
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: found.put(error or result))
    client.async_stream_infer(model, [texts(*rows)], enable_empty_final_response=True)
    results = []
    while not results or not is_final(results[-1]):
        results.append(found.get(timeout=TIMEOUT_S))
    client.stop_stream()
    return [each if isinstance(each, Exception) else each.as_numpy("output").tolist() for each in results[:-1]]


def is_final(result: Any) -> bool:
    if isinstance(result, Exception):
        return False
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def test_a_function_answers_in_a_server_as_in_process(
    client: triton.InferenceServerClient, bundles: dict[str, Path]
) -> None:
    model = tritone.load_model(bundles["count"], runtime="python")
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
    assert answers(client, "spell", "abc", "xyz") == [[[b"a"], [b"x"]], [[b"b"], [b"y"]], [[b"c"], [b"z"]]]
    first, error = answers(client, "spell", "a!c")
    assert first == [[b"a"]]
    assert "no shouting" in str(error)
    assert answers(client, "spell", "q") == [[[b"q"]]]  # the model goes on


def test_a_function_that_decides_asks_other_models_of_the_server(
    client: triton.InferenceServerClient, bundles: dict[str, Path]
) -> None:
    rows = ("four five", "why?", "two")
    found = ask(client, "judge", texts(*rows)).as_numpy("output").tolist()
    assert found == [[b"8 letters"], [b"unknown"], [b"3 letters"]]
    count = tritone.load_model(bundles["count"], runtime="python")
    model = tritone.load_model(bundles["judge"], runtime="python", models={"count": count})
    assert model.infer({"text": [[row] for row in rows]})["output"].tolist() == found
    with pytest.raises(triton.InferenceServerException, match=r"INVALID_ARGUMENT.*the model count: a text is empty"):
        ask(client, "judge", texts(""))


def test_an_ensemble_answers_in_a_server_as_in_process(client: triton.InferenceServerClient, specs: list[Path]) -> None:
    rows = ("one two three", "twelve letters inside")
    sent = triton.InferInput("TEXT", (2, 1), "BYTES")
    sent.set_data_from_numpy(np.array([[row.encode()] for row in rows], object))
    for name, path in (("mean-length", specs[0]), ("deciding", specs[1])):
        expected = tritone.load_ensemble(path).infer({"TEXT": [[row] for row in rows]})
        found = ask(client, name, sent)
        for output, array in expected.items():
            assert found.as_numpy(output).tolist() == array.tolist()
    sent = triton.InferInput("TEXT", (1, 1), "BYTES").set_data_from_numpy(np.array([[b"two words"]], object))
    with pytest.raises(triton.InferenceServerException, match="in ensemble 'mean-length'"):
        ask(client, "mean-length", sent)


def test_an_ensemble_whose_last_step_is_a_generator_answers_many_times(client: triton.InferenceServerClient) -> None:
    assert answers(client, "letters", "ab") == [[[b"A"]], [[b"B"]]]
