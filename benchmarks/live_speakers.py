"""Speakers of words of live streams through the gateway: how long after a word they are known, and how often rightly.

    python -m benchmarks.live_speakers --data DIR [--output docs/performance/live-speakers.md]

`--data` has folders an4 and librispeech_mini, each a tar of audio and metadata.jsonl. Test utterances of two people are
joined in random turns, with pauses of 0.2 to 1 s (`benchmarks.diarization`), half of the people having been used to
choose defaults. A Triton with demo-asr and demo-speaker, and a gateway in front of it, get them as a stream, 100 ms at
a time. Time is that of the audio: an answer comes when the audio that it needs has come, so computing takes none, and
the figures are the same on every machine; what a piece of 100 ms took of this machine is printed beside them. Where a
word ends is what the recogniser says at the end of its segment, and who said it is the person of the utterance there.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.diarization import CHOSEN, CORPORA, Meeting, meeting
from benchmarks.voice_activity import RATE, recordings
from tritone.diarization.assignment import best_pairs
from tritone.gateway import GatewayOptions
from tritone.gateway.callers import Caller
from tritone.gateway.gateway import Gateway
from tritone.gateway.server import GatewayServer
from tritone.gateway.speech import Ask, SpeakerOptions
from tritone.report.stamp import Stamp
from tritone.report.table import Column, Table
from tritone.repository import ModelOptions, build_repository
from tritone.server import ServerOptions, TritonServer
from tritone.transcript import Span

STEP = RATE // 10
PAUSE_S = 0.8  # that ends a segment, as `tritone demo --page` has it
PAUSES_S = (0.2, 1.0)  # between utterances
PAIRS = 2  # of each corpus and half
SAME_S = 0.3  # between the starts of a word in two texts
WITHIN_S = 1.0
TIMEOUT_S = 600.0
FRAME_MS = 40.0  # of demo-asr's encoder
CONDITIONS = ((16, (0, 2)), (8, (0,)))  # frames of a chunk, and numbers of speakers, at most, that are given
INTRODUCTION = """\
# When the speaker of a word is known

Words of live streams through the gateway, with demo-asr and demo-speaker, of recordings that are joined from test
utterances of two people in random turns. `chosen`: people whose recordings were used to choose defaults of clustering;
`held out`: the others. Delays are from the end of a word, as the recogniser has it at the end of the segment, to the
first text that has the word (shown), to the first in which it has a speaker (labelled), and to that from which on it
has the speaker that it keeps. Time is that of the audio: an answer comes when the audio that it needs has come. Right
is a label that is matched with the person who said the word, recording by recording; words that nobody labelled, or
that were not recognised yet, are wrong. Written by `python -m benchmarks.live_speakers --data DIR --output
docs/performance/live-speakers.md`; what follows from it is in [diarization.md](../applications/diarization.md).
"""
COLUMNS = (
    Column("people", "people"),
    Column("corpus", "recordings of"),
    Column("count", "recordings"),
    Column("minutes", "minutes", digits=1),
    Column("chunk", "recogniser's chunk", digits=0, unit="ms"),
    Column("most", "speakers"),
    Column("words", "words"),
    Column("shown", "shown: p50 · p95 (s)"),
    Column("labelled", "labelled: p50 · p95 (s)"),
    Column("kept", "kept label: p50 · p95 (s)"),
    Column("within", "labelled within 1 s", digits=1, scale=100, unit="%"),
    Column("first", "right when labelled", digits=1, scale=100, unit="%"),
    Column("soon", "right 1 s after its end", digits=1, scale=100, unit="%"),
    Column("final", "right at the end", digits=1, scale=100, unit="%"),
)


@dataclass(frozen=True)
class Seen:
    """A word of a final text: its span, and (seconds of audio, speaker) of each text that had it, in turn."""

    word: Span
    texts: Sequence[tuple[float, str]]

    @property
    def labels(self) -> Sequence[tuple[float, str]]:
        return [each for each in self.texts if each[1]]

    def at(self, time_s: float) -> str:
        """The label that was shown at a time; "" before there was one."""
        return next((label for since_s, label in reversed(self.texts) if since_s <= time_s), "")

    @property
    def kept_s(self) -> float | None:
        """Since when the last label was shown."""
        since_s = None
        for time_s, label in reversed(self.labels):
            if label != self.word.speaker:
                break
            since_s = time_s
        return since_s


async def played(gateway: Gateway, samples: np.ndarray, most: int, took: list[float]) -> list[Seen]:
    """What a client sees of the words of a recording; `took` gets what each piece of audio took, in seconds."""
    texts: dict[int, list[tuple[float, Sequence[Span]]]] = {}
    ask = Ask(model="demo-asr-streaming", speakers=SpeakerOptions(max_speakers=most))
    async with await gateway.speech.open(ask, RATE, Caller(protocol="benchmark")) as live:
        for start in range(0, len(samples) + STEP, STEP):
            begun = time.perf_counter()
            piece = samples[start : start + STEP]
            events = await (live.accept(piece) if start < len(samples) else live.finish())
            took.append(time.perf_counter() - begun)
            now_s = min(start + STEP, len(samples)) / RATE
            for event in events:
                if event.transcript is not None:
                    texts.setdefault(event.segment, []).append((now_s, event.transcript.words))
    return [seen(word, shown) for shown in texts.values() for word in shown[-1][1]]


def seen(word: Span, shown: Sequence[tuple[float, Sequence[Span]]]) -> Seen:
    found = []
    for time_s, words in shown:
        same = [each for each in words if each.text == word.text and abs(each.start_s - word.start_s) < SAME_S]
        found += [(time_s, each.speaker) for each in same[:1]]
    return Seen(word, found)


def person_at(each: Meeting, word: Span) -> str:
    """Whose utterance is at the middle of a word, or nearest to it."""
    at_s = (word.start_s + word.end_s) / 2
    return min(each.known.parts, key=lambda part: max(part.start_s - at_s, at_s - part.end_s, 0)).speaker


def row(meetings: Sequence[Meeting], found: Sequence[Sequence[Seen]]) -> dict[str, Any]:
    """The delays and shares of some recordings; labels are matched with people recording by recording."""
    shown: list[float] = []
    labelled: list[float] = []
    kept: list[float] = []
    first = soon = final = total = 0
    for each, words in zip(meetings, found, strict=True):
        persons = [person_at(each, one.word) for one in words]
        names, labels = sorted(set(persons)), sorted({one.word.speaker for one in words} - {""})
        shared = [
            [
                sum(p == name and one.word.speaker == label for p, one in zip(persons, words, strict=True))
                for label in labels
            ]
            for name in names
        ]
        label_of = {names[person]: labels[label] for person, label in best_pairs(shared)} if labels else {}
        total += len(words)
        for person, one in zip(persons, words, strict=True):
            right = label_of.get(person)
            shown.append(one.texts[0][0] - one.word.end_s)
            if one.labels:
                labelled.append(one.labels[0][0] - one.word.end_s)
                first += one.labels[0][1] == right
            if one.kept_s is not None:
                kept.append(one.kept_s - one.word.end_s)
            soon += one.at(one.word.end_s + WITHIN_S) == right
            final += one.word.speaker == right
    return {
        "count": len(meetings),
        "minutes": sum(len(each.samples) for each in meetings) / RATE / 60,
        "words": total,
        "shown": percentiles(shown),
        "labelled": percentiles(labelled),
        "kept": percentiles(kept),
        "within": sum(each <= WITHIN_S for each in labelled) / total,
        "first": first / total,
        "soon": soon / total,
        "final": final / total,
    }


def percentiles(seconds: Sequence[float]) -> str:
    return " · ".join(f"{each:.2f}" for each in np.percentile(seconds, [50, 95]))


def conversations(data: Path) -> Iterator[tuple[str, str, list[Meeting]]]:
    """Recordings of two people: half of the people, corpus, recordings."""
    for half in ("chosen", "held out"):
        for corpus in CORPORA:
            found = recordings(data, corpus, {"split": "test"})
            speakers = {name: parts for name, parts in found.items() if (name in CHOSEN) == (half == "chosen")}
            pairs = list(combinations(sorted(speakers), 2))
            chosen = [pairs[index] for index in np.random.default_rng(0).permutation(len(pairs))[:PAIRS]]
            yield half, corpus, [meeting({name: speakers[name] for name in pair}, 2, PAUSES_S) for pair in chosen]


def measured(data: Path, chunk_frames: int, most: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row for each kind of recordings and each number of speakers, at most, that the request gives (0: none)."""
    chunk_ms = chunk_frames * FRAME_MS
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        options = ModelOptions(endpoint_silence_after_speech_s=PAUSE_S, chunk_size=chunk_frames)
        build_repository(["demo-asr"], repository, options=options)
        build_repository(["demo-speaker"], repository)
        took: list[float] = []
        with (
            TritonServer(repository, ServerOptions.on_free_ports()) as triton,
            GatewayServer(GatewayOptions(triton=triton.grpc_address, port=0)).background() as running,
        ):
            assert running.loop is not None
            for half, corpus, meetings in conversations(data):
                for number in most:
                    works = [played(running.gateway, each.samples, number, took) for each in meetings]
                    found = [asyncio.run_coroutine_threadsafe(work, running.loop).result(TIMEOUT_S) for work in works]
                    speakers = f"at most {number}" if number else "found"
                    named = {"people": half, "corpus": corpus, "chunk": chunk_ms, "most": speakers}
                    yield named | row(meetings, found)
        p50, p95 = np.percentile(took, [50, 95]) * 1000
        print(f"chunks of {chunk_ms:g} ms: 100 ms of audio took {p50:.0f} ms (p50), {p95:.0f} ms (p95)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rows = [each for frames, most in CONDITIONS for each in measured(given.data, frames, most)]
    table = Table("", COLUMNS, rows).to_markdown().strip()
    print(table)
    if given.output is not None:
        stamp = Stamp.here("python -m benchmarks.live_speakers --data DIR")
        given.output.write_text(f"{INTRODUCTION}\n{table}\n\n{stamp.summary()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
