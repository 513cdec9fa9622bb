"""Recordings through an encoder-decoder that takes audio of any length up to a limit, as Moonshine and Canary do.

    waveforms (samples,) float32 in [-1, 1], options of each  ->  transcripts with segments

A recording within the limit is decoded whole, as upstreams do. A longer one is cut at pauses, or where it is quietest,
and its parts are decoded one after the other; all recordings are under way together, in the engine of Whisper.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from tritone.audio.waveform import Samples, widened
from tritone.bundle.vocabulary import Vocabulary
from tritone.errors import BundleError
from tritone.kinds.encoder_decoder.part import EncoderDecoderPart
from tritone.longform.cutting import Cutter, Cutting
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.whisper.course import Course, Encode, Write
from tritone.pipelines.whisper.options import DecodingOptions, target_language
from tritone.pipelines.whisper.pipeline import WhisperPipeline
from tritone.search.whisper.decoding import Job, Written
from tritone.search.whisper.rules import Rules
from tritone.transcript import Segment, Span, Transcript, at_words, joined, within


class AttendedPipeline(WhisperPipeline):
    """Transcribes whole recordings; see `WhisperPipeline`, whose arguments and methods it has, but no live streams."""

    quick: ClassVar[dict[str, Any]] = {}

    def _opened(self, placement: Placement) -> tuple[EncoderDecoderPart, int]:
        special = self.bundle.manifest.find(EncoderDecoderPart)
        if special is None:
            raise BundleError(f"{self.bundle.path} is of kind {self.bundle.manifest.kind!r} and no encoder-decoder.")
        self._silent = frozenset(special.silent)
        return special, 1

    def _hold_features(self) -> None:
        pass  # windows are samples

    def _encoded(self, prompt: str) -> list[int]:
        return []  # options with one are refused

    def _made(self, waveform: Samples, options: DecodingOptions, prompt: list[int]) -> Course:
        return self._course(widened(waveform), options)

    def _course(self, waveform: Samples, options: DecodingOptions) -> Course:
        """What a recording asks; returns its transcript."""
        special, rate, vocabulary = self.special, self.sample_rate, self.bundle.vocabulary
        segments: list[Segment] = []
        words: list[Span] = []
        log_prob, count, text = 0.0, 0, ""
        for start, end in parts(len(waveform), special.max_samples, waveform, rate):
            if end - start < self.bundle.manifest.encoder.min_samples:
                continue  # not one encoder frame
            yield Encode(waveform[start:end])
            written: Written = yield Write(job(special, options, (end - start) / rate))
            tokens = [token for token in written.tokens if token not in self._silent]
            spelled = vocabulary.text(tokens)
            log_prob, count = log_prob + written.log_prob, count + len(written.tokens) + 1
            if not spelled:
                continue
            text = joined(text, spelled)
            if options.word_times:
                words += timed_words(written.tokens, special, self._silent, vocabulary, start / rate)
            segments.append(
                Segment(
                    text=spelled,
                    start_s=start / rate,
                    end_s=end / rate,
                    avg_log_prob=written.avg_log_prob,
                    tokens=written.tokens,
                )
            )
        shown = within(tuple(words), len(waveform) / rate)
        return Transcript(
            text=text,
            words=shown,
            confidence=math.exp(log_prob / count) if count else None,
            audio_s=len(waveform) / rate,
            segments=at_words(tuple(segments), shown),
            language=options.language or special.language,
        )


def parts(count: int, longest: int, waveform: Samples, sample_rate: int) -> list[tuple[int, int]]:
    """Where the parts of a recording of `count` samples begin and end, each of at most `longest`."""
    if count <= longest:
        return [(0, count)]
    cutting = Cutting(context_s=0.0).within(longest / sample_rate)
    cutter = Cutter(sample_rate, cutting)
    ends = [piece.keep_to for piece in (*cutter.push(waveform), *cutter.finish())]
    found, start = list[tuple[int, int]](), 0
    for end, following in zip(ends, [*ends[1:], math.inf], strict=True):
        if following - start > longest:  # pieces are as long as fits: the decoder reads them with what stands before
            found.append((start, end))
            start = end
    return found


def job(special: EncoderDecoderPart, options: DecodingOptions, audio_s: float) -> Job:
    """What is to be written of so much audio."""
    codes = {"language": options.language or special.language, "target_language": target_language(options, special)}
    asked = {
        "task": (special.task, len(set(codes.values())) > 1),
        "punctuation": (special.punctuation, options.punctuation),
        "word_times": (special.word_times, bool(options.word_times)),
    }

    def filled(each: int | str) -> int:
        if isinstance(each, int):
            return each
        if each in codes:
            return special.languages[codes[each]]
        switch, on = asked[each]
        assert switch is not None
        return switch[on]

    prompt = [filled(each) for each in special.prompt]
    most = special.text_context - len(prompt)
    if special.tokens_per_second is not None and not options.max_tokens:
        most = min(most, max(1, math.ceil(audio_s * special.tokens_per_second)))
    return Job(
        prompt=prompt,
        sot=len(prompt) - 1,
        rules=Rules(
            eot=special.eot,
            no_timestamps=special.no_timestamps,
            timestamp_begin=special.timestamp_begin,
            suppress=special.suppress if options.suppress is None else options.suppress,
            timestamps=False,
        ),
        max_tokens=min(options.max_tokens or most, most),
        beam=options.beam,
        length_penalty=options.length_penalty,
    )


def timed_words(
    tokens: Sequence[int], special: EncoderDecoderPart, silent: frozenset[int], vocabulary: Vocabulary, offset_s: float
) -> list[Span]:
    """The words of a text that has a time before and after each; of one without times none."""
    if special.times is None:
        return []
    first, last = special.times
    found: list[Span] = []
    begin: float | None = None
    own: list[int] = []
    for token in tokens:
        if not first <= token <= last:
            own += [token] if token not in silent else []
            continue
        time_s = offset_s + (token - first) * special.time_precision
        if begin is not None and (spelled := vocabulary.text(own)):
            found.append(Span(spelled, begin, max(begin, time_s), None))
            begin = None
        else:
            begin = time_s
        own = []
    return found
