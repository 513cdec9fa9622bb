"""The runtime `openvino` behind a real Triton."""

from pathlib import Path

import pytest

import toy
from serving import Ask, RawClient, batches_of, quiet_options
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer
from tritone.server.checks import check_runtime

pytest.importorskip("openvino")

WORDS = ["one", "two two", "three", "a", "nine nine nine"]


def test_a_model_that_names_it_is_served_with_it(toy_bundle: Path, tmp_path: Path) -> None:
    options = ModelOptions(runtime="openvino", threads=1, queue_delay_ms=50)
    build_repository([toy_bundle], tmp_path / "repository", modes="offline", options=options)
    with TritonServer(tmp_path / "repository", quiet_options()) as running:
        client = RawClient(running.grpc_address)
        answers, _ = batches_of(client, [Ask(model="toy", wav=toy.toy_waveform(word)) for word in WORDS])
    assert answers == WORDS


def test_the_doctor_knows_where_it_runs() -> None:
    assert check_runtime("openvino", "cpu").status == "ok"
    assert check_runtime("openvino", "gpu").status == "broken"
