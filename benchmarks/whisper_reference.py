"""What faster-whisper, openai-whisper and transformers make of recordings: the answers that Tritone's are held against.

    python -m benchmarks.whisper_reference faster-whisper --model tiny.en/ --compute int8 --output int8.jsonl \
        ../shared/data/librispeech_mini
    python -m benchmarks.whisper_reference openai-whisper --model tiny.en.pt --output ow.jsonl FOLDER

Greedy at temperature 0. None is a dependency of Tritone: install faster-whisper 1.2.1 (and ctranslate2 4.8.5),
openai-whisper 20250625 or transformers 5.24 in an environment of their own, with soundfile and soxr. A folder has
metadata.jsonl (id, path, text of each recording) beside the recordings or beside a .tar of them, or recordings alone.
Each line of the output is a recording; a second call with the same output goes on where the first one stopped.
"""

import argparse
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

RATE = 16000
Answer = dict[str, Any]
Transcribe = Callable[[np.ndarray], Answer]


def recordings(folder: Path, only: str | None = None) -> Iterator[tuple[str, np.ndarray]]:
    """Recordings by their ids, as (samples,) float32 in [-1, 1] at 16 kHz.

    Args:
        only: of metadata.jsonl those of which a field has a value: "split=test".
    """
    listed = folder / "metadata.jsonl"
    if not listed.is_file():
        for path in sorted(each for each in folder.iterdir() if each.suffix in (".flac", ".wav", ".opus")):
            yield path.stem, _read(path)
        return
    rows = map(json.loads, listed.read_text(encoding="utf-8").splitlines())
    field, _, value = (only or "").partition("=")
    ids = {row["path"]: row["id"] for row in rows if not field or str(row.get(field)) == value}
    for tar in sorted(folder.glob("*.tar")):
        with tarfile.open(tar) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name in ids and (stream := archive.extractfile(member)) is not None:
                    yield ids.pop(name), _read(io.BytesIO(stream.read()))
    for path, id in ids.items():
        yield id, _read(folder / path)


def _read(source: Any) -> np.ndarray:
    waveform, rate = soundfile.read(source, dtype="float32")
    if waveform.ndim != 1:
        raise ValueError(f"expected one channel, got {waveform.shape}")
    resampled = waveform if rate == RATE else soxr.resample(waveform, rate, RATE)
    return np.asarray(resampled, np.float32)


def faster_whisper(arguments: argparse.Namespace) -> Transcribe:
    model = import_module("faster_whisper").WhisperModel(
        str(arguments.model), compute_type=arguments.compute, cpu_threads=arguments.threads
    )

    def transcribe(waveform: np.ndarray) -> Answer:
        found, info = model.transcribe(
            waveform,
            beam_size=arguments.beam,
            temperature=0.0,
            language=arguments.language,
            word_timestamps=arguments.words,
            vad_filter=arguments.vad,
        )
        segments = list(found)
        return {
            "text": "".join(each.text for each in segments).strip(),
            "language": info.language,
            "segments": [[round(each.start, 2), round(each.end, 2), each.tokens] for each in segments],
            "words": [
                [round(float(each.start), 2), round(float(each.end), 2), each.word.strip()]
                for segment in segments
                for each in segment.words or ()
            ],
        }

    return transcribe


def openai_whisper(arguments: argparse.Namespace) -> Transcribe:
    import_module("torch").set_num_threads(arguments.threads)
    model = import_module("whisper").load_model(str(arguments.model), device="cpu")

    def transcribe(waveform: np.ndarray) -> Answer:
        found = model.transcribe(
            waveform,
            fp16=False,
            temperature=0.0,
            beam_size=arguments.beam if arguments.beam > 1 else None,
            language=arguments.language,
            word_timestamps=arguments.words,
        )
        return {
            "text": found["text"].strip(),
            "language": found["language"],
            "segments": [
                [round(each["start"], 2), round(each["end"], 2), each["tokens"]] for each in found["segments"]
            ],
            "words": [
                [round(float(each["start"]), 2), round(float(each["end"]), 2), each["word"].strip()]
                for segment in found["segments"]
                for each in segment.get("words", ())
            ],
        }

    return transcribe


def of_transformers(arguments: argparse.Namespace) -> Transcribe:
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.set_num_threads(arguments.threads)
    processor = transformers.WhisperProcessor.from_pretrained(arguments.model)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(arguments.model).eval()
    asked = {"language": arguments.language, "task": "transcribe"} if model.generation_config.is_multilingual else {}

    def transcribe(waveform: np.ndarray) -> Answer:
        # What is longer than a window is cut by the times that the model writes.
        is_long = len(waveform) > 30 * RATE
        inputs = processor(
            waveform,
            sampling_rate=RATE,
            return_tensors="pt",
            return_attention_mask=True,
            **({"truncation": False, "padding": "longest"} if is_long else {}),
        )
        found = model.generate(**inputs, return_timestamps=True, num_beams=arguments.beam, do_sample=False, **asked)
        [text] = processor.batch_decode(found, skip_special_tokens=True)
        return {"text": text.strip(), "language": arguments.language, "segments": []}

    return transcribe


ENGINES = {"faster-whisper": faster_whisper, "openai-whisper": openai_whisper, "transformers": of_transformers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("folder", type=Path, help="of recordings")
    parser.add_argument(
        "--model", type=Path, required=True, help="a CTranslate2 folder, OpenAI's .pt, or a folder of transformers"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--compute", default="float32", help="of faster-whisper: float32 or int8")
    parser.add_argument("--language", default=None, help="detected if not given")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vad", action="store_true", help="faster-whisper's voice activity first")
    parser.add_argument("--words", action="store_true", help="times of words, which move the bounds of segments")
    parser.add_argument("--only", metavar="FIELD=VALUE", help="recordings of which metadata.jsonl says so")
    arguments = parser.parse_args()
    lines = arguments.output.read_text(encoding="utf-8").splitlines() if arguments.output.is_file() else []
    done = {json.loads(line)["id"] for line in lines}
    transcribe = ENGINES[arguments.engine](arguments)
    with arguments.output.open("a", encoding="utf-8") as file:
        for id, waveform in recordings(arguments.folder, arguments.only):
            if id not in done:
                file.write(json.dumps({"id": id, **transcribe(waveform)}, ensure_ascii=False) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
