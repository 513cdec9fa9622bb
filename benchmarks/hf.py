"""wav2vec 2.0 here and in transformers: the same weights, the same cores, in one run.

    python -m benchmarks.hf [--layers 12] [--runtime onnxruntime] [--batch 4] [--repeats 3] [--output FILE.json]

A random model of wav2vec2-base's size, with fewer layers on request, is saved by transformers and exported from there.
Both sides turn the same waveforms into tokens: Tritone's pipeline in process, and transformers' feature extractor,
network (in batches sorted by length, with an attention mask) and greedy decoding. Before anything is timed, the
log-probabilities of the first utterances are compared with those that transformers computes for each alone.
Needs the extra `export` and `transformers`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import ROOT, Finding, Setup, alternate, median_ratio, save, to_markdown
from benchmarks.models.random_bundle import RANDOM_BUNDLES, export_random
from tritone.bundle import Bundle
from tritone.families.hf.export import export_hf
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import speech_workload
from tritone.pipelines import open_offline
from tritone.pipelines.graphs.placement import Placement
from tritone.runtime import open_graph

OUTPUT = ROOT / "docs" / "performance" / "hf.json"
TITLE = "Beside transformers"
INTRODUCTION = """\
wav2vec 2.0 of the size of wav2vec2-base (random weights), in process, both sides on the same cores, in turn, on the
same audio, after a warm-up. "others %" is how much of the cores foreign processes took during a repeat: above a few
percent a figure is only indicative. Written by `python -m benchmarks.hf`; raw rows are in [hf.json](hf.json)."""
SAMPLE_RATE = 16000
UTTERANCES = "uniform:2,6"  # seconds
COUNT = 8
COMPARED = 3
LIMIT = 1e-3  # of log-probabilities
VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVKXJQZ'"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--runtime", default="onnxruntime", choices=["onnxruntime", "torch"])
    parser.add_argument("--batch", type=int, default=4, help="utterances that transformers gets at once")
    parser.add_argument("--repeats", type=int, default=3, help="calm ones; at most three times as many in all")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    folder = RANDOM_BUNDLES / f"hf-{given.layers}"
    model, tokenizer, extractor = _upstream(given.layers, folder)
    bundle = export_random(
        export_hf,
        lambda _: {"folder": folder},
        RANDOM_BUNDLES / f"hf-{given.layers}-{given.runtime}",
        checked=False,
        runtimes=(given.runtime,),
    )
    audio = sorted(_utterances(), key=len)
    _require_alike(model, extractor, bundle, audio[:COMPARED])
    pipeline = open_offline(bundle, placement=Placement(runtime=given.runtime))

    def theirs() -> None:
        for start in range(0, len(audio), given.batch):
            inputs = extractor(
                audio[start : start + given.batch], sampling_rate=SAMPLE_RATE, padding=True, return_tensors="pt"
            )
            with torch.inference_mode():
                logits = model(inputs.input_values, attention_mask=inputs.attention_mask).logits
            tokenizer.batch_decode(logits.argmax(dim=-1))

    rows = alternate({"tritone s": lambda: pipeline.recognize(audio), "transformers s": theirs}, given.repeats)
    ratio, basis = median_ratio(rows, "transformers s", "tritone s")
    seconds = sum(map(len, audio)) / SAMPLE_RATE
    finding = Finding(
        key=f"{given.runtime}-{given.layers}",
        title=f"throughput in process with {given.runtime} ÷ transformers, {given.layers} layers",
        value=ratio,
        bar=1.0,
        sense="at least",
        setup=Setup.here(f"wav2vec2, {given.layers} layers", "benchmarks.hf"),
        rows=rows,
        notes=[
            basis,
            f"{COUNT} utterances of 2 to 6 s, {seconds:.0f} s of audio a repeat; "
            f"transformers gets {given.batch} at once, sorted by length.",
        ],
    )
    print(finding)
    found = save([finding], given.output)
    given.output.with_suffix(".md").write_text(to_markdown(found, TITLE, INTRODUCTION), encoding="utf-8")


def _upstream(layers: int, folder: Path) -> tuple[Any, Any, Any]:
    """A random model, its tokenizer and its feature extractor, of transformers; saved to `folder`."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(VOCABULARY)}), encoding="utf-8")
    torch.manual_seed(0)
    config = transformers.Wav2Vec2Config(vocab_size=len(VOCABULARY), num_hidden_layers=layers)
    model = transformers.Wav2Vec2ForCTC(config).eval()
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    model.save_pretrained(folder)
    return model, tokenizer, extractor


def _utterances() -> list[np.ndarray]:
    return list(speech_workload(UTTERANCES, Tape.shipped(SAMPLE_RATE), max_utterances=COUNT).waveforms)


def _require_alike(model: Any, extractor: Any, bundle: Bundle, audio: list[np.ndarray]) -> None:
    batch = np.zeros((len(audio), max(map(len, audio))), np.float32)
    for row, waveform in zip(batch, audio, strict=True):
        row[: len(waveform)] = waveform
    feed = {"waveform": batch, "num_samples": np.array([len(each) for each in audio])}
    found, counts = open_graph(bundle.artifact("encoder"))(feed, ["log_probs", "num_frames"])
    for row, count, waveform in zip(found, counts, audio, strict=True):
        inputs = extractor(waveform, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_values
        with torch.inference_mode():
            alone = torch.log_softmax(model(inputs).logits[0], dim=-1).numpy()
        if not (difference := np.abs(alone - row[:count]).max()) < LIMIT:
            raise SystemExit(f"an utterance differs from transformers' result for it alone by {difference:.2g}")


if __name__ == "__main__":
    main()
