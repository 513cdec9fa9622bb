"""Work whose right answer is known: speech cut from the shipped clips, and what the models make of it in this process.

random lengths, options  ->  [Task(model, waveform, options, expected), ...]
answer of a server       ->  None, or what is wrong with it
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import tritone
from benchmarks.endurance.deployment import OFFLINE, SPEAKER, STREAMING
from tritone.loadtest.workload.speech import Tape
from tritone.transcript import Transcript

RATE = 16000
SHORTEST_S, LONGEST_S = 0.1, 29.0
TIME_TOLERANCE_S = 0.0015  # times travel as milliseconds
EMBEDDING_TOLERANCE = 2e-3  # of the length of the difference to that of the embedding: another batch rounds differently

Waveform = npt.NDArray[np.float32]
Words = tuple[tuple[str, float, float], ...]  # with start and end in seconds

HOTWORDS = {"the": 2.0, "seven": 3.5, "and": -1.5}
SEARCHES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "demo-asr": (
        {},
        {"search": "prefix-beam"},
        {"search": "prefix-beam", "beam": 4, "hotwords": HOTWORDS},
        {"search": "prefix-beam", "nbest": 3},
        {"search": "rescoring"},
    ),
    "demo-transducer": (
        {},
        {"search": "modified-beam"},
        {"search": "modified-beam", "beam": 8, "hotwords": HOTWORDS},
        {"search": "fast-beam"},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The right answer: text, and words with their times where details were asked for; or an embedding."""

    text: str = ""
    words: Words | None = None
    embedding: npt.NDArray[np.float32] | None = None

    def fault_of(self, answer: Transcript | npt.NDArray[np.float32]) -> str | None:
        """What is wrong with an answer; None if it is right."""
        if self.embedding is not None:
            if not isinstance(answer, np.ndarray) or answer.shape != self.embedding.shape:
                return f"expected an embedding of {self.embedding.shape}, got {answer!r}"
            off = float(np.linalg.norm(answer - self.embedding) / np.linalg.norm(self.embedding))
            return None if off <= EMBEDDING_TOLERANCE else f"the embedding is off by {off:.3g} of its length"
        if not isinstance(answer, Transcript):
            return f"expected a transcript, got {type(answer).__name__}"
        if answer.whole_text != self.text:
            return f"expected {self.text!r}, got {answer.whole_text!r}"
        return None if self.words is None else _fault_of_words(self.words, words_of(answer))


def _fault_of_words(expected: Words, got: Words) -> str | None:
    if [word for word, _, _ in expected] != [word for word, _, _ in got]:
        return f"expected the words {expected}, got {got}"
    for (word, start, end), (_, other_start, other_end) in zip(expected, got, strict=True):
        if max(abs(start - other_start), abs(end - other_end)) > TIME_TOLERANCE_S:
            return f"expected {word!r} at {start:.3f} to {end:.3f} s, got {other_start:.3f} to {other_end:.3f} s"
    return None


def words_of(transcript: Transcript) -> Words:
    """Words with start and end in seconds."""
    return tuple((word.text, word.start_s, word.end_s) for word in transcript.words)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One request, or one stream, and its right answer."""

    model: str
    waveform: Waveform = field(repr=False)
    search: Mapping[str, Any] = field(default_factory=dict)
    details: bool = False
    expected: Expected

    @property
    def audio_s(self) -> float:
        return len(self.waveform) / RATE


def lengths(rng: np.random.Generator, count: int, shortest_s: float, longest_s: float) -> npt.NDArray[np.int64]:
    """Lengths in samples. Their logarithm is drawn evenly: every octave has its share."""
    drawn = np.exp(rng.uniform(np.log(shortest_s), np.log(longest_s), count))
    return np.round(drawn * RATE).astype(np.int64)


def offline_tasks(
    rng: np.random.Generator, per_search: int, shortest_s: float = SHORTEST_S, longest_s: float = LONGEST_S
) -> list[Task]:
    """Requests to all models for whole utterances: `per_search` of each model and way to search."""
    tape, tasks = Tape.shipped(RATE), []
    for model in OFFLINE:
        recognizer = tritone.load(model)
        for search in SEARCHES[model]:
            waveforms = [tape.cut(int(size), rng) for size in lengths(rng, per_search, shortest_s, longest_s)]
            results = recognizer.transcribe(waveforms, search=search or None, details=True)
            for waveform, result in zip(waveforms, results, strict=True):
                details = bool(rng.random() < 0.5) or int(search.get("nbest", 1)) > 1
                transcript = result.get()
                expected = Expected(text=transcript.whole_text, words=words_of(transcript) if details else None)
                tasks.append(Task(model=model, waveform=waveform, search=search, details=details, expected=expected))
    embedder = tritone.load(SPEAKER)
    waveforms = [tape.cut(int(size), rng) for size in lengths(rng, per_search, max(shortest_s, 0.5), longest_s)]
    for waveform in waveforms:
        embedding = np.asarray(embedder.embed(waveform), dtype=np.float32).ravel()
        tasks.append(Task(model=SPEAKER, waveform=waveform, expected=Expected(embedding=embedding)))
    return tasks


def stream_tasks(
    rng: np.random.Generator, per_model: int, shortest_s: float = 0.5, longest_s: float = 8.0
) -> list[Task]:
    """Streams of all streaming models, `per_model` of each."""
    tape, tasks = Tape.shipped(RATE), []
    for bundle, model in zip(OFFLINE, STREAMING, strict=True):
        recognizer = tritone.load(bundle)
        for size in lengths(rng, per_model, shortest_s, longest_s):
            waveform = tape.cut(int(size), rng)
            with recognizer.stream() as stream:
                stream.accept(waveform)
                text = stream.finish().whole_text
            tasks.append(Task(model=model, waveform=waveform, expected=Expected(text=text)))
    return tasks
