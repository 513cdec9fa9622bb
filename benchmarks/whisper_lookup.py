"""Whisper's greedy texts guessed ahead by prompt lookup: how many calls of the decoder that saves, and how much time.

    python -m benchmarks.whisper_lookup BUNDLE ../shared/data/librispeech_mini [--precision int8] [--clips 40]

Where the last tokens stand earlier in the prompt or in the text, those that followed there are guessed; one call of the
decoder reads them all, and they count as far as each is what greedy search takes. So texts are the same, which is
checked. The prompt of a recording is the text of the one before, as that of a window of a long recording is. Processor
seconds are of both ways in turn, of one recording at a time; "request" has the encoder in it.
Source: apoorvumang/prompt-lookup-decoding, with at most N last tokens and K guesses.
"""

import argparse
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.whisper_reference import recordings
from tritone.bundle import Bundle
from tritone.kinds.whisper.part import WhisperPart
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.whisper.network import Network, features_of
from tritone.search.whisper.rules import Rules

LENGTHS, GUESSES = (3, 2), 4  # of what is looked up, the longest first, and of what is guessed
MOST = 200  # tokens of a text, and of the prompt


def guessed(known: Sequence[int], most: int) -> list[int]:
    """What followed where the last tokens stand for the last time before; nothing if they do not."""
    for length in LENGTHS:
        last = list(known[-length:])
        for place in range(len(known) - length - 1, -1, -1):
            if known[place : place + length] == last:
                return list(known[place + length : place + length + most])
    return []


class Writer:
    """Greedy search on the graphs of a bundle, a recording at a time."""

    def __init__(self, path: Path, precision: str, threads: int, language: str) -> None:
        bundle = Bundle.open(path)
        placement = Placement(device="cpu", precision=precision, threads=threads)
        special = bundle.manifest.find(WhisperPart)
        assert special is not None
        self.special = special
        self.network = Network(bundle, placement, special)
        self.features = open_chosen(bundle, "features", placement)[1]
        begin, eot = special.timestamp_begin, special.eot
        self.rules = Rules(
            eot=eot,
            no_timestamps=special.no_timestamps,
            timestamp_begin=begin,
            suppress=tuple(special.suppress),
            suppress_first=tuple(special.suppress_first),
            max_initial_timestamp=50,
        )
        self.start = [special.sot]
        if special.languages:
            self.start += [special.languages[language], special.tasks["transcribe"]]

    def hear(self, waveform: np.ndarray) -> Any:
        """What the decoder attends to of the first 30 s."""
        features = features_of(self.features, waveform)[: self.special.window_frames]
        names = self.special.cross_names
        batch = np.zeros((1, self.special.window_frames, features.shape[1]), np.float32)
        batch[0, : len(features)] = features
        return dict(zip(names, self.network.encoder({"features": batch}, names), strict=True))

    def write(self, cross: Any, before: Sequence[int], guesses: int) -> tuple[list[int], int]:
        """The text after the tokens of another one, and how many calls it took."""
        special = self.special
        prompt = ([special.sot_prev, *before[-MOST:]] if before else []) + self.start
        empty = np.zeros((1, special.heads, 0, special.head_dim), np.float32)
        caches = dict.fromkeys(special.self_names, empty)
        written: list[int] = []
        ahead: list[int] = []
        new, calls = list(prompt), 0
        while True:
            length = next(iter(caches.values())).shape[2]
            places = np.arange(len(new) - len(ahead) - 1, len(new))[None]
            inputs = {"tokens": np.array([new]), "padding": np.zeros(1, np.int64), "places": places, **cross, **caches}
            logits, *longer = self.network.decoder(inputs, ["logits", *(f"next_{name}" for name in special.self_names)])
            calls += 1
            right = 0
            for place, scores in enumerate(logits[0]):
                self.rules.apply(scores, written)
                token = int(scores.argmax())
                if token == special.eot:
                    return written, calls
                written.append(token)
                if len(written) >= MOST:
                    return written, calls
                if place >= len(ahead) or ahead[place] != token:
                    break
                right += 1
            kept = length + len(new) - len(ahead) + right
            caches = {
                name: array if kept == array.shape[2] else np.ascontiguousarray(array[:, :, :kept])
                for name, array in zip(special.self_names, longer, strict=True)
            }
            known = [*before, *written]
            ahead = guessed(known, guesses) if guesses else []
            new = [written[-1], *ahead]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path, help="of recordings")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--language", default="en")
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--guesses", type=int, default=GUESSES)
    arguments = parser.parse_args()
    writer = Writer(arguments.bundle, arguments.precision, arguments.threads, arguments.language)
    encoder, seconds, calls = 0.0, {0: 0.0, arguments.guesses: 0.0}, {0: 0, arguments.guesses: 0}
    before: list[int] = []
    same = count = tokens = 0
    for _, waveform in islice(recordings(arguments.folder), arguments.clips):
        start = time.process_time()
        cross = writer.hear(waveform)
        encoder += time.process_time() - start
        texts = []
        for guesses in seconds:
            start = time.process_time()
            text, needed = writer.write(cross, before, guesses)
            seconds[guesses] += time.process_time() - start
            calls[guesses] += needed
            texts.append(text)
        count, same, tokens = count + 1, same + (texts[0] == texts[1]), tokens + len(texts[0])
        before = [token for token in texts[0] if token < writer.special.eot]
    plain, ahead = seconds.values()
    print(f"{arguments.bundle.name} {arguments.precision}: {count} recordings, {tokens} tokens, {same} texts the same")
    print(f"calls of the decoder: {calls[0]} plain, {calls[arguments.guesses]} with {arguments.guesses} guesses")
    print(f"processor seconds: encoder {encoder:.2f}; texts {plain:.2f} plain, {ahead:.2f} guessed ahead")
    print(f"plain ÷ guessed: texts {plain / ahead:.2f}, request {(encoder + plain) / (encoder + ahead):.2f}")


if __name__ == "__main__":
    main()
