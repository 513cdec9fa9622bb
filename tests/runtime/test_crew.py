"""Running calls side by side, and the pipelines that do it."""

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import toy
from tritone.bundle import Bundle
from tritone.pipelines import Step, open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.runtime import open_graph
from tritone.runtime.crew import Crew


def test_results_come_in_the_order_of_the_items_whatever_finishes_first():
    second_done = threading.Event()

    def work(item: int) -> int:
        if item == 1:
            assert second_done.wait(timeout=30)
        else:
            second_done.set()
        return item * item

    assert Crew(2).map(work, [1, 2, 3]) == [1, 4, 9]


@pytest.mark.parametrize(("size", "items"), [(1, [1, 2, 3]), (4, [7]), (4, [])])
def test_one_thread_or_one_item_is_done_by_the_caller_itself(size: int, items: list[int]):
    assert Crew(size).map(lambda item: (item, threading.get_ident()), items) == [
        (item, threading.get_ident()) for item in items
    ]


def test_the_first_error_is_raised_when_all_calls_have_ended():
    ended = []

    def work(item: int) -> None:
        if item < 2:
            raise KeyError(item)
        ended.append(item)

    with pytest.raises(KeyError, match="0"):
        Crew(2).map(work, range(8))
    assert sorted(ended) == [2, 3, 4, 5, 6, 7]


def test_a_crew_without_anybody_is_refused():
    with pytest.raises(ValueError, match="at least 1 thread, got 0"):
        Crew(0)


@pytest.mark.parametrize("split_calls", [True, False])
def test_a_graph_on_the_cpu_wants_as_many_calls_at_once_as_it_has_threads(toy_bundle: Path, split_calls: bool):
    assert open_graph(toy_bundle / "encoder.onnx", threads=3, split_calls=split_calls).concurrency == 3


@pytest.mark.parametrize("split_calls", [True, False])
def test_a_call_of_a_network_beyond_the_caches_has_the_cpu_for_itself(
    toy_bundle: Path, split_calls: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tritone.runtime.onnx.graph.LARGE_BYTES", 1000)
    graph = open_graph(toy_bundle / "encoder.onnx", threads=3, split_calls=split_calls)
    assert graph.concurrency == (1 if split_calls else 3)


@pytest.mark.parametrize(("alone_bytes", "threads", "calls"), [(10**9, 3, 2), (10**9, 1, 1), (2000, 3, 1)])
def test_two_calls_of_a_large_network_with_attention_are_made_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone_bytes: int, threads: int, calls: int
):
    node = helper.make_node("Softmax", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 4]) for name in "xy"]
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [1000], [0.0] * 1000)
    graph = helper.make_graph([node], "attention", values[:1], values[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "a.onnx")
    monkeypatch.setattr("tritone.runtime.onnx.graph.LARGE_BYTES", 1000)
    monkeypatch.setattr("tritone.runtime.onnx.graph.ALONE_BYTES", alone_bytes)
    assert open_graph(tmp_path / "a.onnx", threads=threads).concurrency == calls


def test_utterances_recognised_side_by_side_keep_their_texts(toy_bundle: Path):
    texts = ["abcdefghij"[: 1 + index % 10] * (1 + index % 7) for index in range(60)]
    pipeline = open_offline(Bundle.open(toy_bundle), placement=Placement(threads=4))
    found = pipeline.recognize([toy.toy_waveform(text) for text in texts])
    alone = open_offline(Bundle.open(toy_bundle), placement=Placement(threads=1))
    assert found == [alone.recognize([toy.toy_waveform(text)])[0] for text in texts]


def test_streams_advanced_side_by_side_keep_their_texts(toy_bundle: Path):
    waveforms = [toy.toy_waveform("abcdefghij"[index % 5 :] * (1 + index % 3)) for index in range(13)]
    single = open_streaming(Bundle.open(toy_bundle), placement=Placement(threads=1))
    several = open_streaming(Bundle.open(toy_bundle), placement=Placement(threads=4), max_batch=5)
    texts = []
    for pipeline in (single, several):
        slots = [pipeline.open() for _ in waveforms]
        for start in range(0, max(map(len, waveforms)), 3000):
            pipeline.advance(
                [Step(slot, wave[start : start + 3000]) for slot, wave in zip(slots, waveforms, strict=True)]
            )
        last = [Step(slot, np.zeros(0, np.float32), final=True) for slot in slots]
        texts.append(pipeline.advance(last))
    assert texts[0] == texts[1]
    assert len({transcript.text for transcript in texts[0]}) > 5
