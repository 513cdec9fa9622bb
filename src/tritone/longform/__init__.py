"""Recordings of any length through models that take short ones: cut into pieces, recognised, joined."""

from tritone.longform.activity import BlockActivity
from tritone.longform.cutting import ActivityStream, Cutter, Cutting, Piece
from tritone.longform.join import Joiner
from tritone.longform.longform import LongForm, PieceRecording
from tritone.longform.pieces import OpenActivity, Pieces, pieces

__all__ = [
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
