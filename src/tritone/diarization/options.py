"""How speakers are distinguished."""

from dataclasses import dataclass
from typing import Literal

from tritone.errors import InputError
from tritone.options.fields import check_bounds, option

Method = Literal["agglomerative", "spectral"]
MAX_SPEAKERS = 100


@dataclass(frozen=True, kw_only=True)
class SpeakerOptions:
    """How many speakers there are and how they are found; see the help of the fields."""

    num_speakers: int | None = option(None, "Number of speakers, where it is known.", least=1, most=MAX_SPEAKERS)
    min_speakers: int = option(1, "Fewest speakers.", least=1, most=MAX_SPEAKERS)
    max_speakers: int = option(20, "Most speakers.", least=1, most=MAX_SPEAKERS)
    method: Method = option(
        "agglomerative",
        "Clustering: agglomerative merges voices down to merge-cosine; spectral looks for a gap between eigenvalues.",
    )
    merge_cosine: float = option(
        0.5, "Agglomerative and streams: cosine of two mean voices from which they are one speaker.", least=0.05, most=1
    )
    window_s: float = option(1.5, "Length of the windows of speech that are embedded, in seconds.", least=0.5, most=30)
    shift_s: float = option(0.75, "From one window to the next, in seconds.", least=0.1, most=30)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.min_speakers > self.max_speakers:
            raise InputError(
                f"min_speakers ({self.min_speakers}) is more than max_speakers ({self.max_speakers}); exchange them"
            )
        if self.shift_s > self.window_s:
            raise InputError(
                f"shift_s ({self.shift_s:g}) is more than window_s ({self.window_s:g}): speech between windows would "
                "be left out. Give at most window_s"
            )

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most speakers; equal where their number is known."""
        if self.num_speakers is not None:
            return self.num_speakers, self.num_speakers
        return self.min_speakers, self.max_speakers
