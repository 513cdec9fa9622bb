"""`tritone api`: what is written of a repository, and that a real server answers every sample of it."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openapi_spec_validator import validate
from typer.testing import CliRunner

from tritone.cli.main import app
from tritone.describe import described_models, write_descriptions
from tritone.describe.samples import samples
from tritone.errors import OperatorError
from tritone.server import TritonServer
from wire_toys import COMPLETE, MODELS, running_server, write_models

JSON_TYPES = (
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP32",
    "FP64",
    "STRING",
)
NEWMAN = Path(__file__).parents[2] / ".venv" / "node_modules" / ".bin" / "newman"


def tensors(part: str, types: tuple[str, ...], dims: str, more: str = "") -> str:
    each = (f'{{ name: "{part}_{name}" data_type: TYPE_{name} dims: [ {dims} ] {more} }}' for name in types)
    return f"{part} [ {', '.join(each)} ] "


def mirror(types: tuple[str, ...], dims: str, batch: int, more: str = "", of_output: str = "") -> str:
    return f"max_batch_size: {batch} {tensors('input', types, dims)} {tensors('output', types, dims, of_output)} {more}"


CONFIGS = {
    "all": mirror(JSON_TYPES, "-1, 2", 4),
    "half": mirror(("FP16", "FP32"), "3", 4),
    "alone": mirror(("FP32",), "2, -1", 0),
    "classes": mirror(("FP32",), "3", 8, of_output='label_filename: "labels.txt"'),
    "answers": mirror(("STRING", "INT32"), "1", 0, "model_transaction_policy { decoupled: true }"),
    "warm": mirror(("FP32",), "-1, -1", 0)
    + 'model_warmup [ { name: "w" batch_size: 1 inputs { key: "input_FP32" value: '
    "{ data_type: TYPE_FP32 dims: [ 5, 7 ] zero_data: true } } } ]",
    "odd.v2": mirror(("INT32",), "1", 2),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = write_models(tmp_path_factory.mktemp("described"), "either", "running")
    for name, config in CONFIGS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(
            f'name: "{name}" backend: "python" {config} instance_group [ {{ kind: KIND_CPU }} ]', encoding="utf-8"
        )
        shutil.copy(MODELS / "mirror.py", repository / name / "1" / "model.py")
    (repository / "classes" / "labels.txt").write_text("ant\nbee\ncat\n", encoding="utf-8")
    for name in ("either", "running"):
        path = repository / name / "config.pbtxt"
        path.write_text(
            path.read_text(encoding="utf-8") + 'parameters { key: "sample_rate" value: { string_value: "8000" } }',
            encoding="utf-8",
        )
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[TritonServer]:
    with running_server(repository, COMPLETE) as running:
        yield running


@pytest.fixture(scope="module")
def written(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api") / "made"
    result = CliRunner().invoke(app, ["api", str(repository), "-o", str(folder), "--url", "http://localhost:8000/"])
    assert result.exit_code == 0, result.output
    assert "half" in result.output
    return folder


def test_curl_gets_an_answer_to_every_sample(server: TritonServer, written: Path) -> None:
    url = f"http://{server.http_address}"
    done = subprocess.run(
        ["sh", written / "curl.sh", url], capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, *parts = re.split(r"^# (.+)$", done.stdout, flags=re.MULTILINE)
    answers = dict(zip(parts[::2], parts[1::2], strict=True))
    assert len(answers) == sum(len(samples(each)) for each in described_models(server.repository))
    outputs = {each["name"]: each for each in json.loads(answers["all, json"])["outputs"]}
    assert outputs == {each["name"]: each for each in json.loads(answers["all, binary"])["outputs"]}
    assert set(outputs) == {f"output_{name}" for name in JSON_TYPES}
    assert outputs["output_STRING"]["data"] == ["hello"] * 16
    assert json.loads(answers["classes, labels"])["outputs"][0]["data"][0] == "1.000000:0:ant"
    assert json.loads(answers["warm, json"])["outputs"][0]["shape"] == [5, 7]
    assert json.loads(answers["either, json"])["outputs"][0]["data"][0].startswith("PCM 2000 ")
    assert json.loads(answers["running, json"])["outputs"][0]["data"][0].startswith("1 2000 ")
    assert np.ones(3, np.float16).tobytes() in (written / "half.bin.answer").read_bytes()
    assert answers["answers, answers"].count('"output_STRING":"hello"') == 2


@pytest.mark.slow
def test_newman_runs_the_collection(server: TritonServer, written: Path) -> None:
    if not NEWMAN.exists():
        pytest.skip("newman is not installed: make test-all installs it where npm is")
    command = [
        NEWMAN,
        "run",
        "postman.json",
        "--env-var",
        f"baseUrl=http://{server.http_address}",
        "--working-dir",
        ".",
    ]
    done = subprocess.run(command, cwd=written, capture_output=True, encoding="utf-8", timeout=240, check=False)
    assert done.returncode == 0, done.stdout


def test_the_document_is_openapi_and_its_examples_fit_its_schemas(written: Path) -> None:
    import jsonschema

    document = json.loads((written / "openapi.json").read_text(encoding="utf-8"))
    validate(document)
    assert document["servers"] == [{"url": "http://localhost:8000"}]
    checked = 0
    for item in document["paths"].values():
        content = item.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in content.get("examples", {}).values():
            jsonschema.validate(example["value"], content["schema"])
            checked += 1
    assert checked == 9
    wrong: Any = {"inputs": [{"name": "input_FP32", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}
    schema = document["paths"]["/v2/models/classes/infer"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def test_writing_again_replaces_what_was_written_and_nothing_else(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    for _ in range(2):
        result = CliRunner().invoke(app, ["api", str(repository), "-o", str(tmp_path), "--model", "alone"])
        assert result.exit_code == 0, result.output
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        *("bodies/alone.bin", "bodies/alone.json", "curl.sh", "notes.txt", "openapi.json", "postman.json"),
    ]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("max_batch_size: 1", "has no inputs or outputs, which only a server could complete"),
        ("max_batch_size: what", "not a Triton model configuration"),
    ],
)
def test_what_cannot_be_described_is_said_with_its_model(tmp_path: Path, config: str, told: str) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.pbtxt").write_text(config, encoding="utf-8")
    with pytest.raises(OperatorError, match=f"odd.*{told}"):
        [samples(each) for each in described_models(tmp_path)]


def test_a_folder_without_models_and_a_model_that_is_not_there_are_errors(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="is not a model repository"):
        described_models(tmp_path)
    with pytest.raises(OperatorError, match="has no model nobody; it has all, alone"):
        described_models(repository, ["nobody"])


@pytest.mark.parametrize(
    ("dims", "bodies", "inline"),
    [
        ("3, 64, 64", ["large.bin", "large.json"], True),
        ("3, 224, 224", ["large.bin", "large.json"], False),
        ("3, 1024, 1024", ["large.bin"], None),
        ("3, 100000, 100000", [], None),
    ],
)
def test_large_bodies_are_files_and_models_of_any_size_are_described(
    tmp_path: Path, dims: str, bodies: list[str], inline: bool | None
) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.pbtxt").write_text(mirror(("FP32",), dims, 0), encoding="utf-8")
    write_descriptions(described_models(tmp_path), tmp_path / "api", server="http://localhost:8000")
    assert sorted(path.name for path in (tmp_path / "api" / "bodies").iterdir()) == bodies
    document = json.loads((tmp_path / "api" / "openapi.json").read_text(encoding="utf-8"))
    content = document["paths"]["/v2/models/large/infer"]["post"]["requestBody"]["content"]
    folder = json.loads((tmp_path / "api" / "postman.json").read_text(encoding="utf-8"))["item"][1:]
    assert {each["name"] for item in folder for each in item["item"]} == {
        Path(name).suffix[1:].replace("bin", "binary") for name in bodies
    }
    if inline is None:
        assert content, "how it is asked is described with and without a sample"
    elif inline:
        assert content["application/json"]["examples"]["json"]["value"]["inputs"][0]["shape"] == [3, 64, 64]
    else:
        assert content["application/json"]["examples"]["json"] == {"externalValue": "bodies/large.json"}
        told = json.loads((tmp_path / "api" / "postman.json").read_text(encoding="utf-8"))["info"]["description"]
        assert "files in the folder bodies" in told
        assert "--working-dir" in told
        [request] = [each for item in folder for each in item["item"] if each["name"] == "json"]
        assert request["request"]["body"] == {"mode": "file", "file": {"src": "bodies/large.json"}}
