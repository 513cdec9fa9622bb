"""When a stream's utterance is over: rules on trailing silence and length.

    frames of the segment, frames since its last token  ->  endpoint or not

The rules are those of Kaldi's online2 endpointing as WeNet's runtime simplifies them (runtime/core/decoder/
ctc_endpoint.h): silence without any text, silence after text, and length.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EndpointRules:
    """Times in seconds; infinity switches a rule off.

    `silence_s`: a segment without text ends after so long. `silence_after_speech_s`: one with text ends when nothing
    was recognised for so long. `max_segment_s`: any segment ends at this length, as soon as no token is under way, and
    in any case at twice this length.
    """

    silence_s: float = 5.0
    silence_after_speech_s: float = 1.0
    max_segment_s: float = 20.0

    def __post_init__(self) -> None:
        for name in ("silence_s", "silence_after_speech_s", "max_segment_s"):
            if not getattr(self, name) > 0:  # NaN fails too
                raise ValueError(f"{name} must be a number of seconds above 0, got {getattr(self, name)}")

    def is_endpoint(self, *, segment_s: float, trailing_s: float, has_text: bool) -> bool:
        """Has the segment ended?

        Args:
            segment_s: its length so far.
            trailing_s: how long nothing has been recognised, up to now.
            has_text: whether anything was recognised in it.
        """
        if segment_s >= self.max_segment_s and (trailing_s > 0 or segment_s >= 2 * self.max_segment_s):
            return True
        return trailing_s >= (self.silence_after_speech_s if has_text else self.silence_s)


NEVER = EndpointRules(silence_s=math.inf, silence_after_speech_s=math.inf, max_segment_s=math.inf)
