"""Transcripts as Riva's messages have them.

transcript  ->  result.alternatives: text, confidence, words with times in milliseconds and speakers as numbers
"""

import re
from typing import Any

from tritone.transcript import IDEOGRAPH, Span, Transcript

UNKNOWN = 0.0  # of a confidence: as if the field were not there
UNSPACED = re.compile(f"{IDEOGRAPH}.?$")  # texts of scripts that have no spaces, maybe with a mark at their end


class Results:
    """Fills the results of one call; speakers keep their numbers over all of them.

    Args:
        words: whether results have words, with their times.
        speakers: whether words have speakers, from 1 by their first word; 0 where it is not known who spoke.
    """

    def __init__(self, *, words: bool, speakers: bool) -> None:
        self._words = words or speakers
        self._speakers: dict[str, int] | None = {} if speakers else None

    def fill(self, result: Any, transcript: Transcript, audio_s: float, *, is_final: bool, channel: int = 1) -> None:
        """Write a transcript into a SpeechRecognitionResult or StreamingRecognitionResult.

        Args:
            audio_s: seconds of audio that were received by now.
            channel: whose transcript it is, from 1.
        """
        result.channel_tag, result.audio_processed = channel, audio_s
        best = result.alternatives.add(transcript=_ended(transcript.text) if is_final else transcript.text)
        if transcript.language:
            best.language_code.append(transcript.language)
        if self._words if is_final else self._speakers is not None:  # who speaks is said as it is known
            for word in transcript.words:
                self._add_word(best, word, transcript.language)
        if not is_final:
            return
        best.confidence = transcript.confidence or UNKNOWN
        for each in transcript.alternatives[1:]:
            result.alternatives.add(transcript=_ended(each.text), confidence=each.confidence or UNKNOWN)

    def _add_word(self, alternative: Any, word: Span, language: str) -> None:
        alternative.words.add(
            word=word.text,
            start_time=round(1000 * word.start_s),
            end_time=round(1000 * word.end_s),
            confidence=word.confidence or UNKNOWN,
            speaker_tag=self._tag(word.speaker),
            language_code=language,
        )

    def _tag(self, speaker: str) -> int:
        if self._speakers is None or not speaker:
            return 0
        return self._speakers.setdefault(speaker, len(self._speakers) + 1)


def _ended(text: str) -> str:
    """Final texts end with a space, as Riva's do: its clients put them behind each other as they come."""
    return text if not text or UNSPACED.search(text) else f"{text} "
