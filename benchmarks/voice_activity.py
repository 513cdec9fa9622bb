"""How well voice activity is found in real speech with known boundaries, without noise and in it.

    python -m benchmarks.voice_activity --data DIR --bundle vad [--output docs/performance/voice-activity]

`--data` has folders an4, librispeech_mini and noise, each a tar of audio and metadata.jsonl with `path`, the path
inside the tar. Recordings are joined from the test utterances of one speaker each (`benchmarks.joined`), cut to
their speech, with pauses of 0.5 to 3 s, brought to -26 dBFS; the truth is where the clean audio is loud, so pauses of
0.3 s and more within an utterance are silence too. Noise is added afterwards: the truth does not change with it.
Beside the detector stands a threshold on the level, 10 dB above the quietest tenth, with the same rules for segments.
Nothing is timed and nothing is random, so that the same command has the same figures on every machine.
Writes <output>.json and <output>.md.
"""

import argparse
import json
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial, reduce
from operator import add
from pathlib import Path

import numpy as np

import tritone
from benchmarks.joined import Joined, JoinOptions, Part, join
from tritone.activity import SpeechSegment
from tritone.audio.files import read_audio
from tritone.audio.waveform import Waveform
from tritone.evaluate.activity import ActivityScore, score_activity
from tritone.pipelines.voice_activity import in_seconds
from tritone.report.stamp import Stamp
from tritone.report.table import Column, Table
from tritone.search.activity import ActivityOptions, segments_of

RATE = 16000
CORPORA = ("an4", "librispeech_mini")
RECORDED = ("kitchen", "washing_machine")
LEVELS_DB = (20, 10, 5, 0)
VOICES = 6  # of the babble
CHUNK_S = 0.16  # of streams
COLLAR_S = 0.1
COLUMNS = (
    Column("corpus", "speech"),
    Column("noise", "noise"),
    Column("snr_db", "SNR (dB)"),
    Column("detector", "detector"),
    Column("missed", "missed", digits=2, scale=100, unit="%"),
    Column("false_alarm", "false alarm", digits=2, scale=100, unit="%"),
    Column("detection_error", "detection error", digits=2, scale=100, unit="%"),
    Column("with_collar", "with collar", digits=2, scale=100, unit="%"),
    Column("start_ms", "starts", digits=0, unit="ms"),
    Column("end_ms", "ends", digits=0, unit="ms"),
    Column("p95_ms", "off by, p95", digits=0, unit="ms"),
    Column("unmatched", "boundaries missed / false"),
)

Segments = Sequence[Sequence[SpeechSegment]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A detector in one condition.

    Rates are fractions; `with_collar`: detection error but for 0.1 s around boundaries. `start_ms` and `end_ms`:
    medians of how much later boundaries were found, negative: earlier; `p95_ms`: of how far they are off, either way.
    """

    corpus: str
    noise: str
    snr_db: str
    detector: str
    missed: float
    false_alarm: float
    detection_error: float
    with_collar: float
    start_ms: float | None
    end_ms: float | None
    p95_ms: float | None
    unmatched: str


def recordings(data: Path, corpus: str, wanted: Mapping[str, str]) -> dict[str, list[Part]]:
    """The recordings of a corpus that have all these fields in its metadata, by speaker."""
    lines = (data / corpus / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    rows = {each["path"]: each for each in map(json.loads, lines) if wanted.items() <= each.items()}
    found: dict[str, list[Part]] = defaultdict(list)
    with tarfile.open(data / corpus / f"{corpus}.tar") as archive:
        for member in archive:
            row = rows.get(member.name.removeprefix("./"))
            stream = archive.extractfile(member) if row is not None else None
            if row is not None and stream is not None:
                speaker = row.get("speaker", "")
                samples = read_audio(stream.read(), RATE)
                found[speaker].append(Part(id=row["id"], samples=samples, text=row["text"], speaker=speaker))
    return {speaker: sorted(parts, key=lambda part: part.id) for speaker, parts in sorted(found.items())}


def noises(data: Path) -> Iterator[tuple[str, Waveform | None]]:
    """Noises by name; None is white noise."""
    yield "white", None
    for name in RECORDED:
        (parts,) = recordings(data, "noise", {"id": name}).values()
        yield name, parts[0].samples
    voices = [
        part.samples for parts in recordings(data, "librispeech_mini", {"split": "dev"}).values() for part in parts
    ]
    longest = 30 * RATE
    mixed = np.zeros(longest, np.float32)
    for index in range(VOICES):  # each of several utterances, so that nobody is heard alone
        row = np.concatenate(voices[index::VOICES])
        row = np.resize(row, longest) / np.sqrt(np.square(row).mean())
        mixed += row.astype(np.float32)
    yield f"babble of {VOICES}", mixed


def by_level(waveforms: Sequence[Waveform]) -> Segments:
    """The threshold on the level: what the detector is compared with."""
    frame = 512
    options = ActivityOptions()
    found = []
    for samples in waveforms:
        count = len(samples) // frame
        power = np.square(samples[: count * frame].reshape(count, frame).astype(np.float64)).mean(axis=1)
        levels = 10 * np.log10(power + 1e-12)
        loud = (levels > np.percentile(levels, 10) + 10).astype(float)
        segments = segments_of(loud.tolist(), options, frame_samples=frame, sample_rate=RATE, num_samples=len(samples))
        found.append(in_seconds(segments, RATE))
    return found


VARIANTS: Mapping[str, Mapping[str, float]] = {
    "silero": {},
    "silero, threshold 0.3": {"threshold": 0.3},
    "silero, threshold 0.7": {"threshold": 0.7},
    "silero, min_silence_s 0.3": {"min_silence_s": 0.3},
}


def found_by(
    detector: tritone.Detector, waveforms: Sequence[Waveform], *, more: bool
) -> Iterator[tuple[str, Segments]]:
    """What each detector finds; `more`: also with other options and in streams."""
    probabilities = [each.get().probabilities for each in detector.detect(waveforms)]
    frame = round(detector.frame_s * RATE)
    for name, options in VARIANTS.items() if more else [("silero", {})]:
        yield (
            name,
            [
                in_seconds(
                    segments_of(
                        [] if row is None else row.tolist(),
                        ActivityOptions().changed(options),
                        frame_samples=frame,
                        sample_rate=RATE,
                        num_samples=len(samples),
                    ),
                    RATE,
                )
                for row, samples in zip(probabilities, waveforms, strict=True)
            ],
        )
    if more:
        yield "silero, stream", [streamed(detector, samples) for samples in waveforms]
    yield "level", by_level(waveforms)


def streamed(detector: tritone.Detector, samples: Waveform) -> list[SpeechSegment]:
    """The segments of a stream."""
    size = round(CHUNK_S * RATE)
    with detector.stream() as stream:
        chunks = (samples[start : start + size] for start in range(0, len(samples), size))
        segments = [each for chunk in chunks for each in stream.accept(chunk).segments]
        return [*segments, *stream.finish().segments]


def measure(known_of: Sequence[Joined], found: Segments) -> tuple[ActivityScore, ActivityScore]:
    """The pooled score of a detector, without a collar and with one."""
    plain, forgiving = (
        reduce(
            add,
            (
                score_activity(known.speech, segments, known.duration_s, collar_s=collar_s)
                for known, segments in zip(known_of, found, strict=True)
            ),
        )
        for collar_s in (0.0, COLLAR_S)
    )
    return plain, forgiving


def rows_of(data: Path, bundle: Path, corpus: str) -> list[Row]:
    """All conditions of a corpus."""
    rows: list[Row] = []
    detector = tritone.load(bundle, threads=1)  # others may use the machine
    noisy = list(noises(data))
    speakers = recordings(data, corpus, {"split": "test"})
    conditions: list[tuple[str, int | None, Waveform | None]] = [("none", None, None)]
    conditions += [(name, level, noise) for name, noise in noisy for level in LEVELS_DB]
    for name, level, noise in conditions:
        joined = [
            join(
                parts,
                sample_rate=RATE,
                options=JoinOptions(pauses_s=(0.5, 3.0), trim=True, level_dbfs=-26, snr_db=level, seed=seed),
                noise=noise,
            )
            for seed, parts in enumerate(speakers.values())
        ]
        waveforms = [samples for samples, _ in joined]
        for name_of, found in found_by(detector, waveforms, more=level in (None, 5)):
            score, forgiving = measure([known for _, known in joined], found)
            level_of = "-" if level is None else str(level)
            rows.append(row_of(score, forgiving, corpus=corpus, noise=name, snr_db=level_of, detector=name_of))
        minutes = sum(known.duration_s for _, known in joined) / 60
        speech = sum(each.duration_s for _, known in joined for each in known.speech) / 60
        print(f"{corpus}, {name}, {level}: {minutes:.1f} minutes, {speech:.1f} of speech", file=sys.stderr, flush=True)
    return rows


def row_of(score: ActivityScore, forgiving: ActivityScore, **condition: str) -> Row:
    """The figures of a condition, from its scores without a collar and with one."""
    starts, ends = (1000 * float(np.median(each)) if each else None for each in (score.starts, score.ends))
    matched = len(score.starts) + len(score.ends)
    return Row(
        **condition,
        missed=score.missed,
        false_alarm=score.false_alarm,
        detection_error=score.detection_error,
        with_collar=forgiving.detection_error,
        start_ms=starts,
        end_ms=ends,
        p95_ms=1000 * score.boundary_error_s(95) if matched else None,
        unmatched=f"{score.missed_boundaries} / {score.false_boundaries} of {matched + score.missed_boundaries}",
    )


def page(rows: Sequence[Row], stamp: Stamp) -> str:
    """The figures as a page."""
    table = Table("", COLUMNS, [asdict(row) for row in rows])
    return (
        "# Voice activity in real speech\n\n"
        "Missed: of the seconds of speech. False alarm: of the seconds of silence. Detection error: both by the "
        f"seconds of speech; with a collar, what is within {COLLAR_S:g} s of a boundary of the truth is not scored. "
        "Starts and ends: how much later than the truth, the median of those found within 0.5 s of it (negative: "
        "earlier), beside how far the worst twentieth is off, and how many were not found or are none. "
        "`level` is a threshold on the level, for comparison. What follows from it is in "
        "[voice-activity.md](../applications/voice-activity.md).\n\n"
        f"{table.to_markdown().strip()}\n\n{stamp.summary()}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("docs/performance/voice-activity"))
    given = parser.parse_args()
    with ProcessPoolExecutor(len(CORPORA)) as pool:
        rows = [row for found in pool.map(partial(rows_of, given.data, given.bundle), CORPORA) for row in found]
    stamp = Stamp.here("python -m benchmarks.voice_activity --data DIR --bundle vad")
    held = {"stamp": asdict(stamp), "rows": [asdict(row) for row in rows]}
    given.output.with_suffix(".json").write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    given.output.with_suffix(".md").write_text(page(rows, stamp), encoding="utf-8")


if __name__ == "__main__":
    main()
