"""What search in a transducer costs beside its encoder: greedy, modified beam, fast beam.

    python -m benchmarks.transducer_search [--models zipformer-m,conformer-m] [--bundle DIR] [--output FILE]

Random models of upstream's sizes (`models/transducer.py`, needs the extra `export`) hear made-up speech in 32
utterances of ten seconds; `--bundle` names one that was exported before. Encoder and searches take turns on the same
two cores. Prints every repeat, adds its findings to FILE.json and renews the page beside it.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROOT, Finding, Setup, alternate, median_ratio, save, to_markdown
from tritone.bundle import Bundle
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.transducer import GraphNetwork
from tritone.runtime import open_graph
from tritone.search.transducer.batch import advance_beams
from tritone.search.transducer.fast_beam import FastBeam
from tritone.search.transducer.greedy import GreedyState, advance_greedy
from tritone.search.transducer.modified_beam import ModifiedBeam
from tritone.search.transducer.predictor import PredictorCache

OUTPUT = ROOT / "docs" / "performance" / "transducer-search.json"
TITLE = "Search in transducers"
INTRODUCTION = "What search costs beside the encoder, on the same cores, without and with a beam."
CORES = 2
# The bar of fast beam search is that of modified beam search: both keep several hypotheses.
BARS = {"greedy": 0.10, "modified beam 4": 0.30, "fast beam": 0.30}

Tokens = list[list[int]]


class Searches:
    """The three ways of searching in a batch of encoder outputs, each from nothing but a warm predictor cache."""

    def __init__(self, bundle: Bundle, encoder_out: np.ndarray, num_frames: np.ndarray) -> None:
        self.cache = PredictorCache(GraphNetwork(bundle, placement=Placement(threads=CORES)))
        self.encoder_out, self.num_frames = encoder_out, num_frames

    def greedy(self) -> Tokens:
        found = advance_greedy([GreedyState(self.cache) for _ in self.num_frames], self.encoder_out, self.num_frames)
        return [[token.id for token in tokens] for tokens in found]

    def modified(self) -> Tokens:
        beams = [ModifiedBeam(self.cache, beam=4, history=None) for _ in self.num_frames]
        advance_beams(beams, self.encoder_out, self.num_frames)
        return _best(beams)

    def fast(self) -> Tokens:
        beams = [FastBeam(self.cache, history=None) for _ in self.num_frames]
        advance_beams(beams, self.encoder_out, self.num_frames)
        return _best(beams)

    @property
    def ways(self) -> dict[str, Callable[[], Tokens]]:
        return {"greedy": self.greedy, "modified beam 4": self.modified, "fast beam": self.fast}


def _best(beams: Sequence[Any]) -> Tokens:
    return [[token.id for token in beam.hypotheses(1, final=True)[0].tokens] for beam in beams]


def measure(path: Path, *, batch: int, seconds: float, repeats: int) -> list[Finding]:
    """The time of each way of searching as a share of the encoder's."""
    from benchmarks.models.wenet import babble

    bundle = Bundle.open(path)
    graph = open_graph(bundle.artifact("encoder", precision="fp32"), threads=CORES)
    samples = round(seconds * bundle.manifest.sample_rate)
    waveform = np.stack([babble(samples, seed=row) for row in range(batch)]).astype(np.float32)
    inputs = {"waveform": waveform, "num_samples": np.full(batch, samples)}
    outputs = ["encoder_out", "num_frames"]
    encoder_out, num_frames = graph(inputs, outputs)
    searches = Searches(bundle, encoder_out, num_frames)
    said = {name: search() for name, search in searches.ways.items()}
    for name, tokens in said.items():  # a row is what it is alone, or speed is worth nothing
        alone = Searches(bundle, encoder_out[:1], num_frames[:1]).ways[name]()
        if tokens[:1] != alone:
            raise SystemExit(f"{name} tells something else of the first utterance alone than in the batch")
    sides: dict[str, Callable[[], object]] = {"encoder": lambda: graph(inputs, outputs), **searches.ways}
    rows = alternate(sides, repeats)
    setup = Setup.here(path.name, "benchmarks.transducer_search")
    findings = []
    for name, bar in BARS.items():
        ratio, note = median_ratio(rows, name, "encoder")
        tokens_per_s = sum(map(len, said[name])) / (batch * seconds)
        findings.append(
            Finding(
                key=f"{path.name}-{name.replace(' ', '-')}",
                title=f"{name} ÷ encoder of {path.name}, seconds, {batch} utterances of {seconds:g} s",
                value=ratio,
                bar=bar,
                sense="at most",
                setup=setup,
                rows=[{key: float(f"{value:.4g}") for key, value in row.items()} for row in rows],
                notes=[
                    note,
                    f"Seconds, onnxruntime, fp32, {CORES} threads; it says {tokens_per_s:.1f} tokens a second.",
                    f"Encoder at {batch * seconds / min(row['encoder'] for row in rows):.0f} × real time at best; "
                    f"vocabulary of {len(bundle.vocabulary.tokens)}.",
                ],
            )
        )
    return findings


def export(model: str, folder: Path) -> Path:
    """Export a random model of one of the sizes of `models/transducer.py`."""
    from benchmarks.models.transducer import random_bundle

    return random_bundle(model, folder / model).path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="zipformer-m,conformer-m", help="sizes of random models, with commas")
    parser.add_argument("--bundle", type=Path, help="a transducer to measure instead")
    parser.add_argument("--batch", type=int, default=32, help="utterances (default: 32)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each (default: 10)")
    parser.add_argument("--repeats", type=int, default=3, help="calm ones to wait for (default: 3)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file; the page is written beside it")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    sizes = {"batch": arguments.batch, "seconds": arguments.seconds, "repeats": arguments.repeats}
    findings: list[Finding] = []
    for model in [arguments.bundle.name] if arguments.bundle else arguments.models.split(","):
        with tempfile.TemporaryDirectory(prefix="transducer-search-") as folder:
            found = measure(arguments.bundle or export(model, Path(folder)), **sizes)
        for finding in found:
            print(finding, flush=True)
        held = save(found, arguments.output)
        page = to_markdown(held, TITLE, INTRODUCTION)
        arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
        findings += found
    return 0 if all(finding.is_met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
