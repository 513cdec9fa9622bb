"""Annotations as inputs and outputs, and functions of a folder that are called with arrays."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import pytest

from tritone.errors import BundleError, InputError, MissingDependencyError, OperatorError
from tritone.runtime.functions.function import PythonFunction
from tritone.runtime.functions.requirements import check_requirements, imported, requirements_of
from tritone.runtime.functions.signature import Argument, Models, read_signature

STEPS = """
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritone import Models
from tritone.errors import InputError

Points = Annotated[NDArray[np.float32], ("points", 2)]


class Measures(NamedTuple):
    mean: Annotated[NDArray[np.float32], (2,)]
    names: list[str]


def measure(points: Points, names: list[str], shift: Annotated[NDArray[np.float32], ()] | None = None) -> Measures:
    if "" in names:
        raise InputError("a row has no name")
    mean = points.mean(axis=1)
    return Measures(mean if shift is None else mean + shift[:, None], [name.upper() for name in names])


def spell(text: list[str]) -> Iterator[list[bytes]]:
    for letters in zip(*text):
        yield [letter.encode() for letter in letters]


def wrong(text: list[str]) -> Annotated[NDArray[np.float32], (3,)]:
    return np.zeros((len(text), 4), np.float32)


def narrow(text: list[str]) -> Annotated[NDArray[np.float32], (3,)]:
    return np.zeros((len(text), 3))


def ask(text: list[str], models: Models) -> Annotated[NDArray[np.float32], ()]:
    return models["judge"](text=np.array(text, object))["score"]


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, text: list[str]) -> list[int]:
        self.calls += 1
        return [self.calls] * len(text)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "steps.py").write_text(STEPS, encoding="utf-8")
    return tmp_path


def texts(*words: str) -> npt.NDArray[np.object_]:
    return np.array([word.encode() for word in words], object)


class Named(NamedTuple):
    ids: Annotated[npt.NDArray[np.int64], ("tokens",)]
    text: list[str]


class Typed(TypedDict):
    ids: Annotated[npt.NDArray[np.uint8], (4, -1)]


@dataclass
class Held:
    good: list[bool]


def test_annotations_are_types_and_sizes() -> None:
    def function(
        image: Annotated[npt.NDArray[np.float16], (3, "height", -1)],
        words: list[list[str]],
        label: Annotated[npt.NDArray[np.bytes_], (2,)],
        weight: list[float] | None = None,
    ) -> Named:
        raise NotImplementedError

    signature = read_signature(function, "function")
    assert signature.inputs == (
        Argument(name="image", type="FP16", dims=(3, -1, -1)),
        Argument(name="words", type="STRING", dims=(-1,), item=str),
        Argument(name="label", type="STRING", dims=(2,)),
        Argument(name="weight", type="FP64", dims=(), item=float, optional=True),
    )
    assert signature.outputs == (
        Argument(name="ids", type="INT64", dims=(-1,)),
        Argument(name="text", type="STRING", dims=(), item=str),
    )
    assert not signature.decoupled


def test_results_are_one_array_or_the_fields_of_a_class() -> None:
    def typed(x: list[int]) -> Typed:
        raise NotImplementedError

    def held(x: list[int]) -> Held:
        raise NotImplementedError

    def single(x: list[int]) -> Annotated[npt.NDArray[np.float32], ()]:
        raise NotImplementedError

    def many(x: list[int], models: Models) -> Iterator[list[str]]:
        yield []

    assert read_signature(typed, "typed").outputs == (Argument(name="ids", type="UINT8", dims=(4, -1)),)
    assert [each.type for each in read_signature(held, "held").outputs] == ["BOOL"]
    assert read_signature(single, "single").outputs == (Argument(name="output", type="FP32", dims=()),)
    assert (signature := read_signature(many, "many")).decoupled
    assert signature.models == "models"
    assert [each.name for each in signature.inputs] == ["x"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(x): ...", "f, parameter x has no annotation; expected Annotated"),
        ("def f(x: np.ndarray) -> list[str]: ...", "parameter x is annotated as ndarray"),
        ("def f(x: npt.NDArray[np.float32]) -> list[str]: ...", "with the sizes after the rows"),
        ("def f(x: Annotated[npt.NDArray[np.complex64], (3,)]) -> list[str]: ...", "parameter x"),
        ("def f(x: Annotated[npt.NDArray[np.float32], (0,)]) -> list[str]: ...", "parameter x"),
        ("def f(x: list[str]): ...", "f, result has no annotation"),
        ("def f(x: list[str], n: list[int] = 3) -> list[str]: ...", "default 3; only None"),
        ("def f(*x: list[str]) -> list[str]: ...", "parameter x must be an ordinary one"),
        ("def f() -> list[str]: ...", "no inputs"),
        ("def f(x: list[str]) -> list[str]: yield x", r"annotate its result as Iterator\[...\]"),
        ("def f(x: 'Missing') -> list[str]: ...", "cannot be read: name 'Missing'"),
        ("class f: pass", "expected a function, or a class with __call__"),
        ("f = 3", "is a int; expected a function"),
    ],
)
def test_what_cannot_be_served_is_said_with_what_can(text: str, told: str) -> None:
    names = {"np": np, "npt": npt, "Annotated": Annotated}
    exec(text, names)
    with pytest.raises(ValueError, match=told):
        read_signature(names["f"], "f")


def test_a_function_takes_and_returns_rows(folder: Path) -> None:
    measure = PythonFunction(folder, "steps:measure")
    points = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    found = measure({"points": points, "names": texts("first", "zweite größe")})
    assert found["mean"].tolist() == [[2, 3], [8, 9]]
    assert found["names"].tolist() == [b"FIRST", "ZWEITE GRÖSSE".encode()]
    shifted = measure({"points": points, "names": texts("a", "b"), "shift": np.float32([1, -1])}, ["mean"])
    assert {name: array.tolist() for name, array in shifted.items()} == {"mean": [[3, 4], [7, 8]]}
    assert not (folder / "__pycache__").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"points": None}, "needs the input points"),
        ({"points": np.zeros((2, 3, 3), np.float32)}, r"points is float32 of shape \[2, 3, 3\]; expected FP32 .*-1, 2"),
        ({"points": np.zeros((2, 3, 2))}, "points is float64"),
        ({"names": texts("one")}, "different numbers of rows"),
        ({"names": np.array([b"\xff", b""], object)}, "not UTF-8: byte 0xff"),
        ({"more": texts("a", "b")}, "has no input more; it takes points, names, shift"),
        ({"names": texts("a", "")}, "a row has no name"),
    ],
)
def test_inputs_that_do_not_fit_are_input_errors(folder: Path, changes: dict[str, Any], told: str) -> None:
    measure = PythonFunction(folder, "steps:measure")
    inputs = {"points": np.zeros((2, 3, 2), np.float32), "names": texts("a", "b")} | changes
    with pytest.raises(InputError, match=told):
        measure({name: array for name, array in inputs.items() if array is not None})


def test_results_that_are_not_as_annotated_name_both(folder: Path) -> None:
    with pytest.raises(OperatorError, match=r"returned shape \[2, 4\] for output; expected \[2, 3\]"):
        PythonFunction(folder, "steps:wrong")({"text": texts("a", "b")})
    with pytest.raises(OperatorError, match="returned float64 for output, which is annotated as float32"):
        PythonFunction(folder, "steps:narrow")({"text": texts("a")})


def test_a_generator_answers_many_times(folder: Path) -> None:
    spell = PythonFunction(folder, "steps:spell")
    answers = [each["output"].tolist() for each in spell.stream({"text": texts("abc", "xyz")})]
    assert answers == [[b"a", b"x"], [b"b", b"y"], [b"c", b"z"]]
    with pytest.raises(InputError, match="answers many times"):
        spell({"text": texts("abc")})


def test_a_function_calls_the_models_that_it_is_given(folder: Path) -> None:
    ask = PythonFunction(folder, "steps:ask")
    judge = {"judge": lambda text: {"score": np.float32([len(each) for each in text])}}
    assert ask({"text": texts("four", "eleven")}, models=judge)["output"].tolist() == [4, 6]
    with pytest.raises(OperatorError, match=r"called the model 'judge', but it was given none"):
        ask({"text": texts("four")})


def test_a_class_is_made_once(folder: Path) -> None:
    counter = PythonFunction(folder, "steps:Counter")
    assert [counter({"text": texts("a")})["output"].tolist() for _ in range(2)] == [[1], [2]]


def test_modules_of_one_name_in_two_folders_do_not_mix(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper.py").write_text(f"NAME = {name!r}\n", encoding="utf-8")
        (tmp_path / name / "steps.py").write_text(
            "import helper\ndef f(x: list[str]) -> list[str]: return [helper.NAME for _ in x]\n", encoding="utf-8"
        )
    one, two = (PythonFunction(tmp_path / name, "steps:f") for name in ("one", "two"))
    assert one({"x": texts("")})["output"].tolist() == [b"one"]
    assert two({"x": texts("")})["output"].tolist() == [b"two"]


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("absent:f", r"module absent cannot be imported \(ModuleNotFoundError"),
        ("steps:absent", "has no 'absent'"),
        ("json:loads", "is not in this folder"),
    ],
)
def test_a_function_that_is_not_there_is_a_damaged_bundle(folder: Path, target: str, told: str) -> None:
    with pytest.raises(BundleError, match=told):
        PythonFunction(folder, target)


def test_requirements_are_found_and_checked(folder: Path) -> None:
    found = requirements_of(imported([folder / "steps.py"]))
    assert found == (f"numpy>={np.__version__.partition('+')[0]}",)
    check_requirements(found, "it")
    assert requirements_of({"numpy", "json", "tritone"}, ["numpy>=1.20"]) == ("numpy>=1.20",)
    with pytest.raises(MissingDependencyError, match=r"numpy<1 is installed as .*pip install 'numpy<1' 'not-a-pack"):
        check_requirements(["numpy<1", "not-a-package>=2", "other; python_version < '3'"], "it")
    with pytest.raises(ValueError, match="names an address"):
        requirements_of((), ["numpy @ https://example.org/numpy.whl"])
    with pytest.raises(MissingDependencyError, match="function steps:measure, needs packages"):
        PythonFunction(folder, "steps:measure", ["not-a-package"])
