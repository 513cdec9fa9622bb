"""How a text is spoken: the options of a request.

{"speed": "1.5", "speaker": "anna"}  ->  SynthesisOptions
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tritone.options.fields import check_bounds, described, option, parse_parameters

MAX_CHARACTERS = 16384  # of one request; a quarter of an hour of speech
LEAST_SPEED, MOST_SPEED = 0.25, 4.0


@dataclass(frozen=True, kw_only=True)
class SynthesisOptions:
    """How to speak in one request; see the help of the fields."""

    speed: float = option(1.0, "How fast to speak; 1 is as the voice was trained.", least=LEAST_SPEED, most=MOST_SPEED)
    speaker: str = option("", "Who of a voice's speakers speaks; the first if not given.", values="a name", read=str)

    def __post_init__(self) -> None:
        check_bounds(self)

    def changed(self, parameters: Mapping[str, Any]) -> "SynthesisOptions":
        """These options with some of them replaced, as a request's parameters ask for; numbers may be text.

        Raises:
            InputError: a name is unknown, or a value unfit; says which and what would do.
        """
        return replace(self, **parse_parameters(described(SynthesisOptions), parameters))


PARAMETERS = tuple(described(SynthesisOptions))  # of a request
