"""Live streams on Whisper's engine in real time, with random weights that are made to say a script.

Each stream hears the same speech, begun at a moment of its own, 100 ms at a time; whoever has come is advanced
together, as Triton's sequence batcher does. The engine computes every window and writes as many tokens as the script
has there, which then take the place of its own, so what is final goes before the next text as it would with a real
model. Counted is the time from the arrival of a chunk to the answer that has a new text because of it.
"""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from tritone.families.whisper.features import LogMel
from tritone.pipelines.graphs.work_log import WorkLog
from tritone.pipelines.streams import Step
from tritone.pipelines.whisper.course import Align, Aligned, Model, Write
from tritone.pipelines.whisper.device import PADDED_SAMPLES, HeldFeatures
from tritone.pipelines.whisper.engine import Engine
from tritone.pipelines.whisper.hypothesis import Hypothesis, Look
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.stream import LiveStream
from tritone.pipelines.whisper.streams import WhisperStreams

RATE, CHUNK_S = 16000, 0.1
WORD_S, SENTENCE, PAUSE_S = 0.36, 14, 0.4  # 2.6 words a second, and a pause after each sentence
TOKENS_OF_WORD = (1, 1, 2)  # in turns: 3.5 tokens a second, as English has
WARM_S = 12.0  # of each stream before it is measured: its window has grown by then


@dataclass
class Script:
    """What everybody says: tokens, and where each begins and the last ends, in seconds."""

    tokens: list[int] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    speech: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def of(cls, model: Model, length_s: float) -> "Script":
        """A script as long as speech of so many seconds; words are pieces that begin with a space."""
        spell = lambda text: model.bpe.encode(text)  # noqa: E731
        script, at, count = cls(), 0.3, 0
        while at < length_s:
            begin = at
            for place in range(SENTENCE):
                letter = chr(ord("a") + count % 26)
                word = (spell(f" {letter}") + spell("z") * 2)[: TOKENS_OF_WORD[count % len(TOKENS_OF_WORD)]]
                word += spell(".") if place == SENTENCE - 1 else []
                script.tokens += word
                script.starts_s += [at + WORD_S * part / len(word) for part in range(len(word))]
                at, count = at + WORD_S, count + 1
            script.speech.append((begin, at))
            at += PAUSE_S
        script.starts_s.append(at)
        return script

    def audio(self, length_s: float) -> np.ndarray:
        """Noise that is loud where somebody speaks."""
        random = np.random.default_rng(0)
        samples = random.normal(0, 1e-4, round(length_s * RATE)).astype(np.float32)
        for begin, end in self.speech:
            part = samples[round(begin * RATE) : round(end * RATE)]
            part += random.normal(0, 0.1, len(part)).astype(np.float32)
        return samples

    def between(self, since_s: float, until_s: float) -> tuple[list[int], list[float]]:
        """The tokens that begin there, and their starts with the end of the last."""
        first, last = np.searchsorted(self.starts_s, [since_s - 0.02, until_s])
        return self.tokens[first:last], [*self.starts_s[first:last], min(self.starts_s[last], until_s)]


def said(look: Look, script: Script) -> Generator[Any, Any, Hypothesis]:
    """A look whose text is the script's, written by as many steps."""
    since_s = look.final[-1].end_s if look.final else look.begin_s
    tokens, starts_s = script.between(since_s, look.end_s)
    course = look.course()
    ask = next(course)
    while True:
        if isinstance(ask, Write):
            rules = replace(ask.job.rules, suppress=NEVER_ENDS)
            answer = yield Write(replace(ask.job, max_tokens=max(1, len(tokens)), rules=rules))
            answer = replace(answer, tokens=tuple(tokens), log_prob=0.0, no_speech_prob=0.0)
        else:
            answer = yield ask
            if isinstance(ask, Align):
                starts = np.round((np.array(starts_s) - look.begin_s) / look.model.special.time_precision)
                answer = Aligned(starts.astype(np.int64), np.ones(len(tokens), np.float32))
        try:
            ask = course.send(answer)
        except StopIteration as end:
            return end.value


NEVER_ENDS: tuple[int, ...] = ()  # set once, since the engine compares what is suppressed by identity


class OnCard(HeldFeatures):
    """Features (frames, bins) on the device."""

    def __init__(self, features: torch.Tensor) -> None:
        self._features = features

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, part: slice) -> "OnCard":
        return OnCard(self._features[part])

    def tensor(self) -> torch.Tensor:
        return self._features


class Pipeline:
    """What streams ask of `WhisperPipeline`, with an engine that has no bundle."""

    bundle: Any = None
    sample_rate = RATE

    def __init__(self, engine: Engine, model: Model, device: str, bins: int, options: DecodingOptions) -> None:
        self.engine, self.model, self.device, self.options = engine, model, device, options
        self.work = WorkLog(RATE)
        self._log_mel = LogMel(bins).to(device)

    def live(self, options: DecodingOptions | None = None) -> LiveStream:
        return LiveStream(self.model, self._features, self.options, [])

    def _features(self, samples: np.ndarray) -> OnCard:
        padded = np.zeros(-(-len(samples) // PADDED_SAMPLES) * PADDED_SAMPLES, np.float32)
        padded[: len(samples)] = samples
        with torch.inference_mode():
            waveform = torch.from_numpy(padded).to(self.device)[None]
            features, _ = self._log_mel(waveform, torch.tensor([len(samples)], device=self.device))
            if waveform.is_cuda:
                torch.cuda.current_stream().synchronize()  # the engine has streams of its own
        return OnCard(features[0, : len(samples) // 160])


class Streams(WhisperStreams):
    """Streams that say a script."""

    def __init__(self, pipeline: Pipeline, script: Script, capacity: int) -> None:
        super().__init__(pipeline, capacity=capacity)  # type: ignore[arg-type]
        self.script, self.looks, self.calls = script, 0, 0

    def _found(self, looks: Sequence[Look]) -> Sequence[Any]:
        self.looks += len(looks)
        self.calls += bool(looks)
        return self._pipeline.engine.run(said(look, self.script) for look in looks)  # type: ignore[attr-defined]


def run(pipeline: Pipeline, count: int, measured_s: float) -> dict[str, Any]:
    """Some streams in real time."""
    global NEVER_ENDS
    NEVER_ENDS = (pipeline.model.special.eot,)
    length_s = WARM_S + measured_s + 2
    script = Script.of(pipeline.model, length_s + 20)
    audio, streams = script.audio(length_s), Streams(pipeline, script, count)
    size = round(CHUNK_S * RATE)
    phases = np.random.default_rng(1).uniform(0, pipeline.options.partial_s, count)
    slots, sent, texts = [streams.open() for _ in range(count)], np.zeros(count, np.int64), [""] * count
    latencies: list[float] = []
    start = time.perf_counter()
    while (now := time.perf_counter() - start) < WARM_S + measured_s:
        due = phases + (sent + 1) * CHUNK_S
        ready = np.flatnonzero(due <= now).tolist()
        if not ready:
            time.sleep(max(0.0, float(due.min()) - now))
            continue
        steps = [Step(slots[each], audio[sent[each] * size : (sent[each] + 1) * size]) for each in ready]
        answers = streams.advance(steps)
        done = time.perf_counter() - start
        for each, answer in zip(ready, answers, strict=True):
            text = answer.whole_text
            if text != texts[each] and now >= WARM_S:
                latencies.append(done - float(due[each]))
            texts[each] = text
        sent[ready] += 1
    behind_s = float((time.perf_counter() - start - phases - sent * CHUNK_S).max())
    for slot in slots:
        streams.close(slot)
    words = [len(text.split()) for text in texts]
    p50, p95 = np.percentile(latencies, [50, 95]) if latencies else (float("nan"), float("nan"))
    return {
        "streams": count,
        "partial_s": pipeline.options.partial_s,
        "p50_ms": 1e3 * float(p50),
        "p95_ms": 1e3 * float(p95),
        "most_ms": 1e3 * max(latencies, default=float("nan")),
        "partials": len(latencies),
        "looks_a_second": streams.looks / (WARM_S + measured_s),
        "looks_a_call": streams.looks / max(1, streams.calls),
        "furthest_behind_s": behind_s,
        "words_of_each": [min(words), max(words)],
        "met": bool(p95 <= 0.5),
    }


def live(
    engine: Engine, model: Model, device: str, bins: int, loads: Sequence[tuple[int, float]], seconds: float
) -> dict[str, Any]:
    """Streams at several loads: how many, and seconds from one partial to the next."""
    found: dict[str, Any] = {}
    for count, partial_s in loads:
        options = DecodingOptions(
            language="en", temperature=(0.0,), partial_s=partial_s, compression_ratio_threshold=None
        )
        name = f"{count} streams, {partial_s:g} s"
        found[name] = run(Pipeline(engine, model, device, bins, options), count, seconds)
        print(name, found[name], flush=True)
    return found
