"""Bundles measured in this process: what they answer is checked as on a server, and what cannot be is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from generic_models import write_running_sum, write_scaled
from toy import SAMPLE_RATE, toy_waveform
from toy_speaker import write_toy_speaker
from tritone.describe.models import DescribedModel, DescribedTensor
from tritone.errors import InputError
from tritone.loadtest.options import TENSORS, LoadOptions, WindowPlan
from tritone.loadtest.plans.build_options import BuildOptions
from tritone.loadtest.plans.generator import Audio
from tritone.loadtest.plans.sweep import Grid, Setting
from tritone.loadtest.plans.trials import Question
from tritone.loadtest.requests.in_process import IN_PROCESS, measure_in_process, open_in_process
from tritone.loadtest.workload.inputs import made_inputs
from tritone.loadtest.workload.workload import Workload

BRIEF = LoadOptions(windows=WindowPlan(warmup_s=0.05, window_s=0.1, max_windows=1, min_requests=1), batch_size=2)
TEXTS = ("one", "two two", "seven 7")


class Quiet:
    """An observer that nobody listens to."""

    starting = measured = note = lambda *_: None


def speech(**more: object) -> Workload:
    waveforms = [toy_waveform(text) for text in TEXTS]
    return Workload(seconds="files", sample_rate=SAMPLE_RATE, waveforms=waveforms, **more)  # type: ignore[arg-type]


def test_texts_are_timed_and_scored(toy_bundle: Path) -> None:
    seen: list[object] = []
    local = open_in_process(toy_bundle, BuildOptions(threads=1))
    found = measure_in_process(local, speech(references=TEXTS), BRIEF, on_window=seen.append)
    assert (found.protocol, found.loop, found.load, found.batch_size) == (IN_PROCESS, "closed", 1, 2)
    assert (found.wer, found.failed, found.utterances) == (0.0, 0, 2 * found.requests)
    assert found.latency is not None
    assert found.audio_s > 0
    assert len(seen) == found.windows


def test_an_error_of_a_call_is_a_failed_request(toy_bundle: Path) -> None:
    local = open_in_process(toy_bundle, BuildOptions(threads=1))
    loud = replace(speech(), waveforms=[np.full(8000, np.nan, np.float32)], ids=())
    found = measure_in_process(local, loud, BRIEF)
    assert found.latency is None
    assert found.failed == found.requests > 0


def test_embeddings_are_compared_with_each_other(tmp_path: Path) -> None:
    local = open_in_process(write_toy_speaker(tmp_path / "speaker"), BuildOptions(threads=1))
    found = measure_in_process(local, speech(), BRIEF)
    assert (found.has_texts, found.failed) == (False, 0)
    assert found.least_cosine == pytest.approx(1, abs=1e-3)


def test_other_models_are_called_with_their_own_inputs(tmp_path: Path) -> None:
    local = open_in_process(write_scaled(tmp_path / "scaled"), BuildOptions(threads=1))
    x, y = DescribedTensor("x", "FP32", (-1, 3)), DescribedTensor("y", "FP32", (-1, 3))
    model = DescribedModel("scaled", (x,), (y,), batched=True, usage="request", max_batch_size=4)
    found = measure_in_process(local, made_inputs(model), BRIEF)
    assert (found.output, found.failed, found.audio_s) == (TENSORS, 0, 0)
    with pytest.raises(InputError, match="keeps states"):
        open_in_process(write_running_sum(tmp_path / "sums"), BuildOptions())


@pytest.mark.parametrize(
    ("write", "audio", "kinds"),
    [
        (None, Audio(lengths=["0.5", "1"]), ["0.5", "1"]),
        (write_scaled, Audio(lengths=["5"], is_default=True), ["made inputs"]),
    ],
)
def test_a_sweep_measures_a_setting_in_process_with_every_length(
    toy_bundle: Path, tmp_path: Path, write: Callable[[Path], Path] | None, audio: Audio, kinds: list[str]
) -> None:
    bundle = str(toy_bundle if write is None else write(tmp_path / "bundle"))
    grid = Grid(base=BuildOptions(threads=1, max_batch_size=2), axes={"where": ["process"]})
    question = Question(bundle=bundle, loads=[4], audio=audio, options=BRIEF)
    assert ("audio: 0.5, 1 s of the shipped clips" if write is None else "input: made") in question.words(grid)
    (setting,) = grid.settings()
    found = question.measure(setting, Quiet())
    assert [each.seconds for each in found] == kinds
    assert {(each.protocol, each.load, each.batch_size) for each in found} == {(IN_PROCESS, 1, 2)}


def test_in_process_there_is_one_instance_whose_batches_are_full() -> None:
    axes = {"where": ["served", "process"], "instances": [1, 2], "queue_delay_ms": [0.0, 5.0], "max_batch_size": [4]}
    settings = Grid(base=BuildOptions(), axes=axes).settings()
    assert [each.where for each in settings] == ["served"] * 4 + ["process"]
    assert settings[-1] == Setting(
        BuildOptions(instances=1, max_batch_size=4, queue_delay_ms=0.0), batching="static", where="process"
    )
    assert settings[-1].batch_size == 4
