"""CTM, the NIST format of words with times: a line `recording channel start duration word confidence` for each.

The channel is 1, but for words whose speaker is a channel of the recording: lines are sorted by it, then by time. A
word whose confidence nobody knows has none.

Source: NIST SCTK, doc/infmts.htm, "CTM file format".
"""

import re

from tritone.formats.phrases import words_of
from tritone.formats.rttm import field
from tritone.transcript import Transcript

CHANNEL = "channel{}"  # the speaker of words of one channel, counted from 1
_channel = re.compile(CHANNEL.format("([1-9][0-9]?)"))


def write_ctm(transcript: Transcript, recording: str) -> str:
    """Write the words of a transcript, in order, times in milliseconds.

    Raises:
        InputError: the transcript has no times of words, or the recording's name has spaces, which separate fields.
    """
    name = field(recording, "recording", "CTM")
    channels = [(_channel_of(word.speaker), word) for word in words_of(transcript)]
    return "".join(
        f"{name} {channel} {word.start_s:.3f} {max(0.0, round(word.end_s, 3) - round(word.start_s, 3)):.3f} "
        f"{word.text}{'' if word.confidence is None else f' {word.confidence:.4f}'}\n"
        for channel, word in sorted(channels, key=lambda each: each[0])
    )


def _channel_of(speaker: str) -> int:
    found = _channel.fullmatch(speaker)
    return int(found[1]) if found else 1
