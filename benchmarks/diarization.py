"""How well speakers are told apart in recordings joined from utterances of known people.

    python -m benchmarks.diarization --data DIR --vad vad [--output docs/performance/diarization]
    python -m benchmarks.diarization --data DIR --vad vad --overlap

`--data` has folders an4 and librispeech_mini, each a tar of audio and metadata.jsonl. Recordings are joined from whole
test utterances of several people in random turns (`benchmarks.joined`); the truth is where the clean utterances are
loud. Half of the people were used to choose defaults (`CHOSEN`), the others for nothing. Nothing is timed and nothing
is random, so that the same command has the same figures on every machine. Writes <output>.json and <output>.md.

`--overlap` has recordings alone in which people talk at once. No weights of a segmentation network are at hand: an
oracle stands for one, which knows the truth and is limited as pyannote's segmentation-3.0 is, to three speakers of a
window of 10 s, two of them at once (`Oracle`).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tritone
from benchmarks.joined import Joined, JoinOptions, Part, join
from benchmarks.voice_activity import RATE, recordings
from tritone.activity import SpeechSegment
from tritone.audio.waveform import Waveform
from tritone.diarization import Diarizer, SpeakerOptions, score_turns, sum_errors
from tritone.diarization.listening import GivenSpeechStream
from tritone.diarization.segmented import SHIFT_S
from tritone.diarization.voices import Floats
from tritone.formats.rttm import Turn
from tritone.report.stamp import Stamp
from tritone.report.table import Column, Table

CORPORA = ("an4", "librispeech_mini")
CHOSEN = frozenset({"fcaw", "fjlp", "marh", "mdms2", "menk", "1688", "1998", "2033"})
MEETINGS = {"an4": (1, 2, 3, 5), "librispeech_mini": (2, 3), "both": (8,)}  # people in each recording
UTTERANCES = 18  # in a recording, as far as people have them
PAUSES_S = {"": (0.2, 1.0), "overlapped": (-1.0, 0.5)}
OVERLAPS_S = {"overlapped": (-1.0, 0.5), "overlapped more": (-3.0, -0.5), "overlapped most": (-4.0, -1.5)}
OVERLAP_MEETINGS = {"both": (3, 5, 8)}
UNFIT_COSINE = 0.3  # `merge_cosine` as somebody may have it who has not chosen it for the model
COLLAR_S = 0.25
NUMBERS = ("found", "given")
METHODS = ("agglomerative", "spectral", "stream")
SPEECH = ("known", "silero")
LOCAL, AT_ONCE = 3, 2  # speakers of a window of the oracle, and of them at once
COLUMNS = (
    Column("people", "people"),
    Column("corpus", "recordings of"),
    Column("count", "recordings"),
    Column("minutes", "minutes", digits=1),
    Column("speech", "speech"),
    Column("method", "method"),
    Column("number", "number of speakers"),
    Column("der", "DER", digits=2, scale=100, unit="%"),
    Column("der_collar", "DER with collar", digits=2, scale=100, unit="%"),
    Column("confusion", "of it confusion", digits=2, scale=100, unit="%"),
    Column("jer", "JER", digits=2, scale=100, unit="%"),
    Column("right", "number right"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to diarize some recordings. Rates are fractions, pooled over the recordings."""

    people: str
    corpus: str
    count: int
    minutes: float
    speech: str
    method: str
    number: str
    der: float
    der_collar: float
    confusion: float
    jer: float
    right: str


@dataclass(frozen=True)
class Meeting:
    """A recording of so many people."""

    samples: Waveform
    known: Joined
    people: int


def meeting(speakers: dict[str, list[Part]], people: int, pauses_s: tuple[float, float]) -> Meeting:
    """Utterances of some of the speakers, in random turns; nobody twice in a row where somebody else is left."""
    generator = np.random.default_rng(people)
    names = generator.choice(sorted(speakers), people, replace=False).tolist()
    left = {name: [speakers[name][index] for index in generator.permutation(len(speakers[name]))] for name in names}
    parts: list[Part] = []
    while len(parts) < UTTERANCES and any(left.values()):
        able = [name for name in names if left[name]]
        others = [name for name in able if not parts or name != parts[-1].speaker]
        parts.append(left[str(generator.choice(others or able))].pop())
    samples, known = join(parts, sample_rate=RATE, options=JoinOptions(pauses_s=pauses_s, seed=people))
    return Meeting(samples, known, people)


class Cached:
    """The embedder, with what it has embedded: methods share windows."""

    def __init__(self, bundle: str) -> None:
        self._embedder = tritone.load(bundle)
        self._known: dict[bytes, Floats] = {}

    def __call__(self, waveforms: Sequence[Waveform]) -> Floats:
        keys = [sha256(each.tobytes()).digest() for each in waveforms]
        new = {key: each for key, each in zip(keys, waveforms, strict=True) if key not in self._known}
        if new:
            self._known.update(zip(new, self._embedder.embed(list(new.values()), RATE), strict=True))
        return np.stack([self._known[key] for key in keys])


def turns_of(each: Meeting, embed: Cached, speech: Sequence[SpeechSegment], method: str, number: str) -> list[Turn]:
    """The turns that are found in a meeting."""
    options = SpeakerOptions(
        num_speakers=each.people if number == "given" else None,
        method="spectral" if method == "spectral" else "agglomerative",
    )
    if method.startswith("segmentation"):
        if method != "segmentation":
            options = replace(options, merge_cosine=UNFIT_COSINE)
        diarizer = Diarizer(embed, sample_rate=RATE, segmenter=Oracle(each.known), options=options)
        return list(diarizer.diarize(each.samples).turns)
    diarizer = Diarizer(embed, sample_rate=RATE, listen=lambda: GivenSpeechStream(speech, RATE), options=options)
    if method == "stream":
        return list(diarizer.play(each.samples))
    return list(diarizer.diarize(each.samples, speech=speech).turns)


class Oracle:
    """A segmentation network that is never wrong, of one meeting, whose windows it gets one after the other."""

    window_samples, frame_samples, field_samples = 10 * RATE, 270, 991
    frames = 589

    def __init__(self, known: Joined) -> None:
        self._turns = known.turns("")
        self._window = 0

    def segment(self, windows: Sequence[Waveform]) -> list[Floats]:
        """Those who talk most in each window, by their first words in it; (frames, LOCAL) each."""
        return [self._next() for _ in windows]

    def _next(self) -> Floats:
        at = self._window * SHIFT_S + (np.arange(self.frames) * self.frame_samples + self.field_samples / 2) / RATE
        self._window += 1
        rows: dict[str, npt.NDArray[np.bool_]] = {}
        for turn in self._turns:
            talks = (at >= turn.start_s) & (at < turn.end_s)
            if talks.any():
                rows[turn.speaker] = rows[turn.speaker] | talks if turn.speaker in rows else talks
        most = sorted(rows.values(), key=lambda row: -row.sum())[:LOCAL]
        found = np.zeros((self.frames, LOCAL), np.float32)
        for column, row in enumerate(sorted(most, key=lambda row: int(row.argmax()))):
            found[:, column] = row & (found.sum(axis=1) < AT_ONCE)
        return found


def heard(each: Meeting, detector: tritone.Detector) -> Sequence[SpeechSegment]:
    """The speech that the detector finds in a meeting, as a stream."""
    with detector.stream(RATE) as stream:
        return (*stream.accept(each.samples).segments, *stream.finish().segments)


def rows_of(data: Path, vad: Path, bundle: str, *, overlap: bool = False) -> Iterator[Row]:
    """All conditions; or those of people who talk at once, with the oracle of them too."""
    embed, detector = Cached(bundle), tritone.load(vad)
    people = {corpus: recordings(data, corpus, {"split": "test"}) for corpus in CORPORA}
    people["both"] = {name: parts for found in list(people.values()) for name, parts in found.items()}
    for half in ("chosen", "held out"):
        for corpus, counts in (OVERLAP_MEETINGS if overlap else MEETINGS).items():
            speakers = {name: parts for name, parts in people[corpus].items() if (name in CHOSEN) == (half == "chosen")}
            for pauses, pauses_s in (OVERLAPS_S if overlap else PAUSES_S).items():
                if pauses and not overlap and (corpus != "both" or half == "chosen"):
                    continue
                meetings = [meeting(speakers, count, pauses_s) for count in counts]
                minutes = sum(len(each.samples) for each in meetings) / RATE / 60
                print(f"{half}, {corpus} {pauses}: {minutes:.1f} minutes", file=sys.stderr, flush=True)
                unfit = (f"segmentation, merge-cosine {UNFIT_COSINE:g}", "found")
                for method, number in (*(("segmentation", each) for each in NUMBERS), unfit) if overlap else ():
                    found = [turns_of(each, embed, (), method, number) for each in meetings]
                    named = f"{corpus} {pauses}".strip()
                    yield row(half, named, minutes, "oracle", method, number, meetings, found)
                for speech in SPEECH:
                    where = [each.known.speech if speech == "known" else heard(each, detector) for each in meetings]
                    for method in METHODS:
                        for number in NUMBERS:
                            if method == "stream" and (speech == "known" or number == "given"):
                                continue
                            found = [
                                turns_of(each, embed, segments, method, number)
                                for each, segments in zip(meetings, where, strict=True)
                            ]
                            yield row(
                                half, f"{corpus} {pauses}".strip(), minutes, speech, method, number, meetings, found
                            )


def row(
    half: str,
    corpus: str,
    minutes: float,
    speech: str,
    method: str,
    given: str,
    meetings: Sequence[Meeting],
    found: Sequence[Sequence[Turn]],
) -> Row:
    """The errors of one way to diarize."""
    pairs = [(each.known.turns(""), turns) for each, turns in zip(meetings, found, strict=True)]
    plain = sum_errors(score_turns(*pair) for pair in pairs)
    forgiving = sum_errors(score_turns(*pair, collar_s=COLLAR_S) for pair in pairs)
    right = sum(
        len({turn.speaker for turn in turns}) == each.people for each, turns in zip(meetings, found, strict=True)
    )
    return Row(
        people=half,
        corpus=corpus,
        count=len(meetings),
        minutes=minutes,
        speech=speech,
        method=method,
        number=given,
        der=plain.der,
        der_collar=forgiving.der,
        confusion=forgiving.confusion_s / forgiving.total_s,
        jer=plain.jer,
        right=f"{right} of {len(meetings)}",
    )


def page(rows: Sequence[Row], stamp: Stamp) -> str:
    """The figures as a page."""
    table = Table("", COLUMNS, [asdict(each) for each in rows])
    return (
        f"# Who speaks when{', and who talk at once' if any(each.speech == 'oracle' for each in rows) else ''}\n\n"
        "`chosen`: people whose recordings were used to choose defaults; `held out`: the others. Speech is known (from "
        "the clean utterances), or found by silero's model. `segmentation`: "
        "speech of several at once, told apart by an oracle in place of a segmentation network, as which it sees three "
        "speakers of 10 s, two of them at once. `stream`: labels as the audio goes on. DER and JER without "
        f"a collar, and DER without {COLLAR_S:g} s before and after every boundary of the truth; "
        "overlapped speech is scored. Number right: recordings in which as many speakers were found as there are. "
        f"What follows from it is in [diarization.md](../applications/diarization.md).\n\n"
        f"{table.to_markdown().strip()}\n\n"
        f"{stamp.summary()}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vad", type=Path, required=True, help="bundle of `tritone export silero`")
    parser.add_argument("--bundle", default="demo-speaker")
    parser.add_argument("--overlap", action="store_true", help="recordings alone in which people talk at once")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    output = given.output or Path(f"docs/performance/diarization{'-overlap' if given.overlap else ''}")
    rows = list(rows_of(given.data, given.vad, given.bundle, overlap=given.overlap))
    flags = f"--bundle {Path(given.bundle).name}{' --overlap' if given.overlap else ''}"
    stamp = Stamp.here(f"python -m benchmarks.diarization --data DIR --vad vad {flags}")
    held = {"stamp": asdict(stamp), "rows": [asdict(each) for each in rows]}
    output.with_suffix(".json").write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    output.with_suffix(".md").write_text(page(rows, stamp), encoding="utf-8")


if __name__ == "__main__":
    main()
