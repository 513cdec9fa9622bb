"""Options of `tritone gateway` for the page."""

from dataclasses import dataclass

from tritone.options.fields import option


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Options of the page."""

    page: bool = option(True, "Serve the page for people at /.")
