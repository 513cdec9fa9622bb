"""The part of the manifest of segmentation networks."""

from typing import Annotated

from pydantic import Field

from tritone.bundle.part import KindPart, Parts, Positive


class SegmentationPart(KindPart):
    """Who talks in each frame of a window, by the most probable set of its speakers.

    `window_samples`: of a window, which is what a call takes. `field_samples`: what a frame sees; the first one begins
    with the window. `speakers`: who are told apart within a window, of whom up to `at_once` talk at once. The sets are
    in the order of their sizes, and those of one size in that of their speakers.
    """

    key = "segmentation"
    window_samples: Positive
    field_samples: Positive
    speakers: Annotated[int, Field(ge=1, le=64)]
    at_once: Annotated[int, Field(ge=1, le=64)]


PARTS = Parts(own=(SegmentationPart,))
