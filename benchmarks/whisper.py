"""A Whisper bundle on recordings, beside the answers of a reference: which tokens and times are the same, and WER.

    python -m benchmarks.whisper my-base ../shared/data/librispeech_mini --output ours.jsonl --against reference.jsonl
    python -m benchmarks.whisper my-base ../shared/data/librispeech_mini --output int8.jsonl --precision int8 \
        --against faster-whisper-int8.jsonl

The folder and the reference are those of `benchmarks.whisper_reference`, greedy at temperature 0 on both sides. Answers
are kept line by line in the output; the same command goes on after an interruption.
"""

import argparse
import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import tritone
from benchmarks.whisper_reference import RATE, recordings
from tritone.evaluate.bootstrap import paired_difference, rate_interval
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.score import score_utterance

TOGETHER = 8  # recordings in a call
SECONDS = 0.025  # times are told in steps of 0.02 s
Answers = Mapping[str, dict[str, Any]]


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Answers by id."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {row["id"]: row for row in map(json.loads, lines)}


def transcribe(arguments: argparse.Namespace) -> None:
    """Add to the output what it does not have yet."""
    done = read(arguments.output)
    left = ((id, waveform) for id, waveform in recordings(arguments.folder, arguments.only) if id not in done)
    if arguments.vad is not None:  # 0.1 s of silence has no text, either
        detector, silence = tritone.load(arguments.vad), np.zeros(RATE // 10, np.float32)
        speaks = (
            (id, each, bool(detector.detect([each], sample_rate=RATE)[0].get().segments))
            for id, each in recordings(arguments.folder, arguments.only)
            if id not in done
        )
        left = ((id, each if has_speech else silence) for id, each, has_speech in speaks)
    options = {"language": arguments.language, "temperature": [0], "beam": arguments.beam}
    if arguments.words:
        options["word_times"] = True
    model = tritone.load(arguments.bundle, precision=arguments.precision, threads=arguments.threads, **options)
    with arguments.output.open("a", encoding="utf-8") as file:
        while batch := list(islice(left, TOGETHER)):
            results = model.transcribe([waveform for _, waveform in batch], sample_rate=16000)
            for (id, _), result in zip(batch, results, strict=True):
                found = result.get()
                segments = [[round(each.start_s, 2), round(each.end_s, 2), each.tokens] for each in found.segments]
                words = [[round(each.start_s, 2), round(each.end_s, 2), each.text] for each in found.words]
                answer = {
                    "id": id,
                    "text": found.text,
                    "language": found.language,
                    "audio_s": found.audio_s,
                    "segments": segments,
                    "words": words,
                }
                file.write(json.dumps(answer, ensure_ascii=False) + "\n")
            file.flush()


def compare(found: Answers, reference: Answers, texts: Mapping[str, str]) -> None:
    """Print how the answers differ."""
    common = [id for id in reference if id in found]
    different = [id for id in common if not same(found[id], reference[id])]
    print(f"{len(common)} recordings, {len(common) - len(different)} with the same tokens and times")
    for id in different:
        print(f"  {id}\n    ours:      {found[id]['text']}\n    reference: {reference[id]['text']}")
    normalizer = Normalizer(Normalization(spelling="english"))

    def errors(answers: Answers) -> list[int]:
        return [score_utterance(id, texts[id], answers[id]["text"], normalizer).words.errors for id in known]

    known = [id for id in common if id in texts]
    if known:
        words = [score_utterance(id, texts[id], "", normalizer).words.errors for id in known]
        ours, theirs = errors(found), errors(reference)
        for name, each in (("ours", ours), ("reference", theirs)):
            low, high = rate_interval(each, words)
            print(f"WER {name}: {100 * sum(each) / sum(words):.2f} % ({100 * low:.2f} .. {100 * high:.2f})")
        more = paired_difference(theirs, ours, words)
        low, high = more.interval
        interval = f"{100 * low:+.2f} .. {100 * high:+.2f}"
        print(f"ours - reference: {100 * more.delta:+.2f} points ({interval}), {sum(words)} words")


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two answers have the same tokens and times of segments, ours the first.

    Ours end with the recording at the latest; those of references, which have the times of tokens, may end later.
    """
    a, b = one["segments"], other["segments"]
    return [each[2] for each in a] == [each[2] for each in b] and all(
        abs(x - min(y, one.get("audio_s", y))) <= SECONDS
        for ours, theirs in zip(a, b, strict=True)
        for x, y in zip(ours[:2], theirs[:2], strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path, help="of recordings")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--against", type=Path, help="answers of a reference")
    parser.add_argument("--only", metavar="FIELD=VALUE", help="recordings of which metadata.jsonl says so")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--language", default="en", help="empty: detected")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--vad", metavar="BUNDLE", help="no text where this detector finds no speech")
    parser.add_argument("--words", action="store_true", help="times of words")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    transcribe(arguments)
    listed = arguments.folder / "metadata.jsonl"
    rows = map(json.loads, listed.read_text(encoding="utf-8").splitlines()) if listed.is_file() else ()
    if arguments.against is not None:
        compare(
            read(arguments.output), read(arguments.against), {row["id"]: row["text"] for row in rows if row.get("text")}
        )


if __name__ == "__main__":
    main()
