"""Whether the GPU says what the CPU says: trained models in float32 on the CPU against all that runs on the device.

the demo's checkpoint  ->  a bundle of programs  ->  how many of 1,000 texts differ, and the word error rate
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.inprocess import placement
from benchmarks.measure import ROOT
from benchmarks.models.random_bundle import unchecked
from tritone.audio import read_audio
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.corpus.clips import Clip, read_clips
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.score import Counts, score_utterance
from tritone.loadtest.workload.speech import Tape
from tritone.paths import CACHE
from tritone.pipelines import EmbeddingPipeline, OfflinePipeline, open_offline
from tritone.pipelines.compile import compile_bundle
from tritone.pipelines.graphs.placement import Placement

CHECKPOINT = ROOT / "training" / "demo-asr"
COMPANY = 64
SIZES = "1x9,16x9,64x9"
SHORTEST_S, LONGEST_S = 1.0, 8.0
SPEEDS = (0.9, 1.1)
GAIN_OF_OTHERS = 0.15


def export_demo(folder: Path) -> Path:
    """The demo recogniser as programs of torch in float32 and bfloat16, and as ONNX for the CPU."""
    from training.files import demo_checkpoint

    from tritone.families.wenet.export import export_wenet

    path = folder / "demo-asr-programs"
    if not (path / "manifest.json").is_file():
        with unchecked():  # what follows is a closer look
            export_wenet(
                checkpoint=demo_checkpoint(),
                config=CHECKPOINT / "train.yaml",
                tokens=CHECKPOINT / "units.txt",
                cmvn=CHECKPOINT / "global_cmvn",
                output=path,
                runtimes=("onnxruntime", "torch"),
                precisions=("fp32", "bf16"),
                tail_padding_ms=200,
                decoder=False,
            )
    return path


def utterances(count: int, sample_rate: int) -> list[Waveform]:
    """Speech cut from the clips, a little faster or slower, with others talking in the background of half of them."""
    tape, rng = Tape.shipped(sample_rate), np.random.default_rng(11)
    found = []
    for number in range(count):
        length = round(float(rng.uniform(SHORTEST_S, LONGEST_S)) * sample_rate)
        speed = float(rng.uniform(*SPEEDS))
        source = tape.cut(round(length * speed) + 2, rng)
        heard = np.interp(np.arange(length) * speed, np.arange(len(source)), source)
        if number % 2:
            heard = heard + GAIN_OF_OTHERS * tape.cut(length, rng)
        found.append(np.clip(heard, -1, 1).astype(np.float32))
    return found


def compare(bundle: str, device: str, count: int, compiled: bool) -> list[dict[str, Any]]:
    """Rows of texts: each way of computing against float32 on the CPU, one utterance at a time.

    Args:
        compiled: compute with compiled calls, too, which are made for it.
    """
    opened = Bundle.open(bundle)
    audio = utterances(count, opened.manifest.sample_rate)
    audio += [read_audio(clip.path, opened.manifest.sample_rate) for clip in _clips(count)]
    truth = _texts(open_offline(opened, placement=Placement(runtime="onnxruntime")), audio, 1)
    rows = [_row("cpu, onnxruntime fp32, alone", truth, truth, truth, count)]
    for precision in ("fp32", "bf16"):
        where = placement(device, precision)
        for form in ("as exported", "compiled") if compiled else ("as exported",):
            with tempfile.TemporaryDirectory(prefix="tritone-accuracy-") as cache:
                os.environ[CACHE] = cache  # nothing that was compiled before
                if form == "compiled":
                    compile_bundle(opened, placement=where, modes="offline", sizes=SIZES)
                pipeline = open_offline(opened, placement=where)
                company = _texts(pipeline, audio, COMPANY)
                alone = _texts(pipeline, audio, 1)
            way = f"{device}, torch {precision}, {form}"
            rows.append(_row(f"{way}, alone", alone, truth, alone, count))
            rows.append(_row(f"{way}, batches of {COMPANY}", company, truth, alone, count))
    return rows


def compare_embeddings(bundle: str, device: str, count: int) -> list[dict[str, Any]]:
    """Rows of embeddings: least cosine to those of float32 on the CPU, alone and in company."""
    opened = Bundle.open(bundle)
    audio = [each[: 2 * 16000] for each in utterances(2 * count, 16000) if len(each) >= 2 * 16000][:count]
    truth = EmbeddingPipeline(opened, placement=placement("cpu", "fp32")).embed(audio)
    rows = []
    for precision in ("fp32", "bf16"):
        pipeline = EmbeddingPipeline(opened, placement=placement(device, precision))
        company = pipeline.embed(audio)
        alone = np.concatenate([pipeline.embed([each]) for each in audio])
        rows.append(
            {
                "what": "embeddings",
                "model": opened.manifest.name,
                "way": f"{device}, torch {precision}",
                "utterances": len(audio),
                "least_cosine": _least_cosine(company, truth),
                "least_cosine_alone": _least_cosine(company, alone),
            }
        )
    return rows


def _texts(pipeline: OfflinePipeline, audio: Sequence[Waveform], batch: int) -> list[str]:
    order = np.random.default_rng(5).permutation(len(audio))  # company is not of like lengths
    texts = [""] * len(audio)
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        for index, found in zip(part, pipeline.recognize([audio[index] for index in part]), strict=True):
            texts[index] = found.text
    return texts


def _clips(count: int) -> Sequence[Clip]:
    """The shipped clips; a few where little is compared."""
    return read_clips()[: max(2, count)]


def _row(way: str, texts: Sequence[str], truth: Sequence[str], alone: Sequence[str], count: int) -> dict[str, Any]:
    normalizer, total = Normalizer(Normalization()), Counts()
    for clip, text in zip(_clips(count), texts[count:], strict=True):
        one = score_utterance(clip.name, clip.reference, text, normalizer).words
        total += one
    return {
        "what": "texts",
        "model": "demo-asr",
        "way": way,
        "utterances": count,
        "differ_from_cpu": sum(one != other for one, other in zip(texts[:count], truth[:count], strict=True)),
        "differ_from_alone": sum(one != other for one, other in zip(texts[:count], alone[:count], strict=True)),
        "wer": total.rate,
        "clips": len(texts) - count,
    }


def _least_cosine(found: Any, expected: Any) -> float:
    products = (found * expected).sum(axis=1)
    return float((products / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)).min())
