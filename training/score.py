"""Score a trained folder or a bundle on the public test sets, from the lossless audio, and pick the demo clips.

    python -m training.score training/runs/first --data ../shared/data
    python -m training.score demo-asr
    python -m training.score training/runs/demo-quartznet
    python -m training.score demo-transducer --search modified-beam --packs training/data/real.zip
    python -m training.score training/runs/first --clips training/runs/clips --select 10 --to src/tritone/corpus/clips

Greedy search or, of a bundle, the one asked for; with full context and in chunks. With `--packs`, the development sets
instead, on which settings are chosen. WeNet's model may be a folder of the trainer; all others have to be bundles.
Intervals are 95 % bootstrap intervals over utterances.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import soundfile
import torch
import yaml

import tritone
from training.corpus import Corpus, to_int16
from training.scoring import Transcriber, Utterance, dev_sets, evaluate, network_modes
from training.units import Units
from tritone.evaluate.bootstrap import rate_interval
from tritone.families.layers.fbank import Fbank
from tritone.families.wenet.config import parse_config
from tritone.families.wenet.model import AsrModel
from tritone.search.options import SearchMode

TARRED = {"an4": "an4.tar", "fsdd": "fsdd.tar", "speech_commands": "speech_commands.tar"}
LISTED = {"fsdd_strings": "fsdd/strings", "an4_long": "an4/long_test"}  # folders with wav.scp and trans.txt


def test_sets(data: Path) -> dict[str, list[Utterance]]:
    """The public test parts: AN4, FSDD, Speech Commands, FSDD strings, and AN4's long recordings."""
    sets = {f"{folder}_test": tarred_set(data / folder, name) for folder, name in TARRED.items()}
    return {**sets, **{name: listed_set(data / folder) for name, folder in LISTED.items()}}


def tarred_set(folder: Path, tar: str, split: str = "test") -> list[Utterance]:
    """Recordings of one part of a corpus folder."""
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    by_path = {row["path"]: row for row in rows if row["split"] == split}
    utterances = []
    with tarfile.open(folder / tar) as archive:
        for member in archive:
            row = by_path.get(member.name.removeprefix("./"))
            stream = archive.extractfile(member) if row else None
            if row is not None and stream is not None:
                utterances.append(utterance(row["id"], io.BytesIO(stream.read()), row["text"]))
    if len(utterances) != len(by_path):
        raise ValueError(
            f"{folder / tar} holds {len(utterances)} of the {len(by_path)} {split} recordings in metadata.jsonl"
        )
    return utterances


def listed_set(folder: Path) -> list[Utterance]:
    """Recordings of a folder in Kaldi form."""
    paths = dict(line.split(maxsplit=1) for line in (folder / "wav.scp").read_text(encoding="utf-8").splitlines())
    texts = dict(line.split(maxsplit=1) for line in (folder / "trans.txt").read_text(encoding="utf-8").splitlines())
    return [utterance(name, folder / path, texts[name]) for name, path in paths.items()]


def utterance(name: str, source: Any, text: str) -> Utterance:
    waveform, rate = soundfile.read(source, dtype="float32")
    return Utterance(id=name, waveform=to_int16(waveform, rate), text=text)


def load_model(folder: Path) -> AsrModel:
    """The network of a trained folder, ready to score."""
    model = AsrModel(parse_config(yaml.safe_load((folder / "train.yaml").read_text(encoding="utf-8"))))
    model.load_state_dict(torch.load(folder / "final.pt", map_location="cpu", weights_only=True))
    return model.eval()


def bundle_modes(bundle: Path, search: SearchMode = "greedy", beam: int = 0) -> dict[str, Transcriber]:
    """Transcription by a bundle's own pipelines, offline ("full") and, where it can, streaming ("chunk")."""
    recognizer = tritone.load(bundle, search=search, beam=beam)

    def as_float(waveforms: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [waveform.astype(np.float32) / 32768.0 for waveform in waveforms]

    def offline(waveforms: Sequence[np.ndarray]) -> list[str]:
        return [transcript.text for transcript in recognizer.transcribe(as_float(waveforms))]

    def streaming(waveforms: Sequence[np.ndarray]) -> list[str]:
        texts = []
        for waveform in as_float(waveforms):
            with recognizer.stream() as stream:
                stream.accept(waveform)
                texts.append(stream.finish().text)
        return texts

    return {"full": offline} | ({"chunk": streaming} if recognizer.bundle.has("streaming_encoder") else {})


def select_clips(results: dict[str, Any], folder: Path, wanted: int, target: Path) -> int:
    """Copy clips that both modes recognise: as many kinds of voices as possible, at most `wanted`; returns how many."""
    wrong = {row["id"] for mode in results["clips"].values() for row in mode["wrong"]}
    rows = [json.loads(line) for line in (folder / "clips.jsonl").read_text(encoding="utf-8").splitlines()]
    right = [row for row in rows if row["file"] not in wrong]
    chosen: list[dict[str, str]] = []
    # In rounds over the voices, so that every voice is heard before one is heard twice.
    while right and len(chosen) < wanted:
        for voice in dict.fromkeys(row["voice"] for row in right):
            if len(chosen) < wanted:
                chosen.append(next(row for row in right if row["voice"] == voice))
                right.remove(chosen[-1])
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.flac"):
        old.unlink()
    renamed = []
    for number, row in enumerate(chosen, 1):
        name = f"clip-{number:02d}.flac"
        shutil.copyfile(folder / row["file"], target / name)
        renamed.append(json.dumps({**row, "file": name}) + "\n")
    (target / "clips.jsonl").write_text("".join(renamed), encoding="utf-8")
    return len(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="output folder of training.train, or a bundle")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--packs", type=Path, nargs="+", help="score the development sets of these packs instead")
    parser.add_argument("--search", default="greedy", choices=get_args(SearchMode), help="of a bundle")
    parser.add_argument("--beam", type=int, default=0, help="of a bundle's search; 0 takes what is usual")
    parser.add_argument("--clips", type=Path, help="score the candidate clips in this folder instead")
    parser.add_argument("--select", type=int, default=0, help="copy this many recognised clips")
    parser.add_argument("--to", type=Path, default=Path("src/tritone/corpus/clips"))
    parser.add_argument("--chunk-size", type=int, default=16, help="encoder frames; a bundle has its own")
    parser.add_argument("--left-chunks", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write everything, wrong utterances included, as JSON")
    arguments = parser.parse_args()

    if arguments.packs is not None:
        sets = dev_sets(Corpus.load(arguments.packs, {"dev"}))
    elif arguments.clips is None:
        sets = test_sets(arguments.data)
    else:
        rows = [json.loads(line) for line in (arguments.clips / "clips.jsonl").read_text(encoding="utf-8").splitlines()]
        sets = {"clips": [utterance(row["file"], arguments.clips / row["file"], row["text"]) for row in rows]}
    if (arguments.model / "final.pt").is_file():
        sizes = {"chunk_size": arguments.chunk_size, "left_chunks": arguments.left_chunks}
        modes = network_modes(load_model(arguments.model), Fbank(), Units(), torch.device("cpu"), **sizes)
    else:
        modes = bundle_modes(arguments.model, arguments.search, arguments.beam)
    results = evaluate(sets, modes)
    print("| set | words | mode | errors | WER % | 95 % interval |\n| --- | --- | --- | --- | --- | --- |")
    for name, of_mode in results.items():
        for mode, result in of_mode.items():
            errors, words = zip(*result["counts"], strict=True)
            low, high = rate_interval(errors, words)
            rate = f"{100 * result['wer']:.2f} | {100 * low:.2f} .. {100 * high:.2f}"
            print(f"| {name} | {result['words']} | {mode} | {result['errors']} | {rate} |")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if arguments.clips is not None and arguments.select:
        count = select_clips(results, arguments.clips, arguments.select, arguments.to)
        print(f"{arguments.to}: {count} clips that are recognised with full context and in chunks")


if __name__ == "__main__":
    main()
