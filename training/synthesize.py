"""Synthetic speech for training and for the demo's clips, by many voices of free synthesisers.

    python -m training.synthesize --output training/data/synthetic.zip          # training speech
    python -m training.synthesize --clips training/runs/clips --candidates 48    # candidates for the demo clips

Needs the programs espeak-ng, flite and festival (Debian: espeak-ng flite festival festvox-us-slt-hts festvox-kallpc16k
festvox-kdlpc16k). Texts of clips come from another seed and never equal a training text.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from training.corpus import SAMPLE_RATE, Recording, encode_opus, to_int16, write_pack
from training.grammar import sentence

TRAIN_SEED, CLIP_SEED = 1991, 7_2026
BITRATE = 20_000  # bit/s
CLIP_SECONDS = (2.0, 6.0)
# One kind of text a clip, in turn.
CLIP_KINDS = ["digits", "date", "spelled", "command", "phone", "number", "mixture", "name"]

# Respelt so that synthesisers say the letter's name: "a" alone would become the article.
LETTER_NAMES = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        [
            *["ay", "bee", "see", "dee", "ee", "ef", "jee", "aitch", "eye", "jay", "kay", "el", "em", "en", "owe"],
            *["pee", "cue", "are", "ess", "tee", "you", "vee", "double you", "ex", "why", "zee"],
        ],
        strict=True,
    )
)
RESPELT = {**LETTER_NAMES, "rubout": "rub out", "oh": "oh"}

ESPEAK_ACCENTS = [
    "en-us",
    "en-us",
    "en-us",
    "en-gb",
    "en-gb-x-rp",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-us-nyc",
]
ESPEAK_VARIANTS = [
    *["m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5", "klatt", "klatt2", "klatt4"],
    *[
        "Alicia",
        "Andrea",
        "Andy",
        "Annie",
        "belinda",
        "benjamin",
        "david",
        "ed",
        "edward",
        "Gene",
        "john",
        "Lee",
        "linda",
    ],
    *["Michael", "paul", "rob", "steph", "travis", "victor", "max", "Mario", "norbert"],
]
FLITE_VOICES = {"slt": 175, "rms": 95, "awb": 125, "kal16": 105}  # usual pitch, Hz
FESTIVAL_VOICES = ["cmu_us_slt_arctic_hts", "kal_diphone", "ked_diphone"]
# Whose recordings voices of two programs are made of: the demo of speaker models compares voices.
SPEAKERS = {
    **{"flite/slt": "slt", "festival/cmu_us_slt_arctic_hts": "slt"},
    **{"flite/kal16": "kal", "festival/kal_diphone": "kal"},
}


@dataclass(frozen=True, kw_only=True)
class Voice:
    """One way to say a text. `name` says who speaks; rate is relative (1 = usual), pitch relative (1 = usual)."""

    engine: str
    name: str
    rate: float
    pitch: float

    @property
    def label(self) -> str:
        return f"{self.engine}/{self.name}"


def random_voice(random_: random.Random, engines: tuple[float, float, float] = (0.45, 0.4, 0.15)) -> Voice:
    """Draw a voice; `engines` are the shares of espeak, flite and festival."""
    engine = random_.choices(["espeak", "flite", "festival"], weights=engines)[0]
    if engine == "espeak":
        name = f"{random_.choice(ESPEAK_ACCENTS)}+{random_.choice(ESPEAK_VARIANTS)}"
    else:
        name = random_.choice(list(FLITE_VOICES) if engine == "flite" else FESTIVAL_VOICES)
    return Voice(engine=engine, name=name, rate=random_.uniform(0.8, 1.2), pitch=random_.uniform(0.8, 1.25))


def spoken_form(text: str, random_: random.Random) -> str:
    """Spell letters out by name and put in a few commas, as people pause now and then."""
    pause = random_.choice([0.0, 0.05, 0.15, 0.4])
    words = [RESPELT.get(word, word) for word in text.split()]
    return " ".join(word + ("," if random_.random() < pause else "") for word in words[:-1]) + " " + words[-1] + "."


def speak(text: str, voice: Voice) -> np.ndarray:
    """Synthesise respelt text; int16 at 16 kHz, with the silence at both ends cut to 0.1 s.

    Raises:
        RuntimeError: the synthesiser is not installed, failed or gave no sound.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        command, stdin = _command(text, voice, path)
        if shutil.which(command[0]) is None:
            raise RuntimeError(
                f"{command[0]} is not installed; see the head of training/synthesize.py for the packages"
            )
        done = subprocess.run(command, input=stdin, capture_output=True, encoding="utf-8", check=False)
        if done.returncode or not path.exists():
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip() or 'no output'}")
        waveform, rate = soundfile.read(path, dtype="float32")
    samples = trimmed(to_int16(waveform, rate))
    if len(samples) == 0:
        raise RuntimeError(f"{voice.label} said nothing for {text!r}")
    return samples


def trimmed(samples: np.ndarray) -> np.ndarray:
    """int16 at 16 kHz with the silence at both ends cut to 0.1 s; nothing of what is silent throughout."""
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 300)
    if len(loud) == 0:
        return samples[:0]
    margin = SAMPLE_RATE // 10
    return samples[max(0, loud[0] - margin) : loud[-1] + margin]


def _command(text: str, voice: Voice, path: Path) -> tuple[list[str], str | None]:
    if voice.engine == "espeak":
        speed, pitch = str(round(155 * voice.rate)), str(round(50 + 100 * (voice.pitch - 1.0)))
        return ["espeak-ng", "-v", voice.name, "-s", speed, "-p", pitch, "-w", str(path), text], None
    if voice.engine == "flite":
        hertz = FLITE_VOICES[voice.name] * voice.pitch
        settings = ["--setf", f"duration_stretch={1 / voice.rate:.3f}", "--setf", f"int_f0_target_mean={hertz:.1f}"]
        return ["flite", "-voice", voice.name, *settings, "-t", text, "-o", str(path)], None
    stretch = f"(Parameter.set 'Duration_Stretch {1 / voice.rate:.3f})"
    return ["text2wave", "-eval", f"(voice_{voice.name})", "-eval", stretch, "-o", str(path)], text


def training_items(count: int) -> Iterator[tuple[Recording, bytes]]:
    """Synthesise `count` utterances, each by a voice of its own."""
    random_ = random.Random(TRAIN_SEED)
    jobs = []
    for number in range(count):
        text = sentence(random_)
        jobs.append((number, text, spoken_form(text, random_), random_voice(random_)))

    def render(job: tuple[int, str, str, Voice]) -> tuple[Recording, bytes]:
        number, text, spoken, voice = job
        samples = speak(spoken, voice)
        recording = Recording(
            id=f"synthetic/{number:05d}",
            text=text,
            speaker=f"synthetic/{number:05d}",
            corpus="synthetic",
            split="train",
            sample_rate=SAMPLE_RATE,
            num_samples=len(samples),
        )
        return recording, encode_opus(samples, SAMPLE_RATE, BITRATE)

    with ThreadPoolExecutor() as pool:
        yield from pool.map(render, jobs)


def write_clips(folder: Path, candidates: int, training_count: int) -> int:
    """Write candidate demo clips (FLAC) and clips.jsonl; returns how many there are."""
    random_ = random.Random(TRAIN_SEED)
    trained = set()
    for _ in range(training_count):  # the same draws as training_items, so the same texts
        text = sentence(random_)
        spoken_form(text, random_)
        random_voice(random_)
        trained.add(text)
    random_ = random.Random(CLIP_SEED)
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, str]] = []
    while len(rows) < candidates:
        text = sentence(random_, CLIP_KINDS[len(rows) % len(CLIP_KINDS)])
        voice = random_voice(random_, engines=(0.3, 0.5, 0.2))
        spoken = spoken_form(text, random_)
        if text in trained:
            continue
        samples = speak(spoken, voice)
        if not CLIP_SECONDS[0] <= len(samples) / SAMPLE_RATE <= CLIP_SECONDS[1]:
            continue
        name = f"clip-{len(rows):02d}.flac"
        soundfile.write(folder / name, samples, SAMPLE_RATE)
        row = {"file": name, "text": text, "voice": voice.label}
        rows.append(row | ({"speaker": SPEAKERS[voice.label]} if voice.label in SPEAKERS else {}))
    (folder / "clips.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("training/data/synthetic.zip"))
    parser.add_argument("--count", type=int, default=1250, help="training utterances (about 2.7 s each)")
    parser.add_argument("--clips", type=Path, help="write candidate demo clips into this folder instead")
    parser.add_argument("--candidates", type=int, default=48)
    arguments = parser.parse_args()
    if arguments.clips is not None:
        count = write_clips(arguments.clips, arguments.candidates, arguments.count)
        print(f"{arguments.clips}: {count} clips")
        return
    count = write_pack(arguments.output, training_items(arguments.count))
    print(f"{arguments.output}: {count} utterances, {arguments.output.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
