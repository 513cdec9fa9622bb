"""Whisper's greedy texts guessed ahead by a draft: how much time that saves, and whether all results stay the same.

    python -m benchmarks.whisper_draft BUNDLE DRAFT ../shared/data/librispeech_mini --draft-precision int8

Each recording is transcribed alone, without and with the draft in turn. Seconds are of the processor, which other
processes on the machine move less than those of a clock; `calls` are those of the model's decoder.
"""

import argparse
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import tritone
from benchmarks.whisper_reference import recordings

GREEDY: dict[str, Any] = {"language": "en", "temperature": (0.0,)}


class Counting:
    """A graph that counts its calls, and the seconds of the processor in them."""

    def __init__(self, graph: Any) -> None:
        self._graph, self.calls, self.seconds = graph, 0, 0.0

    def __call__(self, inputs: Any, outputs: Any) -> Any:
        start = time.process_time()
        try:
            return self._graph(inputs, outputs)
        finally:
            self.calls, self.seconds = self.calls + 1, self.seconds + time.process_time() - start


def opened(arguments: argparse.Namespace, **options: Any) -> tuple[Any, Counting, Counting]:
    """A model, and what counts the calls of its encoder and its decoder."""
    model = tritone.load(arguments.bundle, precision="fp32", threads=arguments.threads, **GREEDY, **options)
    network = model.open()._answers._network
    network.encoder, network.decoder = Counting(network.encoder), Counting(network.decoder)
    return model, network.encoder, network.decoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("folder", type=Path, help="of recordings")
    parser.add_argument("--draft-precision")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clips", type=int, default=20)
    arguments = parser.parse_args()
    models = [opened(arguments), opened(arguments, draft=arguments.draft, draft_precision=arguments.draft_precision)]
    seconds, clock = np.zeros(2), np.zeros(2)
    same = tokens = count = 0
    apart = 0.0
    for _, waveform in islice(recordings(arguments.folder), arguments.clips + 1):
        found = []
        for index, (model, *_) in enumerate(models):
            start = time.process_time(), time.perf_counter()
            found.append(model.transcribe(waveform).get())
            if count:  # the first warms up
                seconds[index] += time.process_time() - start[0]
                clock[index] += time.perf_counter() - start[1]
        count += 1
        texts = [[(each.tokens, each.start_s, each.end_s) for each in transcript.segments] for transcript in found]
        same += texts[0] == texts[1]
        tokens += sum(len(each) for each, *_ in texts[0])
        apart = max(apart, abs(found[0].confidence - found[1].confidence))
    calls = [decoder.calls for *_, decoder in models]
    print(f"{arguments.bundle.name} with {arguments.draft.name} {arguments.draft_precision or ''}, {count} recordings")
    print(f"{tokens} tokens; {same} of {count} texts and times the same, confidences up to {apart:.1e} apart")
    print(f"calls of the decoder: {calls[0]} plain, {calls[1]} with the draft")
    print(f"processor seconds: {seconds[0]:.2f} plain, {seconds[1]:.2f} with the draft")
    for (_, encoder, decoder), what in zip(models, ("plain", "with the draft"), strict=True):
        each = encoder.seconds / count, decoder.seconds / count
        print(f"of a recording, {what}: {each[0]:.3f} in the model's encoder, {each[1]:.3f} in its decoder")
    print(f"plain ÷ drafted: {seconds[0] / seconds[1]:.2f} of the processor, {clock[0] / clock[1]:.2f} by the clock")


if __name__ == "__main__":
    main()
