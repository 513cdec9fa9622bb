"""Transcripts of the channels of a recording, such as the two sides of a phone call, as one transcript.

merged_channels([transcript, transcript])  ->  words and segments by time, with speakers channel1 and channel2
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from tritone.errors import InputError
from tritone.formats.ctm import CHANNEL
from tritone.formats.phrases import phrases_of
from tritone.transcript import Segment, Span, Transcript, joined, mean_confidence


def merged_channels(transcripts: Sequence[Transcript]) -> Transcript:
    """One transcript of all channels. What is said at once stays so: words of different channels may overlap.

    Its text has the phrases of all channels by their starts.

    Args:
        transcripts: of each channel, from the first on; whole recordings.

    Raises:
        InputError: there are several readings, which cannot be merged.
    """
    if any(len(each.alternatives) > 1 for each in transcripts):
        raise InputError("channels have one reading each to be merged; leave nbest out, or take one channel")
    spoken = [_labelled(each, CHANNEL.format(number)) for number, each in enumerate(transcripts, start=1)]
    phrases = sorted((phrase for each in spoken for phrase in phrases_of(each)), key=lambda phrase: phrase.start_s)
    words = sorted((word for each in spoken for word in each.words), key=lambda word: word.start_s)
    languages = {each.language for each in spoken if each.text}
    return Transcript(
        text=reduce(joined, (phrase.text for phrase in phrases), ""),
        tokens=tuple(sorted((token for each in spoken for token in each.tokens), key=lambda token: token.start_s)),
        words=tuple(words),
        confidence=mean_confidence(words),
        audio_s=max((each.audio_s for each in spoken), default=0.0),
        segments=tuple(sorted((part for each in spoken for part in each.segments), key=lambda part: part.start_s)),
        language=languages.pop() if len(languages) == 1 else "",
    )


def _labelled(transcript: Transcript, speaker: str) -> Transcript:
    """A transcript whose words and segments are of a speaker; text of which no times are known is one segment."""

    def of_speaker(spans: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(replace(each, speaker=speaker) for each in spans)

    segments = transcript.segments
    if not segments and not transcript.words and transcript.text:
        segments = (Segment(transcript.text, 0.0, transcript.audio_s),)
    return replace(
        transcript,
        tokens=of_speaker(transcript.tokens),
        words=of_speaker(transcript.words),
        segments=tuple(replace(each, speaker=speaker) for each in segments),
        ended=(),
    )
