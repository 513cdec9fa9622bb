"""File formats of transcripts, speech segments and turns of speakers: text in and out, no files and no audio."""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.formats.cues import Cue, CueOptions, cues_of
    from tritone.formats.documents import FORMATS, Format, formats_of, turns_of, write
    from tritone.formats.rttm import Turn, read_rttm, write_rttm

__all__ = [
    "FORMATS",
    "Cue",
    "CueOptions",
    "Format",
    "Turn",
    "cues_of",
    "formats_of",
    "read_rttm",
    "turns_of",
    "write",
    "write_rttm",
]

__getattr__ = attributes(
    __name__,
    {
        **dict.fromkeys(("Cue", "CueOptions", "cues_of"), "tritone.formats.cues"),
        **dict.fromkeys(("FORMATS", "Format", "formats_of", "turns_of", "write"), "tritone.formats.documents"),
        **dict.fromkeys(("Turn", "read_rttm", "write_rttm"), "tritone.formats.rttm"),
    },
)
