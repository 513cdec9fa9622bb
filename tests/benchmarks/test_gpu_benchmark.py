"""The benchmark of a GPU, tried without one: what it sends, how it keeps and shows results, tasks apart."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.gpu import ceiling
from benchmarks.gpu.audio import LIBRISPEECH, librispeech_lengths, workload
from benchmarks.gpu.bundles import MODELS
from benchmarks.gpu.found import Found
from benchmarks.gpu.page import write_pages
from benchmarks.gpu.parakeet_page import parakeet_page
from benchmarks.gpu.plan import BEAM_6, PARTS, PLAIN
from benchmarks.gpu.results import Results
from benchmarks.gpu.tasks import Task, TaskError
from benchmarks.models import nemo
from benchmarks.models.wenet import ModelSize, random_bundle

import tritone
from tritone.loadtest.workload.speech import Tape


def test_lengths_are_spread_as_those_of_librispeech() -> None:
    lengths = librispeech_lengths(20_000, np.random.default_rng(0))
    assert lengths.mean() == pytest.approx(12.3, abs=0.2)
    assert np.mean((lengths > 13) & (lengths < 17)) > 0.4  # the peak
    assert lengths.max() > 30


def test_every_request_of_a_pool_is_other_audio() -> None:
    pool = workload(LIBRISPEECH, 16000)
    assert len({waveform[:1600].tobytes() for waveform in pool.waveforms}) > 0.9 * len(pool.waveforms)


def test_the_plan_names_models_that_there_are() -> None:
    for part in PARTS.values():
        assert set(part.models()) <= set(MODELS)
        assert {each.model for each in part.ceilings} <= {PLAIN, *MODELS}


def test_a_random_model_says_as_many_words_as_people(tmp_path: Path) -> None:
    size = ModelSize(width=16, heads=2, blocks=1, linear_units=16, kernel=3, vocab_size=60, token_rate=5)
    random_bundle(size, tmp_path / "bundle", streaming=False, checked=False)
    model = tritone.load(tmp_path / "bundle")
    tape, rng = Tape.shipped(16000), np.random.default_rng(5)
    words = [len(model.transcribe(tape.cut(160_000, rng)).text.split()) for _ in range(4)]
    assert 12 <= np.mean(words) <= 45


@pytest.mark.slow
def test_a_task_reports_why_it_failed() -> None:
    task = Task("ceiling", {"seconds_each": 0.1, "device": "cpu", "bundle": "/nothing/here"})
    with pytest.raises(TaskError, match=r"ceiling .*failed"):
        task.result(120)


SERVED: dict[str, Any] = {
    "what": "served",
    "model": "wenet-512-bf16",
    "of": "wenet-512",
    "load": 512,
    "audio": "10",
    "precision": "bf16",
    "search": {},
    "errors": {},
    "requests": 100,
    "utterances_s": 3000.0,
    "rtfx": 30_000.0,
    "mean_ms": 90.0,
    "p50_ms": 80.0,
    "p95_ms": 100.0,
    "p99_ms": 110.0,
    "batch": 64.0,
    "padding": 0.1,
    "generator_cores": 1.0,
}
CEILING: dict[str, Any] = {
    "what": "ceiling",
    "model": "wenet-512",
    "rows": 64,
    "seconds": 10,
    "role": "encoder",
    "precision": "bf16",
    "ms": 16.0,
    "utterances_s": 4000.0,
    "rtfx": 40_000.0,
}


def test_pages_have_ratios_to_the_network_of_the_same_run(tmp_path: Path) -> None:
    results = Results(tmp_path, "python -m benchmarks.gpu")
    results.add("ctc", CEILING)
    results.add("ctc", SERVED)
    results.add("mixed", CEILING)
    results.add("mixed", {**SERVED, "audio": LIBRISPEECH, "utterances_s": 1000.0, "rtfx": 10_000.0})
    results.add("searches", CEILING)
    results.add("searches", {**CEILING, "role": "decoder", "utterances_s": 4000.0})
    results.add("searches", {**SERVED, "search": {"search": "rescoring"}, "utterances_s": 1500.0, "mps": True})
    results.note("ctc", "nothing else")
    write_pages(tmp_path)
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| CTC d=512, 10 s, served ÷ compiled | ≥ 0.85 | 0.75 |" in report
    assert "| CTC d=512, mixed lengths, unsorted, per second of audio | ≥ 0.75 | 0.25 |" in report
    assert "| rescoring (÷ encoder and decoder, compiled) | ≥ 0.75 | 0.75 | 1,500 utt/s" in report
    assert "512 in flight, with MPS | met |" in report
    assert "| as usual, MPS |" in (tmp_path / "searches.md").read_text(encoding="utf-8")
    assert "nothing else" in report
    assert "0.750" in (tmp_path / "wenet.md").read_text(encoding="utf-8")
    assert (tmp_path / "ctc.png").is_file()


def test_a_killed_run_keeps_what_it_has(tmp_path: Path) -> None:
    results = Results(tmp_path, "python -m benchmarks.gpu")
    results.add("ctc", CEILING)
    kept = json.loads((tmp_path / "ctc.json").read_text(encoding="utf-8"))
    assert [row["ms"] for row in kept["rows"]] == [16.0]
    assert Found({"ctc": kept}).ceiling("ctc", "wenet-512", 10) == 4000.0


def test_pages_have_the_published_figures_beside_ours(tmp_path: Path) -> None:
    results = Results(tmp_path, "python -m benchmarks.gpu")
    rescored = {**SERVED, "search": {"search": "rescoring"}, "mean_ms": 20.0}
    results.add("published-wenet", {**rescored, "of": "wenet-256", "audio": "5", "load": 50})
    results.add("published-streams", {**rescored, "of": "wenet-256", "load": 100, "answers_s": 7000.0, "paced": False})
    static = {"runtime": "torchscript", "queue_delay_ms": 0.0}
    jasper = {**SERVED, "of": "jasper-runtimes", "precision": "fp16", "audio": "7", "build": static, "utterances": 8}
    results.add("published-jasper", {**jasper, "load": 1})
    results.add("published-jasper", {**jasper, "load": 4})
    write_pages(tmp_path)
    pages = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("published-*.md")}
    assert "| 5 | 50 | 204 | 3000 | 245 |" in pages["published-wenet"]
    assert "| rescoring | 100 | 585 | 7000 | 172 | 20.0 |" in pages["published-streams"]
    assert "| 7 | 8 | 3000.0 | 106.7 | 80.0 | 53.3 |" in pages["published-jasper"]
    assert "| 7 | 8 | 90.00 | 80.72 | 106.86 | 151.61 |" in pages["published-jasper"]


def test_what_was_not_measured_of_parakeet_stands_beside_what_others_print(tmp_path: Path) -> None:
    empty = parakeet_page(tmp_path)
    assert "| 0.6B TDT v3 | fast-gpu-asr 0.2 | H200 |" in empty
    assert "| Parakeet RNNT 1.1B, 42 x 1024 | Tritone, served |  | 10 s, bf16, greedy | not run yet |" in empty
    results = Results(tmp_path, "python -m benchmarks.gpu")
    results.add("published-parakeet", {**SERVED, "of": "parakeet-0.6b", "rtfx": 9000.0})
    results.add("published-parakeet", {**SERVED, "of": "parakeet-0.6b", "rtfx": 4000.0, "search": dict(BEAM_6)})
    stream = {**SERVED, "of": "nemotron-0.6b", "streams": 1000, "chunk_ms": 560.0, "in_time": 0.995}
    results.add("published-nemotron", stream)
    results.add("published-nemotron", {**stream, "streams": 2400, "in_time": 0.6})
    page = parakeet_page(tmp_path)
    assert "| 10 s, bf16, greedy | 9,000 |" in page
    assert "| 10 s, bf16, modified beam 6 | 4,000 |" in page
    assert "| Nemotron streaming 0.6B, 24 x 1024 | Tritone, served |  | 560 | 1,000 |" in page
    assert "| Nemotron streaming 0.6B, 24 x 1024 | Tritone, served |  | 80 | not run yet |" in page


@pytest.mark.parametrize("size", ["parakeet-tdt-0.6b-v2", "parakeet-ctc-1.1b"])
def test_a_random_parakeet_says_as_many_pieces_as_people(tmp_path: Path, size: str) -> None:
    bundle = nemo.random_bundle(nemo.smaller(size), tmp_path / "bundle", checked=False)
    tape, rng = Tape.shipped(16000), np.random.default_rng(5)
    found = tritone.load(bundle.path).transcribe([tape.cut(160_000, rng) for _ in range(4)])
    assert 15 <= np.mean([len(each.get().tokens) for each in found]) <= 110


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_ceiling_of_a_step_runs_on_states_as_its_graph_keeps_them(tmp_path: Path, precision: str) -> None:
    """In bfloat16 these are bits beside float32, in which the manifest has them."""
    options: dict[str, Any] = {"streaming": True, "runtimes": ("torch",), "precisions": (precision,), "checked": False}
    bundle = nemo.random_bundle(nemo.smaller("nemotron-streaming-0.6b"), tmp_path / "bundle", **options)
    run = ceiling.prepare(str(bundle.path), "streaming_encoder", 3, 0.0, precision, "cpu", compiled=False)
    frames, *states = (each for each in run() if each.is_floating_point() or each.dtype == torch.int16)  # type: ignore[attr-defined]
    assert frames.shape[0] == 3
    assert frames.isfinite().all()
    assert {each.dtype for each in states} == {torch.int16 if precision == "bf16" else torch.float32}
