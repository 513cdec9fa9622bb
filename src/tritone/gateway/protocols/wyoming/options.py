"""Options of `tritone gateway` for Wyoming."""

from dataclasses import dataclass

from tritone.options.fields import option


@dataclass(frozen=True, kw_only=True)
class WyomingOptions:
    """Options of the protocol."""

    wyoming_languages: str = option("en", "Languages that Home Assistant is offered, with commas.", metavar="CODES")
