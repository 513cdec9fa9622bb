"""The page of Whisper's accuracy: answers of `benchmarks.whisper` and `benchmarks.whisper_reference` on several sets.

    python -m benchmarks.whisper_accuracy ANSWERS ../shared/data [--output docs/performance/accuracy-whisper.md]

ANSWERS holds files SET-MODEL-ENGINE.jsonl: sets are those of `SETS`, engines those of `ENGINES`, models any.
"""

import argparse
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.whisper import Answers, read, same
from tritone.evaluate.bootstrap import paired_difference, rate_interval
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.score import score_utterance

WORD_S = 0.02  # a step of Whisper's times


class Set(NamedTuple):
    """`folder`: of the data. `field`: of metadata.jsonl, which is to have one value."""

    title: str
    folder: str
    field: tuple[str, str] | None = None


SETS = {
    "libri": Set("LibriSpeech part", "librispeech_mini"),
    "an4": Set("AN4 test", "an4", ("split", "test")),
    "strings": Set("strings of digits", "fsdd/strings"),
    "samples": Set("English samples", "samples", ("lang", "en")),
}
ENGINES = {
    "ours-fp32": "Tritone, float32",
    "fw-float32": "faster-whisper 1.2.1, float32",
    "ow": "openai-whisper 20250625",
    "tf": "transformers 5.24",
    "ours-int8": "Tritone, int8",
    "fw-int8": "faster-whisper 1.2.1, int8",
}
LISTENERS = {
    **ENGINES,
    "ours-vad": "Tritone, float32, where silero finds speech",
    "fw-vad": "faster-whisper 1.2.1, float32, vad_filter",
}
BESIDE = {"ours-fp32": "fw-float32", "ours-int8": "fw-int8", "ow": "ours-fp32", "tf": "ours-fp32"}
NORMALIZER = Normalizer(Normalization(spelling="english"))
INTRODUCTION = """\
# Accuracy of Whisper

Real weights of Whisper here and in other programs: greedy, at temperature 0, without a prompt, the language given, each
recording by itself. WER after the normalisation of `tritone score` with English spellings, numbers as they are written:
where a reference says "one" and a model writes 1, that is an error, so figures of digits say how a model writes more
than what it hears. Intervals: 95 %, bootstrap over utterances; differences are paired. {date}, {machine}. Written by

```sh
{command}
```

of the answers of `benchmarks.whisper` and `benchmarks.whisper_reference`. tiny.en and base are OpenAI's (MIT), as
Systran/faster-whisper-tiny.en and -base distribute them.
"""


@cache
def score(id: str, text: str, found: str) -> tuple[int, int]:
    """Word errors, and words of the reference."""
    words = score_utterance(id, text, found, NORMALIZER).words
    return words.errors, words.reference_length


def texts_of(data: Path, of: Set) -> dict[str, str]:
    """The references of a set by id."""
    lines = (data / of.folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if of.field is None or row.get(of.field[0]) == of.field[1]]
    return {row["id"]: row["text"] for row in rows if row.get("text")}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join(['---', *['---:'] * (len(header) - 1)])} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def of_set(name: str, found: Mapping[tuple[str, str, str], Answers], texts: Mapping[str, str]) -> Iterator[str]:
    """The table of a set: every model and engine."""
    rows = []
    for model in dict.fromkeys(model for kind, model, _ in found if kind == name):
        for engine, title in ENGINES.items():
            if (answers := found.get((name, model, engine))) is None:
                continue
            known = [id for id in texts if id in answers]
            errors, words = zip(*(score(id, texts[id], answers[id]["text"]) for id in known), strict=True)
            low, high = rate_interval(errors, words)
            row = [
                f"{model}, {title}",
                f"{100 * sum(errors) / sum(words):.2f} ({sum(errors)})",
                f"{100 * low:.2f} … {100 * high:.2f}",
            ]
            other = found.get((name, model, BESIDE.get(engine, "")))
            if other is None:
                rows.append([*row, "", ""])
                continue
            both = [id for id in known if id in other]
            alike = sum(answers[id]["text"] == other[id]["text"] for id in both)
            theirs, ours, lengths = [], [], []
            for id in both:
                ours.append(score(id, texts[id], answers[id]["text"])[0])
                theirs.append(score(id, texts[id], other[id]["text"])[0])
                lengths.append(score(id, texts[id], "")[1])
            more = paired_difference(theirs, ours, lengths)
            low, high = more.interval
            beside = f"{100 * more.delta:+.2f} ({100 * low:+.2f} … {100 * high:+.2f})"
            rows.append([*row, beside, f"{alike} of {len(both)}"])
    count = max(
        (len([id for id in texts if id in answers]) for (kind, *_), answers in found.items() if kind == name), default=0
    )
    words_in_all = sum(score(id, text, "")[1] for id, text in texts.items())
    yield f"## {SETS[name].title}: {count} recordings, {words_in_all} words"
    yield ""
    yield from table(["", "WER % (errors)", "interval", "points against the other*", "same text as the other"], rows)


def of_noise(found: Mapping[tuple[str, str, str], Answers]) -> Iterator[str]:
    """How many recordings without speech get a text."""
    rows = []
    for model in dict.fromkeys(model for kind, model, _ in found if kind == "silence"):
        for engine, title in LISTENERS.items():
            if (answers := found.get(("silence", model, engine))) is not None:
                written = [answer["text"] for answer in answers.values() if answer["text"].strip()]
                shown = ", ".join(f"{text.strip()[:40]!r}" for text in dict.fromkeys(written))
                rows.append([f"{model}, {title}", f"{len(written)} of {len(answers)}", shown[:200]])
    yield "## Texts of silence and noise"
    yield ""
    yield "Speech Commands' 60 s without speech, a boiler, a washing machine, a kitchen: the right text is empty."
    yield ""
    yield from table(["", "texts", "which"], rows)


def of_tokens(found: Mapping[tuple[str, str, str], Answers]) -> Iterator[str]:
    """How many recordings have the tokens and times of a reference."""
    rows = []
    for name, model, engine in found:
        if engine != "ours-fp32" or name not in SETS:
            continue
        for other in ("fw-float32", "ow"):
            answers, theirs = found[name, model, engine], found.get((name, model, other), {})
            if both := [id for id in answers if id in theirs]:
                equal = [id for id in both if same(answers[id], theirs[id])]
                apart = ", ".join(id for id in both if id not in equal)
                rows.append(
                    [f"{SETS[name].title}, {model}, {ENGINES[other]}", f"{len(equal)} of {len(both)}", apart[:200]]
                )
    yield "## Tokens and times of segments, float32"
    yield ""
    yield "Recordings whose tokens are all those of the other program, and times within a step of 0.02 s."
    yield ""
    yield from table(["", "equal", "which are not"], rows)


def of_words(found: Mapping[tuple[str, str, str], Answers]) -> Iterator[str]:
    """How far times of words are from a reference's, where the words are the same."""
    rows = []
    for name, model, engine in found:
        theirs = found.get((name, model, "fw-float32"), {})
        if name != "words" or engine != "ours-fp32":
            continue
        pairs = [
            (one, other)
            for id, answer in found[name, model, engine].items()
            if id in theirs and [each[2] for each in answer["words"]] == [each[2] for each in theirs[id]["words"]]
            for one, other in zip(answer["words"], theirs[id]["words"], strict=True)
        ]
        apart = [abs(a - b) for one, other in pairs for a, b in zip(one[:2], other[:2], strict=True)]
        if apart:
            near = sum(each <= WORD_S + 0.001 for each in apart)
            rows.append(
                [model, f"{len(pairs)}", f"{near} of {len(apart)}", f"{median(apart):.3f}", f"{max(apart):.2f}"]
            )
    yield "## Times of words, beside faster-whisper 1.2.1 in float32"
    yield ""
    yield from table(["", "words", "starts and ends within 0.02 s", "median, s", "largest, s"], rows)


def of_languages(found: Mapping[tuple[str, str, str], Answers], data: Path) -> Iterator[str]:
    """How often the language that is found is the one that is spoken."""
    spoken = {
        row["id"]: row["lang"]
        for row in map(json.loads, (data / "samples/metadata.jsonl").read_text("utf-8").splitlines())
    }
    rows = []
    for (name, model, engine), answers in found.items():
        if name == "languages":
            known = [id for id in answers if id in spoken]
            right = sum(answers[id]["language"] == spoken[id] for id in known)
            rows.append([f"{model}, {ENGINES[engine]}", f"{right} of {len(known)}"])
    yield "## Language, found out"
    yield ""
    yield "English and Chinese samples."
    yield ""
    yield from table(["", "right"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("docs/performance/accuracy-whisper.md"))
    parser.add_argument("--machine", default=f"two cores of an x86-64 machine, Python {platform.python_version()}")
    arguments = parser.parse_args()
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for path in sorted(arguments.answers.glob("*.jsonl")):
        name, model, engine = path.stem.split("-", 2)
        found[name, model, engine] = read(path)
    head = INTRODUCTION.format(
        date=datetime.now(UTC).date(),
        machine=arguments.machine,
        command="python -m benchmarks.whisper_accuracy ANSWERS ../shared/data",
    )
    lines = [head]
    for name, each in SETS.items():
        if any(kind == name for kind, *_ in found):
            lines += of_set(name, found, texts_of(arguments.data, each))
    lines += [
        "\\* of Tritone against faster-whisper in the same precision, of the others against Tritone in float32.",
        "",
    ]
    lines += [*of_tokens(found), *of_words(found), *of_languages(found, arguments.data), *of_noise(found)]
    arguments.output.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
