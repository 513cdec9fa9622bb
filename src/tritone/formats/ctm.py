"""CTM, the NIST format of words with times: a line `recording channel start duration word confidence` for each.

Source: NIST SCTK, doc/infmts.htm, "CTM file format".
"""

from tritone.formats.phrases import words_of
from tritone.formats.rttm import field
from tritone.transcript import Transcript


def write_ctm(transcript: Transcript, recording: str) -> str:
    """Write the words of a transcript, in order, times in milliseconds.

    Raises:
        InputError: the transcript has no times of words, or the recording's name has spaces, which separate fields.
    """
    name = field(recording, "recording", "CTM")
    return "".join(
        f"{name} 1 {word.start_s:.3f} {max(0.0, round(word.end_s, 3) - round(word.start_s, 3)):.3f} "
        f"{word.text} {word.confidence:.4f}\n"
        for word in words_of(transcript)
    )
