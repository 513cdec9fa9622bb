"""What Triton 2.51 says of a model that it has and that cannot answer now: one reading of its words.

It answers a request to a model that is being loaded with 404 or NOT_FOUND, and one to a model whose process has ended
with 500 or INTERNAL, by which nobody would ask again. Proxy and client make of both what may be sent again later.
"""

import re

LOST = re.compile(r"[Ss]tub process (?:'[^']*' )?is not healthy")
"""Of a model whose process ended; `tritone serve` loads it again."""
NOT_READY = re.compile(
    r"unknown model: '[^']*' (?:has no available versions|version \d+ is not at ready state)|"
    r"model '[^']*' is not ready:"
)
"""Of a model that is loaded, unloaded or loaded again, and what the proxy makes of it. Of one that Triton does not know
it says "is not found"."""
LATER = re.compile(r"maximum queue size|is stopping|[Tt]ry (?:it )?again|[Ss]tart it again")
"""Of what may be sent again, where an answer has no status."""
