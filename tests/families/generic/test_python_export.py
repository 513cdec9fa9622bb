"""Python functions as bundles: what is copied, what is refused, and that they run from the bundle alone."""

import ast
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritone
from generic_models import write_scaled
from tritone.bundle import Bundle
from tritone.errors import BundleError, ExportError, InputError, MissingDependencyError, OperatorError
from tritone.families.generic.python import export_python
from tritone.kinds.generic.part import GenericPart
from tritone.repository.build import build_repository
from tritone.repository.config import ModelOptions

STEPS = '''
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

import words
from tritone import Models

SCALE = json.loads((Path(__file__).parent / "data" / "scale.json").read_text())


class Counted(NamedTuple):
    lengths: Annotated[NDArray[np.float32], ("words",)]
    total: Annotated[NDArray[np.int64], ()]


def count(text: list[str]) -> Counted:
    """Lengths of the words of each text, with zeros after the last."""
    rows = [[len(word) * SCALE for word in words.split(each)] for each in text]
    width = max(map(len, rows))
    lengths = np.array([row + [0] * (width - len(row)) for row in rows], np.float32).reshape(len(rows), width)
    return Counted(lengths, np.array([sum(row) for row in rows], np.int64))


def spell(text: list[str]) -> Iterator[list[str]]:
    for each in words.split(text[0]):
        yield [each]


def judge(text: list[str], models: Models) -> list[str]:
    """Texts with many letters are long, those with few are asked for again."""
    totals = models["count"](text=np.array(text, object)[:, None])["total"][:, 0]
    return ["long" if total > 6 else "short" for total in totals]
'''


CALLING = """
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tritone import Models

Row = Annotated[NDArray[np.float64], (3,)]


def right(x: Row, models: Models) -> Annotated[NDArray[np.float32], (3,)]:
    return models["scaled"](x=x.astype(np.float32))["y"]


def wrong(x: Row, models: Models) -> Annotated[NDArray[np.float32], (3,)]:
    return models["scaled"](x=x)["y"]
"""
LANGUAGE = """

def language(text: list[str]) -> list[str]:
    return ["de"] * len(text)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    (path / "data").mkdir(parents=True)
    (path / "steps.py").write_text(STEPS, encoding="utf-8")
    (path / "words.py").write_text("def split(text):\n    return text.split()\n", encoding="utf-8")
    (path / "unrelated.py").write_text("raise RuntimeError\n", encoding="utf-8")
    (path / "data" / "scale.json").write_text("1", encoding="utf-8")
    return path


def export(folder: Path, function: str, **options: object) -> Bundle:
    return export_python(
        target=f"steps:{function}", folder=folder, output=folder.parent / function, include=[Path("data")], **options
    )


def test_a_bundle_has_the_function_with_the_files_and_packages_that_it_needs(folder: Path) -> None:
    bundle = export(folder, "count")
    assert bundle.manifest.artifacts[0].files == ("python/steps.py", "python/words.py", "python/data/scale.json")
    python = bundle.manifest.part(GenericPart).python
    assert (python.function, python.decoupled, python.calls) == ("count", False, ())
    assert python.requirements == (f"numpy>={np.__version__.partition('+')[0]}",)
    told = bundle.manifest.part(GenericPart)
    assert [(each.name, each.type, each.dims, each.reshape) for each in (*told.inputs, *told.outputs)] == [
        ("text", "STRING", (1,), ()),
        ("lengths", "FP32", (-1,), None),
        ("total", "INT64", (1,), ()),
    ]
    (folder / "words.py").write_text("raise RuntimeError\n", encoding="utf-8")  # the bundle has its own
    found = tritone.load(bundle.path, runtime="python").infer({"text": [["a bc"], ["def"]]})
    assert found["lengths"].tolist() == [[1, 2], [3, 0]]
    assert found["total"].tolist() == [[3], [3]]


def test_a_function_is_a_program_and_runs_only_where_it_is_asked_for(folder: Path) -> None:
    model = tritone.load(export(folder, "count").path)
    with pytest.raises(OperatorError, match="functions of Python run only where they are asked for: runtime python"):
        model.infer({"text": [["a"]]})


def test_a_model_without_a_function_that_is_asked_for_one_is_built_by_itself(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no function of Python: leave the runtime open for it, in a command of its"):
        build_repository(["demo-asr"], tmp_path / "repository", options=ModelOptions(runtime="python"))


def test_a_generator_is_decoupled(folder: Path) -> None:
    bundle = export(folder, "spell", max_batch_size=1)
    assert bundle.manifest.part(GenericPart).python.decoupled
    model = tritone.load(bundle.path, runtime="python")
    assert [each["output"].tolist() for each in model.stream({"text": [["one two"]]})] == [[[b"one"]], [[b"two"]]]
    with pytest.raises(InputError, match="answers many times"):
        model.infer({"text": [["one two"]]})
    with pytest.raises(InputError, match="1 to 1 rows, got 2"):
        next(model.stream({"text": [["one"], ["two"]]}))


def test_a_function_that_decides_calls_other_models(folder: Path) -> None:
    count = tritone.load(export(folder, "count").path, runtime="python")
    bundle = export(folder, "judge")
    assert bundle.manifest.part(GenericPart).python.calls == ("count",)
    model = tritone.load(bundle.path, runtime="python", models={"count": count})
    (found,) = model.stream({"text": [["seven letters"], ["few"]]})
    assert found["output"].tolist() == [[b"long"], [b"short"]]
    with pytest.raises(BundleError, match="calls the models count, which it was not given"):
        tritone.load(bundle.path, runtime="python", models={})


def test_calls_convert_no_types_since_a_server_does_not(tmp_path: Path) -> None:
    (tmp_path / "calling.py").write_text(CALLING, encoding="utf-8")
    options = {"models": {"scaled": tritone.load(write_scaled(tmp_path / "scaled"))}, "runtime": "python"}
    for name in ("right", "wrong"):
        export_python(target=f"calling:{name}", folder=tmp_path, output=tmp_path / name)
    rows = [[1.0, 2.0, 3.0]]
    right, wrong = (tritone.load(tmp_path / name, **options) for name in ("right", "wrong"))
    assert right.infer({"x": rows})["output"].tolist() == [[3, 5, 7]]
    with pytest.raises(InputError, match="the model scaled: x is float64, FP32 is needed"):
        wrong.infer({"x": rows})


def test_a_package_is_copied_whole_and_keeps_its_name(tmp_path: Path) -> None:
    package = tmp_path / "kit"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__pycache__" / "a.pyc").write_bytes(b"")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "base.py").write_text("NAME = 'kit'\n", encoding="utf-8")
    (package / "words.txt").write_text("", encoding="utf-8")
    (package / "steps.py").write_text(
        "from kit.base import NAME\nfrom . import base\ndef f(x: list[str]) -> list[str]: return [NAME for _ in x]\n",
        encoding="utf-8",
    )
    bundle = export_python(target="kit.steps:f", folder=tmp_path, output=tmp_path / "bundle")
    files = ("python/kit/steps.py", "python/kit/__init__.py", "python/kit/base.py", "python/kit/words.txt")
    assert bundle.manifest.artifacts[0].files == files
    assert tritone.load(bundle.path, runtime="python").infer({"x": [["a"]]})["output"].tolist() == [[b"kit"]]


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"target": "absent:f"}, ExportError, "there is no module absent in"),
        ({"target": "steps"}, ValueError, "should be module:function"),
        ({"target": "json:loads"}, ExportError, "called like one of Python's"),
        ({"target": "unrelated:f"}, ExportError, r"unrelated cannot be imported \(RuntimeError"),
        ({"target": "steps:absent"}, ExportError, "project: the module steps has no 'absent'"),
        ({"target": "steps:SCALE"}, ExportError, "steps:SCALE is a int; expected a function"),
        ({"include": ()}, ExportError, r"steps cannot be imported .*scale\.json.*--include"),
        ({"include": [Path("../outside")]}, ExportError, "is not in .*copy it there"),
        ({"include": [Path("absent.txt")]}, ExportError, "there is no file .*absent.txt to include"),
        ({"max_batch_size": -1}, ValueError, "at least 1"),
        ({"requirements": ["not-a-package>=3"]}, MissingDependencyError, "pip install 'not-a-package>=3'"),
        ({"requirements": ["numpy @ file:///x"]}, ValueError, "names an address"),
    ],
)
def test_what_cannot_be_exported_says_why_and_leaves_nothing(
    folder: Path, options: dict[str, object], error: type[Exception], told: str
) -> None:
    told_options = {"target": "steps:count", "include": [Path("data")]} | options
    with pytest.raises(error, match=told):
        export_python(folder=folder, output=folder.parent / "bundle", **told_options)
    assert [path.name for path in folder.parent.iterdir()] == ["project"]


def test_a_function_that_is_no_longer_as_its_manifest_says_is_refused(folder: Path) -> None:
    bundle = export(folder, "count")
    path = bundle.path / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["generic"]["outputs"][0]["type"] = "FP64"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(BundleError, match="does not fit its manifest: output lengths is float32"):
        tritone.load(bundle.path, runtime="python").infer({"text": [["a"]]})
    for name in ("steps.py", "python/a-b.py"):
        (bundle.path / name).write_text("", encoding="utf-8")
        artifact = content["artifacts"][0] | {"files": [name], "sha256": [hashlib.sha256().hexdigest()]}
        path.write_text(json.dumps(content | {"artifacts": [artifact]}), encoding="utf-8")
        with pytest.raises(BundleError, match="must be a module in a folder of the bundle"):
            tritone.load(bundle.path, runtime="python").infer({"text": [["a"]]})


def test_the_functions_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "models" / "python-models.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    functions = [block for block in blocks if "def " in block]
    assert len(functions) == 3
    (tmp_path / "steps.py").write_text("\n".join(functions) + LANGUAGE, encoding="utf-8")

    def load(name: str, **options: Any) -> tritone.GenericModel:
        export_python(target=f"steps:{name}", folder=tmp_path, output=tmp_path / name)
        return tritone.load_as(tritone.GenericModel, tmp_path / name, runtime="python", **options)

    inputs, told = re.findall(r"model\.infer\((.*)\)\[.*\]\)  # (.*)", page)[0]
    assert load("measure").infer(ast.literal_eval(inputs))["total"].tolist() == ast.literal_eval(told)
    assert [each["output"].tolist() for each in load("spell").stream({"text": [["ab"]]})] == [[[b"a"]], [[b"b"]]]
    found = load("route", models={"language": load("language")}).infer({"text": [["hallo"]]})
    assert found["output"].tolist() == [[b"de: hallo"]]
