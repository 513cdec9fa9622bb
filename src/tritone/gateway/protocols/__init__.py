"""The protocols: a folder for each, which speaks it and asks `Gateway.speech`; nothing else.

Its `protocol.py` is all that the rest knows of it, see `tritone.gateway.protocol`. Other packages have theirs by their
entry points.
"""

import sys
from collections.abc import Mapping
from functools import cache

from tritone.gateway.protocol import Protocol
from tritone.pages import all_pages


@cache
def all_protocols() -> Mapping[str, Protocol]:
    """The protocols by name."""
    return all_pages(Protocol, sys.modules[__name__])
