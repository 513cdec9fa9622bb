"""Load on models that are not speech: samples read from files or made, a real server's answers, and their report."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from typer.testing import CliRunner

from ensemble_models import write_parts
from load_reports import measured, report
from serving import quiet_options
from tritone.cli.main import app
from tritone.client import Client, Endpoint
from tritone.describe import described_models, write_descriptions
from tritone.describe.models import DescribedModel, DescribedTensor
from tritone.errors import InputError
from tritone.families.generic.python import export_python
from tritone.loadtest.findings.result import Measurement, Report
from tritone.loadtest.options import TENSORS, LoadOptions, WindowPlan
from tritone.loadtest.pages.page import cards_of, html_report, notices_of, tables_of, to_markdown
from tritone.loadtest.plans.generator import Audio, Generator, content_of, find_target
from tritone.loadtest.plans.plan import Point
from tritone.loadtest.requests.loops import ClosedJob, RequestLoop
from tritone.loadtest.senders.samples import Input, Sample, encode_samples
from tritone.loadtest.senders.wire import Reply, Target
from tritone.loadtest.workload.inputs import made_inputs, read_inputs
from tritone.pipelines.wiring.spec import read_spec
from tritone.prepare.steps import bundles_of
from tritone.repository import ModelOptions, build_repository
from tritone.repository.wired import build_ensemble
from tritone.server import TritonServer

TWICE = """
name: twice
steps:
  first: {bundle: scaled, inputs: {x: X}}
  second: {bundle: scaled, inputs: {x: first.y}}
outputs: {Y: second.y}
"""
BRIEF = LoadOptions(windows=WindowPlan(warmup_s=0.1, window_s=0.2, max_windows=1, min_requests=5), processes=1)
NOTHING = Audio(lengths=["5"], is_default=True)  # what a command sends where nothing is said
ROWS = DescribedModel(
    name="rows",
    inputs=(
        DescribedTensor("x", "FP32", (-1, 3)),
        DescribedTensor("n", "UINT8", (-1, 1)),
        DescribedTensor("word", "BYTES", (-1, 1), optional=True),
    ),
    outputs=(DescribedTensor("y", "FP32", (-1, 3)), DescribedTensor("z", "FP32", (-1, 1))),
    batched=True,
    usage="request",
    max_batch_size=4,
)
X = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
N = {"name": "n", "shape": [1, 1], "datatype": "UINT8", "data": [7]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A graph, one with states, a generator, and an ensemble."""
    folder = write_parts(tmp_path_factory.mktemp("parts"))
    (folder / "twice.yaml").write_text(TWICE, encoding="utf-8")
    repository = folder / "repository"
    spec = read_spec(folder / "twice.yaml")
    build_ensemble(spec, bundles_of(spec, folder, folder / "made"), repository)
    export_python(target="steps:spell", folder=folder, output=folder / "spell")
    build_repository([folder / "scaled"], repository, names=["scaled"])
    build_repository([folder / "sums"], repository, names=["sums"])
    build_repository([folder / "spell"], repository, options=ModelOptions(runtime="python"))
    with TritonServer(repository, quiet_options()) as running:
        yield running


@pytest.fixture(scope="module")
def samples(server: TritonServer) -> Path:
    """The folder of samples that `tritone api` writes."""
    repository = Path(server.repository)
    write_descriptions(described_models(repository), repository.parent / "api", server="http://localhost:8000")
    return repository.parent / "api" / "bodies"


def measure(address: str, model: str, audio: Audio, **point: Any) -> Measurement:
    with Client(address) as client:
        target = find_target(client, model, streaming=False, has_inputs=bool(audio.inputs))
        where = Point(**{"loop": "closed", "load": 2, **point})
        return Generator(target, content_of(target, audio), BRIEF)(where)


@pytest.mark.parametrize("model", ["sums", "twice"])
def test_a_model_without_a_sample_is_sent_one_of_its_own_shapes(server: TritonServer, model: str):
    found = measure(server.grpc_address, model, NOTHING)
    assert (found.failed, found.output, found.seconds, found.audio_s) == (0, TENSORS, "made inputs", 0)
    assert found.latency is not None
    assert found.throughput > 0
    assert any("the inputs were made from the model's configuration" in note for note in found.notes)


@pytest.mark.parametrize(("protocol", "sample"), [("grpc", "scaled.json"), ("http", "sums.bin")])
def test_samples_for_curl_are_samples_for_a_load(server: TritonServer, samples: Path, protocol: str, sample: str):
    address = f"http://{server.http_address}" if protocol == "http" else server.grpc_address
    found = measure(address, Path(sample).stem, Audio(inputs=[samples / sample]), loop="constant", load=40)
    assert (found.errors, found.seconds, found.protocol) == ({}, sample, protocol)


def test_of_many_answers_the_first_is_timed_apart(server: TritonServer, samples: Path):
    found = measure(server.grpc_address, "spell", Audio(inputs=[samples / "spell.json"]))
    assert (found.failed, found.answers) == (0, 5)  # "hello", letter by letter
    assert found.latency is not None
    assert found.first_answer is not None
    assert found.first_answer.p50_ms < found.latency.p50_ms
    with Client(f"http://{server.http_address}") as client, pytest.raises(InputError, match="measured over gRPC"):
        find_target(client, "spell", streaming=False)


@pytest.mark.slow
def test_what_a_model_refuses_after_some_answers_is_a_failure_with_its_message(server: TritonServer, tmp_path: Path):
    (tmp_path / "sample.json").write_text(json.dumps({"text": "ab!"}), encoding="utf-8")
    found = measure(server.grpc_address, "spell", Audio(inputs=[tmp_path / "sample.json"]))
    assert found.latency is None
    assert [re.search("no shouting", message) is not None for message in found.errors] == [True]


def test_callers_who_leave_early_or_are_refused_do_not_end_the_server(server: TritonServer):
    with Client(server.grpc_address, timeout_s=30) as client:

        def ask(number: int) -> str:
            answers = client.infer_stream({"text": ["ab!" if number % 2 else "abcdef"]}, "spell")
            try:
                first = str(next(answers)["output"].tolist())
                if number % 2:
                    list(answers)
                answers.close()
            except InputError as error:
                return str(error)
            return first

        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(ask, range(200)))
        assert set(found[::2]) == {"[b'a']"}
        assert set(found[1::2]) == {"no shouting"}
        client.model("spell", kind=None)  # the server is still there


def test_the_command_measures_any_model_and_names_those_to_choose_from(server: TritonServer, tmp_path: Path):
    np.savez(tmp_path / "one.npz", x=np.arange(3.0))
    np.savez(tmp_path / "two.npz", x=np.ones((1, 3), np.float32))
    brief = ("--warmup-s", 0.1, "--window-s", 0.2, "--max-windows", 1, "--concurrency", 1, "--processes", 1)

    def run(*options: object) -> Any:
        words = ["bench", "--url", server.grpc_address, *brief, *options]
        return CliRunner().invoke(app, [str(word) for word in words])

    result = run("--model", "scaled", "--input", tmp_path, "--batch-size", 2, "--output", tmp_path / "report")
    assert result.exit_code == 0, result.stderr
    assert "samples/s" in result.stdout
    (only,) = Report.read(tmp_path / "report" / "report.json").measurements
    assert (only.seconds, only.batch_size, only.utterances) == ("2 inputs", 2, 2 * only.requests)
    result = run()
    assert result.exit_code == 1
    assert "4 models are ready, name one by --model: scaled, spell, sums, twice" in result.stderr
    assert "it is sent inputs of its own" in run("--model", "scaled", "--seconds", 2).stderr
    assert run("--input", "x.json", "--seconds", 2).exit_code == 2
    assert run("--input", "x.json", "--streaming").exit_code == 2


def arrays(sample: Sample) -> dict[str, tuple[str, Any]]:
    return {each.name: (each.datatype, each.array.tolist()) for each in sample.inputs}


def test_all_forms_of_a_sample_are_the_same_request(tmp_path: Path):
    wanted = {"x": ("FP32", [[1, 2, 3]]), "n": ("UINT8", [[7]])}
    (tmp_path / "body.json").write_text(json.dumps({"inputs": [X, N]}), encoding="utf-8")
    (tmp_path / "plain.json").write_text(json.dumps({"x": [1, 2, 3], "n": 7}), encoding="utf-8")
    binary = [{"parameters": {"binary_data_size": 12}}, {"parameters": {"binary_data_size": 1}}]
    header = [
        {name: value for name, value in (each | more).items() if name != "data"}
        for each, more in zip((X, N), binary, strict=True)
    ]
    tensors = np.float32([1, 2, 3]).tobytes() + b"\x07"
    (tmp_path / "body.bin").write_bytes(json.dumps({"inputs": header}).encode() + tensors)
    np.savez(tmp_path / "row.npz", x=np.float64([1, 2, 3]), n=np.uint8([7]))
    np.savez(tmp_path / "rows.npz", x=np.float32([[1, 2, 3]]), n=np.int64([[7]]))
    found = read_inputs([tmp_path], ROWS)
    assert [arrays(each) for each in found.samples] == [wanted] * 5
    assert found.seconds == "5 inputs"


def test_a_sample_keeps_what_it_asks_for_but_not_its_place_in_a_stream(tmp_path: Path):
    body = {
        "inputs": [X, N],
        "parameters": {"sequence_id": 42, "sequence_start": True, "sequence_end": True, "volume": 11},
        "outputs": [{"name": "y", "parameters": {"classification": 2}}],
    }
    (tmp_path / "body.json").write_text(json.dumps(body), encoding="utf-8")
    (sample,) = read_inputs([tmp_path / "body.json"], ROWS).samples
    assert (sample.parameters, sample.outputs) == ((("volume", 11),), (("y", 2),))
    message = pb.ModelInferRequest.FromString(encode_samples(target(), [sample]).content)
    assert message.outputs[0].parameters["classification"].int64_param == 2
    sent = json.loads(encode_samples(target("http"), [sample]).json)
    assert sent["parameters"] == {"volume": 11}
    assert sent["outputs"] == [{"name": "y", "parameters": {"binary_data": True, "classification": 2}}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "it is not JSON"),
        ("[1]", "a sample is a JSON object"),
        ('{"x": [1, 2, 3], "n": 7, "y": 1}', "model 'rows' has no input 'y'. It takes x FP32[-1, 3], n UINT8[-1, 1]"),
        ('{"x": [1, 2, 3]}', "input n of model 'rows' is missing"),
        ('{"x": [1, 2], "n": 7}', r"x has shape [2], [-1, 3] is needed"),
        ('{"x": [[1, 2, 3], [4]], "n": 7}', "x has lists of different lengths"),
        ('{"x": ["a", "b", "c"], "n": 7}', "x has values of type <U1, FP32 is needed"),
        ('{"x": [1, 2, 3], "n": 256}', "n has values from 256 to 256, which UINT8 cannot hold"),
        ('{"x": [1, 2, 3], "n": 7.5}', "n has values of type float64, UINT8 is needed"),
        ('{"x": [1, 2, 3], "n": 7, "word": [[null]]}', "word has the value None, BYTES is needed"),
        (json.dumps({"inputs": [X | {"datatype": "FP64"}, N]}), "x is of type FP64, FP32 is needed"),
        (json.dumps({"inputs": [X | {"shape": [1, 4]}, N]}), "x has 3 values for shape [1, 4]"),
        (json.dumps({"inputs": [X | {"shape": [-1, 3]}, N]}), "x has no shape of whole numbers"),
        (json.dumps({"inputs": [X, N | {"shape": [2, 1], "data": [7, 8]}]}), "its inputs have 1 and 2 rows"),
        (json.dumps({"inputs": [X, N | {"parameters": {"binary_data_size": 9}}]}), "n has 9 bytes, but the file ends"),
        (json.dumps({"inputs": [X, N | {"parameters": 7}]}), "it is not the body of a request"),
        (json.dumps({"inputs": [X, N], "outputs": [{"name": "w"}]}), "has no output w; it has y, z"),
        (json.dumps({"inputs": [X, N], "parameters": {"a": [1]}}), "parameter a is neither text nor a number"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused_with_its_file(tmp_path: Path, content: str, message: str):
    (tmp_path / "sample.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(message)) as refused:
        read_inputs([tmp_path / "sample.json"], ROWS)
    assert str(tmp_path / "sample.json") in str(refused.value)


def test_files_that_are_none_are_refused(tmp_path: Path):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04" + bytes(50))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object))
    for name in ("broken.npz", "objects.npz", "missing.npz"):
        with pytest.raises(InputError, match=name):
            read_inputs([tmp_path / name], ROWS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no samples"):
        read_inputs([tmp_path / "empty"], ROWS)


def test_too_large_an_input_is_not_made():
    huge = replace(ROWS, inputs=(DescribedTensor("x", "FP32", (-1, 2**13, 2**13)),))
    with pytest.raises(InputError, match="Give one with --input"):
        made_inputs(huge)


def target(protocol: str = "grpc", **more: Any) -> Target:
    return Target(
        endpoint=Endpoint.parse(f"{protocol}://localhost:1"), model="m", sample_rate=16000, output=TENSORS, **more
    )


def sample(*rows: list[float]) -> Sample:
    return Sample(inputs=(Input("x", "FP32", np.float32(rows)),))


def test_samples_of_one_request_lie_one_after_the_other():
    body = encode_samples(target(), [sample([1, 2]), sample([3, 4], [5, 6])])
    message = pb.ModelInferRequest.FromString(body.content)
    assert list(message.inputs[0].shape) == [3, 2]
    assert np.frombuffer(message.raw_input_contents[0], np.float32).tolist() == [1, 2, 3, 4, 5, 6]
    assert not message.outputs  # which asks for all
    for unfit, complaint in (
        ([sample([1, 2]), sample([1])], "must have equal inputs"),
        ([sample([1]), replace(sample([1]), parameters=(("a", 1),))], "equal parameters"),
    ):
        with pytest.raises(ValueError, match=complaint):
            encode_samples(target(), unfit)
    with pytest.raises(ValueError, match="no axis of rows"):
        encode_samples(target(batched=False), [sample([1]), sample([1])])


def test_each_request_to_a_model_with_sequences_is_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch):
    sent: list[Any] = []

    class Sender:
        def send(self, body: Any, timeout_s: float, done: Any) -> None:
            sent.append(pb.ModelInferRequest.FromString(body.content + body.stream).parameters)
            done(Reply(answers=1, received=0.0))

        def close(self) -> None:
            pass

    monkeypatch.setattr("tritone.loadtest.requests.loops.open_sender", lambda endpoint: Sender())
    job = ClosedJob(index=0, target=target(usage="stream"), pool=[(0, sample([1]))], options=BRIEF, concurrency=1)
    with job._open() as loop:
        assert isinstance(loop, RequestLoop)
        loop.send()
        loop.send()
    assert len({each["sequence_id"].int64_param for each in sent}) == 2
    assert all(each["sequence_start"].bool_param and each["sequence_end"].bool_param for each in sent)


def test_a_report_on_other_models_has_no_word_of_audio():
    other = {"output": TENSORS, "audio_s": 0.0, "wer": None, "wer_words": 0, "seconds": "sample.json"}
    first = {"first_answer": measured().latency, "answers": 3.0}
    held = report(*(measured(load, **other, **first, server=None) for load in (1, 2)))
    shown = [to_markdown(held), *map(str, notices_of(held)), *map(str, cards_of(held))]
    shown += [html_report(held, plots=()).partition("Raw figures")[0].partition("<body")[2]]
    for text in shown:
        assert not re.search(r"audio|rtf|utter|utt/s|\bwer\b", text, re.IGNORECASE), text
    table, sizing = tables_of(held)
    assert {"requests/s", "first p95", "answers"} <= {column.title for column in table.columns}
    assert sizing.rows[0]["load"] == "10 requests a second"
    assert cards_of(held)[0][:2] == ("most requests per second", "20.0")
