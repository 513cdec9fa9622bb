"""Options of `tritone gateway` for Lines."""

from dataclasses import dataclass

from tritone.options.fields import option


@dataclass(frozen=True, kw_only=True)
class LinesOptions:
    """Options of the protocol."""

    lines_times: bool = option(False, "Begin each line of a live stream with the time of its end, in seconds.")
