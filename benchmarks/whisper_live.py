"""Live streams of a Whisper bundle: word errors, when words are final, and repairs, by policy and interval of partials.

    python -m benchmarks.whisper_live run my-tiny.en ../shared/data/librispeech_mini --output tiny.en.jsonl
    python -m benchmarks.whisper_live run my-tiny.en ../shared/data/noise --output tiny.en-noise.jsonl
    python -m benchmarks.whisper_live page ../shared/data/librispeech_mini tiny.en.jsonl base.jsonl \
        --noise tiny.en-noise.jsonl --output docs/performance/whisper-live.md

`run` plays each recording into a stream of each policy and interval, 100 ms at a time, beside the same model on the
whole recording; answers are kept line by line, and the same command goes on after an interruption. Time is that of the
audio: an answer comes when the audio that it needs has come, so computing takes none, and results are the same on every
machine. Windows that are the same in several streams are encoded once.
"""

import argparse
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.whisper_accuracy import score
from benchmarks.whisper_reference import RATE, recordings
from tritone.bundle.bundle import Bundle
from tritone.evaluate.bootstrap import paired_difference
from tritone.evaluate.score import align
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.streams import Step
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.pipeline import WhisperPipeline
from tritone.pipelines.whisper.streams import WhisperStreams
from tritone.pipelines.whisper.together import Together

CHUNK = RATE // 10
POLICIES = ("alignatt", "agreement")
PARTIALS_S = (1.0, 2.0)
KINDS = {f"{policy} {partial_s:g} s": (policy, partial_s) for policy, partial_s in product(POLICIES, PARTIALS_S)}
LIMITS_S = {1.0: 2.5, 2.0: 4.5}  # of a final word at p95
LIMIT_POINTS = 1.5  # of WER beside whole recordings

Events = Sequence[tuple[float, str, int]]  # seconds of audio, the text, characters of it that do not change


def share_windows(pipeline: WhisperPipeline) -> None:
    """Encode windows that are the same once."""
    answers: Any = pipeline._answers
    assert isinstance(answers, Together)
    hear = answers._network.hear

    kept: dict[bytes, Any] = {}

    def shared(windows: Sequence[Any]) -> dict[str, Any]:
        [window] = windows
        key = np.ascontiguousarray(window).tobytes()
        if key not in kept:
            if len(kept) >= len(KINDS):
                kept.pop(next(iter(kept)))
            kept[key] = hear(windows)
        return {name: array.copy() for name, array in kept[key].items()}  # it is changed by who takes it

    answers._network.hear = shared  # type: ignore[method-assign]


def played(streams: WhisperStreams, waveform: np.ndarray, options: Mapping[str, DecodingOptions]) -> dict[str, Any]:
    """What a stream of each kind answers to a recording."""
    slots = {kind: streams.open(each) for kind, each in options.items()}
    events: dict[str, list[tuple[float, str, int]]] = {kind: [] for kind in options}
    for end in range(CHUNK, len(waveform) + CHUNK, CHUNK):
        steps = [Step(slot, waveform[end - CHUNK : end], end >= len(waveform)) for slot in slots.values()]
        for kind, answer in zip(slots, streams.advance(steps), strict=True):
            whole, last = answer.whole_text, events[kind][-1:] or [(0.0, "", 0)]
            settled = len(whole) if answer.settled is None else len(whole) - len(answer.text) + answer.settled
            if (whole, settled) != last[0][1:]:
                events[kind].append((min(end, len(waveform)) / RATE, whole, settled))
    return events


def run(arguments: argparse.Namespace) -> None:
    """Add to the output what it does not have yet."""
    done = {row["id"] for row in read(arguments.output)}
    pipeline = WhisperPipeline(Bundle.open(arguments.bundle), placement=Placement(threads=arguments.threads))
    share_windows(pipeline)
    streams = WhisperStreams(pipeline)
    base = DecodingOptions(language=arguments.language, temperature=(0.0,))
    options = {
        kind: base.changed({"policy": policy, "partial_s": partial_s})
        for kind, (policy, partial_s) in KINDS.items()
        if not arguments.kinds or kind in arguments.kinds
    }
    with arguments.output.open("a", encoding="utf-8") as file:
        for id, waveform in recordings(arguments.folder, arguments.only):
            if id in done:
                continue
            (whole,) = pipeline.transcribe([waveform], [base.changed({"word_times": True})])
            words = [[each.text, round(each.start_s, 2), round(each.end_s, 2)] for each in whole.words]
            row = {"id": id, "audio_s": len(waveform) / RATE, "text": whole.text, "words": words}
            file.write(json.dumps({**row, "live": played(streams, waveform, options)}, ensure_ascii=False) + "\n")
            file.flush()


def read(path: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []


def delays(events: Events, words: Sequence[tuple[str, float, float]]) -> list[float]:
    """From the end of each word of a whole recording to when the same word was final in the stream, in seconds."""
    final = events[-1][1] if events else ""
    known = [(letters(text), end_s) for text, _, end_s in words]
    places, found = [], 0
    for word in final.split():
        found = final.index(word, found) + len(word)
        places.append((letters(word), found))
    result, ours, theirs = [], iter(places), iter(known)
    for pair in align([each for each, _ in known], [each for each, _ in places]):
        at = next(ours)[1] if pair.op != "deletion" else 0
        end_s = next(theirs)[1] if pair.op != "insertion" else 0.0
        if pair.op == "hit":
            result.append(next(time_s for time_s, _, settled in events if settled >= at) - end_s)
    return result


def letters(word: str) -> str:
    return "".join(filter(str.isalnum, word.lower()))


def repairs(events: Events) -> int:
    """Words that were shown and are others in the next text."""
    count = 0
    for (_, one, settled), (_, two, _) in pairwise(events):
        assert two.startswith(one[:settled].rstrip()), f"final text changed: {one[:settled]!r}, then {two!r}"
        before, after = [list(map(letters, each.split())) for each in (one, two)]
        same = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
        count += len(before) - (min(len(before), len(after)) if same is None else same)
    return count


def table(path: Path, texts: Mapping[str, str]) -> Iterator[str]:
    """The table of one model."""
    rows = read(path)
    words = [score(row["id"], texts[row["id"]], "")[1] for row in rows]
    whole = [score(row["id"], texts[row["id"]], row["text"])[0] for row in rows]
    hours = sum(row["audio_s"] for row in rows) / 3600
    yield f"## {path.stem}: {len(rows)} recordings, {hours:.2f} h, {sum(words)} words\n"
    yield (
        "|  | WER % (errors) | points beside whole recordings | a word is final after its end, s: p50 · p95 | limit at "
        "p95 | words repaired, of 100 | met |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    yield f"| whole recordings | {100 * sum(whole) / sum(words):.2f} ({sum(whole)}) | | | | | |"
    for kind in (each for each in KINDS if each in rows[0]["live"]):
        events = [row["live"][kind] for row in rows]
        errors = [
            score(row["id"], texts[row["id"]], each[-1][1] if each else "")[0]
            for row, each in zip(rows, events, strict=True)
        ]
        more = paired_difference(whole, errors, words)
        low, high = more.interval
        late = [delay for row, each in zip(rows, events, strict=True) for delay in delays(each, row["words"])]
        p50, p95 = np.percentile(late, [50, 95])
        shown = sum(len(each[-1][1].split()) for each in events if each)
        repaired = 100 * sum(map(repairs, events)) / max(1, shown)
        limit = LIMITS_S[KINDS[kind][1]]
        met = "yes" if p95 <= limit and 100 * more.delta <= LIMIT_POINTS else "no"
        yield (
            f"| {kind} | {100 * sum(errors) / sum(words):.2f} ({sum(errors)}) | {100 * more.delta:+.2f} "
            f"({100 * low:+.2f} … {100 * high:+.2f}) | {p50:.2f} · {p95:.2f} | {limit:g} | {repaired:.1f} | {met} |"
        )
    yield ""


def noise(path: Path) -> Iterator[str]:
    """What is written where nobody speaks."""
    rows = read(path)
    minutes = sum(row["audio_s"] for row in rows) / 60
    yield f"## {path.stem}: {len(rows)} recordings without speech, {minutes:.1f} minutes\n"
    yield "|  | words |\n| --- | ---: |"
    yield f"| whole recordings | {sum(len(row['text'].split()) for row in rows)} |"
    for kind in (each for each in KINDS if each in rows[0]["live"]):
        yield f"| {kind} | {sum(len(row['live'][kind][-1][1].split()) for row in rows if row['live'][kind])} |"
    yield ""


INTRODUCTION = """\
# Live streams of Whisper

Real weights of Whisper as live streams ([export-whisper.md](../models/export-whisper.md#live-streams)), greedy, the
language given, beside the same model on whole recordings. {date}, Python {python}, float32. Written by

```sh
{command}
```

of what `python -m benchmarks.whisper_live run` keeps of the test part (`--only split=test`). Times are those of the
audio: a word is final when the audio that it needs has come, and computing takes no time here, so the figures are the
same on every machine; what a machine takes for a look comes on top. Where a word ends is what the same model says of
the whole recording (`word_times`); words that both have are counted. Repaired: a word of a partial text that is another
in the next one. Words that are final never change, which the command checks. Intervals: 95 %, bootstrap over
utterances. Limits: {points} points of WER, and a final word after {limits}.

AlignAtt is the default: its delay keeps the limits, and it repairs less of what it shows. Local agreement waits for a
text that says the same once more, so that a word which is heard differently at first is late.
"""


def page(arguments: argparse.Namespace) -> None:
    listed = (arguments.folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    texts = {row["id"]: row["text"] for row in map(json.loads, listed)}
    names = " ".join(each.name for each in arguments.answers) + "".join(
        f" --noise {each.name}" for each in arguments.noise
    )
    command = f"python -m benchmarks.whisper_live page {arguments.folder} {names} --output {arguments.output}"
    limits = ", ".join(f"{limit:g} s (partials every {each:g} s)" for each, limit in LIMITS_S.items())
    lines = [
        INTRODUCTION.format(
            date=datetime.now(UTC).date(),
            python=platform.python_version(),
            command=command,
            points=LIMIT_POINTS,
            limits=limits,
        ),
        *(line for each in arguments.answers for line in table(each, texts)),
        *(line for each in arguments.noise for line in noise(each)),
    ]
    arguments.output.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("run")
    first.add_argument("bundle", type=Path)
    first.add_argument("folder", type=Path, help="of recordings")
    first.add_argument("--output", type=Path, required=True)
    first.add_argument("--only", metavar="FIELD=VALUE", help="recordings of which metadata.jsonl says so")
    first.add_argument("--kinds", nargs="*", choices=list(KINDS), help="by default all")
    first.add_argument("--language", default="en")
    first.add_argument("--threads", type=int, default=1)
    first.set_defaults(run=run)
    second = commands.add_parser("page")
    second.add_argument("folder", type=Path, help="of recordings, with their texts")
    second.add_argument("answers", type=Path, nargs="+", help="MODEL.jsonl, of `run`")
    second.add_argument("--noise", type=Path, action="append", default=[], help="of recordings without speech")
    second.add_argument("--output", type=Path, default=Path("docs/performance/whisper-live.md"))
    second.set_defaults(run=page)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
