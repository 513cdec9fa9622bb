"""Streaming recognition, whatever the kind of the model: many streams advance together.

steps (slot, samples, final)  ->  partial and final transcripts
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tritone.bundle.bundle import Bundle
from tritone.errors import OperatorError
from tritone.pipelines.graphs.buckets import STEP_ROWS
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import Outputs
from tritone.pipelines.graphs.samples import Index
from tritone.pipelines.kind import kind_of
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.searching.readings import ReadingBuilder, given_language, languages_of, transcript
from tritone.pipelines.searching.search import NOTHING
from tritone.pipelines.searching.segment import Segment
from tritone.pipelines.streams import Step, StreamPipeline
from tritone.runtime.graph import Bucket, largest
from tritone.search.endpoint import NEVER, EndpointRules
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript, joined

# Rescoring needs all that the encoder gave since the segment began, so there must be an end to it.
MAX_RESCORED_S = 120.0


@dataclass(slots=True)
class _Stream:
    segment: Segment
    rules: EndpointRules
    number: int = 0  # of the segment
    ended: list[Transcript] = field(default_factory=list)  # segments that ended in the step under way
    history: str = ""  # the text of all segments that have ended
    latest: Transcript | None = None  # the last one without details, as long as its text is that of the stream


class StreamingPipeline(StreamPipeline[_Stream, SearchOptions, Transcript]):
    """Recognises streams. Calls from several threads are served one after the other."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        search: SearchSettings | None = None,
        endpoints: EndpointRules | None = None,
        **sizes: Any,
    ) -> None:
        """Open the streaming graph of a bundle.

        Args:
            bundle, placement, sizes: as of `StreamPipeline`, errors too.
            search: how to search in streams that ask for nothing else; by default greedily.
            endpoints: when an utterance in a stream ends and the next segment begins; None lets a stream be one
                segment. Segments that will be rescored end after `MAX_RESCORED_S` seconds in any case.

        Raises:
            BundleError: the bundle has no decoder to search with rescoring.
            LanguageModelError: the language model cannot be read or does not fit the vocabulary.
        """
        super().__init__(bundle, placement=placement, least_samples=bundle.manifest.features.frame_length, **sizes)
        self.searching = kind_of(bundle).open_searching(bundle, self.runner.graph, search, placement)
        if placement.compile:
            self.runner.compile_asked(self.compile, self.buckets(STEP_ROWS))
        self._rules = endpoints or NEVER
        self._make_room()

    def buckets(self, rows: int) -> list[Bucket]:
        """The sizes of steps of one stream and of up to so many, as far as a call advances as many."""
        return largest(Bucket(each, self.geometry.window_samples) for each in (1, min(rows, self.max_batch)))

    def compile(self, buckets: Sequence[Bucket], done: Callable[[Any], None] | None = None) -> None:
        """Compile the steps of the pipeline's own search for some sizes; as of `GraphRunner.compile`.

        Raises:
            OperatorError: the graph cannot be compiled: its histories grow, or the runtime compiles nothing.
        """
        if self.geometry.left_frames is None:
            raise OperatorError(
                "steps that see all of the past (left_chunks -1) have ever new sizes and cannot be compiled; choose a "
                "number of left chunks"
            )
        states = (f"next_{name}" for name in self.geometry.states)
        outputs = [*self.searching.outputs([self.searching.options]), *states]
        self.runner.compile(buckets, outputs, history=self.geometry.left_frames, done=done)
        self.searching.compile_steps(max(each.rows for each in buckets), done or (lambda call: None))

    @property
    def options(self) -> SearchOptions:
        return self.searching.options

    def check(self, options: SearchOptions | None) -> SearchOptions:
        return self.searching.check(options)

    def _new_stream(self, options: SearchOptions) -> _Stream:
        rules = self._rules
        if options.mode == "rescoring":
            # A segment may get twice as long as it should, and the step that ends it is in it.
            frame_s = self.bundle.manifest.frame_s
            room = (self.searching.max_rescored_s - self.geometry.chunk_size * frame_s) / 2
            rules = replace(rules, max_segment_s=min(rules.max_segment_s, MAX_RESCORED_S, max(room, frame_s)))
        return _Stream(self._new_segment(options, 0), rules)

    def _outputs(self, streams: Sequence[_Stream]) -> Sequence[str]:
        return self.searching.outputs(stream.segment.search.options for stream in streams)

    def _numbers(self, streams: Sequence[_Stream]) -> Mapping[str, Sequence[int]]:
        encoder = self.bundle.manifest.encoder
        asked = [encoder.asked(each.language, each.use_itn) for each in (one.segment.search.options for one in streams)]
        return {name: [each[name] for each in asked] for name in encoder.asked()}

    def warm_up(self) -> None:
        self.searching.warm_up()
        super().warm_up()

    def _new_segment(self, options: SearchOptions, first_frame: int) -> Segment:
        builder = ReadingBuilder(self.bundle.vocabulary, self.bundle.manifest.frame_s)
        return Segment(self.searching.start(options), builder, first_frame)

    def _take(self, slots: Index, streams: Sequence[_Stream], outputs: Outputs) -> None:
        """Search the outputs of a step."""
        news = self.searching.advance([stream.segment.search for stream in streams], outputs)
        for stream, each, num_frames in zip(streams, news, outputs["num_frames"].tolist(), strict=True):
            stream.segment.take(each, num_frames)
            if each is not NOTHING:
                stream.latest = None

    def _moved(self, slots: Index) -> None:
        """End the segments of those streams whose rules say so, and start their next ones."""
        streams = [(slot, self._streams[slot], True) for slot in slots.tolist()]
        ended = [each for each in streams if each[1].rules is not NEVER and self._at_end(each[1])]
        for _, stream, _ in ended:
            stream.segment.is_followed = True
        for (_, stream, _), final in zip(ended, self._finals(ended), strict=True):
            stream.ended.append(replace(final, segment=stream.number))
            stream.history = joined(stream.history, final.text)
            stream.number += 1
            stream.latest = None
            last = stream.segment
            stream.segment = self._new_segment(last.search.options, last.first_frame + last.num_frames)

    def _at_end(self, stream: _Stream) -> bool:
        frame_s, segment = self.bundle.manifest.frame_s, stream.segment
        return stream.rules.is_endpoint(
            segment_s=segment.num_frames * frame_s,
            trailing_s=segment.trailing_frames * frame_s,
            has_text=segment.has_text,
        )

    def _answers(self, streams: Sequence[_Stream], steps: Sequence[Step]) -> list[Transcript]:
        """For each step the transcript of its stream's segment under way, with those that the step has ended."""
        ends = [each for each in zip(streams, steps, strict=True) if each[1].final]
        finals = iter(self._finals([(step.slot, stream, step.details) for stream, step in ends]))
        return [
            self._placed(next(finals), stream) if step.final else self._partial(step.slot, stream, step.details)
            for stream, step in zip(streams, steps, strict=True)
        ]

    def _finals(self, streams: Sequence[tuple[int, _Stream, bool]]) -> list[Transcript]:
        """The final transcripts of the segments that some streams are in: of each its slot, itself, and its details."""
        if not streams:
            return []
        start = time.perf_counter()
        found = self.searching.finish([stream.segment.search for _, stream, _ in streams])
        finals = []
        for (slot, stream, details), hypotheses in zip(streams, found, strict=True):
            segment = stream.segment
            if details:
                options = segment.search.options
                language = given_language(self.bundle.manifest.encoder, options)
                final = transcript(hypotheses, segment.reading, options, self._audio_s(slot), language)
            else:
                final = Transcript(segment.text(hypotheses[0]))
            finals.append(final)
        self.work.add_search(time.perf_counter() - start)
        return finals

    def _partial(self, slot: int, stream: _Stream, details: bool) -> Transcript:
        """The transcript of the segment under way."""
        segment = stream.segment
        if not details:
            stream.ended.clear()
            if stream.latest is None:
                stream.latest = self._placed(Transcript(segment.text(), is_final=False), stream)
            return stream.latest
        reading = segment.partial()
        if not segment.search.options.timestamps:
            reading = reading.without_times()
        partial = Transcript(
            reading.text,
            reading.tokens,
            reading.words,
            reading.confidence,
            self._audio_s(slot),
            is_final=False,
            **languages_of(reading.parts, given_language(self.bundle.manifest.encoder, segment.search.options)),
        )
        return self._placed(partial, stream)

    def _placed(self, current: Transcript, stream: _Stream) -> Transcript:
        """The transcript of a segment with those that the step has ended before it."""
        if not stream.number:
            return current
        ended, stream.ended = tuple(stream.ended), []
        return replace(current, segment=stream.number, ended=ended, history=stream.history)
