"""Write what lies beside this file: a model repository as version 0.1.0 builds it, and what its models answer.

    PYTHONPATH=src:tests python path/to/make.py FOLDER      in a checkout of commit 163ebac, which is version 0.1.0

FOLDER must not exist. What comes out is the same each time.
"""

import json
import shutil
import string
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as triton

import tritone
from serving import Ask, RawClient, quiet_options
from toy import write_toy_bundle
from toy_speaker import write_toy_speaker
from toy_transducer import write_toy_transducer
from tritone.repository import EnsembleOptions, ModelOptions, build_repository
from tritone.server import TritonServer

Waveform = npt.NDArray[np.float32]

CHUNK = 1000  # samples that a stream gets at once
BOTH = ("TRANSCRIPTS", "DETAILS")
LETTERS = string.ascii_lowercase + string.digits
# Of letters and digits as words: "c" and then "d" are likely, "x" is nearly never said, all others are alike. So there
# is one best text and one second best, and none depends on how ties are broken.
LM = "\n".join(
    [
        "\\data\\",
        f"ngram 1={len(LETTERS) + 3}",
        "",
        "\\1-grams:",
        *(f"{ {'c': -0.5, 'd': -0.8, 'x': -9}.get(word, -1) }\t{word}" for word in [*LETTERS, "<unk>", "<s>", "</s>"]),
        "",
        "\\end\\",
        "",
    ]
)
HOTWORDS = "ahoy 9\n"


def waveform(*, asks: bool = False) -> Waveform:
    """Audio that the toy models hear letters in, at 16 kHz, (23200,); the same function is in the test."""
    frames, frame = 36, 640
    places = np.arange(frames)
    tokens = 3 + 7 * places % 26  # letters
    tokens[[4, 8, 33]] = 2  # spaces
    if asks:
        tokens[::5] = 39  # what a transducer is to guess
        tokens[12] = 1  # doubt
    tokens[16:28] = 0  # a pause of 0.48 s
    levels = np.cumsum(tokens) % 40 / 64
    samples = np.arange(frames * frame + 160)
    tone = np.sin(np.pi * samples / 80) / 256  # whole periods in a frame: no model hears it but the speaker's
    return (levels[np.minimum(samples // frame, frames - 1)] + tone).astype(np.float32)


def build(repository: Path) -> None:
    """Write the models, with all that a `config.pbtxt` of theirs can tell."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        letters = write_toy_bundle(folder / "letters", name="letters", decoder=True)
        joined = write_toy_transducer(folder / "joined", name="joined")
        speaker = write_toy_speaker(folder / "speaker", name="speaker")
        staged = write_toy_bundle(folder / "staged", name="staged", streaming=False, stages=True)
        (folder / "letters.arpa").write_text(LM, encoding="utf-8")
        (folder / "names.txt").write_text(HOTWORDS, encoding="utf-8")
        helped = ModelOptions(
            search="prefix-beam",
            beam=40,
            nbest=2,
            lm=str(folder / "letters.arpa"),
            lm_unit="token",
            lm_weight=0.5,
            word_bonus=3,
            hotwords=str(folder / "names.txt"),
            threads=1,
            max_batch_size=8,
            preferred_batch_sizes=(4, 8),
            queue_delay_ms=2.5,
            queue_limit=64,
            queue_timeout_ms=30000,
            max_audio_s=30,
        )
        live = ModelOptions(
            search="rescoring",
            ctc_weight=4,
            reverse_weight=0.25,
            timestamps=False,
            chunk_size=4,
            left_chunks=1,
            endpoint_silence_s=5,
            endpoint_silence_after_speech_s=0.4,
            endpoint_max_segment_s=20,
            runtime="onnxruntime",
            precision="fp32",
            max_streams=4,
            stream_idle_timeout_s=30,
        )
        fast = ModelOptions(
            search="fast-beam", max_states=16, max_contexts=4, blank_penalty=0.5, temperature=1.5, nbest=2
        )
        build_repository([letters], repository, modes="offline", options=helped)
        build_repository([letters], repository, names=["letters-streaming"], modes="streaming", options=live)
        build_repository([joined], repository, modes="offline", options=fast)
        build_repository([joined], repository, names=["joined-streaming"], modes="streaming")
        build_repository([speaker], repository, options=ModelOptions(window_s=0.5, shift_s=0.2))
        build_repository([staged], repository, layout=EnsembleOptions())


def in_process(repository: Path) -> dict[str, Any]:
    """What the bundles say with nothing but defaults, by name."""
    answers: dict[str, Any] = {}
    for name in ("letters", "joined"):
        audio = waveform(asks=name == "joined")
        recognizer = tritone.load(repository / name / "1" / "bundle", threads=1)
        (offline,) = recognizer.transcribe([audio])
        with recognizer.stream() as stream:
            for start in range(0, len(audio), CHUNK):
                stream.accept(audio[start : start + CHUNK])
            answers[name] = {"offline": offline.to_dict(), "streaming": stream.finish().to_dict()}
    embedder = tritone.load(repository / "speaker" / "1" / "bundle", threads=1)
    answers["speaker"] = {"embedding": numbers(embedder.embed([waveform()])[0])}
    return answers


def served(repository: Path) -> dict[str, Any]:
    """What the models say behind a Triton, by name."""
    answers: dict[str, Any] = {}
    with TritonServer(repository, quiet_options()) as server:
        raw = RawClient(server.grpc_address)
        for name in ("letters", "joined", "staged"):
            text, details = raw.ask(Ask(model=name, wav=waveform(asks=name == "joined"), outputs=BOTH))
            answers[name] = {"text": text, "details": json.loads(details)}
        for stream, name in enumerate(("letters-streaming", "joined-streaming"), start=1):
            audio = waveform(asks=name == "joined-streaming")
            segments: list[Any] = []
            for start in range(0, len(audio), CHUNK):
                part = audio[start : start + CHUNK]
                more = {"start": start == 0, "end": start + CHUNK >= len(audio)}
                text, details = raw.ask(Ask(model=name, stream=stream, wav=part, outputs=BOTH, **more))
                told = json.loads(details)
                segments += told.pop("ended", [])
            answers[name] = {"text": text, "segments": [*segments, told]}
        audio = waveform()
        wav = triton.InferInput("WAV", [1, len(audio)], "FP32")
        wav.set_data_from_numpy(audio[None])
        answers["speaker"] = {"embedding": numbers(raw.grpc.infer("speaker", [wav]).as_numpy("EMBEDDINGS")[0])}
    return answers


def numbers(embedding: npt.NDArray[np.float32]) -> list[float]:
    """An embedding in as many digits as tell float32 numbers apart."""
    return [float(f"{each:.9g}") for each in embedding]


def main(folder: Path) -> None:
    """Write everything but this file and the README."""
    folder.mkdir(parents=True)
    repository = folder / "repository"
    build(repository)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(shutil.copytree(repository, Path(temporary) / "repository"))  # Triton writes into what it serves
        expected = {"in_process": in_process(copy), "served": served(copy)}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
