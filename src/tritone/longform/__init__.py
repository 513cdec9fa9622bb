"""Recordings of any length through models that take short ones: cut into pieces, recognised, joined."""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.longform.activity import BlockActivity
    from tritone.longform.cutting import ActivityStream, Cutter, Cutting, Piece
    from tritone.longform.join import Joiner
    from tritone.longform.longform import LongForm, PieceRecording
    from tritone.longform.recording import OpenActivity, Pieces, pieces

__all__ = [
    "LEAST_PIECE_S",
    "ActivityStream",
    "BlockActivity",
    "Cutter",
    "Cutting",
    "Joiner",
    "LongForm",
    "OpenActivity",
    "Piece",
    "PieceRecording",
    "Pieces",
    "pieces",
]

LEAST_PIECE_S = 2.0  # a model that takes less at once cannot be given parts of speech

__getattr__ = attributes(
    __name__,
    {
        "BlockActivity": "tritone.longform.activity",
        **dict.fromkeys(("ActivityStream", "Cutter", "Cutting", "Piece"), "tritone.longform.cutting"),
        "Joiner": "tritone.longform.join",
        **dict.fromkeys(("LongForm", "PieceRecording"), "tritone.longform.longform"),
        **dict.fromkeys(("OpenActivity", "Pieces", "pieces"), "tritone.longform.recording"),
    },
)
