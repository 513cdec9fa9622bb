"""Ensembles of any models: the file, the check of its wires, and the answers in this process."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tritone
from ensemble_models import SPEC, write_parts
from tritone.errors import InputError, OperatorError
from tritone.pipelines.wiring.spec import read_spec

CIRCLE = {
    "a": {"python": "steps:upper", "inputs": {"text": "b.output"}},
    "b": {"python": "steps:upper", "inputs": {"text": "a.output"}},
}
CHANGES = [
    # what is changed in the file, and what is said about it
    ({"name": None}, "name: this field is required but absent"),
    ({"colour": "red"}, "colour: unknown field"),
    ({"name": "../up"}, "name: String should match pattern"),
    ({"steps.tokenizer.bundle": "x"}, "expected either `bundle` or `python`"),
    ({"steps.tokenizer.runtime": "onnxruntime"}, "a function needs none"),
    ({"steps.scale.include": ["x"]}, "are of functions"),
    ({"steps.a b": {"bundle": "scaled", "inputs": {"x": "Y"}}}, "String should match pattern"),
    ({"steps.scale.inputs": {}}, "at least 1 item"),
    ({"steps.scale.bundle": "nowhere"}, "step scale: there is no bundle folder"),
    ({"steps.tokenizer.python": "steps:absent"}, "step tokenizer: .*has no 'absent'"),
    ({"steps.tokenizer.python": "steps"}, "step tokenizer: .*should be module:function"),
    ({"steps.tokenizer.requirements": ["not a requirement"]}, "is not a requirement"),
    ({"steps.scale.inputs.y": "tokenizer.lengths"}, "step scale has no input y; it has x"),
    ({"steps.scale.inputs": {"z": "Z"}}, "step scale has no input z.*nothing is wired to x"),
    ({"steps.scale.inputs.x": "token.lengths"}, "'token.lengths': there is no step token; there are tokenizer, scale"),
    ({"steps.scale.inputs.x": "tokenizer.length"}, "step tokenizer has no output length; it has lengths, counts"),
    ({"steps.scale.inputs.x": "tokenizer.counts"}, r"tokenizer.counts is INT64 \[1\], needed is FP32 \[3\]"),
    ({"steps.pool.inputs.counts": "tokenizer.lengths"}, r"is FP32 \[-1\], needed is INT64 \[1\]"),
    ({"steps": CIRCLE, "outputs": {"O": "a.output"}}, "steps wait for each other: (a <- b <- a|b <- a <- b)"),
    ({"steps.idle": {"bundle": "scaled", "inputs": {"x": "X"}}}, "nothing comes of step idle"),
    ({"outputs.OTHER": "TEXT"}, "output OTHER: 'TEXT' is no output of a step"),
    ({"outputs.OTHER": "pool.absent"}, "step pool has no output absent"),
    ({"outputs.TEXT": "scale.y"}, "output TEXT: outputs need names without a point, other than those of inputs"),
    ({"outputs.MORE": "pool.output"}, "pool.output is the output of another name already"),
    ({"steps.scale.inputs.x": "TEXT"}, r"input TEXT is STRING \[1\] for tokenizer.text, and FP32 \[3\] for scale.x"),
    ({"models": {"judge": {"bundle": "scaled"}}}, "nothing calls judge"),
    ({"steps.pool.python": "steps:deciding"}, "pool calls the model scaled; give it under `models`"),
    ({"steps.tokenizer.python": "steps:spell"}, "step tokenizer has no output|answers many times"),
    ({"steps.scale.bundle": "demo-asr"}, "is a CTC model; steps are generic models, functions and speaker models"),
    ({"steps.scale.bundle": "sums"}, "keeps states from request to request"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parts(tmp_path_factory.mktemp("ensemble"))


def changed(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for key, value in changes.items():
        *parents, last = key.split(".")
        place = content
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return content


def written(folder: Path, path: Path, changes: dict[str, Any]) -> Path:
    content = changed(yaml.safe_load(SPEC), copy.deepcopy(changes))
    for step in [*content["steps"].values(), *content.get("models", {}).values()]:
        if "bundle" in step and (folder / step["bundle"]).is_dir():
            step["bundle"] = str(folder / step["bundle"])
        if "python" in step:
            step["python"] = f"{folder}/{step['python'].replace(':', '.py:', 1)}" if ":" in step["python"] else "steps"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def test_an_ensemble_answers_as_its_parts_do(folder: Path) -> None:
    ensemble = tritone.load(folder / "spec.yaml", trust=True)
    found = ensemble.infer({"TEXT": [["one two three"], ["a bc def"]]})
    # lengths of three words, doubled and one more, and their mean
    assert found["MEAN"].tolist() == [[pytest.approx((7 + 7 + 11) / 3)], [5]]
    assert found["COUNT"].tolist() == [[3], [3]]
    assert list(ensemble.infer({"TEXT": [["a b c"]]}, ["COUNT"])) == ["COUNT"]
    assert [(each.name, each.type, each.dims) for each in ensemble.tensors.inputs] == [("TEXT", "STRING", (1,))]
    assert [(each.name, each.type, each.dims) for each in ensemble.tensors.outputs] == [
        ("MEAN", "FP32", (1,)),
        ("COUNT", "INT64", (1,)),
    ]
    assert ensemble.tensors.max_batch_size == 4  # of the step that takes the fewest
    assert len(ensemble.wiring.notes) == 1
    assert "tokenizer.lengths may have any size where scale.x takes FP32 [3]" in ensemble.wiring.notes[0]


def test_one_way_in_opens_ensembles_too(folder: Path) -> None:
    with pytest.raises(InputError, match="names Python functions, which run code: load it with trust=True"):
        tritone.load(folder / "spec.yaml")
    with pytest.raises(InputError, match="for which there is no beam, nbest"):
        tritone.load(folder / "spec.yaml", beam=4, nbest=2)
    ensemble = tritone.load(folder / "spec.yaml", trust=True)
    requests: list[dict[str, Any]] = [{"TEXT": [["one two three"]]}, {"TEXT": [["a bc def"]]}]
    assert [found["COUNT"].tolist() for found in ensemble.run_iter(requests)] == [[[3]], [[3]]]
    assert ensemble.run(requests[1])["MEAN"].tolist() == [[5]]


def test_requests_that_do_not_fit_name_the_step(folder: Path) -> None:
    ensemble = tritone.load(folder / "spec.yaml", trust=True)
    with pytest.raises(InputError, match=r"step scale: x has shape \[1, 2\], FP32 \[rows, 3\] is needed"):
        ensemble.infer({"TEXT": [["two words"]]})
    with pytest.raises(InputError, match="step tokenizer: a text is empty"):
        ensemble.infer({"TEXT": [[""]]})
    for inputs, told in (({}, "input TEXT is missing"), ({"TEXT": [[b""]] * 5}, "1 to 4 rows, got 5")):
        with pytest.raises(InputError, match=told):
            ensemble.infer(inputs)
    with pytest.raises(InputError, match="no output LOSS; it has MEAN, COUNT"):
        ensemble.infer({"TEXT": [["a b c"]]}, ["LOSS"])


@pytest.mark.parametrize(("changes", "told"), CHANGES, ids=[told[:30] for _, told in CHANGES])
def test_what_does_not_fit_is_told_before_anything_runs(
    folder: Path, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        tritone.load(written(folder, tmp_path / "spec.yaml", changes), trust=True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must have name, steps and outputs, got NoneType"),
        ("- 1", "got list"),
        ("a: [", "is not valid YAML"),
        ("\xff".encode("latin-1"), "is not UTF-8 text"),
        ("a: &b [1]\nc: *b", r"line 2: aliases \(\*name\) are not allowed"),
        ("name: a\nname: b", "line 2: 'name' is there twice"),
        ("a: !!python/object/apply:os.system ['true']", "is not valid YAML: .*could not determine a constructor"),
        ("#" * 2**19, "more than 262144 bytes"),
        ("[" * 1200, "is nested too deeply"),
    ],
)
def test_files_that_are_no_ensembles_are_errors(tmp_path: Path, text: str | bytes, told: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=told):
        read_spec(path)
    with pytest.raises(InputError, match=r"cannot read .*No such file"):
        read_spec(tmp_path / "absent.yaml")


def test_a_step_that_decides_calls_models_of_the_file(folder: Path, tmp_path: Path) -> None:
    changes = {"steps.pool.python": "steps:deciding", "models": {"scaled": {"bundle": "scaled"}}}
    ensemble = tritone.load(written(folder, tmp_path / "spec.yaml", changes), trust=True)
    # The function scales once more where the mean is below ten.
    found = ensemble.infer({"TEXT": [["one two three"], ["twelve letters inside"]]})
    assert found["MEAN"].tolist() == [[pytest.approx((15 + 15 + 23) / 3)], [pytest.approx((13 + 15 + 13) / 3)]]


def test_the_last_step_may_answer_many_times(folder: Path, tmp_path: Path) -> None:
    steps = {
        "up": {"python": "steps:upper", "inputs": {"text": "TEXT"}},
        "letters": {"python": "steps:spell", "inputs": {"text": "up.output"}},
    }
    path = written(folder, tmp_path / "spec.yaml", {"steps": steps, "outputs": {"LETTER": "letters.output"}})
    ensemble = tritone.load(path, trust=True)
    found = [each["LETTER"].tolist() for each in ensemble.stream({"TEXT": [["ab"]]})]
    assert found == [[[b"A"]], [[b"B"]]]
    with pytest.raises(InputError, match="answers many times"):
        ensemble.infer({"TEXT": [["ab"]]})
    steps["last"] = {"python": "steps:upper", "inputs": {"text": "letters.output"}}
    with pytest.raises(InputError, match="letters answers many times, so it must be the last step"):
        tritone.load(written(folder, path, {"steps": steps, "outputs": {"LETTER": "last.output"}}), trust=True)


def test_a_speaker_model_is_a_step(folder: Path, tmp_path: Path) -> None:
    steps = {
        "voice": {"bundle": "demo-speaker", "inputs": {"WAV": "AUDIO"}},
        "norm": {"python": "steps:norm", "inputs": {"vector": "voice.EMBEDDINGS"}},
    }
    path = written(folder, tmp_path / "spec.yaml", {"steps": steps, "outputs": {"NORM": "norm.output"}})
    wave = np.random.default_rng(0).normal(0, 0.1, (1, 16000)).astype(np.float32)
    vector = tritone.load("demo-speaker").embed(wave[0])
    found = tritone.load(path, trust=True).infer({"AUDIO": wave})
    assert found["NORM"].tolist() == [[pytest.approx(float(np.linalg.norm(vector)), rel=1e-5)]]


def test_a_bundle_that_is_a_program_runs_only_where_the_file_says_so(folder: Path, tmp_path: Path) -> None:
    from tritone.families.generic.python import export_python

    export_python(target="steps:upper", folder=folder, output=tmp_path / "upper")
    step: dict[str, Any] = {"bundle": str(tmp_path / "upper"), "inputs": {"text": "TEXT"}}
    changes = {"steps": {"up": step}, "outputs": {"UP": "up.output"}}
    with pytest.raises(OperatorError, match="functions of Python run only where they are asked for: runtime python"):
        tritone.load(written(folder, tmp_path / "spec.yaml", changes), trust=True).infer({"TEXT": [["a"]]})
    step["runtime"] = "python"
    found = tritone.load(written(folder, tmp_path / "spec.yaml", changes), trust=True).infer({"TEXT": [["a"]]})
    assert found["UP"].tolist() == [[b"A"]]
